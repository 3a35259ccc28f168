"""The crash tests share a scenario that is also a program."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
