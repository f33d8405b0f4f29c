"""Scores of translations: sacreBLEU, chrF and the measure of Vaswani et al. 2017."""

import dataclasses
import re
from collections.abc import Sequence

import numpy as np
import sacrebleu


@dataclasses.dataclass(frozen=True)
class Bleu:
    """sacreBLEU (Post 2018) of a corpus, from 0 to 100."""

    def statistics(self, outputs: Sequence[str], references: Sequence[str]) -> np.ndarray:
        """Returns float64 (N, 10): lengths of output and reference, n-grams in both, n-grams."""
        # The counts are those of any order; the warning is about scores of sentences.
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
    """Returns sacreBLEU (Post 2018) and chrF (Popovic 2015) of a corpus, from 0 to 100."""
    return {
        "bleu": sacrebleu.corpus_bleu(outputs, [references]).score,
        "chrf": sacrebleu.corpus_chrf(outputs, [references]).score,
    }


def signatures(outputs: list[str], references: list[str], language: str | None) -> dict:
    """Returns the signatures of the scores, and BLEU as Vaswani et al. 2017 computed it.

    `language` is the code of the references' language, such as "de", or None if it is unknown.

    `bleu_tokenized_compound_split` follows tensor2tensor's get_ende_bleu.sh: Moses tokenisation,
    "a-b" split into "a ##AT##-##AT## b" on both sides, then BLEU on the tokens. It is higher than
    sacreBLEU. The published 27.3 and 28.4 are such figures.
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
    """Returns the language of the rules that Moses applies, and its label for a signature."""
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
