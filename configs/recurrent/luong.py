"""Local attention with predicted positions and input feeding (Luong et al. 2015, section 4).

    python -m transformer_jax.train --config=configs/recurrent/luong.py --workdir=DIR \\
        --config.data.tfds_dir=TFDS_DIR

`launch/prepare_tfds.sh wmt14_translate/de-en TFDS_DIR` prepares the data once.

This is the best single model of table 4, "local-p, general", whose BLEU is 19.0 on WMT 2014
English-German and 20.9 with unknown words replaced. The vocabularies are byte pairs, not 50,000
words. The paper halves the rate each epoch after 8 of 12; here it falls to 1/16 in the last third.
Not trained here.
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=96, d_model=16, source_vocab_size=96, max_length=128),
    task=dict(source_length=32, target_length=32, bleu_lines=0),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        model=dict(
            name="recurrent_seq2seq",
            vocab_size=37_000,
            source_vocab_size=37_000,
            d_model=1000,
            encoder_kind="forward",
            num_encoder_layers=4,
            num_decoder_layers=4,
            reverse_source=True,
            attention="after",
            score="general",
            attention_window="predicted",
            radius=10,
            dropout=0.2,
        ),
        task=dict(name="translation", source_length=128, target_length=128, label_smoothing=0.0),
        data=dict(
            tfds_name="wmt14_translate/de-en",
            source_language="en",
            target_language="de",
            tokenizer="bpe",
        ),
        # 32 rows of 128 tokens: about 128 sentences, as in the paper.
        train=dict(num_steps=420_000, batch=32, log_every=100, eval_every=10_000),
        optimizer=dict(
            name="sgd",
            momentum=0.0,
            learning_rate=1.0,
            schedule="warmup_stable_decay",
            cooldown_steps=1 / 3,
            final_fraction=1 / 16,
            clip_norm=5.0,
        ),
        decode=dict(beam=10, alpha=0.0),
        checkpoint=dict(every=5000, keep=5),
    )
