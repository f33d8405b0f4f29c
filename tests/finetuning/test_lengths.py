"""Batches end where their longest example does: what is computed is the same, and less."""

import collections
import json

import jax
import numpy as np
import pytest

from tests.finetuning.examples import FILES, build, pretrained
from transformer_jax.config import UserError
from transformer_jax.finetuning import outputs
from transformer_jax.finetuning.lengths import buckets
from transformer_jax.runs.resolve import make_task, resolve

WORDS = "the cat sat on the mat and the dog ran to the man".split()
UNEVEN = {  # files of 48 and 12 examples that are from 1 to 13 words long
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


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretrained")
    return {family: pretrained(folder, family) for family in ("bert", "gpt")}


def made(folder, kind, run, **keys):
    config = build(folder, kind, run, **keys)
    for split, count in (("train", 48), ("valid", 12)):
        (folder / f"{split}.{FILES[kind][0]}").write_text(UNEVEN[kind](count))
    return make_task(resolve(config, folder / "none").config)


def test_what_rows_may_be_cut_to():
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
    task = made(tmp_path, kind, runs[family])
    found = {task.num_tokens(example) for example in task._examples("train")}
    assert (
        found
        == {
            (task.row(example)["segment_ids"] > 0).sum(axis=-1).max()
            for example in task._examples("train")
        }
        and len(found) > 5
    )


@pytest.mark.parametrize("group", [1, 4])
def test_the_batches_of_a_group_hold_what_was_drawn_for_them(group, runs, tmp_path):
    task = made(
        tmp_path,
        "classification",
        runs["bert"],
        task__group_by_length=group,
        train__first_batch=4,
        train__ramp_steps=8,
    )
    rows = task.rows().train
    drawn, sizes = rows.drawn, [rows.size(step) for step in range(16)]
    texts = lambda batch: [tuple(row[row > 0]) for row in batch["tokens"]]
    assert sizes[0] == 4 and sizes[-1] == 8
    for start in range(0, 16, group):
        steps = range(start, start + group)
        asked = [
            task.row(task._examples("train")[number])["tokens"]
            for step in steps
            for _, number, _ in drawn.numbers(step, range(drawn.size(step)))
        ]
        batches = [rows.batch(step, range(rows.size(step))) for step in steps]
        assert collections.Counter(
            text for batch in batches for text in texts(batch)
        ) == collections.Counter(tuple(row[row > 0]) for row in asked)
    batch = rows.batch(9, range(8))
    np.testing.assert_array_equal(rows.batch(9, [2, 5])["tokens"], batch["tokens"][[2, 5]])
    widths = [rows.batch(step, range(rows.size(step)))["tokens"].shape[1] for step in range(32)]
    assert widths == [task.lengths[rows.phase(step)[0]] for step in range(32)] and max(widths) < 32
    assert all(
        task.batch_spec(rows.phase(step)[0])["segment_ids"].shape[1] == width
        for step, width in enumerate(widths)
    )
    assert group == 1 or np.mean(widths[8:]) < 0.8 * np.mean(
        [
            made(tmp_path, "classification", runs["bert"])
            .rows()
            .train.batch(step, range(8))["tokens"]
            .shape[1]
            for step in range(8, 32)
        ]
    )


@pytest.mark.parametrize(
    "kind, family",
    [("tagging", "bert"), ("classification", "gpt"), ("choice", "bert"), ("span", "gpt")],
)
def test_loss_scores_and_predictions_are_those_of_whole_rows(
    kind, family, runs, tmp_path, monkeypatch
):
    monkeypatch.setattr(outputs, "_SORTED_BATCHES", 2)
    cut = made(
        tmp_path / "cut", kind, runs[family], task__lm_weight=0.5 if family == "gpt" else 0.0
    )
    whole = made(
        tmp_path / "whole",
        kind,
        runs[family],
        mesh__sequence=2,
        task__lm_weight=0.5 if family == "gpt" else 0.0,
    )
    assert whole.lengths == (32,) and len(cut.lengths) == 8
    params = cut.init(jax.random.key(1))
    params = jax.tree.map(
        lambda leaf: leaf.value if hasattr(leaf, "value") else leaf,
        params,
        is_leaf=lambda leaf: hasattr(leaf, "value"),
    )
    batches = [task.rows().train.batch(3, range(8)) for task in (cut, whole)]
    assert batches[0]["tokens"].shape[-1] < batches[1]["tokens"].shape[-1] == 32
    losses, others = (
        {
            term: float(total)
            for term, total in task.loss(params, batch, None, train=False)[0].items()
        }
        for task, batch in zip((cut, whole), batches)
    )
    assert losses == pytest.approx(others, rel=1e-5)
    found, expected = (task.evaluate(params, "valid") for task in (cut, whole))
    for key in found.keys() & {"f1_by_class", "confusion"}:
        assert found.pop(key) == expected.pop(key)
    assert found == pytest.approx(expected, rel=1e-5)
    lines = {
        "tagging": [" ".join(WORDS[:n]) for n in (9, 1, 13, 2, 5, 7, 3, 12, 4, 11, 6, 8)],
        "span": [f"who?\t{' '.join(WORDS[:n])}" for n in (9, 1, 13, 2, 5, 7)],
        "classification": [" ".join(WORDS[:n]) for n in (9, 1, 13, 2, 5)],
        "choice": [f"{' '.join(WORDS[:n])}\tto the cat\tran" for n in (9, 1, 13, 2)],
    }[kind]
    found, alone = (
        list(cut.predict(params, lines)),
        [next(whole.predict(params, [line])) for line in lines],
    )
    assert [one.text for one in found] == [one.text for one in alone]


def test_a_group_has_at_least_one_update(runs, tmp_path):
    with pytest.raises(UserError, match="config.task.group_by_length=0: must be at least 1"):
        made(tmp_path, "classification", runs["bert"], task__group_by_length=0)
