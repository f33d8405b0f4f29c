"""Writing text: with the key/value cache against running the whole prefix again for each token, and against other engines.

python benchmarks/decode.py [--json=FILE] [--case=cache] [--case=beam] [--case=gpt2] [--data=DIR] [--tiny]

`beam` and `gpt2` take their turns with Hugging Face's `generate` and with CTranslate2 (benchmarks/peers.py says how to get them). Weights are random there, and all
write the same number of tokens. On a GPU `gpt2` computes in bfloat16 on both sides. `cache` needs no torch.
"""
import os
import pathlib
import statistics
import types

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # a GPU's memory is for the peers, too

import jax
import jax.numpy as jnp
import numpy as np
from harness import in_turn, main, seconds

from transformer_jax.config import experiment
from transformer_jax.data import tokenizers
from transformer_jax.decoding.sampling import Sampling
from transformer_jax.layers.blocks import for_decoding
from transformer_jax.tasks.causal_lm import CausalLM
from transformer_jax.tasks.translation import Translation
from transformer_jax.training.state import abstract_params


def cache(tiny: bool, data: str | None):
    """A 6-layer model of width 384 writes 512 tokens, greedily; the prefix is padded to multiples of 64, so that it is compiled 8 times."""
    count, layers = (64, 1) if tiny else (512, 6)
    config = experiment(model=dict(name="gpt", vocab_size=2048, d_model=384, num_layers=layers, num_heads=6, max_length=576), task=dict(name="causal_lm", length=512))
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

    assert cached().text == task.tokenizer.decode([whole()])[0], "both must write the same"  # and warm up
    ours, theirs = (statistics.median(seconds(call) for _ in range(3 if tiny else 5 if call is cached else 2)) for call in (cached, whole))
    yield {"case": f"greedy, {count} tokens, {layers} layers of 384", "ours": count / ours, "unit": "tokens/s", "peer": count / theirs,
           "peer_name": "whole prefix each token", "ratio": theirs / ours}


