"""Submissions to GLUE: the form of each file, and what is refused before anything is computed."""

import types
import zipfile

import pytest

from tests.finetuning.examples import task_of
from transformer_jax.config import UserError
from transformer_jax.finetuning import glue
from transformer_jax.finetuning.predictions import Prediction
from transformer_jax.training.step import init_params

# The headers of the test sets as GLUE ships them.
HEADERS = {
    "CoLA": "index sentence",
    "SST-2": "index sentence",
    "MRPC": "index;#1 ID;#2 ID;#1 String;#2 String",
    "STS-B": "index genre filename year old_index source1 source2 sentence1 sentence2",
    "QQP": "id question1 question2",
    "MNLI-m": "index promptID pairID genre sentence1_parse sentence2_parse sentence1 sentence2",
    "MNLI-mm": "index promptID pairID genre sentence1_parse sentence2_parse sentence1 sentence2",
    "QNLI": "index question sentence",
    "RTE": "index sentence1 sentence2",
    "WNLI": "index sentence1 sentence2",
    "AX": "index sentence1 sentence2",
}


def write(path, header, rows):
    """Writes a test set, whose cells are named by their columns and rows."""
    columns = header.split(";" if ";" in header else " ")
    lines = ["\t".join(columns)]
    for row in range(rows):
        cells = [str(row) if name in ("index", "id") else f"{name} {row}" for name in columns]
        lines.append("\t".join(cells))
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def stand_in(labels, two_texts):
    """Returns a task whose predictions go through its labels, or through numbers around 0 to 5."""
    read = []

    def predict(params, lines, *, long):
        read.extend(lines)
        for number, _ in enumerate(lines):
            value = {"value": 3.0 * number - 1} if not labels else {}
            yield Prediction("", value or {"label": labels[number % len(labels)]})

    config = types.SimpleNamespace(task=types.SimpleNamespace(name="classification"))
    return types.SimpleNamespace(
        config=config,
        two_texts=two_texts,
        regression=not labels,
        names=list(labels),
        predict=predict,
        read=read,
    )


def files_of(archive):
    with zipfile.ZipFile(archive) as file:
        return {name: file.read(name).decode() for name in file.namelist()}


def test_all_files_of_a_submission(tmp_path, capsys):
    archive = str(tmp_path / "submission.zip")
    for name, header in HEADERS.items():
        path = write(tmp_path / "test.tsv", header, 3)
        test = glue.TESTS[name]
        task = stand_in(tuple(test.labels), len(test.columns) == 2)
        glue.add(task, None, name, path, archive)
        assert task.read[1] == "\t".join(f"{column} 1" for column in test.columns)
    files = files_of(archive)
    assert sorted(files) == sorted(f"{name}.tsv" for name in HEADERS)
    assert {content.partition("\n")[0] for content in files.values()} == {"index\tprediction"}
    assert files["SST-2.tsv"] == files["CoLA.tsv"] == "index\tprediction\n0\t0\n1\t1\n2\t0\n"
    assert files["RTE.tsv"].splitlines()[1:] == [
        "0\tentailment",
        "1\tnot_entailment",
        "2\tentailment",
    ]
    three = ["0\tentailment", "1\tneutral", "2\tcontradiction"]
    assert files["AX.tsv"].splitlines()[1:] == files["MNLI-m.tsv"].splitlines()[1:] == three
    # The similarity is a number from 0 to 5.
    assert files["STS-B.tsv"].splitlines()[1:] == ["0\t0.000", "1\t2.000", "2\t5.000"]
    output = capsys.readouterr().err
    assert "1 of 11 files; missing: SST-2, MRPC" in output.replace("\n", " ")
    assert "has 3 rows, and the test set of CoLA has 1,063" in output.replace("\n", " ")


def test_a_run_of_tfds_and_rows_without_an_index_or_a_text(tmp_path, capsys):
    """The labels of TFDS get the server's names, and a file may lack indices, as MRPC's does."""
    path = tmp_path / "msr_paraphrase_test.txt"
    path.write_text("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\ta\tb\n0\t9\t9\tc\t\n")
    archive = str(tmp_path / "submission.zip")
    task = stand_in(("not_equivalent", "equivalent"), True)
    for _ in range(2):  # the second time replaces the file
        glue.add(task, None, "MRPC", str(path), archive)
    assert files_of(archive) == {"MRPC.tsv": "index\tprediction\n0\t0\n1\t1\n"}
    assert task.read[:2] == ["a\tb", "c\t."]
    assert "1 rows with an empty text, which is read as '.'" in capsys.readouterr().err


def test_a_trained_task_predicts(runs, tmp_path):
    task = task_of(tmp_path, "pairs", runs["bert"])
    params, archive = init_params(task), str(tmp_path / "x.zip")
    path = write(tmp_path / "test.tsv", HEADERS["QQP"], 7)
    glue.add(task, params, "QQP", path, archive)
    lines = [f"question1 {row}\tquestion2 {row}" for row in range(7)]
    expected = [f"{row}\t{each.text}" for row, each in enumerate(task.predict(params, lines))]
    assert files_of(archive)["QQP.tsv"].splitlines()[1:] == expected


@pytest.mark.parametrize(
    "name, labels, two_texts, message",
    [
        ("SST2", ("0", "1"), False, "--glue: no 'SST2'; did you mean SST-2"),
        ("SST-2", ("0", "1"), True, "--glue=SST-2: has one text in a row"),
        ("RTE", ("0", "1"), False, "--glue=RTE: has two texts in a row"),
        ("STS-B", ("0", "1"), True, "--glue=STS-B: needs a run that predicts numbers"),
        ("CoLA", (), False, "--glue=CoLA: needs a run that predicts labels"),
        ("AX", ("entailment", "not_entailment"), True, "--glue=AX: the labels of this run are"),
    ],
)
def test_a_run_that_does_not_suit_is_refused(tmp_path, name, labels, two_texts, message):
    archive = tmp_path / "submission.zip"
    with pytest.raises(UserError, match=message):
        glue.add(stand_in(labels, two_texts), None, name, "none.tsv", str(archive))
    assert not archive.exists()


def test_wrong_files_are_refused(tmp_path):
    task, archive = stand_in(("0", "1"), False), tmp_path / "submission.zip"
    with pytest.raises(UserError, match="--test_file=none.tsv: no such file"):
        glue.add(task, None, "CoLA", "none.tsv", str(archive))
    path = write(tmp_path / "test.tsv", HEADERS["RTE"], 1)
    with pytest.raises(UserError, match="no column 'sentence' in the header"):
        glue.add(task, None, "CoLA", path, str(archive))
    archive.write_text("text")
    with pytest.raises(UserError, match="no ZIP file to add to"):
        glue.add(task, None, "CoLA", path, str(archive))
    assert archive.read_text() == "text" and task.read == []
