"""The command line: flags, exit codes, signals and the environment of a program."""
