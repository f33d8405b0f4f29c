"""Pre-trains UniLM large (Dong et al. 2019): BERT large under four masks.

    python -m transformer_jax.train --config=configs/unilm/large.py --workdir=DIR \\
        --config.init_from=BERT --config.data.tokenizer_files=bert_large_cased \\
        --config.data.train_files='text/*.txt' --config.data.valid_files=held_out.txt

BERT is a run of BERT large with the cased vocabulary, such as a converted one. The paper begins
with it, and the new token types begin with its types. The text has one sentence per line and a
blank line between documents.

The values are the paper's; it does not give epsilon and the limit of gradients, which are BERT's
here. The model has 333,583,360 parameters without the heads of pre-training. Not trained here.
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=96, d_model=16, num_layers=2, num_heads=2, max_length=64),
    task=dict(phases=((1.0, 32, 5),)),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        model=dict(
            name="bert",
            vocab_size=28_996,
            d_model=1024,
            num_layers=24,
            num_heads=16,
            num_token_types=6,
        ),
        # share of the updates, tokens of a row, predicted tokens of a row
        task=dict(name="mixed_masks", phases=((1.0, 512, 77),)),
        data=dict(tokenizer="wordpiece", cased=True),
        train=dict(num_steps=770_000, batch=330, log_every=100, eval_every=10_000),
        optimizer=dict(
            name="adamw",
            learning_rate=3e-5,
            schedule="linear",
            warmup_steps=40_000,
            eps=1e-6,
            weight_decay=0.01,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=10_000),
    )
