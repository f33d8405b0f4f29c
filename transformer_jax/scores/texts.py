"""Scores of texts: BLEU and chrF, ROUGE, word error rate, exact match."""

import collections
import dataclasses
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import numpy as np
import sacrebleu

from transformer_jax.config import UserError

# --------------------------------------------------------------------------------------------------
# Scores of translations: sacreBLEU, chrF, and BLEU as in Vaswani et al. 2017.


# Languages in which 13a, sacreBLEU's tokenizer for all others, would not find the words.
_TOKENIZERS = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}


def bleu_tokenizer(references: Iterable[str], language: str | None = None) -> str:
    """Returns the name of the sacreBLEU tokenizer for references in a language.

    `language` is a code such as "ja" or "zh-CN", or None if it is unknown. If sacreBLEU has no
    tokenizer for it, the script of the references decides, because 13a takes a whole Chinese or
    Japanese sentence for one word: BLEU would be near 0. References have a tokenizer of their
    script if its characters are at least as many as the words in other scripts. Hangul is Korean.
    Han characters are Japanese with one kana or more for every ten of them, and else Chinese.
    """
    code = re.split("[-_]", language or "")[0].lower()
    if code in _TOKENIZERS:
        return _TOKENIZERS[code]
    counts = collections.Counter()
    for script, run in itertools.groupby(map(_script, itertools.chain.from_iterable(references))):
        counts[script] += 1 if script == "other" else len(list(run))
    hangul, kana, han = (counts[script] for script in ("hangul", "kana", "han"))
    if hangul + kana + han < max(counts["other"], 1):
        return "13a"
    if hangul > kana + han:
        return _TOKENIZERS["ko"]
    return _TOKENIZERS["ja" if 10 * kana >= han else "zh"]


def _script(character: str) -> str:
    """Returns the script of a letter: hangul, kana, han or other; "" if it is no letter."""
    if not character.isalpha():
        return ""
    name = unicodedata.name(character, "")
    scripts = (script for script, starts in _SCRIPTS.items() if name.startswith(starts))
    return next(scripts, "other")


_SCRIPTS = {
    "hangul": ("HANGUL", "HALFWIDTH HANGUL"),
    "kana": ("HIRAGANA", "KATAKANA", "HALFWIDTH KATAKANA"),
    "han": ("CJK",),
}


def _sacrebleu(references: Iterable[str], language: str | None, **options) -> sacrebleu.BLEU:
    """Returns sacreBLEU with the tokenizer of the references' language."""
    name = bleu_tokenizer(references, language)
    try:
        return sacrebleu.BLEU(tokenize=name, **options)
    except RuntimeError:  # sacreBLEU's own message has five lines
        code = name.partition("-")[0]
        raise UserError(
            f"BLEU of these references needs sacreBLEU's tokenizer {name}: "
            f"pip install 'sacrebleu[{code}]'"
        ) from None


@dataclasses.dataclass(frozen=True)
class Bleu:
    """sacreBLEU (Post 2018) of a corpus, from 0 to 100, with the tokenizer of its language."""

    language: str | None = None  # of the references; see `bleu_tokenizer`

    def check(self, references: Iterable[str]) -> None:
        """Raises UserError if the tokenizer for the references is not installed."""
        _sacrebleu(references, self.language)

    def signature(self, references: Iterable[str]) -> str:
        """Returns sacreBLEU's signature, such as "nrefs:1|case:mixed|eff:no|tok:zh|..."."""
        bleu = _sacrebleu(references, self.language)
        bleu.corpus_score([""], [[""]])  # a signature without a score has no number of references
        return str(bleu.get_signature())

    def statistics(self, outputs: Sequence[str], references: Sequence[str]) -> np.ndarray:
        """Returns float64 (N, 10).

        The columns are the lengths of output and reference, the matching n-grams of orders 1 to 4,
        and all n-grams of the output of these orders.
        """
        # Only the counts are used, which do not depend on effective_order. It avoids sacreBLEU's
        # warning about scores of single sentences.
        bleu = _sacrebleu(references, self.language, effective_order=True)
        scored = [bleu.sentence_score(*pair) for pair in zip(outputs, ([r] for r in references))]
        counts = [[one.sys_len, one.ref_len, *one.counts, *one.totals] for one in scored]
        return np.array(counts, np.float64).reshape(-1, 10)

    def scores(self, sums: np.ndarray, count: int) -> dict[str, float]:
        # Exact, because float64 represents all counts below 2^53.
        output_length, reference_length, *counts = sums.astype(int).tolist()
        score = sacrebleu.BLEU.compute_bleu(
            counts[:4], counts[4:], output_length, reference_length, smooth_method="exp"
        )
        return {"bleu": score.score}


