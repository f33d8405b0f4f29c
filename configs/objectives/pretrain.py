"""Pre-trains one of the small models that `benchmarks/objectives.py` compares.

    python -m transformer_jax.train --config=configs/objectives/pretrain.py:text-infilling \\
        --workdir=DIR --config.data.train_files=train.txt --config.data.valid_files=valid.txt

The argument is an objective of Lewis et al. 2019, sections 4.1 and 2.2:

    language-model          GPT, 4 layers
    masked                  BERT, 4 layers, single texts
    permuted                XLNet, 4 layers, without memory
    multitask               BERT, 4 layers, pairs and single texts under four masks (UniLM)
    masked-seq2seq          BART, 2 + 2 layers, as all below; half of a text is missing (MASS)
    token-masking           30 % of the tokens are masked
    token-deletion          30 % of the tokens are deleted
    text-infilling          spans with 30 % of the words, each instead of one mask
    document-rotation       a text begins at a random token
    sentence-permutation    sentences in random order
    infilling-permutation   both

All have a width of 128, rows of 128 tokens, and the same optimizer and number of tokens. Small
batches give many updates: text infilling learns to copy within the first 500. The learning rate
suits all; training loss at the end of runs of 150 updates of 2,048 tokens, 8,000 pieces:

    learning rate   language-model   masked   text-infilling, update 50
    1e-3                      6.42     7.00                        7.57
    2e-3                      6.21     7.08                        7.39
    4e-3                      6.13     7.57
"""

from transformer_jax.config import choice, experiment

# tokens of a row, and of what the decoder writes
LENGTH = 128
# of models with learned positions
POSITIONS = dict(max_length=512, attention_dropout=0.0)


def bart(*noises, target_length=LENGTH):
    """Returns the sections of an encoder-decoder that learns to undo noises."""
    return dict(
        model=dict(name="bart", num_encoder_layers=2, num_decoder_layers=2, unroll=2, **POSITIONS),
        task=dict(
            name="denoising", source_length=LENGTH, target_length=target_length, noises=noises
        ),
    )


OBJECTIVES = {
    "language-model": dict(
        model=dict(name="gpt", num_layers=4, unroll=4, **POSITIONS),
        task=dict(name="causal_lm", length=LENGTH),
    ),
    "masked": dict(
        model=dict(name="bert", num_layers=4, unroll=4, **POSITIONS),
        task=dict(name="masked_lm", phases=((1.0, LENGTH, 20),), next_sentence=0.0),
    ),
    "permuted": dict(
        model=dict(name="xlnet", num_layers=4, unroll=4),
        task=dict(name="permuted_lm", length=LENGTH),
    ),
    "multitask": dict(
        model=dict(name="bert", num_layers=4, num_token_types=6, unroll=4, **POSITIONS),
        task=dict(name="mixed_masks", phases=((1.0, LENGTH, 20),), next_sentence=0.0),
    ),
    "masked-seq2seq": bart(("mass", 0.5), target_length=LENGTH // 2),
    "token-masking": bart(("masking", 0.3)),
    "token-deletion": bart(("deletion", 0.3)),
    "text-infilling": bart(("infilling", 0.3)),
    "document-rotation": bart(("rotation",)),
    "sentence-permutation": bart(("permutation",)),
    "infilling-permutation": bart(("permutation",), ("infilling", 0.3)),
}


def TINY(objective="text-infilling"):
    """Returns the variant for tests: it trains in seconds on a CPU."""
    lengths = {
        "causal_lm": dict(length=32),
        "masked_lm": dict(phases=((1.0, 32, 5),)),
        "permuted_lm": dict(length=32),
        "mixed_masks": dict(phases=((1.0, 32, 5),)),
        "denoising": dict(source_length=32, target_length=32),
    }
    model = dict(vocab_size=300, d_model=16, d_ff=32, num_heads=2)
    return dict(
        model=model,
        task=lengths[OBJECTIVES[objective]["task"]["name"]],
        train=dict(batch=8, num_steps=2),
    )


def get_config(objective="text-infilling"):
    values = choice(objective, OBJECTIVES)
    steps = 3000
    return experiment(
        model=dict(
            vocab_size=4000,
            d_model=128,
            d_ff=512,
            num_heads=4,
            init_std=0.05,
            dropout=0.0,
            **values["model"],
        ),
        task=values["task"],
        # The tokenizer reads the whole text.
        data=dict(tokenizer="roberta_bpe", tokenizer_bytes=100_000_000),
        train=dict(num_steps=steps, batch=8, log_every=50, eval_every=steps),
        optimizer=dict(
            name="adamw",
            learning_rate=2e-3,
            schedule="linear",
            warmup_steps=1 / 20,
            b2=0.98,
            eps=1e-6,
            weight_decay=0.01,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=steps, keep=1),
    )
