"""Documents of three sentences, one sentence per line."""

from tests.examples.masked_lm import write

__all__ = ["write"]
