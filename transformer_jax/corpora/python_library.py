"""Text and code summaries from the standard library of the running Python."""

import ast
import collections
import dataclasses
import functools
import hashlib
import itertools
import pathlib
import platform
import re
import sysconfig
import warnings
from collections.abc import Iterator
from typing import ClassVar

from transformer_jax.data import sentences

# --------------------------------------------------------------------------------------------------
# The built-in corpora "python" and "pydoc": the standard library of the running Python, because it
# is on every machine that runs this package, and needs no download.

# Tests and character tables are skipped, because they would be half of the text and differ from the
# rest.
_SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings"}
_HELD_OUT = {0: "valid", 1: "test"}  # by the file name's hash modulo 20, as in `split_of`


@dataclasses.dataclass(frozen=True)
class PythonSources:
    """The source files of the standard library, each of them a document.

    One file in twenty is held out for the validation split, and one in twenty for the test split.
    """

    split: str

    def fingerprint(self) -> dict:
        digest = hashlib.sha256()
        for text in self:
            # The text itself, because distributions patch the library under the same version of
            # Python.
            digest.update(text.encode())
        return {"python": digest.hexdigest(), "split": self.split}

    def parts(self) -> list["PythonSources"]:
        return [self]

    def __iter__(self) -> Iterator[str]:
        for name, text in _standard_library(self.split):
            if text and not name.startswith("pydoc_data/"):
                yield text


class PythonDocstrings(PythonSources):
    """The documentation in the standard library, with one sentence per line.

    A document consists of the docstrings and comments of one file, or of one topic of `help()`.
    """

    def __iter__(self) -> Iterator[str]:
        return iter(_documentation(self.split))


def _standard_library(split: str) -> Iterator[tuple[str, str]]:
    """Yields the name and the content of each file of a split."""
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    # Sorted, because the order of a folder's entries differs between file systems.
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if _SKIPPED_FOLDERS & set(name.split("/")) or split_of(name) != split:
            continue
        try:
            yield name, path.read_text("utf-8")
        except (UnicodeDecodeError, OSError):
            continue


def split_of(name: str) -> str:
    """Returns the split of a file, which depends only on its name."""
    # By the name, so that a file stays in its split in every version of Python, and whatever other
    # files there are. Python's own `hash` of a string differs from run to run.
    number = int(hashlib.sha256(name.encode()).hexdigest(), 16) % 20
    return _HELD_OUT.get(number, "train")


@functools.cache  # because parsing takes seconds
def _documentation(split: str) -> list[str]:
    documents = []
    for name, source in _standard_library(split):
        for texts in _texts_of_file(name, source):
            lines = list(itertools.chain.from_iterable(map(_prose, texts)))
            # A document of one sentence could not become a pair of sentences, which BERT trains on.
            if len(lines) > 1:
                documents.append("\n".join(lines))
    return documents


