"""Heads of fine-tuning: what config.json says of them, to and from `config.task` of
tasks/{classification,tagging,span,choice}.py.
"""

from ml_collections import ConfigDict

from transformer_jax.config import UserError


def to_ours(config: ConfigDict, theirs: dict, dropout: float) -> dict:
    """The keys of `config.task`, whose name and whose model's sizes are set. Raises UserError for
    heads that our tasks don't have.
    """
    room = config.model.max_length
    # as SQuAD is read, in parts that fit; with fewer positions in the same proportions
    if config.task.name == "span":
        length = min(room, 384)
        # there is no dropout before this head
        return {
            "length": length,
            "stride": min(128, length // 3),
            "max_question": min(64, length // 6),
        }
    options = {"length": min(room, 512), "head_dropout": dropout}
    # the head scores one choice at a time, so config.json can't say how many there are: two, unless
    # overridden
    if config.task.name == "choice":
        return options | {"choices": ("2", "3"), "label": "4"}
    labels = _labels(theirs)
    if config.task.name == "tagging":
        return options | {"labels": labels}
    # transformers infers it, too
    kind = theirs.get("problem_type") or (
        "regression" if len(labels) == 1 else "single_label_classification"
    )
    if kind not in ("regression", "single_label_classification") or (kind == "regression") != (
        len(labels) == 1
    ):
        raise UserError(
            f"problem_type={kind!r} with {len(labels)} labels: only one of several labels, or one number, can be computed here"
        )
    return options | ({"regression": True} if kind == "regression" else {"labels": labels})


def check(task: ConfigDict) -> None:
    """Raises UserError for what Hugging Face's heads can't compute."""
    if task.get("symmetric"):
        raise UserError(
            "config.task.symmetric=True: Hugging Face's models read one row of an example, not both orders of its texts"
        )
    if task.get("features"):
        raise UserError(
            f"config.task.features={task.features!r}: Hugging Face's models have no LSTM for a head"
        )


def to_theirs(task: ConfigDict) -> dict:
    """The keys of config.json; see `check`."""
    check(task)
    if task.get("regression"):
        return _named(("LABEL_0",)) | {"problem_type": "regression"}
    return _named(task.labels) if "labels" in task else {}


def _named(labels) -> dict:
    labels = [str(label) for label in labels]
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def _labels(theirs: dict) -> tuple[str, ...]:
    """By their numbers. Without names they are called as transformers calls them, two unless
    num_labels says otherwise.
    """
    named = theirs.get("id2label")
    if named is None:
        count = theirs.get("num_labels", 2)
        if not isinstance(count, int) or count < 1:
            raise UserError(f"num_labels={count!r}: a whole number from 1 is asked for")
        return tuple(f"LABEL_{number}" for number in range(count))
    if (
        not isinstance(named, dict)
        or not named
        or named.keys() != {str(number) for number in range(len(named))}
    ):
        raise UserError("id2label: it must name the labels 0, 1, 2, ...")
    labels = tuple(str(named[str(number)]) for number in range(len(named)))
    if twice := [label for number, label in enumerate(labels) if label in labels[:number]]:
        raise UserError(f"id2label: two labels are called {twice[0]!r}")
    return labels
