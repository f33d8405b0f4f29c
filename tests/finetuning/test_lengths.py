"""Batches end where their longest example does: the results do not change, the work does."""

import collections
import json

import numpy as np
import pytest

from tests.finetuning.examples import FILES, build
from tests.jitted import jitted
from transformer_jax.config import UserError
from transformer_jax.contracts.task import Context
from transformer_jax.finetuning import base
from transformer_jax.finetuning.predictions import buckets
from transformer_jax.runs.spec import make_task, resolve
from transformer_jax.training.step import init_params

WORDS = "the cat sat on the mat and the dog ran to the man".split()
# kind of task: function of n to a file with n examples of 1 to 13 words
UNEVEN = {
    "classification": lambda n: "".join(
        f"{'ab'[i % 2]}\t{' '.join(WORDS[: 1 + i * 5 % 13])}\n" for i in range(n)
    ),
    "tagging": lambda n: (
        "\n\n".join(
            "\n".join(
                f"{word}\t{'B-PET' if word in ('cat', 'dog') else 'O'}"
                for word in WORDS[: 1 + i * 5 % 13]
            )
            for i in range(n)
        )
        + "\n"
    ),
    "choice": lambda n: "".join(
        f"{' '.join(WORDS[: 1 + i * 5 % 13])}\tto the cat\tran\t{i % 2}\n" for i in range(n)
    ),
    "span": lambda n: json.dumps(
        {
            "data": [
                {
                    "paragraphs": [
                        {
                            "context": (text := " ".join(WORDS[: 2 + i * 5 % 12])),
                            "qas": [
                                {
                                    "id": str(i),
                                    "question": "who?",
                                    "answers": [{"text": text.split()[1], "answer_start": 4}],
                                }
                            ],
                        }
                        for i in range(n)
                    ]
                }
            ]
        }
    ),
}


def uneven_task(folder, kind, run, **keys):
    config = build(folder, kind, run, **keys)
    for split, count in (("train", 48), ("valid", 12)):
        (folder / f"{split}.{FILES[kind][0]}").write_text(UNEVEN[kind](count))
    return make_task(resolve(config, folder / "none").config)


def test_the_buckets_of_a_length():
    assert buckets(128) == (128, 112, 96, 80, 64, 48, 32, 16) and buckets(512) == (
        512,
        384,
        256,
        128,
    )
    assert (
        buckets(300) == (300, 256, 128)
        and buckets(10) == (10, 8, 6, 4, 2)
        and buckets(257) == (257, 256, 128)
    )


@pytest.mark.parametrize("family", ["bert", "gpt"])
@pytest.mark.parametrize("kind", UNEVEN)
def test_the_tokens_of_an_example_are_counted_without_making_its_row(kind, family, runs, tmp_path):
    task = uneven_task(tmp_path, kind, runs[family])
    examples = task._examples("train")
    counts = [task.num_tokens(example) for example in examples]
    rows = [task.row(example) for example in examples]
    assert counts == [(row["segment_ids"] > 0).sum(axis=-1).max() for row in rows]
    assert len(set(counts)) > 5


def texts(batch):
    return [tuple(row[row > 0]) for row in batch["tokens"]]


@pytest.mark.parametrize("group", [1, 4])
def test_the_batches_of_a_group_hold_its_drawn_examples(group, runs, tmp_path):
    task = uneven_task(
        tmp_path,
        "classification",
        runs["bert"],
        task__group_by_length=group,
        train__first_batch=4,
        train__ramp_steps=8,
    )
    rows, examples = task.rows().train, task._examples("train")
    sizes = [rows.size(step) for step in range(16)]
    assert sizes[0] == 4 and sizes[-1] == 8
    for start in range(0, 16, group):
        drawn, batched = collections.Counter(), collections.Counter()
        for step in range(start, start + group):
            batched.update(texts(rows.batch(step, range(rows.size(step)))))
            for _, number, _ in rows.drawn.numbers(step, range(rows.drawn.size(step))):
                tokens = task.row(examples[number])["tokens"]
                drawn[tuple(tokens[tokens > 0])] += 1
        assert batched == drawn
    batch = rows.batch(9, range(8))
    np.testing.assert_array_equal(rows.batch(9, [2, 5])["tokens"], batch["tokens"][[2, 5]])


def widths_of(rows):
    return [rows.batch(step, range(rows.size(step)))["tokens"].shape[1] for step in range(32)]


@pytest.mark.parametrize("group", [1, 4])
def test_a_batch_has_its_row_shape(group, runs, tmp_path):
    task = uneven_task(tmp_path, "classification", runs["bert"], task__group_by_length=group)
    rows = task.rows().train
    shapes = [rows.row_shape(step) for step in range(32)]
    widths = widths_of(rows)
    assert widths == [task.lengths[shape] for shape in shapes] and max(widths) < 32
    specs = [task.batch_spec(shape)["segment_ids"] for shape in shapes]
    assert widths == [spec.shape[1] for spec in specs]


def test_grouping_by_length_shortens_the_rows(runs, tmp_path):
    grouped, single = (
        uneven_task(tmp_path, "classification", runs["bert"], task__group_by_length=group)
        for group in (4, 1)
    )
    mean_widths = [np.mean(widths_of(task.rows().train)) for task in (grouped, single)]
    assert mean_widths[0] < 0.8 * mean_widths[1]


@pytest.mark.full
@pytest.mark.parametrize(
    "kind, family",
    [("tagging", "bert"), ("classification", "gpt"), ("choice", "bert"), ("span", "gpt")],
)
def test_loss_scores_and_predictions_are_those_of_whole_rows(
    kind, family, runs, tmp_path, monkeypatch
):
    monkeypatch.setattr(base, "_SORTED_BATCHES", 2)
    lm_weight = 0.5 if family == "gpt" else 0.0
    cut = uneven_task(tmp_path / "cut", kind, runs[family], task__lm_weight=lm_weight)
    # Rows that the mesh splits are not cut.
    uncut = uneven_task(
        tmp_path / "uncut", kind, runs[family], mesh__sequence=2, task__lm_weight=lm_weight
    )
    assert uncut.lengths == (32,) and len(cut.lengths) == 8
    params = init_params(cut)
    batches = [task.rows().train.batch(3, range(8)) for task in (cut, uncut)]
    assert batches[0]["tokens"].shape[-1] < batches[1]["tokens"].shape[-1] == 32
    losses, expected_losses = (
        jitted(task.loss)(params, batch, Context()).terms
        for task, batch in zip((cut, uncut), batches)
    )
    for term, expected in expected_losses.items():
        assert float(losses[term]) == pytest.approx(float(expected), rel=1e-5)
    scores, expected = (task.evaluate(params, "valid") for task in (cut, uncut))
    for key in scores.keys() & {"f1_by_class", "confusion"}:
        assert scores.pop(key) == expected.pop(key)
    assert scores == pytest.approx(expected, rel=1e-5)
    texts = [" ".join(WORDS[:n]) for n in (9, 1, 13, 2, 5, 7, 3, 12, 4, 11, 6, 8)]
    forms = {"span": "who?\t{}", "choice": "{}\tto the cat\tran"}
    lines = [forms.get(kind, "{}").format(text) for text in texts]
    predictions = [prediction.text for prediction in cut.predict(params, lines)]
    assert predictions == [next(uncut.predict(params, [line])).text for line in lines]


def test_a_group_has_at_least_one_update(runs, tmp_path):
    with pytest.raises(UserError, match="config.task.group_by_length=0: must be at least 1"):
        uneven_task(tmp_path, "classification", runs["bert"], task__group_by_length=0)
