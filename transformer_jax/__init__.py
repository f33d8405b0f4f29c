"""Train, fine-tune and study Transformers in JAX and Flax. The same lines serve every family:

    import transformer_jax
    from transformer_jax import config

    settings = config.load("configs/gpt/quickstart.py", {"train.num_steps": 300})    # or config.experiment(model=..., task=..., ...)
    scores = transformer_jax.train(settings, "runs/mine")       # starts the run, or goes on with it; {"valid/loss": ..., ...}
    # the same: transformer_jax.train(PATH, "runs/mine", overrides={"train.num_steps": 300})
    task, params = transformer_jax.open_run("runs/mine")        # the best checkpoint

    task.translate(params, texts)       # config.task.name translation: for each text its translations, each with .text and .score
    task.generate(params, prompts, temperature=0.8)
                                        # causal_lm: for each prompt .text, .tokens and .finished;
                                        # sampling's options: temperature, top_k, top_p and
                                        # repetition_penalty; task.log_likelihoods scores
                                        # continuations
    task.fill(params, texts)            # masked_lm: for each [MASK] of each text its words, each with .word and .probability; task.features gives hidden states
    task.predict(params, texts)         # a fine-tuned run: for each text .text, the label or answer, and .details, with probabilities
    task.evaluate(params, "test")       # every task, on "valid" or "test":
                                        # {"bleu": ...}, {"perplexity": ...}, {"accuracy": ...}
    task.attention(params, text)        # every task: .weights (layers, H, Q, K), .queries and .keys, which pictures.attention draws

The first four take any iterable of texts and give an iterator in the same order. `generate` begins
a document for an empty prompt, and may write more than the model's window. For the others an empty
text has an empty result. They split or cut a text that is too long for the model, and one warning
names it; long="skip" leaves its result empty, long="refuse" raises UserError.

`load` gives the parts for work of one's own:

    model, params, tokenizer = transformer_jax.load("runs/mine")
    model.apply({"params": params}, tokens)                     # gpt: (B, L) -> logits of the next tokens (B, L, V)
    model.apply({"params": params}, source, target)             # encoder_decoder: (B, S), (B, T) -> logits (B, T, V)
    model.apply({"params": params}, tokens)                     # bert: (B, L) -> hidden states (B, L, M), logits (B, L, V), those of the next sentence (B, 2);
                                                                #       fine-tuned, it has hidden states alone: add method="hidden"

    tokenizer.encode(text)              # its ids; of a list of texts a list of lists
    tokenizer.decode(ids)               # the text of a list of ids; of a list of lists a list
                                        # (a translation: tokenizer.source, tokenizer.target)

Tokens are int32, logits float32. What is wrong with a config, a file or a text raises
config.UserError, in one line. So do rows longer than a model's positions, and ids beyond its
vocabulary. Within jax.jit the values of ids are not known, and such an id makes its row NaN.
"""

import os
import time

from transformer_jax.configuration import xla_guard

__path__.append(os.path.join(os.path.dirname(__file__), "old_paths"))
STARTED = time.monotonic()  # for the time from command to first step
xla_guard.protect()
__version__ = "0.1.0"


def __getattr__(name):
    # imported when asked for: the command line must be able to set up JAX first
    if name == "train":
        from transformer_jax.runs.train import train

        return train
    if name in ("open_run", "load"):
        from transformer_jax.runs import open as opening

        return getattr(opening, name)
    if name == "run":
        from transformer_jax.training.loop import run

        return run
    raise AttributeError(f"module 'transformer_jax' has no attribute {name!r}")
