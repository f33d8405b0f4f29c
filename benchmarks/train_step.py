"""Training steps, compiled and warmed up, on random rows: ours against what they are measured by.

python benchmarks/train_step.py [--json=FILE] [--case=masked_head] [--case=gpt_cpu ...] [--tiny]

The peers are models of Hugging Face on torch, eager and compiled, in the same shapes
(benchmarks/peers.py says how to get them); what torch makes of its best kernels counts beside. Ours
and theirs take their turns on the same rows, update float32 weights by AdamW, and compute in
float32 on a CPU, in bfloat16 on a GPU. Dropout is off unless the case names it. `masked_head` needs
no torch.
"""

import functools
import os
from collections.abc import Callable

# a GPU's memory is for the peers, too
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import numpy as np
from harness import apart, in_turn, main, sides

from transformer_jax import hardware
from transformer_jax.config import experiment
from transformer_jax.tasks.causal_lm import CausalLM
from transformer_jax.tasks.masked_lm import MaskedLM
from transformer_jax.tasks.translation import Translation
from transformer_jax.training import state as states
from transformer_jax.training.program import Program


def stepping(task, batches: list[dict[str, np.ndarray]]) -> Callable[[], None]:
    """A training step of `task` on each of the batches; waits for the end."""
    program = Program.of(task.config, task, jax.devices()[:1])
    state = states.init(task, program.tx, program.state)
    batches = [
        {
            name: jax.device_put(np.asarray(array, np.int32)[None], program.batch[name].sharding)
            for name, array in batch.items()
        }
        for batch in batches
    ]

    def step():
        nonlocal state
        for batch in batches:
            state = program.train_step(state, batch)
        jax.block_until_ready(state)

    return step


def masked_head(tiny: bool):
    """BERT at a vocabulary of 30,522: the 20 masked positions of each row of 128 alone meet the
    vocabulary, against all of them doing so.
    """
    rows, length, most = (2, 32, 5) if tiny else (16, 128, 20)
    for name, layers, width in (("tiny", 2, 128), ("mini", 4, 256), ("small", 4, 512)):
        spent = in_turn(
            {
                count: our_step(bert_rows, (rows, length, most, count, layers, width))
                for count in (most, length)
            },
            2 if tiny else 7,
        )
        yield {
            "case": f"BERT-{name}, {rows} rows of {length}, masked positions",
            "ours": rows / spent[most],
            "unit": "examples/s",
            "peer": rows / spent[length],
            "peer_name": "all positions",
            "ratio": spent[length] / spent[most],
        }


