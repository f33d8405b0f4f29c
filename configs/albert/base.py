"""Pre-trains ALBERT base (Lan et al. 2019): 12 layers of width 768 with shared parameters.

    python -m transformer_jax.train --config=configs/albert/base.py --workdir=DIR \\
        --config.data.train_files='text/*.txt' --config.data.valid_files=held_out.txt \\
        --config.train.accumulation=16

The text has one sentence per line and a blank line between documents.
`--config.data.sentences=punctuation` splits running text into sentences.

The values are the paper's: the shape, LAMB, its learning rate, 125,000 updates, the batch of 4096
rows of 512 tokens, the masked n-grams of words and the order of sentences. The warm-up and the
weight decay are those of the published code. A WordPiece vocabulary is trained on the text, unless
`--config.data.tokenizer_files=DIR` reads a published spiece.model. The model has 11,683,584
parameters without the heads of pre-training. Fewer parameters are not fewer operations: a step
costs as much as that of BERT base. Not trained here.
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=96, d_embed=8, d_model=16, num_layers=2, num_heads=2, max_length=64),
    task=dict(phases=((1.0, 32, 3),)),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        model=dict(
            name="albert",
            vocab_size=30_000,
            d_embed=128,
            d_model=768,
            num_layers=12,
            num_heads=12,
        ),
        # phases: share of the updates, tokens of a row, predicted tokens of a row
        task=dict(
            name="masked_lm",
            phases=((1.0, 512, 76),),
            second_text="sentence_order",
            whole_words=True,
            ngrams=(6, 3, 2),
        ),
        data=dict(tokenizer="wordpiece"),
        train=dict(num_steps=125_000, batch=4096, log_every=100, eval_every=2500),
        optimizer=dict(
            name="lamb",
            learning_rate=1.76e-3,
            schedule="linear",
            warmup_steps=3125,
            eps=1e-6,
            weight_decay=0.01,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=2500),
    )
