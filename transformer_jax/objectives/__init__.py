"""Base classes and losses that several tasks share, one module per kind of data."""
