"""Data sets from a local server: as the configs read them, or one line that says why not."""

import csv
import dataclasses
import gzip
import hashlib
import io
import pathlib
import re
import shlex
import tarfile
import urllib.request
import zipfile

import pytest
import tensorflow_datasets
from sacrebleu import dataset as sacrebleu_sets

from tests.file_server import FileServer, running
from tests.programs import here, refused
from tests.test_docs import check
from transformer_jax import config as configs
from transformer_jax import download
from transformer_jax.config import UserError
from transformer_jax.data.sources import tables
from transformer_jax.data.sources.text_files import text_lines
from transformer_jax.download import Source

ROOT = pathlib.Path(__file__).parent.parent
PAGE = ROOT / "docs" / "downloads.md"


@pytest.fixture
def server(monkeypatch):
    """A server to which urllib sends the requests to all hosts."""
    with running(FileServer()) as server:
        monkeypatch.setattr(urllib.request, "_opener", server.opener())  # as install_opener does
        yield server


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def path_of(url: str) -> str:
    return "/" + url.split("/", 3)[3]


# ----------------------------------------------------------------------------------------- one file

CONTENT = bytes(range(256)) * 64
URL = "https://example.org/folder/file.bin"


@pytest.fixture
def source(server):
    server.files[path_of(URL)] = CONTENT
    return Source(URL, sha256(CONTENT))


def test_a_cut_download_is_continued(server, source, tmp_path):
    server.cuts = [1000, 5000]
    path = download.fetch(source, tmp_path)
    assert path.read_bytes() == CONTENT
    assert [part for _, _, part in server.requests] == [None, "bytes=1000-", "bytes=6000-"]
    assert [each.name for each in tmp_path.iterdir()] == ["file.bin"]
    assert download.fetch(source, tmp_path) == path and len(server.requests) == 3
    # A file that somebody has put there must have the digest as well, and is not deleted.
    path.write_bytes(b"another file")
    with pytest.raises(UserError, match="its sha256 is"):
        download.fetch(source, tmp_path)
    assert path.exists()


def test_the_next_call_continues_one_that_has_failed(server, source, tmp_path):
    server.cuts = [1000, 0]
    with pytest.raises(UserError, match=f"{URL}: can't be downloaded .*cut.*continues it$"):
        download.fetch(source, tmp_path)
    assert (tmp_path / "file.bin.part").stat().st_size == 1000
    assert download.fetch(source, tmp_path).read_bytes() == CONTENT
    assert [part for _, _, part in server.requests] == [None, "bytes=1000-", "bytes=1000-"]


