"""The parts of config.py: sections, values, checks, meanings, suggestions; and XLA's flag."""
