"""The tokenizers of Marian's translation models, such as OPUS-MT (Tiedemann & Thottingal 2020)."""

import base64
import json
import os
import pathlib

from transformer_jax.data.tokenizers import sentence_piece
from transformer_jax.data.tokenizers.sentence_piece import SentencePiece
from transformer_jax.data.tokenizers.tokenizer import Tokenizer, known_ids, visible


class Marian(Tokenizer):
    """One language of a Marian: the pieces of its SentencePiece model, with the ids of vocab.json.

    Ids equal those of Hugging Face's MarianTokenizer. Source and target may share the ids, although
    each has a SentencePiece model of its own. A text may begin with the code of the language to
    translate to, such as ">>fra<<". The saved file holds the ids by piece, and the model.
    """

    file = "marian.json"

    def __init__(self, model: bytes):
        super().__init__(model)
        content = json.loads(model)
        self.vocab = content["vocab"]
        self.sentence_piece = base64.b64decode(content["sentence_piece"])
        self._processor = sentence_piece.loaded(self.sentence_piece)
        self.vocab_size = 1 + max(self.vocab.values())
        missing = [piece for piece in ("</s>", "<unk>", "<pad>") if piece not in self.vocab]
        if missing:
            raise ValueError(f"no piece {missing[0]!r} in vocab.json")
        self.eos_id, self.unk_id, self.pad_id = (
            self.vocab[piece] for piece in ("</s>", "<unk>", "<pad>")
        )
        # A decoder reads padding first. It is no token of a text.
        self.never = (self.pad_id,)
        self._pieces = ["<unk>"] * self.vocab_size
        for piece, i in self.vocab.items():
            self._pieces[i] = piece
        special = {self.eos_id, self.unk_id, self.pad_id}
        self._ids = {piece: i for piece, i in self.vocab.items() if i not in special}

    @classmethod
    def of(cls, vocab: dict[str, int], model: bytes) -> "Marian":
        """Returns the tokenizer of these ids by piece, and of a SentencePiece model."""
        content = {"vocab": vocab, "sentence_piece": base64.b64encode(model).decode()}
        return cls(json.dumps(content).encode())

    def _encode(self, texts):
        codes, rests = zip(*map(_split_code, texts)) if texts else ((), ())
        pieces = self._processor.encode([*rests], out_type=str, num_threads=os.cpu_count())
        return [
            [self._ids.get(piece, self.unk_id) for piece in (*code, *sequence)]
            for code, sequence in zip(codes, pieces)
        ]

    def _decode(self, ids):
        dropped = {self.eos_id, self.unk_id, self.pad_id}
        pieces = [
            [self._pieces[i] for i in known_ids(self, sequence) if i not in dropped]
            for sequence in ids
        ]
        texts = (self._processor.decode_pieces(sequence) for sequence in pieces)
        return [text.replace("▁", " ").strip() for text in texts]

    def pieces(self, ids):
        return [visible(self._pieces[i]) for i in known_ids(self, ids)]


def _split_code(text: str) -> tuple[list[str], str]:
    """Returns the language code that begins a text, if there is one, and the rest of the text."""
    end = text.find("<<")
    if not text.startswith(">>") or end < 0:
        return [], text
    return [text[: end + 2]], text[end + 2 :]


def of_folder(folder: pathlib.Path) -> tuple[Marian, Marian]:
    """Returns the tokenizers of source and target of a published model.

    `target_vocab.json` holds the ids of a target that does not share those of the source.
    """
    vocab = json.loads((folder / "vocab.json").read_bytes())
    path = folder / "target_vocab.json"
    target_vocab = json.loads(path.read_bytes()) if path.exists() else vocab
    return (
        Marian.of(vocab, (folder / "source.spm").read_bytes()),
        Marian.of(target_vocab, (folder / "target.spm").read_bytes()),
    )


def of_sentence_piece(tokenizer: SentencePiece, size: int) -> tuple[Marian, list[int]]:
    """Returns a tokenizer of the same pieces, and the ids of `tokenizer` in the order of its ids.

    It has `size` ids. The last one, its <pad>, is the id that a decoder reads first.
    """
    processor = sentence_piece.loaded(tokenizer.model)
    first = [tokenizer.eos_id, tokenizer.unk_id]
    others = [i for i in range(size) if i not in (*first, tokenizer.start_id)]
    names = [
        processor.id_to_piece(i)
        if i < tokenizer.vocab_size and i != tokenizer.pad_id
        else f"<unused {i}>"
        for i in others
    ]
    vocab = {piece: i for i, piece in enumerate(["</s>", "<unk>", *names, "<pad>"])}
    return Marian.of(vocab, tokenizer.model), [*first, *others, tokenizer.start_id]


def hf_files(source: Marian, target: Marian) -> dict[str, bytes]:
    """Returns the files that Hugging Face's MarianTokenizer reads."""
    is_separate = source.vocab != target.vocab
    config = {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": is_separate,
        "clean_up_tokenization_spaces": False,
    }
    files = {
        "source.spm": source.sentence_piece,
        "target.spm": target.sentence_piece,
        "vocab.json": json.dumps(source.vocab, ensure_ascii=False, indent=2).encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
    }
    if is_separate:
        files["target_vocab.json"] = json.dumps(target.vocab, ensure_ascii=False, indent=2).encode()
    return files
