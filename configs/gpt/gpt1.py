"""GPT (Radford et al. 2018): 12 layers of 768, post-LN, 512 positions; 116.5 M parameters with the
published vocabulary.

python -m transformer_jax.train_gpt --config=configs/gpt/gpt1.py --workdir=DIR \\
    --config.data.train_files='books/*.txt' --config.data.valid_files=held_out.txt

Not yet trained here. The paper: 100 epochs of BooksCorpus reach a perplexity of 18.4. Assumed, as
the paper does not say: a billion tokens an epoch. Its own vocabulary (config.data.tokenizer_files,
its encoder lower-cases) has 40,478 pieces; without it one of that size is trained.
"""

from transformer_jax.config import experiment


def get_config():
    return experiment(
        model=dict(
            name="gpt",
            vocab_size=40_478,
            d_model=768,
            num_layers=12,
            num_heads=12,
            max_length=512,
            norm_position="post",
            scaled_init=False,
            dropout=0.1,
            attention_dropout=0.1,
        ),
        task=dict(name="causal_lm", length=512),
        data=dict(tokenizer="byte_bpe"),
        train=dict(num_steps=3_000_000, batch=64, log_every=100, eval_every=10_000),
        optimizer=dict(
            name="adamw",
            learning_rate=2.5e-4,
            schedule="cosine",
            warmup_steps=2000,
            weight_decay=0.01,
        ),
        checkpoint=dict(every=10_000),
    )
