"""Proteins: FASTA files, generated families, the alphabet, and rows with masks or contacts."""

import itertools

import numpy as np
import pytest
import scipy.stats

from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.corpora.sources.protein_families import CLASSES
from transformer_jax.data import proteins
from transformer_jax.data.tokenizers import load
from transformer_jax.data.tokenizers.words import TOKENS, Residues

ENTRIES = """>one of a family
mktayiakqr
QISFVKSHFS*
;contacts 1-20 3-18
>two

; a comment
ACDEFGHIKLMNPQRSTVWYXBUZO
"""


def source_of(folder, name="fasta", text=None, **keys):
    data = dict(cache=str(folder / "cache"))
    if text is not None:
        (folder / "a.fasta").write_text(text)
        data |= dict(train_files=str(folder / "a.fasta"))
    return configs.build_source(
        configs.experiment(
            model=dict(name="esm"),
            task=dict(name="masked_residues"),
            source=dict(name=name, **keys),
            data=data,
        )
    )


def test_entries_become_records(tmp_path):
    stored = proteins.Stored(source_of(tmp_path, text=ENTRIES).records("train"))
    (first, contacts), (second, others) = stored.read([0, 1])
    assert first == "MKTAYIAKQRQISFVKSHFS" and second == "ACDEFGHIKLMNPQRSTVWYXBUZO"
    assert contacts.tolist() == [[0, 19], [2, 17]] and not len(others)
    assert proteins.contact_map(contacts, 20).sum() == 4


@pytest.mark.parametrize(
    "text, message",
    [
        (
            ">a\nMKT\nMK1\n",
            r"a.fasta:3: a: '1', character 3 of the line, is not a residue; config.sou",
        ),
        (">a\nM*T\n", r"a.fasta:2: a: '\*', character 2"),
        (">a\n>b\nMK\n", "a.fasta:1: a: no residues"),
        (f">a\n{'M' * 31}\n", "a.fasta:1: a: more than config.source.max_residues=30 residues"),
        (">a\nMKT\n;contacts 1-4\n", "a.fasta:3: '1-4': must be two numbers from 1 to 3"),
        (">a\nMKT\n;contacts x\n", "a.fasta:3: 'x': must be two"),
        ("MKT\n", "a.fasta:1: must begin with '>'"),
    ],
)
def test_a_fault_is_one_line(text, message, tmp_path):
    source = source_of(tmp_path, text=text, max_residues=30)
    with pytest.raises(UserError, match=message):
        source.records("train")


def test_damaged_entries_are_left_out_and_counted(tmp_path, capsys):
    text = ">a\nMK1\n>b\nMKT\n>c\n\n"
    records = source_of(tmp_path, text=text, skip_damaged=True).records("train")
    assert proteins.Stored(records).read(range(len(records)))[0][0] == "MKT"
    assert "train: 2 damaged entries are left out, the first: " in capsys.readouterr().err
    with pytest.raises(UserError, match="config.source.max_residues=0"):
        source_of(tmp_path, text=text, max_residues=0)


def test_residues_of_a_rung_depend_on_each_other(tmp_path):
    source = source_of(tmp_path, "protein_families", families=2, members=300, held_out=5)
    second = source_of(tmp_path, "protein_families", families=2, members=300, held_out=5)
    assert [*source.read("valid")] == [*second.read("valid")]
    assert not {r.content for r in source.read("valid")} & {r.content for r in source.read("train")}
    family = source.structures[0]
    records = [record for record in source.read("train") if record.numbers["family"] == 0]
    size = records[0].numbers["residues"]
    letters = np.array([list(record.content[:size].decode()) for record in records])
    classes = np.vectorize({x: n for n, c in enumerate(CLASSES) for x in c}.get)(letters)

    def p_value(i, j):
        counts = np.histogram2d(classes[:, i], classes[:, j], bins=len(CLASSES))[0]
        return scipy.stats.chi2_contingency(counts).pvalue

    first, second = family.rungs[:2, :2]
    assert p_value(*first) < 1e-20 and p_value(first[0], second[1]) > 1e-4
    pairs = family.contacts
    assert len(pairs) == 6 * 15 > size and (pairs[:, 1] - pairs[:, 0]).min() >= 4
    assert len({tuple(pair) for pair in pairs.tolist()}) == len(pairs)
    other = source.structures[1].contacts
    assert len({*map(tuple, pairs.tolist())} & {*map(tuple, other.tolist())}) < len(pairs) / 2


