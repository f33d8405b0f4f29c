"""The special tokens around a text: for encoders, and at the beginning for a language model."""

from typing import Any


def of_text(model: Any, tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the units in front of a text and those behind it.

    A row of an Encoder is [CLS] text [SEP], or text [SEP] [CLS] where it declares `cls_last`. That
    of a SequenceToSequence model is framed as a source. Raises UserError where the tokenizer does
    not have these tokens.
    """
    if model.kind == "sequence_to_sequence":
        *begin, end = tokenizer.framed([])
        return tuple(begin), (end,)
    user = f"config.model.name={type(model).__name__.lower()!r}"
    cls, sep = tokenizer.required("cls", "sep", user=user)
    return ((), (sep, cls)) if model.cls_last else ((cls,), (sep,))


def with_start(ids: list[int], tokenizer, data) -> list[int]:
    """Returns the ids of a text's beginning, as a language model reads them in training.

    `data` is `config.data`. The end token comes first where rows keep documents apart, and where
    there are no ids.
    """
    return [tokenizer.eos_id, *ids] if data.mask_documents or not ids else ids
