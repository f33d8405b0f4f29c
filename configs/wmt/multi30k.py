"""Trains a small translation model on Multi30k: 29,000 English-German image captions.

    python -m transformer_jax.download multi30k
    python -m transformer_jax.train_wmt --config=configs/wmt/multi30k.py --workdir=DIR \\
        --config.data.train_source=data/multi30k/train.en \\
        --config.data.train_target=data/multi30k/train.de \\
        --config.data.valid_source=data/multi30k/val.en \\
        --config.data.valid_target=data/multi30k/val.de
    python -m transformer_jax.evaluate --workdir=DIR --step=latest --set=test \\
        --config.data.test_source=data/multi30k/test_2016_flickr.en \\
        --config.data.test_target=data/multi30k/test_2016_flickr.de

On Multi30k a tiny model gives the best BLEU (Wu et al. 2021).

Result on test_2016_flickr after 21 epochs, in 32 minutes on 2 CPU cores:

    decoding    sacreBLEU   chrF
    beam 4           37.6   61.6
    greedy           36.7

The mean of the last 5 checkpoints also gives 37.6. sacreBLEU's signature:
nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0
"""

from transformer_jax.config import experiment

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
    # Unigram pieces of a small text differ between releases of SentencePiece.
    data=dict(tokenizer="bpe"),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        model=dict(
            name="encoder_decoder",
            vocab_size=4000,
            d_model=128,
            d_ff=256,
            num_heads=4,
            num_encoder_layers=4,
            num_decoder_layers=4,
            norm_position="pre",
            dropout=0.1,
            max_length=256,
            unroll=4,
        ),
        task=dict(name="translation", source_length=64, target_length=64),
        train=dict(num_steps=5600, batch=32, log_every=100, eval_every=1 / 4),
        optimizer=dict(
            name="adam",
            learning_rate=4e-3,
            schedule="cosine",
            warmup_steps=1 / 14,
            b2=0.98,
            eps=1e-9,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=1 / 20, keep=5),
    )
