"""Pre-trains BART base (Lewis et al. 2019): 6 + 6 layers of width 768.

    python -m transformer_jax.train --config=configs/bart/base.py --workdir=DIR \\
        --config.data.train_files='text/*.txt' --config.data.valid_files=held_out.txt \\
        --config.train.accumulation=8

The text has one sentence per line and a blank line between documents.
`--config.data.sentences=punctuation` splits running text into sentences. A vocabulary is trained,
unless `--config.data.tokenizer_files=DIR` reads the published vocab.json and merges.txt.

From the paper:
- the shape (section 2.1) and a million updates (section 4);
- the noise of section 5.1: all sentences permuted, then 30 % of the tokens infilled.

The paper does not give the optimizer of its base models. Batch, rate and warm-up are BERT's, and
Adam's betas, its epsilon and the weight decay are RoBERTa's (Liu et al. 2019, table 9).

The model has 139,420,416 parameters. Not trained here.
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(
        vocab_size=300,
        d_model=16,
        d_ff=32,
        num_heads=2,
        num_encoder_layers=2,
        num_decoder_layers=2,
        max_length=64,
    ),
    task=dict(source_length=32, target_length=32),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        model=dict(
            name="bart",
            vocab_size=50_265,
            d_model=768,
            d_ff=3072,
            num_heads=12,
            num_encoder_layers=6,
            num_decoder_layers=6,
            attention_dropout=0.1,
        ),
        task=dict(
            name="denoising",
            noises=(("permutation",), ("infilling", 0.3)),
            source_length=512,
            target_length=512,
        ),
        data=dict(tokenizer="roberta_bpe"),
        train=dict(num_steps=1_000_000, batch=256, log_every=100, eval_every=10_000),
        optimizer=dict(
            name="adamw",
            learning_rate=1e-4,
            schedule="linear",
            warmup_steps=10_000,
            b2=0.98,
            eps=1e-6,
            weight_decay=0.01,
        ),
        checkpoint=dict(every=10_000),
    )
