"""Pre-trains T5 (Raffel et al. 2020) in its five sizes.

    python -m transformer_jax.dry_run --config=configs/t5/t5.py:11b --topology=v5p:4x4x4 \\
        --config.mesh.data=1 --config.mesh.fsdp=64
    python -m transformer_jax.train --config=configs/t5/t5.py:small --workdir=DIR \\
        --config.data.train_files='c4/*.jsonl' --config.data.valid_files=held_out.jsonl

`--config.data.tokenizer_files=DIR` reads the published spiece.model; else a vocabulary is trained.

From the paper:
- the shapes (section 3.7), with head_dim and the layers of the published configurations;
- span corruption of 15 % in spans of 3 tokens (section 3.1.4). 568 tokens of text give 512 inputs
  and 114 targets;
- a million updates of 2048 rows (section 3.7). The baseline of the comparisons has 2^19 updates of
  128 rows (section 3.1.2): `--config.train.num_steps=524288 --config.train.batch=128`;
- Adafactor with the rate 1 / sqrt(max(update, 10,000)) (section 3.1.2).

The published models saw supervised tasks in their pre-training, too (section 3.7), and this one
does not. Not trained here.
"""

from transformer_jax.config import choice, experiment

WARMUP = 10_000  # updates
SIZES = {
    "small": dict(d_model=512, d_ff=2048, num_heads=8, head_dim=64, layers=6),
    "base": dict(d_model=768, d_ff=3072, num_heads=12, head_dim=64, layers=12),
    "large": dict(d_model=1024, d_ff=4096, num_heads=16, head_dim=64, layers=24),
    "3b": dict(d_model=1024, d_ff=16_384, num_heads=32, head_dim=128, layers=24),
    "11b": dict(d_model=1024, d_ff=65_536, num_heads=128, head_dim=128, layers=24),
}
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


def get_config(size="small", *, sizes=SIZES, **version):
    values = dict(choice(size, sizes))
    layers = values.pop("layers")
    return experiment(
        model=dict(
            name="t5",
            vocab_size=32_128,
            num_encoder_layers=layers,
            num_decoder_layers=layers,
            remat="full",
            **values,
            **version,
        ),
        task=dict(
            name="denoising",
            noises=(("span_corruption", 0.15, 3),),
            source_length=512,
            target_length=114,
        ),
        data=dict(tokenizer="unigram"),
        train=dict(num_steps=1_000_000, batch=2048, log_every=100, eval_every=5000),
        optimizer=dict(
            name="adafactor",
            learning_rate=WARMUP**-0.5,
            schedule="truncated_inverse_sqrt",
            warmup_steps=WARMUP,
        ),
        checkpoint=dict(every=5000),
    )
