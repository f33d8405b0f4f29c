"""Scores of texts: BLEU and chrF, ROUGE, word error rate, exact match."""

import dataclasses
import re
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import sacrebleu

from transformer_jax.config import UserError

# --------------------------------------------------------------------------------------------------
# Scores of translations: sacreBLEU, chrF, and BLEU as in Vaswani et al. 2017.


@dataclasses.dataclass(frozen=True)
class Bleu:
    """sacreBLEU (Post 2018) of a corpus, from 0 to 100."""

    def statistics(self, outputs: Sequence[str], references: Sequence[str]) -> np.ndarray:
        """Returns float64 (N, 10).

        The columns are the lengths of output and reference, the matching n-grams of orders 1 to 4,
        and all n-grams of the output of these orders.
        """
        # Only the counts are used, which do not depend on effective_order. It avoids sacreBLEU's
        # warning about scores of single sentences.
        bleu = sacrebleu.BLEU(effective_order=True)
        scored = [bleu.sentence_score(*pair) for pair in zip(outputs, ([r] for r in references))]
        counts = [[one.sys_len, one.ref_len, *one.counts, *one.totals] for one in scored]
        return np.array(counts, np.float64).reshape(-1, 10)

    def scores(self, sums: np.ndarray, count: int) -> dict[str, float]:
        output_length, reference_length, *counts = sums.astype(int).tolist()
        score = sacrebleu.BLEU.compute_bleu(
            counts[:4], counts[4:], output_length, reference_length, smooth_method="exp"
        )
        return {"bleu": score.score}


def scores(outputs: list[str], references: list[str]) -> dict[str, float]:
    """Returns the sacreBLEU (Post 2018) and chrF (Popovic 2015) of a corpus, from 0 to 100."""
    return {
        "bleu": sacrebleu.corpus_bleu(outputs, [references]).score,
        "chrf": sacrebleu.corpus_chrf(outputs, [references]).score,
    }


def signatures(outputs: list[str], references: list[str], language: str | None) -> dict:
    """Returns the signatures of the scores, and BLEU as Vaswani et al. 2017 computed it.

    `language` is the code of the references' language, such as "de", or None if it is unknown.

    `bleu_tokenized_compound_split` follows get_ende_bleu.sh of tensor2tensor: Moses tokenization,
    splitting "a-b" into "a ##AT##-##AT## b" in outputs and references, and then BLEU on the tokens.
    It is higher than sacreBLEU. The published 27.3 and 28.4 were computed in this way.
    """
    bleu = sacrebleu.BLEU()
    bleu.corpus_score(outputs, [references])
    chrf = sacrebleu.CHRF()
    chrf.corpus_score(outputs, [references])
    tokenized = sacrebleu.BLEU(tokenize="none", force=True)
    rules, label = _moses_rules(language)
    split_outputs = _compound_split(outputs, rules)
    split_references = _compound_split(references, rules)
    score = tokenized.corpus_score(split_outputs, [split_references]).score
    signature = f"{tokenized.get_signature()}|moses tokenizer ({label})|compounds split at hyphens"
    return {
        "bleu_signature": str(bleu.get_signature()),
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
# Scores of summaries: ROUGE (Lin 2004), computed by the library rouge-score.

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
            from rouge_score import rouge_scorer  # an extra
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
# Word and character error rates of transcripts, computed by the library jiwer.


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
    if not reference.strip():  # everything in the output is an insertion
        return len(output.split()), 0, len(output), 0
    jiwer = _library()
    words = jiwer.process_words(reference, output)
    characters = jiwer.process_characters(reference, output)
    errors = [x.substitutions + x.deletions + x.insertions for x in (words, characters)]
    return errors[0], len(reference.split()), errors[1], len(reference)


def _rate(errors: float, count: float) -> float:
    return float(100 * errors / max(count, 1))


def _library():
    try:
        import jiwer  # an extra
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
