"""Short documents."""

from tests.examples.masked_lm import write

__all__ = ["write"]
