"""The tokenizer of any tokenizer.json, run by Hugging Face's library `tokenizers`."""

import functools
import json
import re
import secrets
import types
from collections.abc import Iterator, Mapping

import numpy as np
import tokenizers as huggingface

from transformer_jax.data.tokenizers.tokenizer import LibraryTokenizer, named_piece, visible

_NAMES = ("bos", "eos", "pad", "unk", "cls", "sep", "mask")
_NAME_KEYS = {f"{name}_token" for name in _NAMES}  # of tokenizer_config.json
# The usual spellings of special tokens, for a folder whose files name none. transformers has them
# as defaults of its classes.
_USUAL = {
    "bos": ("<s>", "<bos>", "<|begin_of_text|>"),
    "eos": ("</s>", "<eos>", "<|endoftext|>", "<|end_of_text|>"),
    "pad": ("<pad>", "[PAD]"),
    "unk": ("<unk>", "[UNK]"),
    "cls": ("[CLS]", "<cls>"),
    "sep": ("[SEP]", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
}
_DOCUMENT_END = "<eod>"  # of XLNet, whose </s> ends a sentence
_NONE = types.MappingProxyType({})
_UNUSED = re.compile(r"\[unused\d+\]")


class Published(LibraryTokenizer):
    """The tokenizer of a tokenizer.json: BPE, WordPiece, Unigram or a vocabulary of words.

    The normalizer, pre-tokenizer and decoder are the library's. Unlike with transformers, a special
    token that is written in a text is encoded as ordinary text. The saved file contains the content
    of tokenizer.json, of tokenizer_config.json, and the names of the special tokens.

    Raises ValueError if no special token ends a document.
    """

    file = "published.json"

    def __init__(self, model: bytes):
        super().__init__(model)
        content = json.loads(model)
        # In today's format, because files of earlier runs may lack a part.
        self._library = json.loads(_read(json.dumps(content["library"])).to_str())
        self._names = dict(content["special"])
        if unknown := _unknown(self._library["model"]):
            self._names.setdefault("unk", unknown)
        self._settings = content.get("settings", {})
        self._decoder = _without_limits(self._library)
        vocab = self._decoder.get_vocab(with_added_tokens=True)
        # The largest id and not the number of pieces, because published vocabularies may have gaps.
        self.vocab_size = 1 + max(vocab.values())
        self.never = tuple(sorted({*range(self.vocab_size)} - {*vocab.values()}))
        ids = {name: vocab.get(piece) for name, piece in self._names.items()}
        # BERT has no token for the end of a document. [SEP] stands at the end of its rows.
        self.eos_id = ids["sep"] if ids.get("eos") is None else ids["eos"]
        self.bos_id, self.pad_id, self.unk_id = map(ids.get, ("bos", "pad", "unk"))
        self.cls_id, self.sep_id, self.mask_id = map(ids.get, ("cls", "sep", "mask"))
        special = {token["id"] for token in self._library["added_tokens"] if token["special"]}
        special |= {i for piece, i in vocab.items() if _UNUSED.fullmatch(piece)}
        special |= {*ids.values()} - {None}
        self.special = np.isin(np.arange(self.vocab_size), [*special])
        self._tokenizer = _without_limits(_hidden(self._library, special - {self.unk_id}))
        # The library's default is that a user could write any special token.
        self._tokenizer.encode_special_tokens = True
        while f"<extra_id_{self.num_sentinels}>" == self._piece(-1 - self.num_sentinels):
            self.num_sentinels += 1

    @classmethod
    def of(cls, text: str, settings: dict, ids: Mapping[str, int] = _NONE) -> "Published":
        """Returns the tokenizer of a tokenizer.json.

        `settings` is the content of tokenizer_config.json, and `ids` are those of special tokens,
        by name, that the configs of the model give. A name that both lack has its usual spelling.

        Raises ValueError for content that the library does not read, and if no special token ends
        a document.
        """
        tokenizer = _read(text)
        library = json.loads(tokenizer.to_str())  # in today's format
        added = {token["content"] for token in library["added_tokens"] if token["special"]}
        special = {}
        for name in _NAMES:
            named = [named_piece(settings, name), *_framing(library["post_processor"] or {}, name)]
            if name == "unk":
                named.insert(0, _unknown(library["model"]))
            named += [piece for piece in _USUAL[name] if piece in added]
            if name in ids:
                named.insert(1, tokenizer.id_to_token(ids[name]))
            known = [piece for piece in named if piece and tokenizer.token_to_id(piece) is not None]
            if known:
                special[name] = known[0]
        if _DOCUMENT_END in added:
            special["eos"] = _DOCUMENT_END
        if not special.keys() & {"eos", "sep"}:
            raise ValueError(
                "no token ends a document; name one of the vocabulary in tokenizer_config.json: "
                '{"eos_token": ...}'
            )
        # `special` has the names, so that the content does not depend on which file gave them.
        others = {key: value for key, value in settings.items() if key not in _NAME_KEYS}
        settings = {"tokenizer_class": "PreTrainedTokenizerFast"} | others
        content = {"library": library, "special": special, "settings": settings}
        return cls(json.dumps(content).encode())

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> "Published":
        """Returns the tokenizer of a tokenizer.json and a tokenizer_config.json."""
        settings = json.loads(files["tokenizer_config.json"])
        return cls.of(files["tokenizer.json"].decode(), settings)

    @functools.cached_property
    def pair_separators(self):
        return _separators(self._library["post_processor"] or {})

    @property
    def _is_byte_level(self) -> bool:
        return "ByteLevel" in _types(self._library["decoder"])

    def _piece(self, i: int) -> str:
        return self._decoder.id_to_token(i % self.vocab_size) or ""

    @property
    def chat_template(self) -> str | None:
        """The template of conversations in Jinja, if the tokenizer has one."""
        template = self._settings.get("chat_template")
        if isinstance(template, list):  # several, by name
            template = {each["name"]: each["template"] for each in template}.get("default")
        return template

    @property
    def special_pieces(self) -> dict[str, str]:
        """The pieces of special tokens, by the names that a chat template has for them."""
        pieces = {f"{name}_token": piece for name, piece in self._names.items()}
        return {"bos_token": "", "eos_token": self._piece(self.eos_id)} | pieces

    @functools.cached_property
    def placeholders(self) -> dict[str, str]:
        """A text that occurs nowhere for each special token, drawn anew in each process.

        Longer tokens come first, because one special token may be a part of another.
        """
        tokens = [token["content"] for token in self._library["added_tokens"] if token["special"]]
        return {token: secrets.token_hex(16) for token in sorted(tokens, key=len, reverse=True)}

    @functools.cached_property
    def _with_placeholders(self) -> tuple[huggingface.Tokenizer, dict[int, str]]:
        """A library with the placeholders as tokens, and the special token of each of their ids."""
        library = _without_limits(self._library)
        added = [huggingface.AddedToken(x, normalized=False) for x in self.placeholders.values()]
        library.add_special_tokens(added)
        return library, {library.token_to_id(x): piece for piece, x in self.placeholders.items()}

    def encode_rendered(self, text: str) -> list[tuple[int, int]]:
        """Returns the ids of a text whose special tokens are meant, with their first characters.

        A placeholder in the text stands for its special token as ordinary text.
        """
        library, pieces = self._decoder, {}
        if any(placeholder in text for placeholder in self.placeholders.values()):
            library, pieces = self._with_placeholders
        encoding = library.encode(text, add_special_tokens=False)
        encoded = []
        for i, (start, _) in zip(encoding.ids, encoding.offsets):
            ids = self.encode(pieces[i]) if i in pieces else [i]
            encoded += [(each, start) for each in ids]
        return encoded

    def _decode(self, ids):
        special = self.special
        return self._decoder.decode_batch(
            [[i for i in each if i < len(special) and not special[i]] for each in ids],
            skip_special_tokens=False,
        )

    def pieces(self, ids):
        # A piece of bytes is shown as the text that it stands for, not by the characters of its
        # bytes.
        if self._is_byte_level:
            return [visible(self._decoder.decode([i], skip_special_tokens=False)) for i in ids]
        return [visible(self._decoder.id_to_token(i) or "") for i in ids]

    # How a piece shows where a word begins depends on the model.

    def begins_word(self, piece):
        model = self._library["model"]
        if model["type"] == "WordLevel":
            return True
        if prefix := model.get("continuing_subword_prefix"):
            return not piece.startswith(prefix)
        return super().begins_word(piece)

    def ends_word(self, piece):
        suffix = self._library["model"].get("end_of_word_suffix")
        return bool(suffix) and piece.endswith(suffix)

    def without_boundaries(self, piece):
        model = self._library["model"]
        piece = piece.removeprefix(model.get("continuing_subword_prefix") or "")
        piece = piece.removesuffix(model.get("end_of_word_suffix") or "")
        return super().without_boundaries(piece)

    def hf_library(self):
        return _without_limits(self._library)

    def hf_with(self, pieces, settings):
        names = {f"{name}_token": piece for name, piece in self._names.items()}
        return super().hf_with(pieces, self._settings | names | settings)

    def hf_files(self):
        names = {f"{name}_token": piece for name, piece in self._names.items()}
        return {
            "tokenizer.json": json.dumps(self._library, ensure_ascii=False).encode(),
            "tokenizer_config.json": json.dumps(self._settings | names).encode(),
        }


def _read(text: str) -> huggingface.Tokenizer:
    """Returns the tokenizer of a tokenizer.json. Raises ValueError if it can't be read."""
    # The library's errors have no class of their own.
    try:
        return huggingface.Tokenizer.from_str(text)
    except Exception as error:
        raise ValueError(f"tokenizer.json: {error}") from None


def _without_limits(library: dict) -> huggingface.Tokenizer:
    """Returns a tokenizer that neither truncates nor pads, whatever the file says."""
    tokenizer = _read(json.dumps(library))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _hidden(library: dict, special: set[int]) -> dict:
    """Returns the content of a tokenizer.json in which no text can be a special token.

    The names of these tokens are replaced by names that are drawn anew in each process, and
    therefore occur in no text.
    """
    secret = secrets.token_hex(16)

    def name(piece: str, i: int) -> str:
        return f"<{secret} {i}>" if i in special else piece

    model = library["model"]
    if model["type"] == "Unigram":
        vocab = [[name(piece, i), score] for i, (piece, score) in enumerate(model["vocab"])]
    else:
        vocab = {name(piece, i): i for piece, i in model["vocab"].items()}
        if "merges" in model:
            # A merge of a piece that no text has is none.
            merges = [
                [first, second]
                for first, second in model["merges"]
                if {first, second, _merged(model, first, second)} <= vocab.keys()
            ]
            model = model | {"merges": merges}
    added = [
        token | {"content": name(token["content"], token["id"])}
        for token in library["added_tokens"]
    ]
    return library | {"model": model | {"vocab": vocab}, "added_tokens": added}


def _merged(model: dict, first: str, second: str) -> str:
    """Returns the piece that a merge of byte-pair encoding makes."""
    return first + second.removeprefix(model.get("continuing_subword_prefix") or "")


def _unknown(model: dict) -> str | None:
    """Returns the piece of unknown characters or words, if the model has one."""
    if model["type"] == "Unigram":
        return None if model["unk_id"] is None else model["vocab"][model["unk_id"]][0]
    return model.get("unk_token")


def _processors(processor: dict) -> Iterator[dict]:
    """Yields a post-processor, or those of a sequence."""
    if processor.get("type") == "Sequence":
        for each in processor["processors"]:
            yield from _processors(each)
    elif processor:
        yield processor


def _framing(processor: dict, name: str) -> list[str]:
    """Returns the pieces of the special tokens `cls` and `sep` by a post-processor of that kind."""
    kinds = ("BertProcessing", "RobertaProcessing")
    return [
        each[name][0] for each in _processors(processor) if each["type"] in kinds and name in each
    ]


def _separators(processor: dict) -> int:
    """Returns the number of special tokens between the two texts of a pair, at least 1."""
    for each in _processors(processor):
        if each["type"] == "RobertaProcessing":
            return 2
        if each["type"] == "TemplateProcessing":
            texts = [i for i, part in enumerate(each["pair"]) if "Sequence" in part]
            return max(texts[1] - texts[0] - 1, 1)
    return 1


def _types(part) -> Iterator[str]:
    """Yields the type of a part of a tokenizer.json, and of the parts in it."""
    if isinstance(part, dict):
        yield part.get("type")
        part = list(part.values())
    if isinstance(part, list):
        for each in part:
            yield from _types(each)
