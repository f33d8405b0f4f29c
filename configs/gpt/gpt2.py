"""Trains GPT-2 (Radford et al. 2019) in its four sizes: pre-LN, 1024 positions.

    python -m transformer_jax.train_gpt --config=configs/gpt/gpt2.py:124m --workdir=DIR \\
        --config.data.train_files='text/*.txt' --config.data.valid_files=held_out.txt \\
        --config.train.accumulation=16

    size      parameters
    124m     124,439,808
    355m     354,823,168
    774m     774,030,080
    1558m  1,557,611,200

The vocabulary is byte-level BPE of 50,257 pieces. `--config.data.tokenizer_files=DIR` reads the
published one (encoder.json and vocab.bpe). Without it, a vocabulary is trained.
The layers of the two smaller sizes are compiled inline, which makes an update a sixth faster on a
GPU; `--config.model.unroll=1` compiles one layer instead, in a third of the time.

Shapes, vocabulary, initialisation and the batch of 512 rows are the paper's. It does not give the
other values. These are assumed:
- the optimizer and the learning rates of GPT-3's models of the same size;
- 300 billion tokens;
- no dropout of attention weights, as fused attention kernels do not write the weights out;
- a vocabulary padded to 50,304, for the matrix units of accelerators. The results are the same.

Not trained here.
"""

from transformer_jax.config import choice, experiment

SIZES = {
    "124m": dict(
        model=dict(num_layers=12, d_model=768, num_heads=12, unroll=12), learning_rate=6e-4
    ),
    "355m": dict(
        model=dict(num_layers=24, d_model=1024, num_heads=16, unroll=24), learning_rate=3e-4
    ),
    "774m": dict(model=dict(num_layers=36, d_model=1280, num_heads=20), learning_rate=2.5e-4),
    "1558m": dict(model=dict(num_layers=48, d_model=1600, num_heads=25), learning_rate=2e-4),
}
# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=300, d_model=16, num_layers=2, num_heads=2, max_length=32),
    task=dict(length=16),
    train=dict(batch=8, num_steps=2),
)


def get_config(size="124m"):
    values = choice(size, SIZES)
    return experiment(
        model=dict(
            name="gpt",
            vocab_size=50_257,
            max_length=1024,
            vocab_multiple=64,
            dropout=0.1,
            attention_dropout=0.0,
            **values["model"],
        ),
        task=dict(name="causal_lm", length=1024),
        data=dict(tokenizer="byte_bpe"),
        train=dict(num_steps=572_000, batch=512, log_every=100, eval_every=2000),
        optimizer=dict(
            name="adamw",
            learning_rate=values["learning_rate"],
            schedule="cosine",
            warmup_steps=2000,
            final_fraction=0.1,
            b2=0.95,
            weight_decay=0.1,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=2000),
    )
