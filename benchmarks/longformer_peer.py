"""The peers of longformer.py: Longformer and BERT of transformers, with random weights.

benchmarks/peers.py says how to install torch and transformers.
"""

import os
from collections.abc import Callable

import numpy as np
import torch
import transformers

torch.set_num_threads(len(os.sched_getaffinity(0)))


def longformer(ids: np.ndarray, *, window: int, **options) -> Callable[[], None]:
    """Returns a call that computes the states of a row whose first token is global."""
    mask = torch.zeros(ids.shape, dtype=torch.long)
    mask[:, 0] = 1
    cls = transformers.LongformerModel
    keys = dict(attention_window=window, pad_token_id=1)
    return _call(cls, ids, keys, dict(global_attention_mask=mask), **options)


def bert(ids: np.ndarray, **options) -> Callable[[], None]:
    """Returns a call that computes the states of a row with full attention."""
    return _call(transformers.BertModel, ids, {}, {}, **options)


def _call(cls, ids, keys: dict, inputs: dict, *, train, layers, width, heads):
    config = cls.config_class(
        vocab_size=int(ids.max()) + 1,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=ids.shape[1] + 2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **keys,
    )
    model = cls(config, add_pooling_layer=False).train(train)
    tokens = torch.tensor(ids)

    def call():
        model.zero_grad(set_to_none=True)
        with torch.set_grad_enabled(train):
            states = model(tokens, **inputs).last_hidden_state
            if train:
                states.square().sum().backward()

    return call
