"""Pre-trains one of the small language models that `benchmarks/language_knowledge.py` compares.

    python -m transformer_jax.train --config=configs/babylm/pretrain.py:bert --workdir=DIR \\
        --config.data.train_files='train/*.txt' --config.data.valid_files='dev/*.txt' \\
        --budget=30TFLOP
    python -m transformer_jax.evaluate --workdir=DIR --minimal_pairs='blimp/*.jsonl' --skip_equal

    argument         model and objective
    gpt              next tokens
    decoder          next tokens, with rotary positions and gated layers
    lstm             next tokens
    awd_lstm         next tokens, with dropped weights
    transformer_xl   next tokens, with a memory of the rows before
    bigram           next tokens, from a table
    bert             masked tokens and next sentences
    roberta          masked tokens of full sentences
    albert           masked n-grams and the order of sentences, with shared layers
    linformer        masked tokens, by low-rank attention
    realformer       masked tokens, with residual attention
    distilbert       a teacher's predictions; --config.task.teacher=DIR and --config.init_from=DIR
                     name a run of `bert`
    electra          replaced tokens, with a generator of half the width
    xlnet            permuted tokens, with a memory of the row before
    unilm            masked tokens under four masks
    gpt_bert         next tokens and masked tokens that are predicted one position earlier
    elmo             next and previous words, by their characters
    t5               spans of tokens that are missing in the source
    bart             the text, of which spans are missing and sentences are permuted

The text of the BabyLM challenge is an amount that a child hears. All models but ELMo share a
vocabulary of 4,096 pieces, which are learned from the training text, and the widths of the
Transformers are equal. Paragraphs are documents. `--budget` sets the number of updates: with
30 TFLOP, `gpt` reads two million words.
"""

from transformer_jax.config import choice, experiment

