"""The interface of all tokenizers, and the base class of those from the library `tokenizers`."""

import functools
import hashlib
import json
import numbers
import pathlib
from collections.abc import Sequence

import numpy as np
import tokenizers as huggingface

from transformer_jax.config import UserError

# --------------------------------------------------------------------------------------------------
# The interface of all tokenizers, which convert text to ids and back. Tasks know nothing else of a
# tokenizer, so that any of them can be used with any model that has its special tokens.

# Beside the tokenizer's own file, whose format may have no field for a prefix.
PREFIX_FILE = "prefix.json"
_VISIBLE = str.maketrans({" ": "▁", "\n": "↵", "\t": "⇥"})
_ENCODE = "encode takes a text or a list of texts"
_DECODE = "decode takes a list of ids or a list of such lists"


class Tokenizer:
    """The base class of all tokenizers.

    `model` is the content of the single file, named `file`, that a tokenizer is saved in. `eos_id`
    ends a document, and generation without a prompt starts from it. No text encodes to a special
    token, so that text from users can't change the structure of a row. Subclasses define `_encode`
    and `_decode` for lists of texts.
    """

    file: str
    vocab_size: int
    eos_id: int
    # The other special tokens, which are None if the tokenizer has no such token.
    bos_id: int | None = None
    pad_id: int | None = None
    unk_id: int | None = None
    cls_id: int | None = None
    sep_id: int | None = None
    mask_id: int | None = None
    never: tuple[int, ...] = ()  # ids that a decoder must never generate
    # The ids that a published tokenizer puts in front of each text for a causal language model,
    # such as Llama's <s>. `encode` leaves them out, as it does all special tokens.
    prefix: tuple[int, ...] = ()
    # The number of sentinels, which are the last pieces (Raffel et al. 2020).
    num_sentinels: int = 0
    pair_separators: int = 1  # separators between the two texts of a pair

    def __init__(self, model: bytes):
        self.model = model

    @property
    def target(self) -> "Tokenizer":
        """The tokenizer of the texts that a model generates. A `Pair` has separate ones."""
        return self

    def __reduce__(self):
        # The libraries differ in how their objects are pickled, so the model file is sent instead.
        return type(self), (self.model,), {"prefix": self.prefix}

    def encode(self, text: str | list[str]) -> list[int] | list[list[int]]:
        """Returns the ids of a text, or of each text in a list, without special tokens.

        For example, encode("a dog") may return [5, 9], and encode(["a dog", "a"]) then returns
        [[5, 9], [5]]. Raises UserError for other arguments.
        """
        if isinstance(text, str):
            return self._encode([text])[0]
        if not isinstance(text, list):
            raise UserError(f"{_ENCODE}, not {type(text).__name__}")
        if not set(map(type, text)) <= {str}:
            _check_items(text, str, _ENCODE)
        return self._encode(text)

    def _encode(self, texts: list[str]) -> list[list[int]]:
        raise NotImplementedError

    def required(self, *names: str, user: str) -> tuple[int, ...]:
        """Returns the ids of special tokens, as in required("cls", "sep", user="BERT").

        Raises UserError, whose message names `user`, if this tokenizer lacks one of them.
        """
        ids = {name: getattr(self, f"{name}_id") for name in names}
        if missing := [name for name, i in ids.items() if i is None]:
            raise UserError(
                f"{user} needs a tokenizer with the special tokens {', '.join(names)}, such as "
                f"wordpiece: this {type(self).__name__} tokenizer has no {' and no '.join(missing)}"
            )
        return tuple(ids.values())

    def framed(self, ids: list[int]) -> list[int]:
        """Adds the special tokens that a whole text has in an encoder-decoder model.

        The text ends with `eos_id`, and starts with `cls_id` if the tokenizer has it (Lewis et al.
        2019).
        """
        return [*([] if self.cls_id is None else [self.cls_id]), *ids, self.eos_id]

    @property
    def start_id(self) -> int:
        """The id that a decoder reads before the first token of a `framed` text.

        It is `eos_id` if the text starts with `cls_id` (Lewis et al. 2019). Otherwise it is
        `bos_id`, or `pad_id` if the tokenizer has no `bos_id` (Raffel et al. 2020).
        """
        if self.cls_id is not None:
            return self.eos_id
        ids = (self.bos_id, self.pad_id, self.eos_id)
        return next(i for i in ids if i is not None)

    def encode_masked(self, text: str) -> list[int]:
        """Returns the ids of a text, with `mask_id` for each "[MASK]" in it."""
        # The space before a mask is dropped, because pieces include the space before their word,
        # and so the mask hides it together with the word.
        first, *others = self.encode(text.replace(" [MASK]", "[MASK]").split("[MASK]"))
        return [*first, *(i for ids in others for i in (self.mask_id, *ids))]

    @functools.cached_property
    def special(self) -> np.ndarray:
        """(V,) bool: special tokens, which masked language models neither mask nor insert."""
        ids = (self.eos_id, self.bos_id, self.pad_id, self.unk_id)
        # A set, because one token may have several roles, such as [SEP] that ends a document.
        ids = {*ids, self.cls_id, self.sep_id, self.mask_id} - {None}
        return np.isin(np.arange(self.vocab_size), [*ids])

    @functools.cached_property
    def continues(self) -> np.ndarray:
        """(V,) bool: pieces that continue the word of the piece before them."""
        pieces = self.pieces(list(range(self.vocab_size)))
        return np.array([not self.begins_word(piece) for piece in pieces])

    def encode_spans(self, texts: list[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Returns for each text its ids, and the character range [start, stop) of each id."""
        raise NotImplementedError

    def spelled(self, size: int) -> "Tokenizer":
        """Returns a tokenizer that represents each word by `size` characters.

        Raises UserError if the pieces of this tokenizer are not words.
        """
        raise UserError(
            f"config.data.tokenizer: a {type(self).__name__} tokenizer has no words to read by "
            "their characters; take 'words'"
        )

    def decode(self, ids: list[int] | list[list[int]]) -> str | list[str]:
        """Returns the text of a list of ids, or of each list in a list; `eos_id` becomes no text.

        For example, decode([5, 9]) may return "a dog"; decode([[5, 9], [5]]) then returns
        ["a dog", "a"], and decode([]) returns "". Because the vocabulary of a model may be larger
        than the tokenizer's, ids beyond the tokenizer's are accepted; they become no text, or the
        unknown character. Raises UserError for other arguments, including arrays, which
        array.tolist() converts.
        """
        if not isinstance(ids, list):
            raise UserError(f"{_DECODE}, not {type(ids).__name__}")
        # [] is one empty list of ids, not a list without lists.
        if not ids or not isinstance(ids[0], list):
            return self._decode([_checked_ids(ids)])[0]
        _check_items(ids, list, _DECODE)
        return self._decode([_checked_ids(sequence) for sequence in ids])

    def _decode(self, ids: list[list[int]]) -> list[str]:
        raise NotImplementedError

    def pieces(self, ids: list[int]) -> list[str]:
        """Returns the text of each id for display, with visible spaces and line ends."""
        raise NotImplementedError

    def words(self, ids: list[int]) -> tuple[list[str], list[int]]:
        """Returns the words that the ids form, for display, and for each id the index of its word.

        Words are separated by spaces. The end token of a document is a word of its own.
        """
        words = []
        indices = []
        is_complete = True
        for i, piece in zip(ids, self.pieces(ids)):
            if is_complete or i == self.eos_id or self.begins_word(piece):
                words.append("")
            words[-1] += self.without_boundaries(piece)
            indices.append(len(words) - 1)
            is_complete = i == self.eos_id or self.ends_word(piece)
        return words, indices

    def begins_word(self, piece: str) -> bool:
        return piece.startswith("▁")

    def ends_word(self, piece: str) -> bool:
        return False

    def without_boundaries(self, piece: str) -> str:
        """Returns a piece without the characters that show where a word starts or ends."""
        return piece.strip("▁")

    def fingerprint(self) -> str:
        prefix = f" {json.dumps(self.prefix)}" if self.prefix else ""
        return hashlib.sha256(self.model).hexdigest() + prefix

    def files(self) -> dict[str, bytes]:
        prefix = {PREFIX_FILE: json.dumps({"prefix": self.prefix}).encode()} if self.prefix else {}
        return {self.file: self.model} | prefix

    def hf_files(self) -> dict[str, bytes]:
        """Returns files that AutoTokenizer can read, or {} if it has no equivalent tokenizer."""
        return {}

    @property
    def hf_end(self) -> int | list[int]:
        """The `eos_token_id` for generation with Hugging Face: one id or several."""
        return self.eos_id

    def hf_with(self, pieces: Sequence[str], settings: dict) -> dict[str, bytes]:
        """Returns `hf_files` for a tokenizer with further special tokens after its vocabulary.

        `settings` are entries of tokenizer_config.json. Returns {} if the library has no equivalent
        tokenizer.
        """
        return {}

    def hf_with_delimiters(self, delimiters: tuple[int, int, int]) -> dict[str, bytes]:
        """Returns files, in addition to `hf_files`, for a model fine-tuned with delimiter tokens.

        `delimiters` are the ids of the start, delimiter and end tokens, which are the last ones of
        the vocabulary.
        """
        return {}

    def save(self, folder: pathlib.Path) -> None:
        write_files(self.files(), folder)


def visible(text: str) -> str:
    """Returns the text with visible characters for spaces, line ends and tabs."""
    return text.translate(_VISIBLE)


def known_ids(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """Replaces ids beyond the vocabulary by `unk_id`."""
    return [i if i < tokenizer.vocab_size else tokenizer.unk_id for i in ids]


def _checked_ids(ids: list) -> list[int]:
    """Returns the ids as Python integers. Raises UserError for values that are not ids."""
    if not set(map(type, ids)) <= {int}:
        _check_items(ids, numbers.Integral, _DECODE)
        ids = [int(i) for i in ids]
    # A negative id would index from the end of the vocabulary, and a larger one overflow in a
    # library.
    if ids and not 0 <= min(ids) <= max(ids) < 2**31:
        first_bad = next(i for i in ids if not 0 <= i < 2**31)
        raise UserError(f"{_DECODE}; {first_bad} is not an id: ids are from 0 to 2^31 - 1")
    return ids


def _check_items(items: list, kind: type, usage: str) -> None:
    """Raises UserError for an item of another type; the message starts with `usage`."""
    for index, item in enumerate(items):
        # True is an instance of int.
        if not isinstance(item, kind) or isinstance(item, bool):
            raise UserError(f"{usage}; item {index} of this list is {type(item).__name__}")


def write_files(files: dict[str, bytes], folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


# --------------------------------------------------------------------------------------------------
# The base class of tokenizers that use Hugging Face's library `tokenizers`, which encodes batches
# in threads of compiled code.

_TEXTS_PER_BLOCK = 10_000


class LibraryTokenizer(Tokenizer):
    """A tokenizer that wraps a tokenizer of the library, `_tokenizer`."""

    _tokenizer: huggingface.Tokenizer

    def _encode(self, texts):
        # The library's encodings take many times the memory of their ids, so the texts are encoded
        # in blocks.
        blocks = (
            texts[start : start + _TEXTS_PER_BLOCK]
            for start in range(0, len(texts), _TEXTS_PER_BLOCK)
        )
        return [
            encoding.ids
            for block in blocks
            # "fast" leaves out the offsets, which `encode_spans` asks for.
            for encoding in self._tokenizer.encode_batch_fast(block, add_special_tokens=False)
        ]

    def encode_spans(self, texts):
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        return [(encoding.ids, encoding.offsets) for encoding in encodings]

    def hf_library(self) -> huggingface.Tokenizer:
        """Returns a copy of the library's tokenizer, to which special tokens may be added."""
        # A copy, because special tokens would make this tokenizer encode them in a text.
        return huggingface.Tokenizer.from_str(self._tokenizer.to_str())

    def hf_with(self, pieces, settings):
        library = self.hf_library()
        library.add_special_tokens([*pieces])
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **settings}
        return {
            "tokenizer.json": library.to_str().encode(),
            "tokenizer_config.json": json.dumps(config).encode(),
        }

    def hf_with_delimiters(self, delimiters):
        library = self.hf_library()
        names = ("<start>", "<delimiter>", "<extract>")
        # The library numbers added tokens consecutively, so unused tokens fill the gap between the
        # tokenizer's vocabulary and the delimiter tokens, which are at the end of the model's.
        unused = [f"<unused {i}>" for i in range(self.vocab_size, delimiters[0])]
        library.add_special_tokens([*unused, *names])
        library.post_processor = huggingface.processors.TemplateProcessing(
            single="<start> $A <extract>",
            pair="<start> $A <delimiter> $B <extract>",
            special_tokens=list(zip(names, delimiters)),
        )
        config = {"tokenizer_class": "PreTrainedTokenizerFast"}
        return {
            "tokenizer.json": library.to_str().encode(),
            "tokenizer_config.json": json.dumps(config).encode(),
        }


def named_piece(settings: dict, name: str) -> str | None:
    """Returns the piece of a special token that a tokenizer_config.json names, or None."""
    token = settings.get(f"{name}_token")
    return token["content"] if isinstance(token, dict) else token


def pieces_by_id(vocab: dict[str, int]) -> list[str]:
    """Returns the pieces in the order of their ids. Raises ValueError unless those are 0, 1, ..."""
    pieces = sorted(vocab, key=vocab.get)
    # A gap would make the index of a piece in a list differ from its id.
    if [vocab[piece] for piece in pieces] != list(range(len(pieces))):
        raise ValueError(f"the ids of the {len(pieces)} pieces are not 0 to {len(pieces) - 1}")
    return pieces
