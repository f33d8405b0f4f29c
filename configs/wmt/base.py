"""Transformer base, WMT 2014 English-German (default) or English-French (Vaswani et al. 2017, table
3 and section 5).

python -m transformer_jax.train_wmt --config=configs/wmt/base.py:en-de --workdir=DIR --config.data.tfds_dir=TFDS_DIR

The paper reports BLEU 27.3 (en-de) and 38.1 (en-fr), averaging the last 5 checkpoints; 12 hours on
8 P100. Prepare the data once with launch/prepare_tfds.sh wmt14_translate/de-en TFDS_DIR.
"""

from transformer_jax.config import UserError, experiment

D_MODEL, WARMUP = 512, 4000
PAIRS = {
    "en-de": dict(vocab_size=37_000, tfds_name="wmt14_translate/de-en", target_language="de"),
    "en-fr": dict(vocab_size=32_000, tfds_name="wmt14_translate/fr-en", target_language="fr"),
}


def get_config(
    pair="en-de", d_model=D_MODEL, d_ff=2048, num_heads=8, dropout=0.1, num_steps=100_000, keep=5
):
    if pair not in PAIRS:
        raise UserError(f"no language pair {pair!r}; there are: {', '.join(PAIRS)}")
    own = PAIRS[pair]
    return experiment(
        model=dict(
            name="encoder_decoder",
            vocab_size=own["vocab_size"],
            d_model=d_model,
            d_ff=d_ff,
            num_heads=num_heads,
            num_encoder_layers=6,
            num_decoder_layers=6,
            dropout=dropout,
        ),
        task=dict(name="translation", source_length=256, target_length=256, label_smoothing=0.1),
        # the paper used BPE for en-de and word pieces for en-fr; both are "bpe" here
        data=dict(
            tfds_name=own["tfds_name"],
            source_language="en",
            target_language=own["target_language"],
            tokenizer="bpe",
        ),
        # 96 rows of 256: about 25k tokens a side
        train=dict(num_steps=num_steps, batch=96, log_every=100, eval_every=3000),
        optimizer=dict(
            name="adam",
            learning_rate=(d_model * WARMUP) ** -0.5,
            schedule="inverse_sqrt",
            warmup_steps=WARMUP,
            b1=0.9,
            b2=0.98,
            eps=1e-9,
        ),
        checkpoint=dict(every=1500, keep=keep),  # the paper's 10 minutes, in updates
    )
