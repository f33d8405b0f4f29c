"""Pre-trains a small T5 on the documentation strings of the Python standard library.

It takes minutes on a laptop and downloads nothing.

    python -m transformer_jax.train --config=configs/t5/quickstart.py --workdir=runs/t5

Result on held-out documents, after 1,500 updates: 30.9 % of the target's tokens are right, given
the text without the spans and the tokens before them, with a perplexity of 72.3. A learning rate of
0.02 gives 30.7 % and 77.3. A quarter of the tokens are sentinels.
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(
        vocab_size=180,
        d_model=16,
        d_ff=32,
        num_heads=2,
        head_dim=8,
        num_encoder_layers=2,
        num_decoder_layers=2,
    ),
    task=dict(source_length=32, target_length=16),
    # Unigram pieces of a small text differ between releases of SentencePiece.
    data=dict(tokenizer="bpe"),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        model=dict(
            name="t5",
            vocab_size=4096,
            d_model=128,
            d_ff=512,
            num_heads=4,
            head_dim=32,
            num_encoder_layers=2,
            num_decoder_layers=2,
            dropout=0.0,
            unroll=2,
        ),
        # 141 tokens of text give 128 inputs and 29 targets.
        task=dict(
            name="denoising",
            noises=(("span_corruption", 0.15, 3),),
            source_length=128,
            target_length=29,
        ),
        data=dict(corpus="pydoc", tokenizer="unigram"),
        train=dict(num_steps=1500, batch=16, log_every=50, eval_every=1 / 3),
        # Adafactor's learning rate is relative to the size of a parameter, as T5's embeddings need.
        optimizer=dict(
            name="adafactor",
            learning_rate=0.05,
            schedule="linear",
            warmup_steps=0.08,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=1 / 3),
    )
