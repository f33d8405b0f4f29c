"""Pre-trains BERT base (Devlin et al. 2018): 12 layers of width 768.

    python -m transformer_jax.train_bert --config=configs/bert/base.py --workdir=DIR \\
        --config.data.train_files='text/*.txt' --config.data.valid_files=held_out.txt \\
        --config.train.accumulation=8

The text has one sentence per line and a blank line between documents.
`--config.data.sentences=punctuation` splits running text into sentences. A vocabulary is trained,
unless `--config.data.tokenizer_files=DIR` reads a published vocab.txt.

All values are the paper's, except the epsilons, which are those of the published code. The model
has 109,482,240 parameters without the heads of pre-training. Not trained here.
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=96, d_model=16, num_layers=2, num_heads=2, max_length=64),
    task=dict(phases=((0.9, 16, 3), (0.1, 32, 3))),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        # The layers are compiled inline, which is faster on a GPU than a scan (docs/speed.md).
        model=dict(
            name="bert", vocab_size=30_522, d_model=768, num_layers=12, num_heads=12, unroll=12
        ),
        # share of the updates, tokens of a row, predicted tokens of a row
        task=dict(name="masked_lm", phases=((0.9, 128, 20), (0.1, 512, 76))),
        data=dict(tokenizer="wordpiece"),
        train=dict(num_steps=1_000_000, batch=256, log_every=100, eval_every=10_000),
        optimizer=dict(
            name="adamw",
            learning_rate=1e-4,
            schedule="linear",
            warmup_steps=10_000,
            eps=1e-6,
            weight_decay=0.01,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=10_000),
    )
