"""Train, fine-tune and study Transformers in JAX and Flax. All families share the same calls:

    import transformer_jax
    from transformer_jax import config

    settings = config.load("configs/gpt/quickstart.py", {"train.num_steps": 300})
    scores = transformer_jax.train(settings, "runs/mine")       # {"valid/loss": ..., ...}
    task, params = transformer_jax.open_run("runs/mine")        # the best checkpoint

`train` starts a run, or resumes it. It also takes the path of a config file:
`train("gpt/quickstart", "runs/mine", overrides={"train.num_steps": 300})`. Its options `on_log`,
`on_evaluate` and `on_checkpoint` are told what the run reports. For a training loop of your own,
`state, step, batch_of = transformer_jax.make_step(settings)`.
`config.experiment(model=..., task=..., ...)` makes a config without a file.

What a task can do with the parameters depends on its kind (`config.task.name`):

    task.translate(params, texts)       # translation: for each text its translations, each with
                                        # .text and .score
    task.generate(params, prompts, temperature=0.8)
                                        # causal_lm: for each prompt .text, .tokens and .finished;
                                        # options of sampling: temperature, top_k, top_p and
                                        # repetition_penalty; task.log_likelihoods scores
                                        # continuations
    task.reply(params, messages)        # chat: the assistant's reply to a conversation, in the form
                                        # of generate
    task.fill(params, texts)            # masked_lm: for each [MASK] in each text, words with
                                        # .word and .probability; task.features gives hidden
                                        # states, and task.next_sentences the probability that one
                                        # text follows another
    task.predict(params, texts)         # fine-tuning: for each text .text, the label or answer, and
                                        # .details with probabilities
    task.classify(params, texts, labels)
                                        # fine-tuned on inference: the same for labels that did not
                                        # occur in training
    task.evaluate(params, "test")       # every task, on "valid" or "test": {"bleu": ...},
                                        # {"perplexity": ...}, {"accuracy": ...}
    task.attention(params, text)        # every task: .weights (layers, H, Q, K), .queries and
                                        # .keys, which pictures.attention draws

All methods but `reply`, `evaluate` and `attention` take any iterable of texts and return an
iterator over the results in the same order. `generate` starts a new document for an empty prompt,
and may generate more tokens than the model's window. For the other methods, an empty text has an
empty result, and a text that is too long for the model is split or truncated, with one warning
about it. With long="skip" its result is empty instead, and with long="refuse" UserError is raised.

`from_hf` and `to_hf` read and write models in Hugging Face's format without a workdir:

    task, params = transformer_jax.from_hf("bert-base-uncased")  # a folder, or a name on the Hub
    transformer_jax.to_hf(task, params, "folder")

`load` returns the parts of a run:

    model, params, tokenizer = transformer_jax.load("runs/mine")
    model.apply({"params": params}, tokens)
                                        # gpt: (B, L) -> logits of the next tokens (B, L, V)
                                        # bert: (B, L) -> hidden states (B, L, M), logits (B, L, V),
                                        # logits of the next sentence (B, 2); if fine-tuned, only
                                        # hidden states: add method="hidden"
    model.apply({"params": params}, source, target)
                                        # encoder_decoder: (B, S), (B, T) -> logits (B, T, V)

    tokenizer.encode(text)              # the ids of a text; for a list of texts, a list of lists
    tokenizer.decode(ids)               # the text of a list of ids; for a list of lists, a list
                                        # (for a translation: tokenizer.source, tokenizer.target)

Tokens are int32 and logits are float32. An error in a config, a file or a text raises
config.UserError with a one-line message, and so do rows that are longer than a model's positions
and ids beyond its vocabulary. Inside jax.jit the values of ids are unknown, so that such an id
makes its row NaN instead.
"""

import importlib
import sys
import time
from typing import TYPE_CHECKING

from transformer_jax import xla_guard

if TYPE_CHECKING:  # for editors and type checkers, which do not follow `__getattr__`
    from transformer_jax import config, losses, pictures
    from transformer_jax.convert import opened as from_hf
    from transformer_jax.convert import write as to_hf
    from transformer_jax.laboratory.comparison import compare
    from transformer_jax.runs.open import load, open_run
    from transformer_jax.runs.train import make_step, train, train_together
    from transformer_jax.training.trainer import run

# {name: (module, name in it)}. These are imported when they are used, because the command line must
# set up the environment before JAX is imported.
_EXPORTS = {
    "compare": ("laboratory.comparison", "compare"),
    "from_hf": ("convert", "opened"),
    "load": ("runs.open", "load"),
    "make_step": ("runs.train", "make_step"),
    "open_run": ("runs.open", "open_run"),
    "run": ("training.trainer", "run"),
    "to_hf": ("convert", "write"),
    "train": ("runs.train", "train"),
    "train_together": ("runs.train", "train_together"),
}
_MODULES = ("config", "losses", "pictures")
__all__ = [
    "compare",
    "config",
    "from_hf",
    "load",
    "losses",
    "make_step",
    "open_run",
    "pictures",
    "run",
    "to_hf",
    "train",
    "train_together",
]


class _OldPaths:
    """Finds modules under the names that they had, where no other finder has found a module."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if not name.startswith("transformer_jax."):
            return None
        # Imported here, because hardly any program uses an old name.
        from transformer_jax import old_paths

        return old_paths.Finder().find_spec(name, path, target)


# At the end, so that a module that exists is found before an old one of the same name.
sys.meta_path.append(_OldPaths)
# From when on the time to the first step is counted: for a program, from its start (`cli.run`), and
# otherwise from the call of `train`, before which a notebook may have been open for hours.
STARTED = time.monotonic()
counts_from_import = False
# Here, because XLA reads its flags once, when jax first uses it.
xla_guard.protect()
__version__ = "0.1.0"


def __getattr__(name):
    if name in _EXPORTS:
        module, attribute = _EXPORTS[name]
        return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module 'transformer_jax' has no attribute {name!r}")


def __dir__():
    return [*__all__, "__version__"]
