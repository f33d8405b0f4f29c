"""The model families. Each file holds one family, composed of `layers`, and its conversions.

The folder of a family also holds its `tasks` and `sources`, and what only these use.
"""
