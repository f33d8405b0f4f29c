"""Trains the base Transformer on WMT 2014 English-German (default) or English-French.

    python -m transformer_jax.train_wmt --config=configs/wmt/base.py:en-de --workdir=DIR \\
        --config.data.tfds_dir=TFDS_DIR

`launch/prepare_tfds.sh wmt14_translate/de-en TFDS_DIR` prepares the data once.

Values: Vaswani et al. 2017, table 3 and section 5. The paper reports BLEU 27.3 (en-de) and 38.1
(en-fr), with the mean of the last 5 checkpoints, after 12 hours on 8 P100. Not trained here.
"""

from transformer_jax.config import choice, experiment

WARMUP = 4000  # updates
PAIRS = {
    "en-de": dict(vocab_size=37_000, tfds_name="wmt14_translate/de-en", target_language="de"),
    "en-fr": dict(vocab_size=32_000, tfds_name="wmt14_translate/fr-en", target_language="fr"),
}
# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(
        vocab_size=96,
        d_model=16,
        d_ff=32,
        num_heads=2,
        num_encoder_layers=2,
        num_decoder_layers=2,
        max_length=128,
    ),
    task=dict(source_length=32, target_length=32, bleu_lines=0),
    train=dict(batch=8, num_steps=2),
)


def get_config(
    pair="en-de",
    *,
    d_model=512,
    d_ff=2048,
    num_heads=8,
    dropout=0.1,
    num_steps=100_000,
    keep=5,
):
    dataset = choice(pair, PAIRS)
    return experiment(
        model=dict(
            name="encoder_decoder",
            vocab_size=dataset["vocab_size"],
            d_model=d_model,
            d_ff=d_ff,
            num_heads=num_heads,
            num_encoder_layers=6,
            num_decoder_layers=6,
            # The layers are compiled inline, which is faster on a GPU than a scan (docs/speed.md).
            unroll=6,
            dropout=dropout,
        ),
        task=dict(name="translation", source_length=256, target_length=256, label_smoothing=0.1),
        # The paper uses BPE for en-de and word pieces for en-fr. Here both use BPE.
        data=dict(
            tfds_name=dataset["tfds_name"],
            source_language="en",
            target_language=dataset["target_language"],
            tokenizer="bpe",
        ),
        # 96 rows of 256 tokens: about 25,000 source and 25,000 target tokens, as in the paper.
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
        # The paper saves a checkpoint every 10 minutes: about 1,500 updates.
        checkpoint=dict(every=1500, keep=keep),
    )
