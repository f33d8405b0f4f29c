"""Training steps on random rows, of ours and of the peers, for several benchmarks."""

import dataclasses
from collections.abc import Callable, Iterable

import jax
import numpy as np

from transformer_jax.config import experiment
from transformer_jax.tasks.causal_lm import CausalLM
from transformer_jax.tasks.masked_lm import MaskedLM
from transformer_jax.tasks.translation import Translation
from transformer_jax.training import step as states
from transformer_jax.training.step import Program

BERT_VOCABULARY = 30_522


def stepping(task, batches: list[dict[str, np.ndarray]]) -> Callable[[], None]:
    """Returns a function that makes an update with each of the batches and waits for the end."""
    program = Program.of(task.config, task, jax.devices()[:1])
    state = states.init(task.config, program)
    batches = [on_device(program, batch) for batch in batches]

    def step():
        nonlocal state
        for batch in batches:
            state = program.train_step(state, batch)
        jax.block_until_ready(state)

    return step


def on_device(program: Program, batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    """Returns the rows (rows, ...) as the program takes them: one microbatch, on its device."""

    def placed(name: str, array: np.ndarray) -> jax.Array:
        spec = program.batch[name]
        return jax.device_put(np.asarray(array, spec.dtype)[None], spec.sharding)

    return {name: placed(name, array) for name, array in batch.items()}


def our_step(rows_of: Callable, sizes: dict[str, int], **model) -> Callable[[], None]:
    """Returns `stepping` for the task and the rows that `rows_of` makes."""
    task, batch, _ = rows_of(**sizes, **model)
    return stepping(task, [batch])


@dataclasses.dataclass(frozen=True)
class Peer:
    """A model of peers.py: `getattr(peers, function)(**sizes)`."""

    function: str
    sizes: dict[str, int]


def gpt_peer(sizes: dict[str, int]) -> dict[str, int]:
    """Returns the arguments of `peers.gpt` for those of `gpt_rows`."""
    return dict(
        vocab_size=padded(sizes["vocab_size"]),
        d_model=sizes["width"],
        num_layers=sizes["layers"],
        num_heads=sizes["width"] // 64,
        length=sizes["length"],
    )


def bert_peer(sizes: dict[str, int]) -> dict[str, int]:
    """Returns the arguments of `peers.bert` for those of `bert_rows`."""
    return dict(
        vocab_size=BERT_VOCABULARY,
        d_model=sizes["width"],
        num_layers=sizes["layers"],
        num_heads=sizes["width"] // 64,
        length=sizes["length"],
    )


def marian_peer(sizes: dict[str, int]) -> dict[str, int]:
    """Returns the arguments of `peers.marian` for those of `translation_rows`."""
    return dict(
        vocab_size=sizes["vocab_size"],
        d_model=sizes["width"],
        d_ff=sizes["d_ff"],
        num_layers=sizes["layers"],
        num_heads=sizes["heads"],
        length=sizes["length"] + 64,
    )


def peer_step(rows_of: Callable, sizes: dict[str, int], peer: Peer, way: str) -> Callable[[], None]:
    """Returns the peer's step on the same rows; `way` is a key of peers.TRAINING."""
    import peers

    model = getattr(peers, peer.function)(**peer.sizes)
    return peers.train_step(model, [rows_of(**sizes)[2]], **peers.TRAINING[way])


def padded(vocab_size: int) -> int:
    return -(-vocab_size // 64) * 64


def gpt_rows(*, rows: int, length: int, layers: int, width: int, vocab_size: int, **model):
    """Returns a GPT's task, a batch of random rows, and the same rows for the peer.

    `model` are more keys of config.model.
    """
    tokens = np.random.default_rng(0).integers(0, vocab_size, (rows, length + 1))
    shape = dict(
        name="gpt",
        vocab_size=vocab_size,
        vocab_multiple=64,
        d_model=width,
        num_layers=layers,
        num_heads=width // 64,
        max_length=length,
    )
    config = quiet(rows, shape, dict(name="causal_lm", length=length), **model)
    task = CausalLM(config, None, length)
    batch = {"tokens": tokens[:, :-1], "labels": tokens[:, 1:], "weights": np.ones((rows, length))}
    return task, batch, {"input_ids": tokens[:, :-1], "labels": tokens[:, :-1]}


def bert_rows(
    *, rows: int, length: int, masked: int, predicted: int, layers: int, width: int, **model
):
    """Returns BERT's task, a batch of random rows, and the same rows for the peer.

    Each row has `masked` masked positions. The head computes the logits of `predicted` positions:
    the masked ones (predicted=masked) or all (predicted=length).
    """
    random = np.random.default_rng(0)
    tokens = random.integers(5, BERT_VOCABULARY, (rows, length))
    positions = np.sort(np.argsort(random.random((rows, length)))[:, :masked])
    is_masked = np.zeros((rows, length), np.int32)
    np.put_along_axis(is_masked, positions, 1, axis=1)
    if predicted == masked:
        predictions = {
            "masked_positions": positions,
            "masked_labels": np.take_along_axis(tokens, positions, axis=1),
            "masked_weights": np.ones((rows, masked)),
        }
    else:
        predictions = {
            "masked_positions": np.broadcast_to(np.arange(length), tokens.shape),
            "masked_labels": tokens,
            "masked_weights": is_masked,
        }
    text = {
        "tokens": np.where(is_masked, 4, tokens),
        "token_types": np.broadcast_to(np.arange(length) >= length // 2, tokens.shape),
    }
    follows = random.integers(0, 2, rows)
    shape = dict(
        name="bert",
        vocab_size=BERT_VOCABULARY,
        num_layers=layers,
        d_model=width,
        num_heads=width // 64,
        max_length=length,
    )
    config = quiet(rows, shape, dict(name="masked_lm"), **model)
    task = MaskedLM(config, None, phases=((1.0, length, predicted),))
    batch = text | {"segment_ids": np.ones_like(tokens), "follows": follows} | predictions
    peer_batch = {
        "input_ids": text["tokens"],
        "token_type_ids": text["token_types"],
        "labels": np.where(is_masked, tokens, -100),
        "next_sentence_label": 1 - follows,
    }
    return task, batch, peer_batch


def translation_rows(
    *,
    rows: int,
    length: int,
    layers: int,
    width: int,
    d_ff: int,
    heads: int,
    vocab_size: int,
    **model,
):
    """Returns the encoder-decoder's task, a batch of full rows, and the same rows for the peer.

    `model` are more keys of config.model.
    """
    shape = dict(
        name="encoder_decoder",
        vocab_size=vocab_size,
        d_model=width,
        d_ff=d_ff,
        num_heads=heads,
        num_encoder_layers=layers,
        num_decoder_layers=layers,
        max_length=length + 64,
    )
    return _translation(quiet(rows, shape, _objective(length), **model))


def t5_rows(*, rows: int, length: int, layers: int, width: int, vocab_size: int, **model):
    """Returns the same of a T5 of version 1.1, whose scores have a learned bias."""
    shape = dict(
        name="t5",
        vocab_size=vocab_size,
        d_model=width,
        d_ff=4 * width,
        num_heads=width // 64,
        num_encoder_layers=layers,
        num_decoder_layers=layers,
        gated=True,
        tie_output=False,
    )
    return _translation(quiet(rows, shape, _objective(length), ("dropout",), **model))


def _objective(length: int) -> dict:
    lengths = dict(source_length=length, target_length=length)
    return dict(name="translation", label_smoothing=0.0, **lengths)


def _translation(config):
    rows, length, vocab_size = (
        config.train.batch,
        config.task.source_length,
        config.model.vocab_size,
    )
    source, target = np.random.default_rng(0).integers(1, vocab_size - 1, (2, rows, length + 1))
    task = Translation(config, None, length, length, 0.0)
    ones = np.ones((rows, length))
    positions = np.broadcast_to(np.arange(length), (rows, length))
    batch = {
        "source": source[:, 1:],
        "source_positions": positions,
        "source_segment_ids": ones,
        "target": target[:, :-1],
        "target_positions": positions,
        "target_segment_ids": ones,
        "labels": target[:, 1:],
    }
    peer_batch = {
        "input_ids": source[:, 1:],
        "decoder_input_ids": target[:, :-1],
        "labels": target[:, 1:],
    }
    return task, batch, peer_batch


def quiet(
    rows: int,
    model: dict,
    task: dict,
    dropouts: Iterable[str] = ("dropout", "attention_dropout"),
    **more,
):
    """Returns a config without dropout, whose layers are compiled inline (unroll)."""
    layers = model.get("num_layers") or model["num_decoder_layers"]
    return experiment(
        model=model | dict.fromkeys(dropouts, 0.0) | {"unroll": layers} | more,
        task=task,
        train=dict(batch=rows),
        optimizer=dict(name="adamw", learning_rate=1e-4, weight_decay=0.01, clip_norm=0.0),
    )


def random_params(task):
    """Returns random parameters, none of them zero."""
    keys = iter(jax.random.split(jax.random.key(0), 1000))

    def draw(array):
        return 0.05 * jax.random.normal(next(keys), array.shape)

    return jax.tree.map(draw, states.abstract_params(task))