def test_a_server_that_sends_no_parts(server, source, tmp_path):
    server.ranges = False
    (tmp_path / "file.bin.part").write_bytes(b"of an earlier try")
    assert download.fetch(source, tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("begun", [CONTENT, CONTENT + b"more"])
def test_a_part_that_is_the_whole_file_or_more(server, source, tmp_path, begun):
    """The process may have been killed before it compared the digests."""
    (tmp_path / "file.bin.part").write_bytes(begun)
    if begun == CONTENT:
        assert download.fetch(source, tmp_path).read_bytes() == CONTENT
    else:
        with pytest.raises(UserError, match="its sha256 is"):
            download.fetch(source, tmp_path)


def test_another_digest(server, source, tmp_path):
    server.files[path_of(URL)] = CONTENT[:-1] + b"!"
    with pytest.raises(UserError) as error:
        download.fetch(source, tmp_path)
    line = str(error.value)
    expected, found = source.digest, sha256(server.files[path_of(URL)])
    assert expected.partition(":")[2] in line and found.partition(":")[2] in line
    assert "\n" not in line and not list(tmp_path.iterdir())


def test_no_such_file_and_a_busy_server(server, source, tmp_path):
    for status, reason in ((404, "404 Not Found"), (503, "503 Service Unavailable")):
        server.status = status
        with pytest.raises(UserError, match=f"^{URL}: .*the server answers {reason}"):
            download.fetch(source, tmp_path)
    assert not list(tmp_path.iterdir())


def test_no_network(server, source, tmp_path):
    server.shutdown()
    server.server_close()
    with pytest.raises(UserError, match=f"^{URL}: can't be downloaded .*refused"):
        download.fetch(source, tmp_path)


def test_a_folder_that_cannot_be_written(server, source, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="can't be written"):
        download.fetch(source, tmp_path / "file" / "folder")


# -------------------------------------------------------------------- each data set, in small files


def zipped(files: dict[str, str]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()


def tarred(files: dict[str, str]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    return content.getvalue()


# Members that would be written elsewhere, if archives were extracted.
EVIL = {"../evil.txt": "evil", "/tmp/evil/train.tsv": "evil", "__MACOSX/X/train.tsv": "evil"}


def glue_zip(folder: str, rows: dict[str, str]) -> list[bytes]:
    tables = {f"{folder}/{name}": text for name, text in rows.items()}
    return [zipped(EVIL | tables | {f"{folder}/original/train.tsv": "of another format"})]


def pairs(first: str, second: str, label: str, values: tuple[str, ...]) -> str:
    """Returns a table with these columns, and a row for each label."""
    rows = ["\t".join(["index", first, second, label])]
    rows += [f'{number}\tA "dog runs.\tIt runs.\t{value}' for number, value in enumerate(values)]
    return "".join(f"{row}\n" for row in rows)


def same_for(*names: str, text: str) -> dict[str, str]:
    return dict.fromkeys(names, text)


NLI = ("entailment", "not_entailment")
MNLI = ("neutral", "contradiction", "entailment")
SST2 = "sentence\tlabel\na fine film \t1\nbad \t0\n"
MRPC = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n" + "".join(
    f'{number % 2}\t{number}\t{number + 100}\tOne "text.\tAnother\u2028text.\r\n'
    for number in range(1, 5)
)
REVIEWS = {
    f"aclImdb/{split}/{kind}/{number}_7.txt": f"{kind} {number}<br /><br />A\tfine\u2028film."
    for split in ("train", "test")
    for kind in ("pos", "neg", *(["unsup"] if split == "train" else []))
    for number in (10, 9, *(range(11, 110) if kind == "unsup" else ()))
}
SQUAD = (
    '{"data": [{"title": "t", "paragraphs": [{"context": "It is red.", "qas": [{"id": "1", '
    '"question": "What?", "answers": [{"text": "red", "answer_start": 6}]}]}]}]}'
)
CONLL = "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n"
TRAIN_TEST_DEV = ("train.tsv", "dev.tsv", "test.tsv")
CONTENTS = {
    "tiny_shakespeare": [b"First Citizen:\n" * 100],
    **{
        name: [
            zipped(
                EVIL
                | {
                    f"{name}/wiki.{split}.{ending}": f" = {split} = \n"
                    for split in ("train", "valid", "test")
                }
            )
        ]
        for name, ending in (
            ("wikitext-2", "tokens"),
            ("wikitext-2-raw", "raw"),
            ("wikitext-103", "tokens"),
            ("wikitext-103-raw", "raw"),
        )
    },
    "multi30k": [gzip.compress(f"caption {number}\n".encode()) for number in range(6)],
    "cola": glue_zip(
        "CoLA", same_for(*TRAIN_TEST_DEV, text="gj04\t1\t\tIt is.\nks08\t0\t*\tIs.\n")
    ),
    "sst2": glue_zip("SST-2", same_for(*TRAIN_TEST_DEV, text=SST2)),
    "mrpc": [MRPC.encode(), MRPC.encode(), b"2\t102\n4\t104\n"],
    "stsb": glue_zip(
        "STS-B",
        same_for(*TRAIN_TEST_DEV, text=pairs("sentence1", "sentence2", "score", ("2.5", "5.0"))),
    ),
    "qqp": glue_zip(
        "QQP",
        same_for(*TRAIN_TEST_DEV, text=pairs("question1", "question2", "is_duplicate", ("0", "1"))),
    ),
    "mnli": glue_zip(
        "MNLI",
        same_for(
            "train.tsv",
            *(
                f"{split}_{kind}.tsv"
                for split in ("dev", "test")
                for kind in ("matched", "mismatched")
            ),
            text=pairs("sentence1", "sentence2", "gold_label", MNLI),
        ),
    ),
    "qnli": glue_zip(
        "QNLI", same_for(*TRAIN_TEST_DEV, text=pairs("question", "sentence", "label", NLI))
    ),
    "rte": glue_zip(
        "RTE", same_for(*TRAIN_TEST_DEV, text=pairs("sentence1", "sentence2", "label", NLI))
    ),
    "wnli": glue_zip(
        "WNLI",
        same_for(*TRAIN_TEST_DEV, text=pairs("sentence1", "sentence2", "label", ("0", "1"))),
    ),
    "imdb": [tarred(EVIL | REVIEWS)],
    "olid": [
        b'id\ttweet\tsubtask_a\tsubtask_b\tsubtask_c\n1\t@USER "You\tOFF\tTIN\tIND\n',
        'id\ttweet\n15923\t#WhoIsQ \u2028 "x\n27014\tFine\n'.encode(),
        b"27014,NOT\n15923,OFF\n",
    ],
    "squad": [SQUAD.encode()] * 4,
    "conll2003": [zipped(EVIL | same_for("train.txt", "valid.txt", "test.txt", text=CONLL))],
}


def small(server, name: str, dataset: download.Dataset = None, contents=None) -> download.Dataset:
    """Serves small files in the format of a data set's, and returns it with their digests."""
    dataset = dataset or download.DATASETS[name]
    contents = contents or CONTENTS[name]
    sources = []
    for source, content in zip(dataset.sources, contents, strict=True):
        server.files[path_of(source.url)] = content
        sources.append(Source(source.url, sha256(content)))
    return dataclasses.replace(dataset, sources=tuple(sources))


def loaded(commands: list[str]) -> configs.ConfigDict:
    """Returns the config of the last of the commands, all of which must be right."""
    for command in commands:
        _, _, program, *words = shlex.split(command)
        check(program.removeprefix("transformer_jax."), words)
    flags = dict(word[2:].split("=", 1) for word in words)
    keys = {key.removeprefix("config."): flags[key] for key in flags if key.startswith("config.")}
    return configs.load(str(ROOT / flags["config"]), keys)


@pytest.mark.parametrize("name", CONTENTS)
def test_a_data_set_is_what_its_config_reads(server, name, tmp_path):
    folder = tmp_path / "data" / name
    commands = download.write(name, small(server, name), folder)
    config = loaded(commands)
    for split in ("train", "valid"):
        count = 0
        if config.task.name == "classification":
            columns = [config.task.text, *filter(None, [config.task.pair]), config.task.label]
            for row in tables.open_table(config.data, split, columns):
                *texts, label = row.values
                assert all(texts) and (
                    float(label) >= 0 if config.task.regression else label in config.task.labels
                )
                count += 1
        elif config.task.name == "span":
            count = sum(1 for _ in tables.open_squad(config.data, split))
        elif config.task.name == "tagging":
            found = [*tables.Conll(tables.split_files(config.data, split))]
            count = len(found)
        else:
            keys = [f"data.{split}_{kind}" for kind in ("files", "source", "target")]
            files = [configs.get(config, key) for key in keys if configs.get(config, key)]
            count = min(sum(1 for _ in text_lines(file)) for file in files)
        assert count, split
    # Nothing is left of the downloads, and nothing is outside.
    assert [path.name for path in folder.parent.iterdir()] == [name]
    assert not list(tmp_path.rglob("*evil*")) and not pathlib.Path("/tmp/evil").exists()

    # The second time, nothing is downloaded.
    server.requests.clear()
    assert download.write(name, small(server, name), folder) == commands and not server.requests


def test_every_data_set_is_tested():
    assert CONTENTS.keys() == download.DATASETS.keys()


def test_tiny_shakespeare_is_divided_as_by_nanogpt(tmp_path):
    (tmp_path / "input.txt").write_bytes(bytes(1_115_394))
    download._shakespeare([tmp_path / "input.txt"], tmp_path)
    assert (tmp_path / "train.txt").stat().st_size == 1_003_854


def test_reviews(server, tmp_path):
    download.write("imdb", small(server, "imdb"), tmp_path / "imdb")
    rows = list(text_lines(str(tmp_path / "imdb" / "train.tsv")))
    # By their numbers, and each in one line.
    assert rows == [
        f"{label}\t{kind} {number} A fine film."
        for label, kind in enumerate(("neg", "pos"))
        for number in (9, 10)
    ]
    documents = [
        (tmp_path / "imdb" / name).read_text().split("\n\n")[:-1]
        for name in ("train.txt", "valid.txt")
    ]
    assert list(map(len, documents)) == [99, 2]
    assert documents[1] == [f"unsup {number}\nA fine film." for number in (58, 108)]


def test_held_out_pairs_of_mrpc(server, tmp_path):
    download.write("mrpc", small(server, "mrpc"), tmp_path / "mrpc")
    numbers = {
        name: [line.split("\t")[1] for line in text_lines(str(tmp_path / "mrpc" / name))][1:]
        for name in ("train.tsv", "dev.tsv", "test.tsv")
    }
    assert numbers == {"train.tsv": ["1", "3"], "dev.tsv": ["2", "4"], "test.tsv": [*"1234"]}


def test_the_test_set_of_olid_has_its_labels(server, tmp_path):
    download.write("olid", small(server, "olid"), tmp_path / "olid")
    with (tmp_path / "olid" / "test.tsv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert rows == [
        ["id", "tweet", "subtask_a"],
        ["15923", '#WhoIsQ \u2028 "x', "OFF"],
        ["27014", "Fine", "NOT"],
    ]


# -------------------------------------------------------------------------- test sets of WMT's news

SGM = '<refset>\n<doc docid="d" genre="g" origlang="{0}">\n<seg id="1">{0}  one </seg>\n</doc>\n'
XML = """<dataset id="wmt24"><doc id="d" origlang="en" domain="news">
<src lang="en"><p><seg id="1">One.</seg><seg id="2">Two.</seg></p></src>
<ref lang="de" translator="refA"><p><seg id="1">Eins.</seg><seg id="2">Zwei.</seg></p></ref>
</doc></dataset>"""
NEWS = {
    "wmt14": {
        f"./test/newstest2014-deen-{side}.sgm": SGM.format(side[-2:])
        for side in ("src.en", "ref.de")
    },
    "wmt24": {"xml/wmttest2024.en-de.all.xml": XML},
}
LINES = {"wmt14": (["en one"], ["de one"]), "wmt24": (["One.", "Two."], ["Eins.", "Zwei."])}


@pytest.mark.parametrize("name", NEWS)
def test_a_test_set_of_news(server, name, tmp_path):
    dataset = download.newstest(name, "en-de")
    folder = tmp_path / "data" / f"{name}.en-de"
    dataset = small(server, name, dataset, [tarred(EVIL | NEWS[name])])
    [command] = download.write(name, dataset, folder)
    for side, expected in zip(("en", "de"), LINES[name]):
        assert list(text_lines(str(folder / f"test.{side}"))) == expected
    _, _, program, *words = shlex.split(command)
    check(program.removeprefix("transformer_jax."), words)
    assert f"--config.data.test_source={folder}/test.en" in words
    assert not list(tmp_path.rglob("*evil*")) and not pathlib.Path("/tmp/evil").exists()
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_the_test_sets_of_news_have_addresses_and_digests():
    names = download.newstests()
    assert {f"wmt{year:02}" for year in range(8, 25)} <= {*names} and "wmt14/full" in names
    for name in names:
        pair = next(iter(sacrebleu_sets.DATASETS[name].langpairs))
        for source in download.newstest(name, pair).sources:
            assert re.fullmatch("md5:[0-9a-f]{32}", source.digest), name


# ----------------------------------------------------------------------------- digests and the page


def test_digests_are_those_of_tensorflow_datasets():
    root = pathlib.Path(tensorflow_datasets.__file__).parent
    files = [*root.glob("url_checksums/*.txt"), *root.glob("datasets/*/checksums.tsv")]
    known = {}
    for file in files:
        for line in file.read_text().splitlines():
            url, _, digest, *_ = line.split()
            known[url] = f"sha256:{digest}"
    sources = [source for each in download.DATASETS.values() for source in each.sources]
    found = [source for source in sources if source.url in known]
    assert all(source.digest == known[source.url] for source in found)
    # All but WikiText's, Multi30k's, OLID's, and CoNLL's, whose file is not installed with TFDS.
    assert len(found) == 17 and len(sources) - len(found) == 4 + 6 + 3 + 1


def test_the_page_has_every_address_license_and_digest():
    page = PAGE.read_text()
    for name, dataset in download.DATASETS.items():
        assert f"`{name}`" in page and dataset.license in page and dataset.page in page, name
        for source in dataset.sources:
            assert source.url in page and source.digest.partition(":")[2] in page, source.url


# -------------------------------------------------------------------------------------- the program


def run(server, monkeypatch, *words) -> None:
    """Runs the program on the small files."""
    monkeypatch.setattr(
        download, "DATASETS", {name: small(server, name) for name in download.DATASETS}
    )
    with download.cli._defined(download.define_flags):
        download.cli.parse(["download", *words], "transformer_jax.download")
        download.main()


def test_the_program_prints_what_to_type_next(server, monkeypatch, tmp_path, capsys):
    run(server, monkeypatch, "glue", f"--folder={tmp_path / 'data'}")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(download.GLUE) and "--from_hf=bert-base-uncased" in lines[0]
    assert {path.name for path in (tmp_path / "data").iterdir()} == {*download.GLUE}


@pytest.mark.parametrize(
    ["words", "message"],
    [
        ([], "the first argument must be one of tiny_shakespeare, "),
        (["nonsense"], "not 'nonsense'"),
        (["wmt14"], "wmt14 has cs-en, de-en, en-cs, en-de, .*; --pair is missing"),
        (["wmt14", "--pair=en-xx"], "--pair=en-xx is none of them"),
        (["olid", "--pair=en-de"], "--pair=en-de: only for test sets of WMT"),
        (["olid", "--folder=gs://bucket"], "must be a folder on a disk"),
    ],
)
def test_mistakes(words, message):
    done = here("download", *words)
    refused(done)
    assert re.search(message, done.stderr) and done.stdout == ""


def test_another_file_at_the_address(server, tmp_path):
    """Nothing is left but one line."""
    server.files |= {path_of(each.url): b"?" for each in download.DATASETS["olid"].sources}
    done = here("download", "olid", f"--folder={tmp_path / 'data'}")
    refused(done, "olid-training-v1.0.tsv", "sha256")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()] and done.stdout == ""


def test_a_folder_with_other_files(server, tmp_path):
    (tmp_path / "olid").mkdir()
    (tmp_path / "olid" / "mine.tsv").write_text("")
    with pytest.raises(UserError, match="exists already, with other files"):
        download.write("olid", small(server, "olid"), tmp_path / "olid")
    assert not server.requests


def test_a_data_set_that_cannot_be_written_leaves_nothing(server, tmp_path, monkeypatch):
    dataset = small(server, "squad")

    def full(paths, folder):
        (folder / "train-v1.1.json").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match="can't be written .No space left"):
        download.write("squad", dataclasses.replace(dataset, write=full), tmp_path / "squad")
    assert not (tmp_path / "squad").exists()
    # What has arrived is not downloaded again.
    server.requests.clear()
    download.write("squad", dataset, tmp_path / "squad")
    assert not server.requests
