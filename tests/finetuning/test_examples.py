"""Examples of the fine-tuning tasks: how texts become rows, and which records are left out."""

import pytest

from tests.finetuning.examples import build, task_of
from transformer_jax.config import UserError
from transformer_jax.data.sources import tables
from transformer_jax.data.tokenizers.unigram import SentencePiece
from transformer_jax.inference.batching import fitted
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task, resolve
from transformer_jax.runs.train import train
from transformer_jax.tasks.span import _most_central


def test_words_keep_their_spaces_for_a_gpt(runs, tmp_path):
    task = task_of(tmp_path, "tagging", runs["gpt"])
    (part,) = task._parts([(("the", "cat", "sat"), [0, 0, 0])])
    assert task.tokenizer.decode([part.ids]) == ["the cat sat"]


@pytest.mark.parametrize("lengths", [(20, 3), (3, 20), (20, 20), (9, 4)])
def test_two_texts_are_cut_to_fit(lengths):
    first, second = fitted([1] * lengths[0], [2] * lengths[1], 10)
    assert len(first) + len(second) == 10
    assert abs(len(first) - len(second)) <= abs(lengths[0] - lengths[1])
    assert len(first) >= min(lengths[0], 5) and len(second) >= min(lengths[1], 5)


def test_two_texts_that_fit_are_not_cut():
    assert fitted([1] * 3, [2] * 3, 10) == ([1] * 3, [2] * 3)


def test_parts_of_a_long_context(runs, tmp_path):
    """Each token is central in one part. The answer is in the parts that have all of it."""
    task = task_of(tmp_path, "span", runs["bert"])
    context = " ".join(["the cat sat on the mat."] * 12) + " a dog ran."
    answer = ("dog", context.index("dog"))
    parts = task._parts([("who ran?", context, (answer,))])
    num_tokens = len(task.tokenizer.encode([context])[0])
    assert len(parts) > 3 and sum(part.central.sum() for part in parts) == num_tokens
    with_answer = [part for part in parts if part.target]
    assert with_answer
    for part in with_answer:
        first, last = part.target
        assert context[part.spans[first][0] : part.spans[last][1]] == "dog"
        assert task.row(part)["first"] == part.begin + first
    assert all(task.row(part)["first"] == 0 for part in parts if part.target is None)
    assert _most_central([0, 4], 6, 10).tolist() == [0] * 5 + [1] * 5


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_answers_are_found_by_a_tokenizer_of_normalized_lines(kind, runs, tmp_path):
    """Each answer is trained, and read again, as the characters of the context."""
    task = task_of(tmp_path, "span", runs["gpt"])
    lines = ["Anna Berg wrote \u00bd of it", "to be or not to be \u2122"] * 30
    task.tokenizer = SentencePiece.train(lines, 60, kind)
    context = "At \u2122 Anna Berg wrote \u00bd of  it, \ufb01rst"
    for text in ("Anna Berg", "\u00bd", "\u2122", "\ufb01rst", "it", "At"):
        answer = text, context.index(text)
        parts = task._parts([("who?", context, (answer,))])
        part = next(part for part in parts if part.target)
        first, last = part.target
        assert context[part.spans[first][0] : part.spans[last][1]].strip() == text


@pytest.mark.parametrize("ending, between", [("csv", ","), ("tsv", "\t")])
@pytest.mark.parametrize("blank", ["", "\n", "\n\n", "\r\n", "  \n", "\n "])
def test_blank_lines_at_the_end_of_a_table_are_left_out(ending, between, blank, tmp_path):
    path = tmp_path / f"table.{ending}"
    rows = [["text", "label", "note", "note"], ["a", "b", "c", "d"]]
    path.write_bytes("".join(f"{between.join(row)}\n" for row in rows).encode() + blank.encode())
    # A name that stands twice among the other columns does no harm.
    for columns, expected in ((("label", "text"), [("b", "a")]), (("2",), [("label",), ("b",)])):
        table = tables.Table((str(path),), columns)
        assert [record.values for record in table] == expected
    path.write_bytes(path.read_bytes() + f"\nx{between}y{between}z{between}z\n".encode())
    if blank.strip(" ") != "":
        with pytest.raises(UserError, match=f"table.{ending}:3: an empty line; only at the end"):
            list(tables.Table((str(path),), ("text",)))


