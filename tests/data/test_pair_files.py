"""Sentence pairs in the files in which they are published: SGM, TMX, XLIFF and tables."""

import gzip
import io
import json

import pyarrow
import pytest
from pyarrow import parquet

from transformer_jax.config import UserError, experiment
from transformer_jax.data.sources import pairs

PAIRS = [
    ("A dog & a cat.", "Ein Hund & eine Katze."),
    ('He said: "No" <br>.', "Er sagte: „Nein“ <br>."),
    ("naïve 😀 text", "naiver 😀 Text"),
]


def escaped(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def open_files(names, **keys):
    """Returns the training pairs of files with both sides."""
    config = experiment(
        model=dict(name="encoder_decoder"),
        task=dict(name="translation"),
        data=dict(train_files=str(names), **keys),
    )
    return pairs.open_pairs(config.data, "train")


def tmx(units, header='<header srclang="en"/>'):
    return f'<?xml version="1.0"?><tmx version="1.4">{header}<body>{units}</body></tmx>'.encode()


def tmx_units(source="en", target="de"):
    return "".join(
        f'<tu><tuv xml:lang="{source}"><seg>{escaped(en)}</seg></tuv>'
        f'<tuv xml:lang="{target}"><seg>{escaped(de)}</seg></tuv></tu>'
        for en, de in PAIRS
    )


def xliff(version):
    space = "urn:oasis:names:tc:xliff:document"
    sides = [f"<source>{escaped(en)}</source><target>{escaped(de)}</target>" for en, de in PAIRS]
    if version == 1:
        units = "".join(
            f'<trans-unit id="{n}">{both}<alt-trans><target>wrong</target></alt-trans></trans-unit>'
            for n, both in enumerate(sides)
        )
        units += '<trans-unit id="x"><source>not translated</source></trans-unit>'
        units += '<trans-unit id="y"><source>empty</source><target/></trans-unit>'
        state = 'state="needs-translation"'
        units += f'<trans-unit id="z"><source>a</source><target {state}>b</target></trans-unit>'
        return (
            f'<xliff version="1.2" xmlns="{space}:1.2"><file source-language="en-US" '
            f'target-language="de-DE"><body><group>{units}</group></body></file></xliff>'
        ).encode()
    units = "".join(f"<segment>{both}</segment>" for both in sides)
    units += '<segment state="initial"><source>a</source><target>b</target></segment>'
    return (
        f'<xliff version="2.0" xmlns="{space}:2.0" srcLang="en" trgLang="de"><file id="1">'
        f'<unit id="1">{units}</unit></file></xliff>'
    ).encode()


def separated(delimiter, *header):
    return "".join(f"{delimiter.join(row)}\n" for row in [*header, *PAIRS]).encode()


def comma_separated():
    quoted = ['","'.join(text.replace('"', '""') for text in pair) for pair in PAIRS]
    return "".join(f"{row}\n" for row in ["en,de", *(f'"{each}"' for each in quoted)]).encode()


def json_lines(*names):
    rows = [dict(zip(names, pair)) for pair in PAIRS]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet_bytes():
    file = io.BytesIO()
    rows = [{"translation": dict(zip(("de", "en"), pair[::-1])), "id": 1} for pair in PAIRS]
    parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file.getvalue()


FILES = {
    "x.tmx": lambda: tmx(tmx_units()),
    "x.tmx.gz": lambda: gzip.compress(tmx(tmx_units("EN_us", "de-AT"))),
    "1.xlf": lambda: xliff(1),
    "2.xliff": lambda: xliff(2),
    "x.tsv": lambda: separated("\t") + b"\n",  # a blank line at the end is none
    "x.tsv.gz": lambda: gzip.compress(separated("\t", ("en", "de"))),
    "x.csv": comma_separated,
    "languages.jsonl": lambda: json_lines("en", "de"),
    "x.json": lambda: json.dumps([{"source": en, "target": de} for en, de in PAIRS]).encode(),
    "x.parquet": parquet_bytes,
}


@pytest.mark.parametrize("name", FILES)
def test_every_format_has_the_same_pairs(name, tmp_path):
    (tmp_path / name).write_bytes(FILES[name]())
    opened = open_files(tmp_path / name)
    assert [*opened] == PAIRS
    assert [pair for part in opened.parts() for pair in part] == PAIRS
    assert opened.target_language == "de"
    backward = open_files(tmp_path / name, source_language="de", target_language="en")
    # A table without names is read in the order of its columns.
    expected = PAIRS if name == "x.tsv" or name == "x.json" else [pair[::-1] for pair in PAIRS]
    assert [*backward] == expected


def test_several_files_follow_each_other_and_have_one_fingerprint(tmp_path):
    for name in ("a.tmx", "b.tsv"):
        (tmp_path / name).write_bytes(FILES[f"x{name[1:]}"]())
    both = open_files(f"{tmp_path}/a.tmx,{tmp_path}/b.tsv")
    assert [*both] == PAIRS * 2 and len(both.parts()) == 2
    assert both.fingerprint() != open_files(tmp_path / "a.tmx").fingerprint()


def test_markup_within_a_text_is_left_out_and_its_text_kept(tmp_path):
    unit = (
        '<tu><tuv xml:lang="en"><seg>a <hi>b</hi> <bpt i="1">&lt;i&gt;</bpt>c<ept i="1">x</ept>\n'
        'd</seg></tuv><tuv xml:lang="de"><seg>e</seg></tuv></tu>'
    )
    (tmp_path / "x.tmx").write_bytes(tmx(unit))
    assert [*open_files(tmp_path / "x.tmx")] == [("a b c d", "e")]


def test_units_without_one_of_the_languages_are_left_out_and_counted(tmp_path, capsys):
    (tmp_path / "x.tmx").write_bytes(tmx(tmx_units() + tmx_units("en", "fr")))
    assert [*open_files(tmp_path / "x.tmx")] == PAIRS
    assert "left out 3 units that lack en or de" in capsys.readouterr().err


def test_segments_of_sgm_are_lines(tmp_path):
    names = {}
    for index, (side, kind) in enumerate((("source", "srcset"), ("target", "refset"))):
        segments = "".join(f'<seg id="{n}"> {pair[index]} </seg>\n' for n, pair in enumerate(PAIRS))
        # As published: the "&" is not escaped everywhere, and other characters are.
        segments = segments.replace("ï", "&iuml;").replace("<br>", "&lt;br&gt;")
        path = tmp_path / f"newstest-{kind}.{('en', 'de')[index]}.sgm"
        path.write_text(f'<{kind} setid="x"><DOC docid="1"><p>\n{segments}</p></DOC></{kind}>')
        names[f"train_{side}"] = str(path)
    config = experiment(
        model=dict(name="encoder_decoder"), task=dict(name="translation"), data=names
    )
    opened = pairs.open_pairs(config.data, "train")
    assert opened.target_language == "de"
    assert [(en.strip(), de.strip()) for en, de in opened] == PAIRS
    assert len(opened.parts()) == 1
    (tmp_path / "newstest-refset.de.sgm").write_text("<refset><seg>one</seg></refset>")
    with pytest.raises(UserError, match="has 1 lines"):
        list(opened)
    (tmp_path / "newstest-refset.de.sgm").write_text("no segments")
    with pytest.raises(UserError, match="no <seg> in this SGM file"):
        list(opened)


# Each entity has ten of the one before, so that the last one would fill the memory.
LAUGHS = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10 if n else "a"}">' for n in range(12))


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("x.tmx", b"no XML", "x.tmx: not XML"),
        ("x.tmx", tmx(tmx_units())[:-30], "x.tmx: not XML"),
        ("x.tmx", f"<!DOCTYPE t [{LAUGHS}]><tmx>&a11;</tmx>".encode(), "x.tmx: not XML"),
        (
            "x.tmx",
            b'<!DOCTYPE t [<!ENTITY a SYSTEM "/etc/passwd">]><tmx><tu>&a;</tu></tmx>',
            "x.tmx: not XML",
        ),
        (
            "x.tmx",
            tmx(tmx_units("fr", "it")),
            "no unit in en and de .*languages of the file: fr, it",
        ),
        ("x.xlf", xliff(1).replace(b"de-DE", b"fr"), "from en-US to fr, not between en and de"),
        ("x.tsv", b"a\tb\nc\n", "x.tsv:2: 1 column, a pair needs two"),
        ("x.tsv", b"id\ten\tde\n1\ta\n", "x.tsv:2: 2 columns, the header has 3"),
        ("x.tsv", b"a\tb\n\nc\td\n", "x.tsv:2: an empty line; only at the end"),
        ("x.csv", b"en,de,en\na,b,c\n", "the header has several columns 'en'"),
        ("x.jsonl", b'{"en": "a"}\n', "x.jsonl:1: no text in the column 'de'"),
        ("x.csv", b"a,b\nc,d\n", "no columns 'en' and 'de' .*there are a, b"),
        ("x.jsonl", b'{"en": "a", "de": 1}\n', "x.jsonl:1: both sides of a pair must be texts"),
        ("x.jsonl", b'["a", "b"]\n', "x.jsonl:1: not a JSON object with the sides"),
        ("x.docx", b"a", "not a file with both sides of sentence pairs, which end in .tmx"),
    ],
)
def test_what_is_no_pair_is_named(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        list(open_files(tmp_path / name))
