"""ELMo as published (Peters et al. 2018; the settings of the code that the authors released).

    python -m transformer_jax.train --config=configs/elmo/base.py --workdir=DIR \\
        --config.data.train_files='1-billion-word/training/*' \\
        --config.data.valid_files='1-billion-word/heldout/*'

93.6 million parameters beside the softmax. The paper reports a perplexity of 39.7, the mean of both
directions, on the 1 Billion Word Benchmark. Not trained here.

- Rows of 20 words, in 128 streams of each direction; ten epochs.
- The published softmax is sampled, with 8,192 words a batch. Here it has all 793,471 words, and one
  more, so that a mesh divides them.
- The published code breaks sentences off lines and splits words at spaces. Here the tokenizer
  `words` splits punctuation too, and reads a sentence a line.
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(
        vocab_size=40,
        d_model=16,
        lstm_width=16,
        max_characters=12,
        character_width=4,
        filters=((1, 4), (2, 8)),
    ),
    task=dict(length=4),
    train=dict(batch=8, num_steps=2),
)
WORDS = 768_648_884  # of the training text


def get_config():
    steps = 10 * WORDS // (128 * 20)
    return experiment(
        model=dict(name="elmo", vocab_size=793_472, dropout=0.1),
        task=dict(name="bidirectional_lm", length=20),
        data=dict(tokenizer="words", cased=True, min_count=3, split_on="line"),
        train=dict(num_steps=steps, batch=128, log_every=100, eval_every=1 / 20),
        optimizer=dict(name="adagrad", learning_rate=0.2, schedule="constant", clip_norm=10.0),
        checkpoint=dict(every=1 / 20),
    )
