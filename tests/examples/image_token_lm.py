"""The digits need no file."""

from tests.examples.vqvae import write

__all__ = ["write"]
