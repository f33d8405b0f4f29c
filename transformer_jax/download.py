"""Downloads a data set and writes the files that the configs read.

python -m transformer_jax.download NAME [--folder=data]

NAME is one of these; docs/downloads.md has their addresses, licenses and digests:
    tiny_shakespeare                           a text, for language models of characters
    wikitext-2, wikitext-103                   articles of Wikipedia, also as wikitext-2-raw, ...
    multi30k                                   English image captions and their German translations
    wmt08 to wmt24, wmt14/full, --pair=en-de   test sets of the shared tasks on news (newstest)
    cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli
                                               a task of GLUE; glue is all of them
    imdb, olid                                 film reviews, and offensive tweets
    squad                                      questions with answers in a text, 1.1 and 2.0
    conll2003                                  named entities

The files are written to FOLDER/NAME, with their addresses and digests in sources.json, and the
commands that use them are printed. A download that breaks off is continued by the same command.
"""

import copy
import dataclasses
import functools
import gzip
import hashlib
import http.client
import json
import pathlib
import posixpath
import re
import shlex
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable

from absl import flags

import transformer_jax
from transformer_jax import cli
from transformer_jax.config import UserError
from transformer_jax.data.sources.text_files import text_lines
from transformer_jax.pictures.progress import Bar, say
from transformer_jax.storage import buckets

# ----------------------------------------------------------------------------- files on the network

_SECONDS = 60  # without an answer, after which a server counts as unreachable
_BLOCK = 2**20  # bytes that are read at a time


@dataclasses.dataclass(frozen=True)
class Source:
    """A file on the network. Its digest is "sha256:HEX", or "md5:HEX" as in sacreBLEU's table."""

    url: str
    digest: str

    @property
    def name(self) -> str:
        return posixpath.basename(self.url.partition("?")[0])


def fetch(source: Source, folder: pathlib.Path) -> pathlib.Path:
    """Returns the path of a file in `folder`, to which it is downloaded unless it is there.

    Raises UserError if it can't be downloaded, after which the next call continues with the bytes
    that have arrived, and if its digest is another one.
    """
    path = folder / source.name
    if path.exists():
        _check_digest(source, path)
        return path
    part = folder / f"{source.name}.part"
    with buckets.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    while True:
        before = _size(part)
        try:
            if _receive(source, part):
                break
            reason = "the connection was cut"
        except urllib.error.HTTPError as error:
            if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                break  # nothing is left to send, and the digest tells whether that is right
            reason = f"the server answers {error.code} {error.reason}"
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or str(error) or type(error).__name__
        # A connection that is cut is opened again as long as each of them brings something, which
        # a slow network takes often, and a dead one never.
        if _size(part) <= before:
            raise UserError(
                f"{source.url}: can't be downloaded ({reason}); the same command continues it"
            )
    try:
        _check_digest(source, part)
    except UserError:
        part.unlink()
        raise
    with buckets.writing(path):
        part.rename(path)
    return path