def gpt(name: str, layers: int, width: int, vocab_size: int, rows: int, length: int, tiny: bool):
    """A GPT-2 of these sizes. Its vocabulary is padded to a multiple of 64 on both sides where it
    isn't one.
    """
    rows, length = (2, 64) if tiny else (rows, length)
    sizes, peer = (
        (rows, length, layers, width, vocab_size),
        (padded(vocab_size), width, layers, width // 64, length, 0.0),
    )
    yield from _against_torch(
        f"{name}, {rows} rows of {length}", gpt_rows, {"": sizes}, "gpt", peer, rows * length, tiny
    )


def bert(name: str, layers: int, width: int, rows: int, length: int, most: int, tiny: bool):
    """Both with all positions at the vocabulary, as Hugging Face's model computes them, and ours as
    it is, with the masked positions alone.
    """
    rows, length, most = (2, 32, 5) if tiny else (rows, length, most)
    sizes, alone = ((rows, length, most, count, layers, width) for count in (length, most))
    peer = (30_522, width, layers, width // 64, length, 0.0)
    yield from _against_torch(
        f"{name}, {rows} rows of {length}",
        bert_rows,
        {", all positions": sizes, ", ours masked alone": alone},
        "bert",
        peer,
        rows * length,
        tiny,
    )


def transformer(
    name: str,
    layers: int,
    width: int,
    d_ff: int,
    heads: int,
    vocab_size: int,
    rows: int,
    length: int,
    tiny: bool,
):
    """The encoder-decoder on full rows: nothing is padding, so that packing counts nothing."""
    rows, length = (2, 16) if tiny else (rows, length)
    sizes, peer = (
        (rows, length, layers, width, d_ff, heads, vocab_size),
        (vocab_size, width, d_ff, layers, heads, length + 64, 0.0),
    )
    yield from _against_torch(
        f"{name}, {rows} rows of {length}+{length}",
        translation_rows,
        {"": sizes},
        "marian",
        peer,
        rows * length,
        tiny,
    )


def _against_torch(
    case: str,
    rows_of: Callable,
    variants: dict[str, tuple],
    kind: str,
    peer: tuple,
    tokens: int,
    tiny: bool,
):
    """A row for each variant of ours and each way torch has to do the first; the same model,
    peers.`kind`(*peer), made anew for each.
    """
    import peers

    ways = [name for name, options in peers.TRAINING.items() if not (tiny and options["compiled"])]
    sizes, *_ = variants.values()
    makers = {
        variant: ("jax", functools.partial(our_step, rows_of, given))
        for variant, given in variants.items()
    }
    spent = sides(
        makers
        | {
            way: ("torch", functools.partial(their_step, rows_of, sizes, kind, peer, way))
            for way in ways
        },
        2 if tiny else 9,
    )
    ceiling = apart(products)
    for variant, given in variants.items():
        task, batch, _ = rows_of(*given)
        share = task.flops() * len(next(iter(batch.values()))) / spent[variant] / ceiling
        for way in [*spent][len(variants) :]:
            yield {
                "case": case + variant,
                "ours": tokens / spent[variant],
                "unit": "tokens/s",
                "peer": tokens / spent[way],
                "peer_name": way,
                "ratio": spent[way] / spent[variant],
                "share": share,
            }


def products() -> float:
    """FLOP/s of large matrix products in the dtype that models compute in here."""
    return hardware.measured(jax.default_backend())


def our_step(rows_of: Callable, sizes: tuple, **model) -> Callable[[], None]:
    task, batch, _ = rows_of(*sizes, **model)
    return stepping(task, [batch])


def their_step(
    rows_of: Callable, sizes: tuple, kind: str, peer: tuple, way: str
) -> Callable[[], None]:
    import peers

    return peers.train_step(
        getattr(peers, kind)(*peer), [rows_of(*sizes)[2]], **peers.TRAINING[way]
    )


def padded(vocab_size: int) -> int:
    return -(-vocab_size // 64) * 64


def gpt_rows(rows: int, length: int, layers: int, width: int, vocab_size: int, **model):
    """A GPT's task and random rows; and the same rows for the peer. `model`: other keys of it."""
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
    batch = {"tokens": tokens[:, :-1], "labels": tokens[:, 1:], "weights": np.ones((rows, length))}
    return (
        CausalLM(config, None, length),
        batch,
        {"input_ids": tokens[:, :-1], "labels": tokens[:, :-1]},
    )


def bert_rows(rows: int, length: int, most: int, count: int, layers: int, width: int, **model):
    """BERT's task and rows with `most` masked positions each, of which `count` (most, or length:
    all) meet the vocabulary; and the same rows for the peer.
    """
    vocab_size, random = 30_522, np.random.default_rng(0)
    tokens, places = (
        random.integers(5, vocab_size, (rows, length)),
        np.sort(np.argsort(random.random((rows, length)))[:, :most]),
    )
    masked = np.zeros((rows, length), np.int32)
    np.put_along_axis(masked, places, 1, axis=1)
    asked = {
        most: {
            "masked_positions": places,
            "masked_labels": np.take_along_axis(tokens, places, axis=1),
            "masked_weights": np.ones((rows, most)),
        },
        length: {
            "masked_positions": np.broadcast_to(np.arange(length), tokens.shape),
            "masked_labels": tokens,
            "masked_weights": masked,
        },
    }
    text = {
        "tokens": np.where(masked, 4, tokens),
        "token_types": np.broadcast_to(np.arange(length) >= length // 2, tokens.shape),
    }
    follows = random.integers(0, 2, rows)
    shape = dict(
        name="bert",
        vocab_size=vocab_size,
        num_layers=layers,
        d_model=width,
        num_heads=width // 64,
        max_length=length,
    )
    task = MaskedLM(
        quiet(rows, shape, dict(name="masked_lm"), **model), None, phases=((1.0, length, count),)
    )
    batch = text | {"segment_ids": np.ones_like(tokens), "follows": follows} | asked[count]
    return (
        task,
        batch,
        {
            "input_ids": text["tokens"],
            "token_type_ids": text["token_types"],
            "labels": np.where(masked, tokens, -100),
            "next_sentence_label": 1 - follows,
        },
    )


def translation_rows(
    rows: int, length: int, layers: int, width: int, d_ff: int, heads: int, vocab_size: int
):
    """The encoder-decoder's task and full rows; and the same rows for the peer."""
    source, target = np.random.default_rng(0).integers(1, vocab_size - 1, (2, rows, length + 1))
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
    config = quiet(
        rows,
        shape,
        dict(name="translation", source_length=length, target_length=length, label_smoothing=0.0),
    )
    ones, places = np.ones((rows, length)), np.broadcast_to(np.arange(length), (rows, length))
    batch = {
        "source": source[:, 1:],
        "source_positions": places,
        "source_segment_ids": ones,
        "target": target[:, :-1],
        "target_positions": places,
        "target_segment_ids": ones,
        "labels": target[:, 1:],
    }
    return (
        Translation(config, None, length, length, 0.0),
        batch,
        {"input_ids": source[:, 1:], "decoder_input_ids": target[:, :-1], "labels": target[:, 1:]},
    )


def quiet(rows: int, model: dict, task: dict, **more):
    """A config without dropout, its layers in line."""
    quiet = {
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "unroll": model.get("num_layers") or model["num_decoder_layers"],
    }
    return experiment(
        model=model | quiet | more,
        task=task,
        train=dict(batch=rows),
        optimizer=dict(name="adamw", learning_rate=1e-4, weight_decay=0.01, clip_norm=0.0),
    )


CPU = {
    "masked_head": masked_head,
    "gpt_cpu": lambda tiny: gpt("GPT, 4 layers of 512", 4, 512, 8192, 8, 256, tiny),
    "bert_small": lambda tiny: bert("BERT-small", 4, 512, 16, 128, 20, tiny),
    "transformer_tiny": lambda tiny: transformer(
        "Transformer-tiny", 4, 128, 256, 4, 4000, 32, 64, tiny
    ),
}
GPU = {
    "gpt2_124m": lambda tiny: gpt("GPT-2 124M", 12, 768, 50_257, 32, 1024, tiny),
    "gpt2_355m": lambda tiny: gpt("GPT-2 355M", 24, 1024, 50_257, 16, 1024, tiny),
    "bert_large_128": lambda tiny: bert("BERT-large", 24, 1024, 128, 128, 20, tiny),
    "bert_large_512": lambda tiny: bert("BERT-large", 24, 1024, 32, 512, 80, tiny),
    "transformer_base": lambda tiny: transformer(
        "Transformer base", 6, 512, 2048, 8, 37_000, 96, 256, tiny
    ),
    "transformer_big": lambda tiny: transformer(
        "Transformer big", 6, 1024, 4096, 16, 37_000, 96, 256, tiny
    ),
}

if __name__ == "__main__":
    main(__doc__, CPU | GPU, ("jax", "flax"), GPU if jax.default_backend() == "gpu" else CPU)