def test_labels_of_json_are_strings_or_integers(tmp_path):
    path = tmp_path / "table.jsonl"
    path.write_text('{"x": 1.5, "y": 1}\n{"x": "b", "y": "no"}\n{"x": 3, "y": -1}\n')
    table = tables.Table((str(path),), ("x", "y"), classes="y")
    assert [record.values for record in table] == [("1.5", "1"), ("b", "no"), ("3", "-1")]


def test_a_text_is_made_of_several_columns(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text(
        '{"text": "t", "who": "{text}", "answer": "a b", "label": 1}\n'
        '{"text": "u", "who": "v", "answer": "w", "label": 0}\n'
    )
    texts = ("text", 'Does "{answer}" refer to {who}?')
    columns = tables.named_columns(texts)
    assert columns == ["text", "answer", "who"]
    joined = tables.Joined(tables.Table((str(path),), (*columns, "label")), texts)
    # Braces of a value are no template.
    assert [record.values for record in joined] == [
        ("t", 'Does "a b" refer to {text}?', "1"),
        ("u", 'Does "w" refer to v?', "0"),
    ]
    other = tables.Joined(joined.table, ("text", "{answer} {who}"))
    assert joined.fingerprint() != other.fingerprint() != joined.table.fingerprint()


@pytest.mark.full
def test_long_sentences_are_tagged_in_parts(runs, tmp_path):
    config = build(tmp_path, "tagging", runs["bert"], train__num_steps=2)
    sentence = "\n".join(["cat\tB-PET", "sat\tO"] * 40)
    (tmp_path / "valid.conll").write_text(f"{sentence}\n\ndog\tB-PET\n")
    train(config, tmp_path / "run")
    task, params = open_run(tmp_path / "run")
    examples = task._examples("valid")
    assert [len(part.tags) for part in examples if part.sentence == 1] == [1]
    assert sum(len(part.tags) for part in examples) == 81
    assert 0 <= task.evaluate(params, "valid")["accuracy"] <= 1


def test_malformed_rows_are_left_out_where_the_config_says_so(runs, tmp_path, capsys):
    config = build(tmp_path, "classification", runs["bert"], task__skip_malformed=True)
    (tmp_path / "valid.tsv").write_text("cat\tthe cat\ndog\n\ndog\t \ndog\ta dog\n")
    task = make_task(resolve(config, tmp_path / "none").config)
    assert len(task._examples("valid")) == task.count("valid") == 2
    output = capsys.readouterr().err
    assert "valid.tsv: left out 2 rows with another number of columns" in output
    assert "1 rows without a text are left out" in output
    (tmp_path / "valid.tsv").write_text("cat\t \ndog\t \n")
    task = make_task(resolve(config, tmp_path / "none").config)
    with pytest.raises(UserError, match="valid.tsv:1: an empty text, as in all other rows"):
        task._examples("valid")


def test_a_row_that_looks_like_a_header_is_reported(runs, tmp_path, capsys):
    config = build(tmp_path, "classification", runs["bert"])
    path = tmp_path / "train.tsv"
    path.write_text("label\ttext\n" + path.read_text())
    resolved = resolve(config, tmp_path / "none").config
    assert resolved.task.labels == ("cat", "dog", "label")
    output = capsys.readouterr().err
    assert "the only one with the label 'label': if it is a header" in output


def test_choices_with_one_beginning_are_predicted_as_in_training(runs, tmp_path):
    columns = dict(task__beginning="2", task__choices=("3", "4"), task__label="5")
    config = build(tmp_path, "choice", runs["bert"], **columns)
    line = "the dog ran\ta man sat\ton the mat\tto the cat"
    (tmp_path / "train.tsv").write_text(f"{line}\t1\n" * 4)
    task = make_task(resolve(config, tmp_path / "none").config)
    (unlabelled,) = task.unlabelled([(1, line)])
    assert unlabelled.examples[0][0] == task._examples("train")[0][0]
    with pytest.raises(UserError, match="line 1: must hold a context, a beginning and 2 choices"):
        task.unlabelled([(1, "the dog ran\ta man sat on the mat\ta man sat to the cat")])
