"""Real processes race on one store while things break, and a checker replays what each of them was told. See ``--help``."""