WIDTH = 128
# Short rows first: a narrow model learns late to use the context of a token (configs/bert/imdb.py).
ROWS = ((0.75, 32, 5), (0.25, 64, 10))
NO_DROPOUT = dict(dropout=0.0, attention_dropout=0.0)
LAYERS = dict(num_layers=4, num_heads=4, unroll=4)
ENCODER = LAYERS | NO_DROPOUT | dict(max_length=128, init_std=0.05)
NEXT_TOKENS = dict(name="causal_lm", length=64)
STREAM = NEXT_TOKENS | dict(carry=True)
MASKED = dict(name="masked_lm", phases=ROWS, next_sentence=0.0, full_sentences=True)
PAIR = dict(
    d_ff=4 * WIDTH, num_heads=4, num_encoder_layers=2, num_decoder_layers=2, dropout=0.0, unroll=2
)
FAMILIES = {
    "gpt": dict(model=dict(name="gpt", max_length=128, **LAYERS, **NO_DROPOUT), task=NEXT_TOKENS),
    "decoder": dict(
        model=dict(name="decoder", d_ff=344, max_length=128, tie_output=True, **LAYERS),
        task=NEXT_TOKENS,
    ),
    "lstm": dict(model=dict(name="recurrent", d_model=384), task=STREAM),
    "awd_lstm": dict(
        model=dict(
            name="awd_lstm",
            d_hidden=384,
            input_dropout=0.1,
            word_dropout=0.0,
            layer_dropout=0.1,
            output_dropout=0.1,
            weight_dropout=0.1,
        ),
        task=STREAM,
    ),
    "transformer_xl": dict(
        model=dict(
            name="transformer_xl",
            d_ff=4 * WIDTH,
            memory_length=64,
            dropout=0.0,
            init_std=0.05,
            **LAYERS,
        ),
        task=STREAM,
    ),
    "bigram": dict(
        model=dict(name="bigram", d_model=4096),
        task=NEXT_TOKENS,
        optimizer=dict(name="adam", learning_rate=0.05, weight_decay=0.0),
    ),
    "bert": dict(
        model=dict(name="bert", **ENCODER),
        task=dict(name="masked_lm", phases=ROWS, next_sentence=0.2),
    ),
    "roberta": dict(model=dict(name="roberta", **ENCODER), task=MASKED),
    "albert": dict(
        model=dict(name="albert", d_embed=64, **ENCODER),
        task=dict(
            name="masked_lm",
            phases=ROWS,
            next_sentence=0.2,
            second_text="sentence_order",
            whole_words=True,
            ngrams=(6, 3, 2),
        ),
    ),
    "linformer": dict(
        model=dict(name="linformer", rank=32, **ENCODER),
        task=MASKED | dict(phases=((1.0, 64, 10),)),
    ),
    "realformer": dict(model=dict(name="realformer", **ENCODER), task=MASKED),
    "distilbert": dict(
        model=dict(name="distilbert", **ENCODER | dict(num_layers=2, unroll=2)),
        task=dict(
            name="distillation",
            phases=ROWS,
            teacher_model=tuple(
                dict(name="bert", vocab_size=4096, d_model=WIDTH, **ENCODER).items()
            ),
        ),
    ),
    "electra": dict(
        model=dict(name="electra", d_embed=WIDTH, generator_size=0.5, **ENCODER),
        task=dict(name="replaced_tokens", phases=ROWS),
        optimizer=dict(learning_rate=1e-3),
    ),
    "xlnet": dict(
        model=dict(name="xlnet", memory_length=32, dropout=0.0, init_std=0.05, **LAYERS),
        task=dict(name="permuted_lm", length=64),
    ),
    "unilm": dict(
        model=dict(name="bert", num_token_types=6, **ENCODER),
        task=dict(name="mixed_masks", phases=ROWS, next_sentence=0.2),
    ),
    "gpt_bert": dict(model=dict(name="bert", **ENCODER), task=dict(name="hybrid_lm", length=64)),
    "elmo": dict(
        model=dict(
            name="elmo",
            vocab_size=8000,
            d_model=2 * WIDTH,
            lstm_width=256,
            max_characters=20,
            filters=((1, 16), (2, 32), (3, 64), (4, 64)),
            num_highways=1,
            dropout=0.1,
        ),
        task=dict(name="bidirectional_lm", length=64),
        data=dict(tokenizer="words", cased=True, mask_documents=True),
    ),
    "t5": dict(
        model=dict(name="t5", head_dim=32, **PAIR),
        # 70 tokens of text give 64 inputs and 15 targets.
        task=dict(
            name="denoising",
            noises=(("span_corruption", 0.15, 3),),
            source_length=64,
            target_length=16,
        ),
        # Adafactor's learning rate is relative to the size of a parameter, as T5's embeddings need.
        optimizer=dict(name="adafactor", learning_rate=0.05, weight_decay=0.0),
    ),
    "bart": dict(
        model=dict(name="bart", max_length=128, init_std=0.05, **PAIR),
        task=dict(
            name="denoising",
            noises=(("permutation",), ("infilling", 0.3)),
            source_length=64,
            target_length=64,
        ),
        data=dict(mask_documents=True),
    ),
}


def TINY(family="gpt"):
    """Returns the variant for tests: it trains in seconds on a CPU."""
    task = FAMILIES[family]["task"]
    lengths = {
        "phases": ((1.0, 32, 5),),
        "length": 32,
        "source_length": 32,
        "target_length": 32,
    }
    model = dict(vocab_size=300, d_model=16)
    if family == "bigram":
        model["d_model"] = 300
    if "num_heads" in FAMILIES[family]["model"]:
        model["num_heads"] = 2
    return dict(
        model=model,
        task={name: value for name, value in lengths.items() if name in task},
        train=dict(batch=8, num_steps=2),
    )


def get_config(family="gpt"):
    values = choice(family, FAMILIES)
    optimizer = dict(
        name="adamw",
        learning_rate=2e-3,
        schedule="linear",
        warmup_steps=1 / 20,
        b2=0.98,
        weight_decay=0.01,
        clip_norm=1.0,
    )
    chosen = values.get("optimizer", {})
    if chosen.get("name") == "adafactor":  # which has no second moment to forget
        del optimizer["b2"]
    return experiment(
        model=dict(vocab_size=4096, d_model=WIDTH) | values["model"],
        task=values["task"],
        # The tokenizer reads the whole text of the smaller track.
        data=dict(tokenizer="roberta_bpe", tokenizer_bytes=100_000_000) | values.get("data", {}),
        train=dict(num_steps=2000, batch=32, log_every=50, eval_every=1 / 2),
        optimizer=optimizer | chosen,
        checkpoint=dict(every=1 / 2, keep=1),
    )
