"""Modules under the names they had; the package finds them by its `__path__`."""
