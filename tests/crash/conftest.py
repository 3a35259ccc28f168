"""The crash tests share a scenario that is also a program, and some use the soak of the benchmarks."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]
