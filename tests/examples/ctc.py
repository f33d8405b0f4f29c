"""The utterances of pre-training, which have transcripts."""

from tests.examples.masked_speech import write

__all__ = ["write"]
