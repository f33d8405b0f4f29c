"""Pairs of completions, as those of reward models."""

from tests.examples.reward import write

__all__ = ["write"]
