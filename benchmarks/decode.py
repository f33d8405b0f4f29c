"""Measures decoding: with and without the key/value cache, and against other engines.

python benchmarks/decode.py [--json=FILE] [--case=cache] [--case=beam] [--case=opus_mt] \\
    [--case=gpt2] [--data=DIR] [--tiny]

`cache` compares with a run of the whole prefix for each token and needs no torch. The peers of
the others are Hugging Face's `generate` and CTranslate2 (benchmarks/peers.py says how to install
them). There the weights are random, and all sides write the same number of tokens. On a GPU both
sides compute in bfloat16, and CTranslate2 is left out.
"""

import dataclasses
import functools
import os
import statistics
from collections.abc import Callable

# The peers use the GPU's memory, too.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np
from beams import beam, opus_mt
from harness import main, seconds, sides, tokens_beside
from steps import random_params

from transformer_jax.config import experiment
from transformer_jax.data import tokenizers
from transformer_jax.inference.generation import Sampling
from transformer_jax.tasks.causal_lm import CausalLM

CHARACTERS = "".join(map(chr, range(32, 127)))


def cache(tiny: bool, data: str | None):
    """A model of 6 layers of width 384 writes 512 tokens, greedily.

    The peer pads the prefix to multiples of 64, so it is compiled 8 times.
    """
    count, layers = (64, 1) if tiny else (512, 6)
    config = experiment(
        model=dict(
            name="gpt", vocab_size=2048, d_model=384, num_layers=layers, num_heads=6, max_length=576
        ),
        task=dict(name="causal_lm", length=512),
    )
    task = CausalLM(config, None, length=512)
    task.tokenizer = tokenizers.train([CHARACTERS], "characters", 2048)
    task.tokenizer.eos_id = -1  # without an end, both write the same number of tokens
    params = random_params(task)

    def with_cache():
        return next(task.generate(params, ["a"], max_tokens=count, how=Sampling(temperature=0)))

    @jax.jit
    def next_token(tokens, length):
        hidden = task.model.apply({"params": params}, tokens, method="hidden")
        return task.model.apply({"params": params}, hidden[0, length - 1], method="logits").argmax()

    def without_cache():
        ids = jnp.zeros((1, count + 1), jnp.int32).at[0, 0].set(task.tokenizer.encode(["a"])[0][0])
        for length in range(1, count + 1):
            padded = min(-(-length // 64) * 64, count + 1)
            ids = ids.at[0, length].set(next_token(ids[:, :padded], length))
        return ids[0, 1:].tolist()

    # This also compiles both.
    same = with_cache().text == task.tokenizer.decode([without_cache()])[0]
    # On accelerators, the rounding of bfloat16 may change a token.
    assert same or jax.default_backend() != "cpu", "the two ways wrote different texts"
    ours = statistics.median(seconds(with_cache) for _ in range(3 if tiny else 5))
    peer = statistics.median(seconds(without_cache) for _ in range(3 if tiny else 2))
    yield {
        "case": f"greedy, {count} tokens, {layers} layers of 384",
        "ours": count / ours,
        "unit": "tokens/s",
        "peer": count / peer,
        "peer_name": "whole prefix each token",
        "ratio": peer / ours,
    }


@dataclasses.dataclass(frozen=True)
class Texts:
    """A GPT-2 and the texts that it writes: `count` tokens after each of `batch` prompts."""

    layers: int
    width: int
    batch: int
    prompt_length: int
    count: int


def gpt2(tiny: bool, data: str | None):
    """GPT-2 124M draws 128 tokens after a prompt of 64, for one text and for 32.

    Hugging Face's `generate` has a static cache, and compiles by itself on a GPU.
    """
    case = Texts(layers=12, width=768, batch=32, prompt_length=64, count=128)
    if tiny:
        case = Texts(layers=1, width=64, batch=4, prompt_length=8, count=4)
    name = f"GPT-2, {case.layers} layers of {case.width}"
    for batch in (1, case.batch):
        case = dataclasses.replace(case, batch=batch)
        makers = {
            "ours": ("jax", functools.partial(our_texts, case)),
            "HF generate, static cache": ("torch", functools.partial(peer_texts, case)),
        }
        spent = sides(makers, 1 if tiny else 3)
        title = f"{name}, batch {batch}, {case.count} tokens"
        yield from tokens_beside(title, spent, batch * case.count)


def our_texts(case: Texts) -> Callable[[], None]:
    config = experiment(
        model=dict(
            name="gpt",
            vocab_size=50_257,
            d_model=case.width,
            num_layers=case.layers,
            num_heads=case.width // 64,
            max_length=1024,
        ),
        task=dict(name="causal_lm"),
        decode=dict(batch=case.batch),
    )
    task = CausalLM(config, None)
    task.tokenizer = tokenizers.train([CHARACTERS], "characters", 50_257)
    task.tokenizer.eos_id = -1  # without an end, both write the same number of tokens
    params = random_params(task)
    prompts = [chr(97 + row % 26) * case.prompt_length for row in range(case.batch)]
    return lambda: list(task.generate(params, prompts, max_tokens=case.count))


def peer_texts(case: Texts) -> Callable[[], None]:
    import engines
    import peers

    model = peers.gpt(
        vocab_size=50_257,
        d_model=case.width,
        num_layers=case.layers,
        num_heads=case.width // 64,
        length=1024,
    )
    prompts = np.random.default_rng(0).integers(0, 50_257, (case.batch, case.prompt_length))
    return engines.Sampler(model, prompts, case.count)


if __name__ == "__main__":
    main(
        __doc__,
        {"cache": cache, "beam": beam, "opus_mt": opus_mt, "gpt2": gpt2},
        ("jax", "flax"),
        given=(
            "data",
            "folder of Multi30k for `beam`, with train and test_2016_flickr, .en and .de; "
            "without it, the lengths are drawn",
        ),
        releases=True,
    )
