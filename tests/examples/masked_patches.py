"""Images, as for a classification."""

from tests.examples.image_classification import write

__all__ = ["write"]