def _size(part: pathlib.Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _receive(source: Source, part: pathlib.Path) -> bool:
    """Appends what `part` lacks of a file, and returns whether the connection was not cut."""
    done = _size(part)
    # Named, because some servers refuse the default name of Python's client.
    headers = {"User-Agent": f"transformer_jax/{transformer_jax.__version__}"}
    if done:
        headers["Range"] = f"bytes={done}-"
    request = urllib.request.Request(source.url, headers=headers)
    with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
        if answer.status != http.client.PARTIAL_CONTENT:
            done = 0  # the server sends the whole file
        length = answer.headers.get("Content-Length")
        total = done + int(length) if length else None
        with Bar(f"bytes of {source.name}", total, start=done) as bar:
            with buckets.writing(part):
                file = part.open("ab" if done else "wb")
            with file:
                while block := answer.read(_BLOCK):
                    with buckets.writing(part):
                        file.write(block)
                    bar.advance(len(block))
    return total is None or bar.done >= total


def _check_digest(source: Source, path: pathlib.Path) -> None:
    """Raises UserError if a file does not have the digest of the source."""
    kind, _, expected = source.digest.partition(":")
    with buckets.reading(path), path.open("rb") as file:
        found = hashlib.file_digest(file, kind).hexdigest()
    if found != expected:
        raise UserError(
            f"{source.url}: its {kind} is {found}, must be {expected}: it was damaged on the way, "
            "which another try mends, or there is another file at this address now"
        )


# --------------------------------------------------------- from the published files to the configs'

# Nothing is extracted: members of archives are read by their names and written to ours, so that no
# archive can write anywhere else. A function gets the paths of the sources in order, and a folder.


def _same(paths: list[pathlib.Path], folder: pathlib.Path) -> None:
    for path in paths:
        shutil.copyfile(path, folder / path.name)


def _unzipped(paths: list[pathlib.Path], folder: pathlib.Path) -> None:
    """Writes NAME for each NAME.gz."""
    for path in paths:
        with gzip.open(path) as file, (folder / path.stem).open("wb") as output:
            shutil.copyfileobj(file, output)


def _members(names: dict[str, str], paths: list[pathlib.Path], folder: pathlib.Path) -> None:
    """Writes the members of a zip file that `names` names: {member: file}."""
    with zipfile.ZipFile(paths[0]) as archive:
        for member, name in names.items():
            with archive.open(member) as file, (folder / name).open("wb") as output:
                shutil.copyfileobj(file, output)


def _shakespeare(paths: list[pathlib.Path], folder: pathlib.Path) -> None:
    """Divides the text as nanoGPT does: nine tenths for training, the rest for validation."""
    text = paths[0].read_bytes()
    end = int(0.9 * len(text))
    (folder / "train.txt").write_bytes(text[:end])
    (folder / "valid.txt").write_bytes(text[end:])


_REVIEW = re.compile(r"aclImdb/(train|test)/(neg|pos|unsup)/(\d+)_\d+\.txt")
_HELD_OUT = 50  # every fiftieth of the reviews without a label is for validation


def _imdb(paths: list[pathlib.Path], folder: pathlib.Path) -> None:
    """Writes the labeled reviews as lines LABEL<TAB>TEXT, and the others as documents.

    The published files have a review each, with <br /> for the end of a line. A document ends at a
    blank line.
    """
    reviews = {}  # {(split, label): {number: text}}
    with tarfile.open(paths[0]) as archive, Bar("reviews", 100_000) as bar:
        for member in archive:
            if member.isfile() and (found := _REVIEW.fullmatch(member.name)):
                text = archive.extractfile(member).read().decode()
                reviews.setdefault(found.group(1, 2), {})[int(found[3])] = text
                bar.advance()
    for split in ("train", "test"):
        with (folder / f"{split}.tsv").open("w", encoding="utf-8") as file:
            for label, kind in enumerate(("neg", "pos")):
                for _, text in sorted(reviews[split, kind].items()):
                    file.write(f"{label}\t{' '.join(text.replace('<br />', ' ').split())}\n")
    documents = [text for _, text in sorted(reviews["train", "unsup"].items())]
    with (
        (folder / "train.txt").open("w", encoding="utf-8") as train,
        (folder / "valid.txt").open("w", encoding="utf-8") as valid,
    ):
        for number, text in enumerate(documents, 1):
            lines = (" ".join(line.split()) for line in text.split("<br />"))
            document = "\n".join(line for line in lines if line)
            (train if number % _HELD_OUT else valid).write(f"{document}\n\n")


_GLUE_FILE = re.compile(r"[^/]+/((?:train|dev|test)(?:_(?:mis)?matched)?\.tsv)")


def _glue(paths: list[pathlib.Path], folder: pathlib.Path) -> None:
    """Writes the tables of a task of GLUE, without the originals from which they were made."""
    with zipfile.ZipFile(paths[0]) as archive:
        found = (_GLUE_FILE.fullmatch(name) for name in archive.namelist())
        names = {match[0]: match[1] for match in found if match}
    _members(names, paths, folder)


def _mrpc(paths: list[pathlib.Path], folder: pathlib.Path) -> None:
    """Divides MRPC's training pairs by GLUE's list of those in its held-out set."""
    train, test, dev_ids = (list(text_lines(str(path))) for path in paths)
    is_dev = {tuple(line.split("\t")[:2]) for line in dev_ids}
    header, *pairs = train
    splits = {"train.tsv": [header], "dev.tsv": [header], "test.tsv": test}
    for pair in pairs:
        _, *ids = pair.split("\t")[:3]
        splits["dev.tsv" if tuple(ids) in is_dev else "train.tsv"].append(pair)
    for name, lines in splits.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _olid(paths: list[pathlib.Path], folder: pathlib.Path) -> None:
    """Writes the training set, and the test set with the labels of its other file."""
    train, test, labels = paths
    shutil.copyfile(train, folder / "train.tsv")
    label_of = dict(line.split(",") for line in text_lines(str(labels)))
    header, *tweets = text_lines(str(test))
    with (folder / "test.tsv").open("w", encoding="utf-8") as file:
        file.write(f"{header}\tsubtask_a\n")
        for tweet in tweets:
            number, _, _ = tweet.partition("\t")
            file.write(f"{tweet}\t{label_of[number]}\n")


def _newstest(dataset, pair: str, paths: list[pathlib.Path], folder: pathlib.Path) -> None:
    """Writes the source and the first reference of a test set in sacreBLEU's table.

    sacreBLEU turns the published SGML or XML into text. The archive and the members that it reads
    are where its own download would have put them, because that one can't be continued and extracts
    whatever the archive names.
    """
    dataset = copy.copy(dataset)
    work = paths[0].parent / "sacrebleu"
    dataset._outdir, dataset._rawdir = str(work), str(work / "raw")
    entry = dataset.langpairs[pair]
    wanted = {entry["path"]} if isinstance(entry, dict) else set(entry)
    for path in paths:
        target = work / "raw" / dataset._get_tarball_filename(path.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        with tarfile.open(path) as archive:
            for member in archive:
                if (name := posixpath.normpath(member.name)) in wanted and member.isfile():
                    target = work / "raw" / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(archive.extractfile(member).read())
    files = (dataset.get_source_file(pair), dataset.get_reference_files(pair)[0])
    for file, language in zip(files, pair.split("-")):
        shutil.copyfile(file, folder / f"test.{language}")


# ------------------------------------------------------------------------------------ the data sets


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A data set: its files, its license, what writes the configs' files, and what uses these.

    `commands` are lines to type next, in which {folder} is the folder of the files.
    """

    sources: tuple[Source, ...]
    license: str
    page: str
    write: Callable[[list[pathlib.Path], pathlib.Path], None]
    commands: tuple[str, ...]


def _command(program: str, config: str, workdir: str, *others: str, **files: str) -> str:
    """Returns a command with a config, and keys of config.data that name files in the folder."""
    keys = [f"--config.data.{key}={{folder}}/{file}" for key, file in files.items()]
    return " ".join(
        [
            f"python -m transformer_jax.{program} --config=configs/{config}",
            f"--workdir=runs/{workdir}",
            *others,
            *keys,
        ]
    )


_BERT = "python -m transformer_jax.convert --from_hf=bert-base-uncased --workdir=runs/bert_base"


def _finetuning(config: str, workdir: str, **files: str) -> tuple[str, ...]:
    """Returns the commands that fine-tune the published BERT."""
    start = "--config.init_from=runs/bert_base"
    return _BERT, _command("finetune", config, workdir, start, **files)


def _glue_task(
    name: str, sources: tuple[Source, ...], write: Callable = _glue, valid: str = "dev.tsv"
) -> Dataset:
    return Dataset(
        sources,
        "each task of GLUE has its own",
        "https://gluebenchmark.com/tasks",
        write,
        _finetuning(f"finetune/glue.py:{name}", name, train_files="train.tsv", valid_files=valid),
    )


def _files(folder: str, digests: dict[str, str]) -> tuple[Source, ...]:
    """Returns the files of a folder on the network, for {name: SHA-256}."""
    return tuple(Source(f"{folder}/{name}", f"sha256:{sha}") for name, sha in digests.items())


def _wikitext(name: str, digest: str) -> Dataset:
    ending = "raw" if name.endswith("raw") else "tokens"
    files = [f"wiki.{split}.{ending}" for split in ("train", "valid", "test")]
    size = "cpu" if name.startswith("wikitext-2") else "published"
    return Dataset(
        _files("https://wikitext.smerity.com", {f"{name}-v1.zip": digest}),
        "Creative Commons Attribution-ShareAlike, as Wikipedia's text",
        "https://arxiv.org/abs/1609.07843",
        functools.partial(_members, {f"{name}/{file}": file for file in files}),
        (
            _command(
                "train",
                f"awd_lstm/wikitext103.py:{size}",
                "general",
                train_files=files[0],
                valid_files=files[1],
                test_files=files[2],
            ),
        ),
    )


_GLUE = "https://dl.fbaipublicfiles.com/glue/data"
# Commits, so that the files at these addresses never change.
_MULTI30K = (
    "https://raw.githubusercontent.com/multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a"
    "/data/task1/raw"
)
_OLID = "https://raw.githubusercontent.com/idontflow/OLID/66fa62b22d57965986884d6b1491da2aed452f07"
# The digests are those of tensorflow-datasets' files of checksums, except for WikiText's, which are
# those of Hugging Face's `datasets`, and for Multi30k's and OLID's, which are those of the files at
# these commits, because nobody has published any.
DATASETS = {
    "tiny_shakespeare": Dataset(
        _files(
            "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare",
            {"input.txt": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"},
        ),
        "the text is in the public domain",
        "https://github.com/karpathy/char-rnn",
        _shakespeare,
        (
            _command(
                "train",
                "lstm/shakespeare_char.py",
                "shakespeare",
                train_files="train.txt",
                valid_files="valid.txt",
            ),
        ),
    ),
    **{
        name: _wikitext(name, digest)
        for name, digest in {
            "wikitext-2": "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
            "wikitext-2-raw": "ef7edb566e3e2b2d31b29c1fdb0c89a4cc683597484c3dc2517919c615435a11",
            "wikitext-103": "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
            "wikitext-103-raw": "91c00ae287f0d699e18605c84afc9e45c192bc6b7797ff8837e5474655a33794",
        }.items()
    },
    "multi30k": Dataset(
        _files(
            _MULTI30K,
            {
                "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
                "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
                "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
                "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
                "test_2016_flickr.en.gz": (
                    "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9"
                ),
                "test_2016_flickr.de.gz": (
                    "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8"
                ),
            },
        ),
        "none is stated; its authors ask to cite Elliott et al. 2016",
        "https://github.com/multi30k/dataset",
        _unzipped,
        (
            _command(
                "train_wmt",
                "wmt/multi30k.py",
                "multi30k",
                train_source="train.en",
                train_target="train.de",
                valid_source="val.en",
                valid_target="val.de",
            ),
        ),
    ),
    **{
        name: _glue_task(name, _files(_GLUE, {file: digest}))
        for name, file, digest in (
            (
                "cola",
                "CoLA.zip",
                "f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff",
            ),
            (
                "sst2",
                "SST-2.zip",
                "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa",
            ),
            (
                "stsb",
                "STS-B.zip",
                "e60a6393de5a8b5b9bac5020a1554b54e3691f9d600b775bd131e613ac179c85",
            ),
            (
                "qqp",
                "QQP.zip",
                "40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0",
            ),
            (
                "qnli",
                "QNLIv2.zip",
                "e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5",
            ),
            (
                "rte",
                "RTE.zip",
                "6bf86de103ecd335f3441bd43574d23fef87ecc695977a63b82d5efb206556ee",
            ),
            (
                "wnli",
                "WNLI.zip",
                "ae0e8e4d16f4d46d4a0a566ec7ecceccfd3fbfaa4a7a4b4e02848c0f2561ac46",
            ),
        )
    },
    "mnli": _glue_task(
        "mnli",
        _files(
            _GLUE, {"MNLI.zip": "e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633"}
        ),
        valid="dev_matched.tsv",
    ),
    # GLUE's own server does not have it.
    "mrpc": _glue_task(
        "mrpc",
        _files(
            "https://dl.fbaipublicfiles.com/senteval/senteval_data",
            {
                "msr_paraphrase_train.txt": (
                    "60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89"
                ),
                "msr_paraphrase_test.txt": (
                    "a04e271090879aaba6423d65b94950c089298587d9c084bf9cd7439bd785f784"
                ),
            },
        )
        + _files(
            "https://firebasestorage.googleapis.com/v0/b"
            "/mtl-sentence-representations.appspot.com/o",
            {
                "data%2Fmrpc_dev_ids.tsv?alt=media&token=ec5c0836-31d5-48f4-b431-7480817f1adc": (
                    "971d7767d81b997fd9060ade0ec23c4fc31cbb226a55d1bd4a1bac474eb81dc7"
                )
            },
        ),
        _mrpc,
    ),
    "imdb": Dataset(
        _files(
            "http://ai.stanford.edu/~amaas/data/sentiment",
            {
                "aclImdb_v1.tar.gz": (
                    "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe"
                )
            },
        ),
        "none is stated; its authors ask to cite Maas et al. 2011",
        "http://ai.stanford.edu/~amaas/data/sentiment",
        _imdb,
        _finetuning(
            "finetune/sentiment.py:imdb", "imdb", train_files="train.tsv", valid_files="test.tsv"
        ),
    ),
    "olid": Dataset(
        _files(
            _OLID,
            {
                "olid-training-v1.0.tsv": (
                    "907e186e75876f1a77aeff72c97c988bdcd533493926567f7206da6f82f45ae9"
                ),
                "testset-levela.tsv": (
                    "6ba3269424e3373fc8bb9fc05c884a4545c7699c8a1386bbf5b282478af238a9"
                ),
                "labels-levela.csv": (
                    "81e61a1d5eff67b048d8ae3fd8b5a6bcc7259c7e05a2ddfd1ca62d77f3e48626"
                ),
            },
        ),
        "none is stated; its authors ask to cite Zampieri et al. 2019",
        "https://scholar.harvard.edu/malmasi/olid",
        _olid,
        _finetuning(
            "finetune/sentiment.py:olid", "olid", train_files="train.tsv", valid_files="test.tsv"
        ),
    ),
    "squad": Dataset(
        _files(
            "https://rajpurkar.github.io/SQuAD-explorer/dataset",
            {
                "train-v1.1.json": (
                    "3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955"
                ),
                "dev-v1.1.json": "95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9",
                "train-v2.0.json": (
                    "68dcfbb971bd3e96d5b46c7177b16c1a4e7d4bdef19fb204502738552dede002"
                ),
                "dev-v2.0.json": "80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8",
            },
        ),
        "CC BY-SA 4.0",
        "https://rajpurkar.github.io/SQuAD-explorer",
        _same,
        _finetuning(
            "finetune/squad.py:1.1",
            "squad",
            train_files="train-v1.1.json",
            valid_files="dev-v1.1.json",
        ),
    ),
    "conll2003": Dataset(
        _files(
            "https://data.deepai.org",
            {"conll2003.zip": "96a104d174ddae7558bab603f19382c5fe02ff1da5c077a7f3ce2ced1578a2c3"},
        ),
        "the text is from the Reuters Corpus, for research under an agreement with NIST",
        "https://www.clips.uantwerpen.be/conll2003/ner",
        functools.partial(
            _members, {"train.txt": "eng.train", "valid.txt": "eng.testa", "test.txt": "eng.testb"}
        ),
        _finetuning(
            "finetune/ner.py:conll2003",
            "ner",
            train_files="eng.train",
            valid_files="eng.testa",
            test_files="eng.testb",
        ),
    ),
}
GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
_NEWS = re.compile(r"wmt\d\d(/full)?")


def newstests() -> list[str]:
    """Returns the names of WMT's test sets of news in sacreBLEU's table."""
    # Imported here, because its table is large.
    from sacrebleu import dataset

    return sorted(name for name in dataset.DATASETS if _NEWS.fullmatch(name))


def newstest(name: str, pair: str | None) -> Dataset:
    """Returns a test set of WMT for two languages, such as "en-de".

    Addresses and digests are sacreBLEU's. Raises UserError if the set does not have this pair.
    """
    from sacrebleu import dataset

    entry = dataset.DATASETS[name]
    if pair not in entry.langpairs:
        wrong = "--pair is missing" if pair is None else f"--pair={pair} is none of them"
        raise UserError(f"{name} has {', '.join(sorted(entry.langpairs))}; {wrong}")
    source, target = pair.split("-")
    return Dataset(
        tuple(Source(url, f"md5:{md5}") for url, md5 in zip(entry.data, entry.md5, strict=True)),
        "free for research; its authors ask to cite the findings of that year",
        f"https://www.statmt.org/{name.partition('/')[0]}",
        functools.partial(_newstest, entry, pair),
        (
            "python -m transformer_jax.evaluate --workdir=runs/mine --set=test "
            f"--config.data.test_source={{folder}}/test.{source} "
            f"--config.data.test_target={{folder}}/test.{target}",
        ),
    )


# -------------------------------------------------------------------------------------- the program

_RECORD = "sources.json"


def define_flags() -> None:
    cli.define_commands(*DATASETS, "glue", *newstests())
    flags.DEFINE_string("folder", "data", "The files are written to the folder NAME in it.")
    flags.DEFINE_string("pair", None, "Languages of a test set of WMT, such as en-de.")


def main() -> None:
    name, pair, folder = cli.command(), cli.FLAGS.pair, cli.FLAGS.folder
    if "://" in folder:
        raise UserError(f"--folder={folder}: must be a folder on a disk")
    folder = buckets.path(folder)
    if name in newstests():
        target = folder / f"{name.replace('/', '-')}.{pair}"
        commands = write(name, newstest(name, pair), target)
    elif pair is not None:
        raise UserError(f"--pair={pair}: only for test sets of WMT, not for {name}")
    else:
        names = GLUE if name == "glue" else (name,)
        commands = [
            command for each in names for command in write(each, DATASETS[each], folder / each)
        ]
    print("\n".join(dict.fromkeys(commands)))  # each once, such as the one that converts BERT


def write(name: str, dataset: Dataset, folder: pathlib.Path) -> list[str]:
    """Writes a data set to a new folder, and returns the commands that use it.

    The folder appears when it is complete. Nothing is done if it is there already. Raises UserError
    for a file that can't be downloaded, and for a folder with anything else.
    """
    record = {
        "name": name,
        "license": dataset.license,
        "page": dataset.page,
        "sources": [dataclasses.asdict(source) for source in dataset.sources],
    }
    say(f"{name}: license: {dataset.license}; see {dataset.page}")
    if not folder.exists():
        downloads = folder.with_name(f".{folder.name}.downloads")
        paths = [fetch(source, downloads) for source in dataset.sources]
        with buckets.appearing(folder) as unfinished, buckets.writing(folder):
            unfinished.mkdir()
            dataset.write(paths, unfinished)
            (unfinished / _RECORD).write_text(json.dumps(record, indent=2) + "\n")
        shutil.rmtree(downloads, ignore_errors=True)
    elif not _is_download(folder, record):
        raise UserError(f"{folder}: exists already, with other files; name another --folder")
    say(f"{folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")
    return [command.format(folder=shlex.quote(str(folder))) for command in dataset.commands]


def _is_download(folder: pathlib.Path, record: dict) -> bool:
    path = folder / _RECORD
    return path.is_file() and json.loads(path.read_bytes()) == record


if __name__ == "__main__":
    cli.run(main, define_flags)
