"""Pre-trains RoBERTa base (Liu et al. 2019): 12 layers of width 768.

    python -m transformer_jax.train --config=configs/roberta/base.py --workdir=DIR \\
        --config.data.train_files='text/*.txt' --config.data.valid_files=held_out.txt \\
        --config.train.accumulation=64

The text has one sentence per line and a blank line between documents. A byte-level BPE of 50,265
tokens is trained, unless `--config.data.tokenizer_files=DIR` reads a published vocab.json and
merges.txt.

All values are those of the paper's table 9. A row has the paper's full sentences: as many as fit,
across documents, with a separator between them. The published data ends each line with a
separator, too. The model has 124,697,433 parameters. Not trained here.
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=300, d_model=16, num_layers=2, num_heads=2, max_length=64),
    task=dict(phases=((1.0, 32, 4),)),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        model=dict(name="roberta", vocab_size=50_265, d_model=768, num_layers=12, num_heads=12),
        # share of the updates, tokens of a row, predicted tokens of a row
        task=dict(
            name="masked_lm", phases=((1.0, 512, 77),), next_sentence=0.0, full_sentences=True
        ),
        data=dict(tokenizer="roberta_bpe"),
        train=dict(num_steps=500_000, batch=8000, log_every=100, eval_every=10_000),
        optimizer=dict(
            name="adamw",
            learning_rate=6e-4,
            schedule="linear",
            warmup_steps=24_000,
            eps=1e-6,
            b2=0.98,
            weight_decay=0.01,
        ),
        checkpoint=dict(every=10_000),
    )
