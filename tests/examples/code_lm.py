"""The digits need no file."""

from tests.examples.image_codes import write

__all__ = ["write"]