def scores(
    outputs: list[str], references: list[str], language: str | None = None
) -> dict[str, float]:
    """Returns the sacreBLEU (Post 2018) and chrF (Popovic 2015) of a corpus, from 0 to 100.

    `language` is the code of the references' language; see `bleu_tokenizer`.
    """
    return {
        "bleu": _sacrebleu(references, language).corpus_score(outputs, [references]).score,
        "chrf": sacrebleu.corpus_chrf(outputs, [references]).score,
    }


def signatures(outputs: list[str], references: list[str], language: str | None) -> dict:
    """Returns the signatures of the scores, and BLEU as Vaswani et al. 2017 computed it.

    `language` is the code of the references' language, such as "de", or None if it is unknown.

    `bleu_tokenized_compound_split` follows get_ende_bleu.sh of tensor2tensor: Moses tokenization,
    splitting "a-b" into "a ##AT##-##AT## b" in outputs and references, and then BLEU on the tokens.
    It is higher than sacreBLEU. The published 27.3 and 28.4 were computed in this way.
    """
    chrf = sacrebleu.CHRF()
    chrf.corpus_score(outputs, [references])
    # `force` silences the warning about tokenized text, which is meant here.
    tokenized = sacrebleu.BLEU(tokenize="none", force=True)
    rules, label = _moses_rules(language)
    split_outputs = _compound_split(outputs, rules)
    split_references = _compound_split(references, rules)
    score = tokenized.corpus_score(split_outputs, [split_references]).score
    signature = f"{tokenized.get_signature()}|moses tokenizer ({label})|compounds split at hyphens"
    return {
        "bleu_signature": Bleu(language).signature(references),
        "chrf_signature": str(chrf.get_signature()),
        "bleu_tokenized_compound_split": score,
        "bleu_tokenized_compound_split_signature": signature,
    }


def _moses_rules(language: str | None) -> tuple[str, str]:
    """Returns the language whose rules Moses applies, and its label for a signature."""
    from sacremoses.corpus import NonbreakingPrefixes

    languages = {*NonbreakingPrefixes().available_langs.values(), "zh", "ja", "ko"}
    if language in languages:
        return language, language
    reason = f"no rules for {language!r}" if language else "the target's language is unknown"
    return "en", f"en, the default: {reason}"


def _compound_split(lines: list[str], language: str) -> list[str]:
    from sacremoses import MosesTokenizer  # only this measure needs it

    tokenizer = MosesTokenizer(lang=language)
    return [
        re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", tokenizer.tokenize(line, return_str=True))
        for line in lines
    ]


# --------------------------------------------------------------------------------------------------
# Scores of summaries: ROUGE (Lin 2004), computed by the library rouge-score, which was made to
# reproduce the numbers of the original script.

NAMES = ("rouge1", "rouge2", "rougeL", "rougeLsum")