def beam(tiny: bool, data: str | None):
    """The Transformer of base size, beam 4, batches of 32, float32. The lengths are those of Multi30k's test set, source and reference, in word pieces.

    Ours and, of two rows, one of Hugging Face's batch sentences of like length, as `translate` does by itself; the other takes them as they stand in the file. CTranslate2,
    which has one length for a batch, gets the batches that waste least. Tokens are counted without what fills up a batch.
    """
    import peers

    layers, width, vocab_size, size, batches = (1, 64, 96, 4, 2) if tiny else (6, 512, 8000, 32, 10)
    shape = dict(vocab_size=vocab_size, d_model=width, d_ff=4 * width, num_layers=layers, num_heads=width // 64)
    lengths = _lengths(data, vocab_size, size * batches)  # (sentences, 2)
    random = np.random.default_rng(0)
    sentences = [random.integers(1, vocab_size - 1, source) for source, _ in lengths]
    sorted_by = lambda side: _batches(np.argsort(-lengths[:, side], kind="stable"), size)
    in_order = _batches(np.arange(len(lengths)), size)

    config = experiment(model=dict(name="encoder_decoder", vocab_size=vocab_size, d_model=width, d_ff=4 * width, num_heads=width // 64, num_encoder_layers=layers,
                                   num_decoder_layers=layers, max_length=512, dtype="float32"), task=dict(name="translation"), decode=dict(beam=4, batch=size))
    task = Translation(config, None)
    task.tokenizer = types.SimpleNamespace(target=types.SimpleNamespace(bos_id=0, eos_id=-1))  # no end: each writes to its limit
    params = for_decoding(_weights(task), jnp.float32)

    def ours():
        for chosen in sorted_by(0):
            source = np.zeros((size, -(-lengths[chosen, 0].max() // 16) * 16), np.int32)
            for row, i in enumerate(chosen):
                source[row, : len(sentences[i])] = sentences[i]
            jax.block_until_ready(task._decode(params, source, lengths[chosen, 1], 1))

    theirs = peers.Beams(peers.marian(**shape, length=512, dropout=0.0), 4)
    whole = lambda write, batches: lambda: [write([sentences[i] for i in chosen], lengths[chosen, 1]) for chosen in batches]
    calls = {"ours": ours, "HF generate, file order": whole(theirs.generate, in_order), "HF generate, sorted": whole(theirs.generate, sorted_by(0)),
             "CTranslate2, sorted": whole(theirs.ctranslate2, sorted_by(1))}
    spent, tokens = in_turn(calls, 1 if tiny else 3), int(lengths[:, 1].sum())
    where = "Multi30k's lengths" if data else "drawn lengths"
    for name in [*calls][1:]:
        yield {"case": f"beam 4, batch {size}, {layers} layers of {width}, {where}", "ours": tokens / spent["ours"], "unit": "tokens/s", "peer": tokens / spent[name],
               "peer_name": name, "ratio": spent[name] / spent["ours"]}


def _lengths(data: str | None, vocab_size: int, count: int) -> np.ndarray:
    """Source and reference tokens, ends included, of the first `count` sentences of Multi30k's test set; without it, as many drawn from a gamma distribution of mean 14."""
    if data is None:
        return 3 + np.random.default_rng(0).gamma(5, 2.2, (count, 2)).astype(np.int64)
    folder, sides = pathlib.Path(data), []
    for language in ("en", "de"):
        read = lambda name: (folder / f"{name}.{language}").read_text("utf-8").splitlines()
        pieces = tokenizers.train(read("train"), "bpe", max(vocab_size, 1000))
        sides.append([len(ids) + 1 for ids in pieces.encode(read("test_2016_flickr")[:count])])
    return np.array(sides).T


def _batches(order: np.ndarray, size: int) -> list[np.ndarray]:
    return [order[start:start + size] for start in range(0, len(order), size)]


def gpt2(tiny: bool, data: str | None):
    """GPT-2 124M draws 128 tokens behind a prompt of 64, for one text and for 32; Hugging Face's generate with its static cache (compiled by itself on a GPU)."""
    import peers

    layers, width, prompt, count = (1, 64, 8, 4) if tiny else (12, 768, 64, 128)
    for batch in (1, 4 if tiny else 32):
        config = experiment(model=dict(name="gpt", vocab_size=50_257, d_model=width, num_layers=layers, num_heads=width // 64, max_length=1024), task=dict(name="causal_lm"),
                            decode=dict(batch=batch))
        task = CausalLM(config, None)
        task.tokenizer = tokenizers.train(["".join(map(chr, range(32, 127)))], "characters", 50_257)
        task.tokenizer.eos_id = -1  # no end: all write the same number of tokens
        params = _weights(task)
        texts = [chr(97 + row % 26) * prompt for row in range(batch)]
        theirs = peers.Sampler(peers.gpt(50_257, width, layers, width // 64, 1024, 0.0), np.random.default_rng(0).integers(0, 50_257, (batch, prompt)), count)
        spent = in_turn({"ours": lambda: list(task.generate(params, texts, max_tokens=count)), "theirs": theirs}, 1 if tiny else 3)
        yield {"case": f"GPT-2, {layers} layers of {width}, batch {batch}, {count} tokens", "ours": batch * count / spent["ours"], "unit": "tokens/s",
               "peer": batch * count / spent["theirs"], "peer_name": "HF generate, static cache", "ratio": spent["theirs"] / spent["ours"]}


def _weights(task):
    """Random parameters, none of them zero."""
    keys = iter(jax.random.split(jax.random.key(0), 1000))
    return jax.tree.map(lambda x: 0.05 * jax.random.normal(next(keys), x.shape), abstract_params(task))


if __name__ == "__main__":
    main(__doc__, {"cache": cache, "beam": beam, "gpt2": gpt2}, ("jax", "flax"),
         data="folder of Multi30k for `beam`: train and test_2016_flickr, .en and .de; without it, lengths are drawn")
