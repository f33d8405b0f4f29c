"""How the parameters of a model begin with those of an earlier run of another shape or family."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar


class Growing:
    """The rules of a family for `config.init_from`. By default, tensors keep name and shape."""

    # Other families whose runs a run may begin with, and the value of `config.init_from` for the
    # workdir of one, without the key "run": {family: {prefix: {"part": ..., "layers": ...}}}.
    begins_with: ClassVar[Mapping[str, Mapping[str, Mapping[str, str]]]] = {}

    @classmethod
    def origin(cls, name: str) -> str:
        """Returns the tensor with which one begins that an earlier run lacks, or its own name."""
        return name

    @classmethod
    def origins_of_rows(cls, name: str, stored: int, wanted: int) -> Sequence[int] | None:
        """Returns the row in an earlier run with which each row of a longer tensor begins.

        None where a tensor of `stored` rows cannot become one of `wanted` rows.
        """
        return None

    @classmethod
    def resize(
        cls, name: str, stored: tuple[int, ...], wanted: tuple[int, ...]
    ) -> Callable[[Any], Any] | None:
        """Returns the function from a stored array to one of another shape, such as positions.

        None where the tensor cannot change its shape.
        """
        return None
