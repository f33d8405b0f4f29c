"""The model families, one in each file. A family composes `layers`."""
