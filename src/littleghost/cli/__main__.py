"""``python -m littleghost.cli`` is ``littleghost``."""

from __future__ import annotations

from littleghost.cli import main

if __name__ == "__main__":
    main()
