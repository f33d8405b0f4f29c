"""Trains Mixtral 8x7B (Jiang et al. 2024, "Mixtral of Experts").

    python -m transformer_jax.train --config=configs/decoder/mixtral.py --workdir=DIR \\
        --config.data.train_files='text/*.txt' --config.data.valid_files=held_out.txt \\
        --config.mesh.expert=8 --config.mesh.fsdp=32

It has 46,702,792,704 parameters, of which each token has 12.9 billion: two of the eight experts of
each layer. Its shape is that of table 1 of the paper and of the published checkpoint. The paper
says nothing about the training, so that rates and batch are those of Llama 2 70B here, and the
limit for the tokens of an expert is one of those that Fedus et al. 2022 compare.

Not trained here.
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(
        vocab_size=300,
        d_model=16,
        d_ff=24,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        num_experts=4,
        max_length=32,
    ),
    task=dict(length=16),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        model=dict(
            name="decoder",
            vocab_size=32_000,
            d_model=4096,
            d_ff=14_336,
            num_layers=32,
            num_heads=32,
            num_kv_heads=8,
            num_experts=8,
            experts_per_token=2,
            capacity_factor=1.25,
            rotary_theta=1e6,
            max_length=32_768,
        ),
        task=dict(name="causal_lm", length=4096),
        data=dict(tokenizer="byte_bpe"),
        train=dict(num_steps=477_000, batch=1024, log_every=100, eval_every=2000),
        optimizer=dict(
            name="adamw",
            learning_rate=1.5e-4,
            schedule="cosine",
            warmup_steps=2000,
            final_fraction=0.1,
            b2=0.95,
            eps=1e-5,
            weight_decay=0.1,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=2000),
    )
