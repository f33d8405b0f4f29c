"""The documents of masked language models."""

from tests.examples.masked_lm import write

__all__ = ["write"]
