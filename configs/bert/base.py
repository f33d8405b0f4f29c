"""BERT base (Devlin et al. 2018): 12 layers of 768; 109,482,240 parameters without the heads of
pre-training.

python -m transformer_jax.train_bert --config=configs/bert/base.py --workdir=DIR \\
    --config.data.train_files='text/*.txt' --config.data.valid_files=held_out.txt --config.train.accumulation=8

Text: a sentence a line, a blank line between documents (running text:
--config.data.sentences=punctuation). Not yet trained here. All values are the paper's; the epsilons
are those of the published code. With --config.data.tokenizer_files=DIR a published vocab.txt is
used, otherwise one is trained.
"""

from transformer_jax.config import experiment


def get_config():
    return experiment(
        model=dict(name="bert", vocab_size=30_522, d_model=768, num_layers=12, num_heads=12),
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
