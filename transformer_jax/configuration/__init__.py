"""What config.py is made of: fractions of a run, meanings of keys, suggestions, XLA's flags."""
