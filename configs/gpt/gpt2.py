"""GPT-2 (Radford et al. 2019) in its four sizes: pre-LN, 1024 positions, byte-level BPE of 50,257
pieces.

python -m transformer_jax.train_gpt --config=configs/gpt/gpt2.py:124m --workdir=DIR \\
    --config.data.train_files='text/*.txt' --config.data.valid_files=held_out.txt --config.train.accumulation=16

124,439,808, 354,823,168, 774,030,080 and 1,557,611,200 parameters. Not yet trained here. From the
paper: shapes, vocabulary, initialisation and a batch of 512 rows. Assumed, as the paper gives no
more: the optimizer and learning rates of GPT-3's models of the size, 300 billion tokens, and no
dropout of attention weights, which the fused kernels of accelerators never write out; the
vocabulary is filled up to 50,304 for their matrix units, which changes no result.
--config.model.unroll=12 compiles the layers of `124m` in line, as benchmarks/train_step.py does.
With --config.data.tokenizer_files=DIR the published vocabulary is used (encoder.json and
vocab.bpe), otherwise one is trained.
"""

from transformer_jax.config import choice, experiment

SIZES = {  # layers, d_model, heads, learning rate
    "124m": (12, 768, 12, 6e-4),
    "355m": (24, 1024, 16, 3e-4),
    "774m": (36, 1280, 20, 2.5e-4),
    "1558m": (48, 1600, 25, 2e-4),
}


def get_config(size="124m"):
    num_layers, d_model, num_heads, learning_rate = choice(size, SIZES)
    return experiment(
        model=dict(
            name="gpt",
            vocab_size=50_257,
            d_model=d_model,
            num_layers=num_layers,
            num_heads=num_heads,
            max_length=1024,
            vocab_multiple=64,
            dropout=0.1,
            attention_dropout=0.0,
        ),
        task=dict(name="causal_lm", length=1024),
        data=dict(tokenizer="byte_bpe"),
        train=dict(num_steps=572_000, batch=512, log_every=100, eval_every=2000),
        optimizer=dict(
            name="adamw",
            learning_rate=learning_rate,
            schedule="cosine",
            warmup_steps=2000,
            final_fraction=0.1,
            b2=0.95,
            weight_decay=0.1,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=2000),
    )
