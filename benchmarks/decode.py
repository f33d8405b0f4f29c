"""Writing text: with the key/value cache, against running the whole prefix again for each token.

python benchmarks/decode.py [--json=FILE] [--case=cache] [--tiny]
"""
import os
import statistics

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from harness import main, seconds

from transformer_jax.config import experiment
from transformer_jax.data import tokenizers
from transformer_jax.decoding.sampling import Sampling
from transformer_jax.tasks.causal_lm import CausalLM
from transformer_jax.training.state import abstract_params


def cache(tiny: bool):
    """A 6-layer model of width 384 writes 512 tokens, greedily; the prefix is padded to multiples of 64, so that it is compiled 8 times."""
    count, layers = (64, 1) if tiny else (512, 6)
    config = experiment(model=dict(name="gpt", vocab_size=2048, d_model=384, num_layers=layers, num_heads=6, max_length=576), task=dict(name="causal_lm", length=512))
    task = CausalLM(config, None, length=512)
    task.tokenizer = tokenizers.train(["".join(map(chr, range(32, 127)))], "characters", 2048)
    task.tokenizer.eos_id = -1  # no end: all write the same number of tokens
    keys = iter(jax.random.split(jax.random.key(0), 1000))
    params = jax.tree.map(lambda x: 0.05 * jax.random.normal(next(keys), x.shape), abstract_params(task))

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


if __name__ == "__main__":
    main(__doc__, {"cache": cache}, ("jax", "flax"))
