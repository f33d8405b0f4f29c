"""Trains an English-German model of news text, on the test sets of earlier and later years.

    python -m transformer_jax.train_wmt --config=configs/wmt/news.py --workdir=DIR \\
        --config.data.train_source=train.en --config.data.train_target=train.de \\
        --config.data.valid_source=newstest2013.en --config.data.valid_target=newstest2013.de
    python -m transformer_jax.evaluate --workdir=DIR --step=4500

The files train.en and train.de hold 77,508 pairs. They are the concatenation of newstest 2008-2012
and 2015-2020, Tatoeba and Multi30k. All of them are free to download.

Result on newstest2013 after 4,500 of the 6,000 updates (7.1 epochs), on two busy CPU cores, with
beam 4: sacreBLEU 9.6, chrF 37.7. The run was stopped there. sacreBLEU's signature:
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
            vocab_size=8000,
            d_model=128,
            d_ff=512,
            num_heads=4,
            num_encoder_layers=4,
            num_decoder_layers=4,
            norm_position="pre",
            dropout=0.1,
            max_length=512,
            unroll=4,
        ),
        task=dict(name="translation", source_length=128, target_length=128),
        train=dict(num_steps=6000, batch=24, log_every=100, eval_every=1 / 2),
        optimizer=dict(
            name="adam",
            learning_rate=3e-3,
            schedule="cosine",
            warmup_steps=1 / 10,
            b2=0.98,
            eps=1e-9,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=1 / 12, keep=3),
    )
