"""A table of sources and targets."""

from tests.examples.text_to_text import write

__all__ = ["write"]
