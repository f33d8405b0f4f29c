"""The parts of config.py: sections, conversion of values, checks and suggestions; XLA's flag."""
