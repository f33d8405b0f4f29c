"""RNNsearch: a decoder that searches the source for what it translates (Bahdanau et al. 2014).

    python -m transformer_jax.train --config=configs/recurrent/rnnsearch.py --workdir=DIR \\
        --config.data.tfds_dir=TFDS_DIR

`launch/prepare_tfds.sh wmt14_translate/fr-en TFDS_DIR` prepares the data once.

The values are those of appendices A and B, but for the embeddings: their 620 have the width of the
states here. The vocabularies are byte pairs, not 30,000 words. The paper reports BLEU 28.5 for
RNNsearch-50 after a long training. Not trained here.
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
            vocab_size=30_000,
            source_vocab_size=30_000,
            d_model=1000,
            cell="gru_reset_before",
            encoder_width=1000,
            bridge="project",
            attention="before",
            score="additive",
        ),
        task=dict(name="translation", source_length=128, target_length=128, label_smoothing=0.0),
        data=dict(
            tfds_name="wmt14_translate/fr-en",
            source_language="en",
            target_language="fr",
            tokenizer="bpe",
        ),
        train=dict(num_steps=500_000, batch=20, log_every=100, eval_every=10_000),
        optimizer=dict(name="adadelta", learning_rate=1.0, b2=0.95, eps=1e-6, clip_norm=1.0),
        decode=dict(beam=12, alpha=1.0),
        checkpoint=dict(every=5000, keep=5),
    )
