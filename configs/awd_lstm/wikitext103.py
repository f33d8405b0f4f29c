"""Trains AWD-LSTM on WikiText-103, the first stage of ULMFiT (Howard & Ruder 2018, section 3.1).

    python -m transformer_jax.train --config=configs/awd_lstm/wikitext103.py \\
        --workdir=runs/general --config.data.train_files=wiki.train.txt \\
        --config.data.valid_files=wiki.valid.txt

The size `cpu` is for two CPU cores and a smaller text, such as WikiText-2. The next stages are
configs/awd_lstm/imdb.py and configs/finetune/ulmfit.py.

Shape, dropout, rows of 70 tokens, batch and optimizer are those of section 4.1, and the clipping
that of Merity et al. 2017. These differ:
- The vocabulary has byte pairs, not words, so the text of a task has no unknown word.
- Rows have one length. The paper draws it, so that a text is cut elsewhere in each epoch; here each
  epoch begins at a random token.
- There is no penalty of activations, and Adam replaces averaged SGD.
- The forget gates begin with a bias of 1.
The paper does not give the length of this stage; here it is about 10 epochs. Not trained here.
"""

from transformer_jax.config import choice, experiment

SIZES = {
    "published": dict(model=dict(vocab_size=30_000), batch=64, num_steps=230_000),
    "cpu": dict(
        model=dict(
            vocab_size=8000,
            d_model=128,
            d_hidden=256,
            input_dropout=0.1,
            word_dropout=0.02,
            layer_dropout=0.1,
            output_dropout=0.1,
            weight_dropout=0.1,
        ),
        batch=32,
        num_steps=2000,
    ),
}
# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=300, d_model=16, d_hidden=24),
    task=dict(length=16),
    train=dict(batch=8, num_steps=2),
)


def get_config(size="published"):
    values = choice(size, SIZES)
    return experiment(
        model=dict(name="awd_lstm", **values["model"]),
        task=dict(name="causal_lm", length=70, carry=True),
        data=dict(tokenizer="byte_bpe"),
        train=dict(
            num_steps=values["num_steps"], batch=values["batch"], log_every=100, eval_every=1 / 20
        ),
        optimizer=dict(
            name="adam",
            learning_rate=4e-3,
            schedule="slanted_triangular",
            warmup_steps=0.1,
            b1=0.7,
            b2=0.99,
            clip_norm=0.25,
        ),
        checkpoint=dict(every=1 / 20),
    )
