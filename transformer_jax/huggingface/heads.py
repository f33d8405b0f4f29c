"""Fine-tuned heads: their keys in Hugging Face's config.json, and those of `config.task`.

The tasks are tasks/{classification,tagging,span,choice}.py.
"""

from ml_collections import ConfigDict

from transformer_jax.config import UserError


def read_keys(config: ConfigDict, hf_config: dict, dropout: float) -> dict:
    """Returns the keys of `config.task` for the content of config.json.

    `config.task.name` and the sizes of the model are set. `dropout` is the one in front of the
    head. Raises UserError for a head that our tasks do not have.
    """
    max_length = config.model.get("max_length", 512)
    if config.task.name == "span":
        # The lengths of SQuAD (Devlin et al. 2018), or the same proportions of a shorter row. This
        # head has no dropout.
        length = min(max_length, 384)
        return {
            "length": length,
            "stride": min(128, length // 3),
            "max_question": min(64, length // 6),
        }
    keys = {"length": min(max_length, 512), "head_dropout": dropout}
    if config.task.name == "choice":
        # The head scores one choice at a time, so config.json does not say how many choices there
        # are. The default is two.
        return keys | {"choices": ("2", "3"), "label": "4"}
    labels = read_labels(hf_config)
    if config.task.name == "tagging":
        return keys | {"labels": labels}
    # transformers infers a missing problem_type in the same way.
    inferred = "regression" if len(labels) == 1 else "single_label_classification"
    problem = hf_config.get("problem_type") or inferred
    if problem != inferred:
        raise UserError(
            f"problem_type={problem!r} with {len(labels)} labels: only regression with 1 label, "
            "and single_label_classification with 2 or more, are supported"
        )
    return keys | ({"regression": True} if problem == "regression" else {"labels": labels})


def check(task: ConfigDict) -> None:
    """Raises UserError for a task that Hugging Face's heads do not compute."""
    if task.get("symmetric"):
        raise UserError(
            "config.task.symmetric=True: Hugging Face's models read one row of each example, not "
            "both orders of its texts"
        )
    if task.get("head_kind", "linear") != "linear":
        raise UserError(
            f"config.task.head_kind={task.head_kind!r}: Hugging Face's models have a linear head"
        )
    if task.get("features"):
        raise UserError(
            f"config.task.features={task.features!r}: Hugging Face's models have no LSTM head"
        )


def write_keys(task: ConfigDict) -> dict:
    """Returns the keys of config.json for `config.task`. Raises UserError as `check` does."""
    check(task)
    if task.get("regression"):
        return label_maps(("LABEL_0",)) | {"problem_type": "regression"}
    return label_maps(task.labels) if "labels" in task else {}


class FineTuned:
    """The keys of a fine-tuned head. A class derives from it and from the family of its encoder."""

    @property
    def dropout_key(self) -> str:
        """The key of the dropout in front of the head; "" where the head has none of its own."""
        return "" if self.task == "span" else "classifier_dropout"

    def default_dropout(self, config: ConfigDict) -> float:
        """Returns the dropout of a checkpoint that does not have `dropout_key`."""
        return config.model.dropout

    def task_keys(self, config: ConfigDict, hf_config: dict) -> dict:
        dropout = hf_config.get(self.dropout_key)
        if dropout is None:
            dropout = self.default_dropout(config)
        return read_keys(config, hf_config, dropout)

    def other_keys(self, config: ConfigDict, tokenizer) -> dict:
        keys = super().other_keys(config, tokenizer) | write_keys(config.task)
        return keys | ({self.dropout_key: config.task.head_dropout} if self.dropout_key else {})


def label_maps(labels) -> dict:
    """Returns the keys of config.json for the names of labels."""
    labels = [str(label) for label in labels]
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def read_labels(hf_config: dict) -> tuple[str, ...]:
    """Returns the labels by number.

    Without id2label, the labels have the names that transformers gives them. Their number is
    num_labels, or two.
    """
    id2label = hf_config.get("id2label")
    if id2label is None:
        count = hf_config.get("num_labels", 2)
        if not isinstance(count, int) or count < 1:
            raise UserError(f"num_labels={count!r}: must be a whole number from 1")
        return tuple(f"LABEL_{number}" for number in range(count))
    if not isinstance(id2label, dict) or not id2label:
        raise UserError("id2label: must be an object that names the labels 0, 1, 2, ...")
    numbers = [str(number) for number in range(len(id2label))]
    if id2label.keys() != set(numbers):
        raise UserError("id2label: must name the labels 0, 1, 2, ... without a gap")
    labels = tuple(str(id2label[number]) for number in numbers)
    duplicates = [label for number, label in enumerate(labels) if label in labels[:number]]
    if duplicates:
        raise UserError(f"id2label: two labels have the name {duplicates[0]!r}")
    return labels
