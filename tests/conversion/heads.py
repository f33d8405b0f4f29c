"""Fine-tuned runs for the tests of conversion."""

import numpy as np

from tests.conversion.checkpoints import CLOSE
from tests.fixtures import make_huggingface_heads as make
from tests.jitted import jitted
from transformer_jax import config as configs
from transformer_jax.contracts.task import Context
from transformer_jax.runs.open import open_run

CLASSIFIER = "BertForSequenceClassification"
TAGGER = "BertForTokenClassification"
SPAN = "BertForQuestionAnswering"
BART_CLASSIFIER = "BartForSequenceClassification"
BART_SPAN = "BartForQuestionAnswering"
CHOICE = "BertForMultipleChoice"
# An input line of `predict` for each head.
_LINES = {
    "SequenceClassification": "the cat saw a rat",
    "TokenClassification": "the cat saw a rat",
    "QuestionAnswering": "who saw the rat\tThe cat sat on the mat, and the cat saw the rat.",
    "MultipleChoice": "the cat saw\ta rat\ta book",
}
# An input line of `predict` for each architecture.
LINES = {architecture: _LINES[architecture.partition("For")[2]] for architecture in make.HEADS}


def assert_outputs(run, inputs, expected):
    """Asserts the outputs of the run's head, at filled positions only."""
    task, params = open_run(run)
    start = np.full_like(inputs["ids"][..., :1], task.tokenizer.start_id)
    batch = {
        "tokens": inputs["ids"],
        "decoder_tokens": np.concatenate([start, inputs["ids"][..., :-1]], axis=-1),
        "token_types": inputs.get("types"),
        "segment_ids": inputs["filled"],
    }
    if "global_positions" in task.encoder.arrays:
        # Those before the first separator: all of them, or [CLS] alone.
        positions = np.arange(task.num_global)
        is_before = positions < np.argmax(inputs["ids"] == 2, axis=1)[:, None]
        batch["global_positions"] = np.where(is_before, positions, -1)
    outputs = np.asarray(jitted(task.outputs)(params, batch, Context())[0])
    if outputs.ndim == 3:
        filled = inputs["filled"] > 0
        outputs = outputs[filled]
        expected = expected[filled]
    np.testing.assert_allclose(outputs.reshape(expected.shape), expected, **CLOSE)


def head_config(task, model="bert", **options):
    """Returns the config of a fine-tuned run with a committed tokenizer."""
    sizes = dict(d_model=24, num_layers=3, num_heads=3, max_length=40)
    tokenizer = CLASSIFIER
    if model == "gpt":
        sizes |= dict(vocab_size=267 + 3, vocab_multiple=64)
        tokenizer = make.GPT2
    elif model == "bart":
        num_layers = sizes.pop("num_layers")
        sizes |= dict(vocab_size=271, d_ff=32, num_decoder_layers=2, num_encoder_layers=num_layers)
        tokenizer = BART_CLASSIFIER
    else:
        sizes |= dict(vocab_size=43, norm_epsilon=1e-3)
    if "norm_position" in options:
        sizes["norm_position"] = options.pop("norm_position")
    if task == "span":
        options |= dict(stride=8, max_question=8)
    if task in ("classification", "tagging") and not options.get("regression"):
        options["labels"] = ("no", "yes", "maybe")
    return configs.experiment(
        model=dict(name=model, **sizes),
        task=dict(name=task, length=40, **options),
        data=dict(tokenizer_files=str(make.HERE / tokenizer)),
    )
