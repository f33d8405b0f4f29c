"""Trains recurrent translation models on Multi30k: 29,000 English-German image captions.

    python -m transformer_jax.download multi30k
    python -m transformer_jax.train --config=configs/recurrent/multi30k.py:luong --workdir=DIR \\
        --config.data.train_source=data/multi30k/train.en \\
        --config.data.train_target=data/multi30k/train.de \\
        --config.data.valid_source=data/multi30k/val.en \\
        --config.data.valid_target=data/multi30k/val.de
    python -m transformer_jax.evaluate --workdir=DIR --step=latest --set=test \\
        --config.data.test_source=data/multi30k/test_2016_flickr.en \\
        --config.data.test_target=data/multi30k/test_2016_flickr.de

The arguments are models, all with states of 256: `luong` and `bahdanau` with attention, `hybrid`
with the encoder of a Transformer, and without attention `reversed` and `forward`, after the order
in which they read the source.

Result of `luong` on test_2016_flickr: sacreBLEU 38.2 with beam 4 (36.5 to 39.7). An update takes
0.34 s on two quiet cores of an EPYC, the whole 32 minutes; this run shared one core.
"""

from transformer_jax.config import choice, experiment

MODELS = {
    "luong": dict(score="general"),
    "bahdanau": dict(cell="gru", attention="before", score="additive", bridge="project"),
    "hybrid": dict(encoder_kind="transformer", num_encoder_layers=4, d_ff=512, bridge="project"),
    "reversed": dict(
        encoder_kind="forward", attention="none", input_feeding=False, reverse_source=True
    ),
    "forward": dict(encoder_kind="forward", attention="none", input_feeding=False),
}
# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=96, d_model=16, max_length=128),
    task=dict(source_length=32, target_length=32, bleu_lines=0),
    # Unigram pieces of a small text differ between releases of SentencePiece.
    data=dict(tokenizer="bpe"),
    train=dict(batch=8, num_steps=2),
)


def get_config(model="luong"):
    return experiment(
        model=dict(
            name="recurrent_seq2seq",
            vocab_size=4000,
            d_model=256,
            dropout=0.3,
            tie_output=True,
            max_length=256,
            **choice(model, MODELS),
        ),
        task=dict(name="translation", source_length=64, target_length=64),
        train=dict(num_steps=5600, batch=32, log_every=100, eval_every=1 / 4),
        optimizer=dict(
            name="adam",
            learning_rate=3e-3,
            schedule="cosine",
            warmup_steps=1 / 14,
            b2=0.98,
            eps=1e-9,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=1 / 20, keep=5),
    )
