"""Writing text: with the key/value cache against running the whole prefix again for each token, and
against other engines.

python benchmarks/decode.py [--json=FILE] [--case=cache] [--case=beam] [--case=gpt2] [--data=DIR] [--tiny]

`beam` and `gpt2` take their turns with Hugging Face's `generate` and with CTranslate2
(benchmarks/peers.py says how to get them). Weights are random there, and all write the same number
of tokens. On a GPU both sides compute in bfloat16, and CTranslate2 has no turn. `cache` needs no
torch.
"""

import functools
import os
import pathlib
import statistics
import types
from collections.abc import Callable

# a GPU's memory is for the peers, too
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np
from harness import gpu, main, seconds, sides

from transformer_jax.config import experiment
from transformer_jax.data import tokenizers
from transformer_jax.inference.sampling import Sampling
from transformer_jax.layers.blocks import for_decoding
from transformer_jax.layers.linear import compute_dtype
from transformer_jax.tasks.causal_lm import CausalLM
from transformer_jax.tasks.translation import Translation
from transformer_jax.training.state import abstract_params


def cache(tiny: bool, data: str | None):
    """A 6-layer model of width 384 writes 512 tokens, greedily; the prefix is padded to multiples
    of 64, so that it is compiled 8 times.
    """
    count, layers = (64, 1) if tiny else (512, 6)
    config = experiment(
        model=dict(
            name="gpt", vocab_size=2048, d_model=384, num_layers=layers, num_heads=6, max_length=576
        ),
        task=dict(name="causal_lm", length=512),
    )
    task = CausalLM(config, None, length=512)
    task.tokenizer = tokenizers.train(["".join(map(chr, range(32, 127)))], "characters", 2048)
    task.tokenizer.eos_id = -1  # no end: all write the same number of tokens
    params = _weights(task)

    def cached():
        return next(task.generate(params, ["a"], max_tokens=count, how=Sampling(temperature=0)))

    @jax.jit
    def following(tokens, length):
        hidden = task.model.apply({"params": params}, tokens, method="hidden")
        return task.model.apply({"params": params}, hidden[0, length - 1], method="logits").argmax()

    def whole():
        ids = jnp.zeros((1, count + 1), jnp.int32).at[0, 0].set(task.tokenizer.encode(["a"])[0][0])
        for length in range(1, count + 1):
            padded = min(-(-length // 64) * 64, count + 1)
            ids = ids.at[0, length].set(following(ids[:, :padded], length))
        return ids[0, 1:].tolist()

    same = cached().text == task.tokenizer.decode([whole()])[0]  # and warm up
    # elsewhere bfloat16's rounding may decide a token
    assert same or jax.default_backend() != "cpu", "both must write the same"
    ours, theirs = (
        statistics.median(seconds(call) for _ in range(3 if tiny else 5 if call is cached else 2))
        for call in (cached, whole)
    )
    yield {
        "case": f"greedy, {count} tokens, {layers} layers of 384",
        "ours": count / ours,
        "unit": "tokens/s",
        "peer": count / theirs,
        "peer_name": "whole prefix each token",
        "ratio": theirs / ours,
    }


def beam(tiny: bool, data: str | None):
    """The Transformer of base size, beam 4, 32 sentences at a time, and 64. The lengths are those
    of Multi30k's test set, source and reference, in word pieces.

    Ours and, of the rows of a size, one of Hugging Face's sort the sentences by length, as
    `translate` does by itself; the other takes them as they stand in the file. CTranslate2, which
    has one length for a batch, gets the batches that waste least. Tokens are counted without what
    fills up a batch.
    """
    layers, width, vocab_size, sizes, count = (
        (1, 64, 96, (4, 8), 16) if tiny else (6, 512, 8000, (32, 64), 1000)
    )
    lengths = _lengths(data, vocab_size, count)  # (sentences, 2)
    shape = (lengths, layers, width, vocab_size)
    peers = {
        "HF generate, file order": ("torch", "generate", None),
        "HF generate, sorted": ("torch", "generate", 0),
        "CTranslate2, sorted": ("ctranslate2", "ctranslate2", 1),
    }
    if gpu():
        del peers["CTranslate2, sorted"]
    makers = {("ours", size): ("jax", functools.partial(our_beams, *shape, size)) for size in sizes}
    makers |= {
        (name, size): (library, functools.partial(their_beams, *shape, size, engine, side))
        for size in sizes
        for name, (library, engine, side) in peers.items()
    }
    spent = sides(makers, 1 if tiny else 3)
    tokens, where = int(lengths[:, 1].sum()), "Multi30k's lengths" if data else "drawn lengths"
    for name, size in [*spent][len(sizes) :]:
        ours, theirs = spent["ours", size], spent[name, size]
        yield {
            "case": f"beam 4, {size} at a time, {layers} layers of {width}, {where}",
            "ours": tokens / ours,
            "unit": "tokens/s",
            "peer": tokens / theirs,
            "peer_name": name,
            "ratio": theirs / ours,
        }


def our_beams(
    lengths: np.ndarray, layers: int, width: int, vocab_size: int, size: int
) -> Callable[[], None]:
    config = experiment(
        model=dict(
            name="encoder_decoder",
            vocab_size=vocab_size,
            d_model=width,
            d_ff=4 * width,
            num_heads=width // 64,
            num_encoder_layers=layers,
            num_decoder_layers=layers,
            max_length=512,
        ),
        task=dict(name="translation"),
        decode=dict(beam=4, batch=size),
    )
    task = Translation(config, None)
    # no end: each writes to its limit
    task.tokenizer = types.SimpleNamespace(target=types.SimpleNamespace(bos_id=0, eos_id=-1))
    params, sentences = (
        for_decoding(_weights(task), compute_dtype(task.model.dtype)),
        _sentences(lengths, vocab_size),
    )
    order = np.concatenate(_batches(lengths, 0, size))
    return lambda: list(task.stream(1)(params, [sentences[i] for i in order], lengths[order, 1]))


def their_beams(
    lengths: np.ndarray,
    layers: int,
    width: int,
    vocab_size: int,
    size: int,
    engine: str,
    side: int | None,
) -> Callable[[], None]:
    """`engine`: the method of peers.Beams; `side`: 0 or 1, by whose lengths sentences are sorted,
    None as they stand in the file.
    """
    import peers

    model = peers.marian(vocab_size, width, 4 * width, layers, width // 64, 512, 0.0)
    write, sentences = getattr(peers.Beams(model, 4), engine), _sentences(lengths, vocab_size)
    return lambda: [
        write([sentences[i] for i in chosen], lengths[chosen, 1])
        for chosen in _batches(lengths, side, size)
    ]


def _sentences(lengths: np.ndarray, vocab_size: int) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(1, vocab_size - 1, source) for source, _ in lengths]


def _lengths(data: str | None, vocab_size: int, count: int) -> np.ndarray:
    """Source and reference tokens, ends included, of the first `count` sentences of Multi30k's test
    set, which has 1,000; without it, as many drawn from a gamma distribution of mean 14.
    """
    if data is None:
        return 3 + np.random.default_rng(0).gamma(5, 2.2, (count, 2)).astype(np.int64)
    folder, sides = pathlib.Path(data), []
    for language in ("en", "de"):
        read = lambda name: (folder / f"{name}.{language}").read_text("utf-8").splitlines()
        pieces = tokenizers.train(read("train"), "bpe", max(vocab_size, 1000))
        sides.append([len(ids) + 1 for ids in pieces.encode(read("test_2016_flickr")[:count])])
    return np.array(sides).T


def _batches(lengths: np.ndarray, side: int | None, size: int) -> list[np.ndarray]:
    order = (
        np.arange(len(lengths)) if side is None else np.argsort(-lengths[:, side], kind="stable")
    )
    return [order[start : start + size] for start in range(0, len(order), size)]


def gpt2(tiny: bool, data: str | None):
    """GPT-2 124M draws 128 tokens behind a prompt of 64, for one text and for 32; Hugging Face's
    generate with its static cache (compiled by itself on a GPU).
    """
    layers, width, prompt, count = (1, 64, 8, 4) if tiny else (12, 768, 64, 128)
    for batch in (1, 4 if tiny else 32):
        sizes = (layers, width, batch, prompt, count)
        spent = sides(
            {
                "ours": ("jax", functools.partial(our_texts, *sizes)),
                "theirs": ("torch", functools.partial(their_texts, *sizes)),
            },
            1 if tiny else 3,
        )
        if "theirs" not in spent:
            continue
        yield {
            "case": f"GPT-2, {layers} layers of {width}, batch {batch}, {count} tokens",
            "ours": batch * count / spent["ours"],
            "unit": "tokens/s",
            "peer": batch * count / spent["theirs"],
            "peer_name": "HF generate, static cache",
            "ratio": spent["theirs"] / spent["ours"],
        }


def our_texts(layers: int, width: int, batch: int, prompt: int, count: int) -> Callable[[], None]:
    config = experiment(
        model=dict(
            name="gpt",
            vocab_size=50_257,
            d_model=width,
            num_layers=layers,
            num_heads=width // 64,
            max_length=1024,
        ),
        task=dict(name="causal_lm"),
        decode=dict(batch=batch),
    )
    task = CausalLM(config, None)
    task.tokenizer = tokenizers.train(["".join(map(chr, range(32, 127)))], "characters", 50_257)
    task.tokenizer.eos_id = -1  # no end: all write the same number of tokens
    params, texts = _weights(task), [chr(97 + row % 26) * prompt for row in range(batch)]
    return lambda: list(task.generate(params, texts, max_tokens=count))


def their_texts(layers: int, width: int, batch: int, prompt: int, count: int) -> Callable[[], None]:
    import peers

    return peers.Sampler(
        peers.gpt(50_257, width, layers, width // 64, 1024, 0.0),
        np.random.default_rng(0).integers(0, 50_257, (batch, prompt)),
        count,
    )


def _weights(task):
    """Random parameters, none of them zero."""
    keys = iter(jax.random.split(jax.random.key(0), 1000))
    return jax.tree.map(
        lambda x: 0.05 * jax.random.normal(next(keys), x.shape), abstract_params(task)
    )


if __name__ == "__main__":
    main(
        __doc__,
        {"cache": cache, "beam": beam, "gpt2": gpt2},
        ("jax", "flax"),
        data="folder of Multi30k for `beam`: train and test_2016_flickr, .en and .de; without it, lengths are drawn",
    )