@dataclasses.dataclass(frozen=True)
class Rouge:
    """The mean F1 of unigrams, bigrams and longest common subsequences, from 0 to 100.

    Words are reduced to their Porter stems. rougeLsum takes the union of the subsequences over
    pairs of sentences; papers on summarization report it as ROUGE-L.
    """

    sentences: Callable[[str], list[str]]  # splits a text

    def __post_init__(self):
        _ = self._scorer  # raises the error for a missing library before any text is scored

    @cached_property
    def _scorer(self):
        try:
            from rouge_score import rouge_scorer  # an extra, so it may be missing
        except ImportError:
            raise UserError(
                "config.task.scores: rouge needs rouge-score: pip install 'transformer_jax"
                "[summaries]'"
            ) from None
        return rouge_scorer.RougeScorer(NAMES, use_stemmer=True)

    def statistics(self, outputs: Sequence[str], references: Sequence[str]) -> np.ndarray:
        """Returns float64 (N, 4): the F1 of each example."""
        scored = [
            self._scorer.score(self._lines(reference), self._lines(output))
            for output, reference in zip(outputs, references)
        ]
        values = [[example[name].fmeasure for name in NAMES] for example in scored]
        return np.array(values, np.float64).reshape(-1, len(NAMES))

    def _lines(self, text: str) -> str:
        """Returns a text with one sentence per line, as the library expects it."""
        return "\n".join(self.sentences(text))

    def scores(self, sums: np.ndarray, count: int) -> dict[str, float]:
        return dict(zip(NAMES, (100 * sums / count).tolist()))


# --------------------------------------------------------------------------------------------------
# Word and character error rates of transcripts, whose alignments are those of the library jiwer.
# Errors and words are summed over the whole set before they are divided, so that a short transcript
# does not weigh as much as a long one.


@dataclasses.dataclass(frozen=True)
class WordErrors:
    """Substitutions, deletions and insertions per 100 words, and per 100 characters.

    The rates are computed over the whole set: all errors divided by all words.
    """

    def __post_init__(self):
        _library()  # raises the error for a missing library before any text is scored

    def statistics(self, outputs: Sequence[str], references: Sequence[str]) -> np.ndarray:
        """Returns float64 (N, 4): errors in words, words, errors in characters, characters."""
        pairs = zip(outputs, references, strict=True)
        return np.array([_counts(*pair) for pair in pairs], np.float64).reshape(-1, 4)

    def scores(self, sums: np.ndarray, count: int) -> dict[str, float]:
        words, characters = sums.reshape(2, 2)
        return {"wer": _rate(*words), "cer": _rate(*characters)}


def _counts(output: str, reference: str) -> tuple[int, int, int, int]:
    """Returns the word errors, words, character errors and characters of one example."""
    if not reference.strip():  # older releases of jiwer raise an error; all are insertions
        return len(output.split()), 0, len(output), 0
    jiwer = _library()
    words = jiwer.process_words(reference, output)
    characters = jiwer.process_characters(reference, output)
    errors = [x.substitutions + x.deletions + x.insertions for x in (words, characters)]
    return errors[0], len(reference.split()), errors[1], len(reference)


def _rate(errors: float, count: float) -> float:
    # References without a word have errors as well, which must not be divided by 0.
    return float(100 * errors / max(count, 1))


def _library():
    try:
        import jiwer  # an extra, so it may be missing
    except ImportError:
        raise UserError(
            "word error rates are counted by jiwer: pip install -e '.[audio]'"
        ) from None
    return jiwer


# --------------------------------------------------------------------------------------------------
# Exact match, for labels and short answers in the form of text.


@dataclasses.dataclass(frozen=True)
class ExactMatch:
    """The share of outputs that equal their references, from 0 to 1."""

    def statistics(self, outputs: Sequence[str], references: Sequence[str]) -> np.ndarray:
        """Returns float64 (N, 1): 1 where the output is right."""
        equal = [
            output.strip() == reference.strip() for output, reference in zip(outputs, references)
        ]
        return np.array(equal, np.float64)[:, None]

    def scores(self, sums: np.ndarray, count: int) -> dict[str, float]:
        return {"exact_match": float(sums[0]) / count}
