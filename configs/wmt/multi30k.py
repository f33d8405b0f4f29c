"""Multi30k, English to German: 29,000 image captions.

python -m transformer_jax.train_wmt --config=configs/wmt/multi30k.py --workdir=DIR \\
    --config.data.train_source=train.en --config.data.train_target=train.de \\
    --config.data.valid_source=val.en --config.data.valid_target=val.de
"""
from transformer_jax.config import experiment


def get_config():
    return experiment(
        model=dict(name="encoder_decoder", vocab_size=8000, d_model=256, d_ff=512, num_heads=4, num_encoder_layers=3, num_decoder_layers=3,
                   norm_position="pre", dropout=0.2, max_length=256),
        task=dict(name="translation", source_length=128, target_length=128),
        train=dict(num_steps=2950, batch=32, log_every=50, eval_every=236),  # 118 updates an epoch
        optimizer=dict(name="adam", learning_rate=2e-3, schedule="cosine", warmup_steps=400, b2=0.98, eps=1e-9, clip_norm=1.0),
        checkpoint=dict(every=118, keep=5),
    )
