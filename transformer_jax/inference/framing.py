"""The special tokens of a text that an encoder reads."""

from typing import Any


def of_text(model: Any, tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the ids in front of a text and those behind it.

    A row is [CLS] text [SEP], or text [SEP] [CLS] where the model declares `cls_last`. Raises
    UserError where the tokenizer does not have them.
    """
    user = f"config.model.name={type(model).__name__.lower()!r}"
    cls, sep = tokenizer.required("cls", "sep", user=user)
    return ((), (sep, cls)) if model.cls_last else ((cls,), (sep,))
