"""Teaches an English BART to translate Multi30k's German captions (Lewis et al. 2019, section 3.4).

Pre-training: BART denoises English captions and reviews, a document between blank lines.

    python -m transformer_jax.train --config=configs/bart/multi30k.py:pretrain \\
        --workdir=runs/bart \\
        --config.data.mixture='(("captions.txt", 1), ("reviews.txt", 1))'

Translation: a new encoder of German replaces BART's embedding of the source. It learns
first, with BART's positions and the way into BART's first layer; then all parameters learn.

    python -m transformer_jax.train --config=configs/bart/multi30k.py:translate \\
        --config.init_from=runs/bart --workdir=runs/de_en \\
        --config.data.train_source=train.de --config.data.train_target=train.en \\
        --config.data.valid_source=val.de --config.data.valid_target=val.en

The same model without pre-training learns with --config.train.pretrained=false
--config.optimizer.groups='()'. benchmarks/bart_translation.py measures both. BLEU of the test set
is 36.6 with the pre-training and 36.4 without it, a difference within the noise.
"""

from transformer_jax.config import choice, experiment

SIZES = dict(
    vocab_size=4000,
    d_model=128,
    d_ff=512,
    num_heads=4,
    num_encoder_layers=4,
    num_decoder_layers=4,
    max_length=256,
    init_std=0.05,
    dropout=0.1,
    unroll=4,
)
OPTIMIZER = dict(
    name="adam",
    learning_rate=1.5e-3,
    schedule="linear",
    warmup_steps=0.1,
    b2=0.98,
    eps=1e-9,
    clip_norm=1.0,
)
PARTS = {
    "pretrain": dict(
        model=dict(name="bart"),
        task=dict(name="denoising", source_length=128, target_length=128),
        data=dict(tokenizer="roberta_bpe", mask_documents=True),
        train=dict(num_steps=1600, batch=32, log_every=50, eval_every=1 / 4),
        optimizer=OPTIMIZER,
    ),
    "translate": dict(
        model=dict(name="bart_translation", source_vocab_size=4000, num_source_layers=2),
        task=dict(name="translation", source_length=64, target_length=64),
        data=dict(tokenizer="unigram"),
        train=dict(num_steps=1600, batch=32, log_every=50, eval_every=1 / 4),
        # The pre-trained layers learn in the second half of the run.
        optimizer=OPTIMIZER
        | dict(groups=(("pretrained", (("begin", 0.5), ("learning_rate", 7.5e-4))),)),
    ),
}
_TINY_SIZES = dict(
    vocab_size=300,
    d_model=16,
    d_ff=32,
    num_heads=2,
    num_encoder_layers=2,
    num_decoder_layers=2,
    max_length=128,
)


def TINY(argument="pretrain"):
    """The variant for tests: it trains in seconds on a CPU."""
    sections = dict(
        model=_TINY_SIZES,
        task=dict(source_length=32, target_length=32),
        train=dict(batch=8, num_steps=2),
    )
    if argument == "translate":
        sections["model"] = _TINY_SIZES | dict(
            vocab_size=96, source_vocab_size=96, num_source_layers=1
        )
        sections["task"] = sections["task"] | dict(bleu_lines=0)
        # Unigram pieces of a small text differ between releases of SentencePiece.
        sections["data"] = dict(tokenizer="bpe")
    return sections


def get_config(argument="pretrain"):
    sections = choice(argument, PARTS)
    return experiment(
        **sections | dict(model=SIZES | sections["model"]),
        checkpoint=dict(every=1 / 4, keep=1),
    )