def _texts_of_file(name: str, source: str) -> list[list[str]]:
    """Returns the documents of a file, each as a list of docstrings, comments or topics."""
    try:
        with warnings.catch_warnings(action="ignore"):  # about invalid escape sequences
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    # This file is a dictionary of the texts of `help()`, in which only the constants are text.
    if name == "pydoc_data/topics.py":
        return [[node.value] for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return [[text for _, text in sorted([*_docstrings(tree), *_comments(source)])]]


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields (line number, text) for each docstring."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Yields (line number, text) for each comment that is not on a line with code.

    Comments on consecutive lines form one text.
    """
    for match in re.finditer(r"(?m)(?:^[ \t]*#(?!!).*\n)+", source):
        line = source.count("\n", 0, match.start()) + 1
        yield line, re.sub(r"(?m)^[ \t]*#+:? ?", "", match[0])


def _prose(text: str) -> Iterator[str]:
    """Yields the sentences in the paragraphs and list items of a text.

    Everything that does not end like a sentence (titles, tables, signatures) is dropped, and so are
    doctests and the code after "::".
    """
    text = re.sub(r"(?m)^[ \t]*[-=~^*#+]{3,}[ \t]*$", "", text)  # the underlines of titles
    # The indentation of a paragraph that introduces code. More deeply indented paragraphs after it
    # are that code.
    code_indent = None
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+[.)])\s)", text):
        indent = len(paragraph) - len(paragraph.lstrip())
        if code_indent is not None and indent > code_indent:
            continue
        code_indent = indent if paragraph.endswith("::") else None
        words = re.sub(r"^\s*[-*+]\s", "", paragraph.partition(">>>")[0])
        for sentence in sentences.split(words, "punctuation"):
            if re.search(r"\w.*[.!?][\"'”’)\]]*$", sentence):
                yield sentence


# --------------------------------------------------------------------------------------------------
# The built-in code summaries: functions of Python's standard library, each with the first sentence
# of its docstring, so that summaries can be tried without a download.

# The modules of Python 3.11 to 3.14 that have documented functions, except those that some systems
# package separately (tkinter, idlelib). The list is fixed, so that Python versions differ only in
# the text of these modules.
_MODULES = """
    __future__ _aix_support _collections_abc _markupbase _osx_support _py_abc _pydecimal _pyio
    _strptime _threading_local abc antigravity argparse ast asyncio/base_events
    asyncio/base_futures asyncio/base_subprocess asyncio/coroutines asyncio/events
    asyncio/format_helpers asyncio/futures asyncio/locks asyncio/protocols asyncio/queues
    asyncio/runners asyncio/selector_events asyncio/sslproto asyncio/staggered asyncio/streams
    asyncio/subprocess asyncio/taskgroups asyncio/tasks asyncio/threads asyncio/timeouts
    asyncio/transports asyncio/unix_events asyncio/windows_events asyncio/windows_utils base64
    bdb bisect bz2 calendar cmd code codecs codeop collections/__init__ compileall
    concurrent/futures/_base concurrent/futures/process concurrent/futures/thread configparser
    contextlib copy copyreg csv ctypes/__init__ ctypes/_aix ctypes/_endian ctypes/macholib/dyld
    ctypes/macholib/dylib ctypes/macholib/framework ctypes/util curses/__init__ curses/textpad
    dataclasses dbm/__init__ dbm/dumb difflib dis doctest email/__init__ email/_encoded_words
    email/_header_value_parser email/_parseaddr email/_policybase email/base64mime email/charset
    email/encoders email/feedparser email/generator email/header email/headerregistry
    email/iterators email/message email/mime/application email/mime/audio email/mime/base
    email/mime/image email/mime/message email/mime/multipart email/mime/text email/parser
    email/policy email/quoprimime email/utils enum filecmp fileinput fnmatch fractions ftplib
    functools genericpath getopt getpass gettext glob graphlib gzip hashlib heapq hmac
    html/__init__ html/parser http/client http/cookiejar http/cookies http/server imaplib
    importlib/__init__ importlib/_abc importlib/_bootstrap importlib/_bootstrap_external
    importlib/abc importlib/machinery importlib/metadata/__init__ importlib/metadata/_adapters
    importlib/metadata/_functools importlib/metadata/_itertools importlib/metadata/_meta
    importlib/metadata/_text importlib/resources/_adapters importlib/resources/_common
    importlib/resources/_itertools importlib/resources/abc importlib/resources/readers
    importlib/resources/simple importlib/util inspect ipaddress json/__init__ json/decoder
    json/encoder linecache locale logging/__init__ logging/config logging/handlers lzma mailbox
    mimetypes modulefinder multiprocessing/connection multiprocessing/context
    multiprocessing/forkserver multiprocessing/managers multiprocessing/pool
    multiprocessing/process multiprocessing/queues multiprocessing/reduction
    multiprocessing/resource_sharer multiprocessing/resource_tracker
    multiprocessing/shared_memory multiprocessing/sharedctypes multiprocessing/spawn
    multiprocessing/util netrc ntpath nturl2path numbers operator optparse os pdb pickle
    pickletools pkgutil platform plistlib poplib posixpath pprint profile pstats pty py_compile
    pyclbr pydoc queue quopri random re/__init__ re/_compiler reprlib rlcompleter runpy sched
    secrets selectors shelve shlex shutil signal site smtplib socket socketserver sqlite3/dump
    ssl stat statistics subprocess symtable tabnanny tarfile tempfile textwrap threading timeit
    tokenize tomllib/_parser tomllib/_re trace traceback tracemalloc tty turtle types typing
    unittest/async_case unittest/case unittest/loader unittest/mock unittest/result
    unittest/runner unittest/suite unittest/util urllib/parse urllib/request urllib/robotparser
    uuid venv/__init__ warnings wave weakref webbrowser wsgiref/handlers wsgiref/headers
    wsgiref/simple_server wsgiref/util wsgiref/validate xml/dom/domreg xml/dom/expatbuilder
    xml/dom/minidom xml/dom/pulldom xml/etree/ElementTree xml/sax/__init__ xml/sax/_exceptions
    xml/sax/expatreader xml/sax/handler xml/sax/saxutils xml/sax/xmlreader xmlrpc/client
    xmlrpc/server zipapp zipimport zoneinfo/_tzpath zoneinfo/_zoneinfo
"""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_WORDS = range(3, 31)  # allowed numbers of words in a summary
_SHINGLE = 5  # tokens in a run, because single ones occur in all code
_MOST_OVERLAP = 0.5  # Jaccard index of the shingles of two functions

Pair = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class PythonFunctions:
    """The documented functions and methods of a split as pairs (source, summary) of one line each.

    The source is without its docstring, and each run of white space in it is one space. The summary
    is the first sentence of the docstring, with 3 to 30 words. A function belongs to the same split
    as its file in the corpora "python" and "pydoc". A held-out function has no near duplicate in an
    earlier split: no function there has the same summary, or a source with which it shares half or
    more of all shingles (runs of 5 tokens).
    """

    split: str
    target_language: ClassVar[str] = "en"

    def fingerprint(self) -> dict:
        digest = hashlib.sha256("\n".join(itertools.chain.from_iterable(self)).encode())
        version = platform.python_version()
        return {"functions": digest.hexdigest(), "split": self.split, "python": version}

    def parts(self) -> list["PythonFunctions"]:
        return [self]

    def __iter__(self) -> Iterator[Pair]:
        return iter(_splits()[self.split])

    def lead(self, source: str) -> str:
        """Returns the baseline summary: the words in the function's name and parameters."""
        head = re.search(r"\bdef (\w+) ?\((.*)", source)
        name, rest = head.groups()
        return " ".join(words_of_name(name) + _parameters(rest))


def words_of_name(name: str) -> list[str]:
    """Returns the lower-cased words of a name. For example, my_name and myName have two words."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)
    return [word.lower() for word in words]


@functools.cache  # because parsing takes seconds
def _splits() -> dict[str, list[Pair]]:
    """Returns the functions of each split, without near duplicates of those in earlier splits."""
    read = {split: [] for split in ("train", "valid", "test")}
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    for name in (f"{module}.py" for module in _MODULES.split()):
        if (root / name).is_file():
            content = (root / name).read_bytes()
            read[split_of(name)] += [pair for pair in _functions(content) if _is_summary(pair[1])]
    # The library has copies, such as functions of posixpath and ntpath. The held-out ones are
    # dropped, so that an evaluation does not reward memorization.
    valid = _without_near_duplicates(read["valid"], read["train"])
    test = _without_near_duplicates(read["test"], read["train"] + read["valid"])
    return {"train": read["train"], "valid": valid, "test": test}


def _functions(content: bytes) -> Iterator[Pair]:
    """Yields (source, first sentence of the docstring) for each documented function of a file.

    Functions whose body is only the docstring are skipped.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # about invalid escape sequences
            tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return
    # The columns of `ast` count bytes, so the file is handled as bytes, too.
    starts = [0, *itertools.accumulate(map(len, content.splitlines(keepends=True)))]

    def offset(line: int, column: int) -> int:
        return starts[line - 1] + column

    kinds = (ast.Module, ast.ClassDef, *_FUNCTIONS)
    documented = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    documented = [node for node in documented if ast.get_docstring(node)]
    docstrings = sorted(
        (offset(text.lineno, text.col_offset), offset(text.end_lineno, text.end_col_offset))
        for text in (node.body[0] for node in documented)
    )
    for node in documented:
        if not isinstance(node, _FUNCTIONS) or len(node.body) == 1:
            continue
        # Decorators are part of the source, but come before the line of the node.
        first_line = min(part.lineno for part in (node, *node.decorator_list))
        start, stop = offset(first_line, 0), offset(node.end_lineno, node.end_col_offset)
        # The docstrings of nested functions are removed as well.
        inside = [span for span in docstrings if start <= span[0] < stop]
        bounds = [start, *itertools.chain.from_iterable(inside), stop]
        parts = (content[first:last] for first, last in zip(bounds[::2], bounds[1::2]))
        source = " ".join(b" ".join(parts).decode("utf-8", "replace").split())
        yield source, (sentences.split(ast.get_docstring(node), "punctuation") or [""])[0]


def _is_summary(text: str) -> bool:
    """Returns whether a first sentence describes a function, and is not a signature or code."""
    is_code = re.match(r"\W|[\w.]+\(", text) or re.search(r">>>|[-=]>", text)
    return not is_code and len(re.findall(r"\w+", text)) in _WORDS


def _without_near_duplicates(held_out: list[Pair], earlier: list[Pair]) -> list[Pair]:
    """Returns the held-out functions that are not near duplicates of earlier ones."""
    summaries = {_letters(summary) for _, summary in earlier}
    shingles = [_shingles(source) for source, _ in held_out]
    with_shingle = collections.defaultdict(list)
    # An inverted index from shingles to functions, so that only pairs of functions that share a
    # shingle are compared.
    for number, function_shingles in enumerate(shingles):
        for shingle in function_shingles:
            with_shingle[shingle].append(number)
    most = [0.0] * len(held_out)  # the largest overlap of each one with an earlier function
    for source, _ in earlier:
        others = _shingles(source)
        shared = collections.Counter(
            number for shingle in others for number in with_shingle.get(shingle, ())
        )
        for number, count in shared.items():
            most[number] = max(most[number], count / len(others | shingles[number]))
    return [
        pair
        for pair, overlap in zip(held_out, most)
        if overlap < _MOST_OVERLAP and _letters(pair[1]) not in summaries
    ]


def _letters(summary: str) -> str:
    return " ".join(re.findall(r"\w+", summary.lower()))


def _shingles(source: str) -> set[tuple[str, ...]]:
    """Returns all runs of 5 consecutive tokens, or a single run if there are fewer tokens."""
    tokens = re.findall(r"\w+|[^\w\s]", source)
    last = max(len(tokens) - _SHINGLE, 0)
    return {tuple(tokens[start : start + _SHINGLE]) for start in range(last + 1)}


def _parameters(text: str) -> list[str]:
    """Returns the words in the parameters, given the text after a function's opening parenthesis.

    self, cls, annotations and default values are omitted.
    """
    words, depth, is_name = [], 0, True
    for token in re.findall(r"\w+|\S", text):
        # The end of the parameters. Parentheses in default values have a depth above 0.
        if token in ")]}" and depth == 0:
            break
        depth += (token in "([{") - (token in ")]}")
        if depth == 0 and token == ",":
            is_name = True
        elif is_name and token[0] not in "*/":
            words += [] if token in ("self", "cls") else words_of_name(token)
            is_name = False
    return words
