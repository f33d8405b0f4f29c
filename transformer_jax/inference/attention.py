"""Attention weights of a trained model between the words or tokens of texts."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from transformer_jax.config import UserError
from transformer_jax.contracts.model import Inputs
from transformer_jax.layers.attention import weights_in
from transformer_jax.pictures.attention_maps import Attended, Side, between


def check_attends(model: Any) -> None:
    """Raises UserError for a model without attention."""
    if not model.attentions:
        raise UserError(f"the model {type(model).__name__} has no attention")


def check_length(num_tokens: int, max_length: int) -> None:
    """Raises UserError for a text that has more tokens than the model reads."""
    if num_tokens > max_length:
        raise UserError(
            f"the text has {num_tokens} tokens: must have at most "
            f"config.model.max_length={max_length}"
        )


def in_text(model: Any, params, tokenizer, inputs: Inputs, *, stack: str, pieces: bool) -> Attended:
    """Returns the self-attention weights of a text in the "encoder" or the "decoder".

    `inputs` are the model's inputs for the text, in one row. The weights are between words or,
    with `pieces`, between tokens. Raises UserError for a text longer than
    `config.model.max_length`.
    """
    check_attends(model)
    ids = np.asarray(inputs.tokens)[0].tolist()
    check_length(len(ids), model.window)
    side = Side.of(tokenizer, ids, pieces)
    return between(weights_in(model, params, stack, inputs), side, side)


def in_translation(
    model: Any, params, tokenizers, texts: tuple[str, str], *, kind: str, pieces: bool
) -> Attended:
    """Returns the attention weights of one kind in an encoder-decoder, for a pair of texts.

    `texts` are a source and its translation. `kind` is "cross" (the translation attends to the
    source), "decoder" (the translation attends to itself) or "encoder" (the source attends to
    itself). A query of the decoder is labeled with the word that it predicts, and a key with the
    word that the decoder has read there. Raises UserError for a text longer than
    `config.model.max_length`.
    """
    check_attends(model)
    sides = tokenizers.source, tokenizers.target
    source_ids, target_ids = (
        tokenizer.framed(tokenizer.encode(text)) for tokenizer, text in zip(sides, texts)
    )
    check_length(max(len(source_ids), len(target_ids)), model.window)
    source = Inputs(jnp.array([source_ids]))
    keys = Side.of(tokenizers.source, source_ids, pieces)
    if kind == "encoder":
        return between(weights_in(model, params, "encoder", source, method="encode"), keys, keys)
    queries = Side.of(tokenizers.target, target_ids, pieces)
    if kind == "decoder":
        # The decoder reads its outputs shifted right by the start token, so a key is labeled with
        # the word that stands there, and a query with the next one.
        keys = Side(["<s>"], [0]) + Side.of(tokenizers.target, target_ids[:-1], pieces)
    inputs = Inputs(jnp.array([[tokenizers.target.start_id, *target_ids[:-1]]]))
    weights = weights_in(model, params, "decoder", source, inputs, cross=kind == "cross")
    return between(weights, queries, keys)
