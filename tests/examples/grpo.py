"""Prompts, in which a language model writes the rest."""

from tests.examples.ppo import write

__all__ = ["write"]
