"""The command line: what may be typed, exit codes, signals and environment."""