def test_families_of_the_splits_may_differ(tmp_path):
    keys = dict(families=3, members=2, held_out=2, train_families=(0, 2), valid_families=(1,))
    source = source_of(tmp_path, "protein_families", **keys)
    families = {s: {r.numbers["family"] for r in source.read(s)} for s in ("train", "valid")}
    assert families == {"train": {0, 2}, "valid": {1}}
    with pytest.raises(UserError, match=r"train_families=\(3,\): must be numbers below"):
        source_of(tmp_path, "protein_families", families=3, train_families=(3,))


def test_the_alphabet(tmp_path):
    alphabet = Residues.of()
    assert alphabet.vocab_size == 33 and alphabet.encode("LAGO.-") == [4, 5, 6, 28, 29, 30]
    assert alphabet.encode("M K\nJ") == [20, 15, 3] and alphabet.decode([0, 20, 15, 2]) == "MK"
    # Data bases mark repeats by lower-case letters, which FASTA files are read with, too.
    assert alphabet.encode("maGo.-j") == alphabet.encode("MAGO.-J") == [20, 5, 6, 28, 29, 30, 3]
    assert alphabet.encode_masked("m<mask>k") == [20, 32, 15]
    assert Residues.of([*TOKENS, "m"]).encode("mM") == [33, 20]
    assert alphabet.encode_masked("M<mask>K") == alphabet.encode_masked("M [MASK]K") == [20, 32, 15]
    assert alphabet.pieces([0, 4, 40]) == ["<cls>", "L", "<unk>"]
    assert np.flatnonzero(~alphabet.special).tolist() == [*range(4, 29)]
    alphabet.save(tmp_path)
    assert load(tmp_path).fingerprint() == alphabet.fingerprint()
    with pytest.raises(ValueError, match="no token '<cls>'"):
        Residues.of(["A"])


def test_rows_are_drawn_by_number_and_epoch(tmp_path):
    records = source_of(tmp_path, text=f">a\n{'MKTAYIAKQR' * 5}\n{ENTRIES}").records("train")
    alphabet = Residues.of()
    rows = proteins.MaskedProteins(records, alphabet, length=16, seed=0, share=0.25)
    drawn = [rows.rows([(0, epoch)])[0] for epoch in range(20)]
    for row in drawn:
        tokens, weights = row["tokens"].copy(), row["masked_weights"] > 0
        assert tokens[0] == 0 and tokens[-1] == 2 and weights.sum() == 4
        tokens[row["masked_positions"][weights]] = row["masked_labels"][weights]
        assert alphabet.decode(tokens.tolist()) in "MKTAYIAKQR" * 5
    assert len({tuple(row["tokens"]) for row in drawn}) > 15
    np.testing.assert_equal(rows.rows([(0, 3)])[0], drawn[3])
    (short,) = rows.rows([(2, 0)])
    assert short["segment_ids"].sum() == 16
    maps = proteins.ContactMaps(records, alphabet, length=16, seed=0)
    contacts = {(i, j) for i, j in itertools.product(range(14), repeat=2)}
    crops = [maps.rows([(1, epoch)])[0]["contacts"] for epoch in range(20)]
    assert {crop.sum() for crop in crops} == {0} and contacts
    whole = proteins.ContactMaps(records, alphabet, length=24, seed=0).rows([(1, 0)])[0]
    assert whole["contacts"][0, 19] == whole["contacts"][17, 2] == 1
