"""The proteins of masked residues."""

from tests.examples.masked_residues import write

__all__ = ["write"]
