"""Train, fine-tune and study Transformers in JAX and Flax. The same calls serve every family:

    import transformer_jax
    from transformer_jax import config

    settings = config.load("configs/gpt/quickstart.py", {"train.num_steps": 300})
    scores = transformer_jax.train(settings, "runs/mine")       # {"valid/loss": ..., ...}
    task, params = transformer_jax.open_run("runs/mine")        # the best checkpoint

`train` starts the run, or continues it. It also takes the path of a config file:
`train("configs/gpt/quickstart.py", "runs/mine", overrides={"train.num_steps": 300})`.
`config.experiment(model=..., task=..., ...)` makes a config without a file.

The task uses the parameters, by the kind of the task (`config.task.name`):

    task.translate(params, texts)       # translation: for each text its translations, each with
                                        # .text and .score
    task.generate(params, prompts, temperature=0.8)
                                        # causal_lm: for each prompt .text, .tokens and .finished;
                                        # sampling's options: temperature, top_k, top_p and
                                        # repetition_penalty; task.log_likelihoods scores
                                        # continuations
    task.reply(params, messages)        # chat: the assistant's answer to a conversation, as that of
                                        # generate
    task.fill(params, texts)            # masked_lm: for each [MASK] of each text words, each with
                                        # .word and .probability; task.features gives hidden states
    task.predict(params, texts)         # fine-tuning: for each text .text, the label or answer, and
                                        # .details with probabilities
    task.classify(params, texts, labels)
                                        # fine-tuned on inference: the same for labels that no
                                        # training knows
    task.evaluate(params, "test")       # every task, on "valid" or "test": {"bleu": ...},
                                        # {"perplexity": ...}, {"accuracy": ...}
    task.attention(params, text)        # every task: .weights (layers, H, Q, K), .queries and
                                        # .keys, which pictures.attention draws

All but `reply`, `evaluate` and `attention` take any iterable of texts and return an iterator in the
same order. `generate` begins a document for an empty prompt, and may write more than the model's
window. For the others an empty text has an empty result. They split or cut a text that is too long
for the model, and one warning names it; long="skip" leaves its result empty, long="refuse" raises
UserError.

`load` gives the parts of a run:

    model, params, tokenizer = transformer_jax.load("runs/mine")
    model.apply({"params": params}, tokens)
                                        # gpt: (B, L) -> logits of the next tokens (B, L, V)
                                        # bert: (B, L) -> hidden states (B, L, M), logits (B, L, V),
                                        # logits of the next sentence (B, 2); fine-tuned, only
                                        # hidden states: add method="hidden"
    model.apply({"params": params}, source, target)
                                        # encoder_decoder: (B, S), (B, T) -> logits (B, T, V)

    tokenizer.encode(text)              # the ids of a text; of a list of texts a list of lists
    tokenizer.decode(ids)               # the text of a list of ids; of a list of lists a list
                                        # (a translation: tokenizer.source, tokenizer.target)

Tokens are int32, logits float32. A fault in a config, a file or a text raises config.UserError, in
one line. So do rows longer than a model's positions, and ids beyond its vocabulary. Within jax.jit
the values of ids are not known, and such an id makes its row NaN.
"""

import os
import time

from transformer_jax import old_paths
from transformer_jax.configuration import xla_guard

old_paths.install()
__path__.append(os.path.join(os.path.dirname(__file__), "old_paths"))
STARTED = time.monotonic()  # to report the time from the command to the first step
xla_guard.protect()
__version__ = "0.1.0"


def __getattr__(name):
    # Imported when they are used: the command line must set up JAX first.
    if name == "train":
        from transformer_jax.runs.train import train

        return train
    if name in ("open_run", "load"):
        from transformer_jax.runs import open as opening

        return getattr(opening, name)
    if name == "run":
        from transformer_jax.training.trainer import run

        return run
    raise AttributeError(f"module 'transformer_jax' has no attribute {name!r}")
