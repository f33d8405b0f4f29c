"""Sequence to sequence learning with four LSTM layers each (Sutskever et al. 2014, section 3.4).

    python -m transformer_jax.train --config=configs/recurrent/sutskever.py --workdir=DIR \\
        --config.data.tfds_dir=TFDS_DIR

`launch/prepare_tfds.sh wmt14_translate/fr-en TFDS_DIR` prepares the data once.

The paper has vocabularies of 160,000 and 80,000 words, here byte pairs. After 5 of 7.5 epochs it
halves the rate every half epoch; here the rate falls to 1/32 in the last third of the run. It
reports BLEU 30.6 with one model and beam 12. Not trained here.
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
            vocab_size=32_000,
            source_vocab_size=32_000,
            d_model=1000,
            encoder_kind="forward",
            num_encoder_layers=4,
            num_decoder_layers=4,
            reverse_source=True,
            attention="none",
            input_feeding=False,
        ),
        task=dict(name="translation", source_length=128, target_length=128, label_smoothing=0.0),
        data=dict(
            tfds_name="wmt14_translate/fr-en",
            source_language="en",
            target_language="fr",
            tokenizer="bpe",
        ),
        # 32 rows of 128 tokens: about 128 sentences, as in the paper.
        train=dict(num_steps=700_000, batch=32, log_every=100, eval_every=10_000),
        optimizer=dict(
            name="sgd",
            momentum=0.0,
            learning_rate=0.7,
            schedule="warmup_stable_decay",
            cooldown_steps=1 / 3,
            final_fraction=1 / 32,
            clip_norm=5.0,
        ),
        decode=dict(beam=12, alpha=0.0),
        checkpoint=dict(every=5000, keep=5),
    )
