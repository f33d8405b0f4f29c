"""How good translations are: sacreBLEU and chrF, and the measure of Vaswani et al. 2017."""

import re

import sacrebleu


def scores(outputs: list[str], references: list[str]) -> dict[str, float]:
    """sacreBLEU (Post 2018) and chrF (Popovic 2015) of a corpus, from 0 to 100."""
    return {
        "bleu": sacrebleu.corpus_bleu(outputs, [references]).score,
        "chrf": sacrebleu.corpus_chrf(outputs, [references]).score,
    }


def signatures(outputs: list[str], references: list[str], language: str | None) -> dict:
    """What makes the figures comparable, and BLEU as the paper counted it.

    `language`: code of the references' language, such as "de"; None where it is not known.

    `bleu_tokenized_compound_split`: Moses tokenisation, "a-b" split into "a ##AT##-##AT## b" on
    both sides, then BLEU on the tokens (tensor2tensor's get_ende_bleu.sh). It comes out higher than
    sacreBLEU: 27.3 and 28.4 are such figures.
    """
    bleu, chrf = sacrebleu.BLEU(), sacrebleu.CHRF()
    bleu.corpus_score(outputs, [references]), chrf.corpus_score(outputs, [references])
    paper = sacrebleu.BLEU(tokenize="none", force=True)
    rules, label = _moses_rules(language)
    split = [_compound_split(side, rules) for side in (outputs, references)]
    score = paper.corpus_score(split[0], [split[1]]).score
    signature = f"{paper.get_signature()}|moses tokenizer ({label})|compounds split at hyphens"
    return {
        "bleu_signature": str(bleu.get_signature()),
        "chrf_signature": str(chrf.get_signature()),
        "bleu_tokenized_compound_split": score,
        "bleu_tokenized_compound_split_signature": signature,
    }


def _moses_rules(language: str | None) -> tuple[str, str]:
    """(language whose rules Moses applies, what a signature says of them)."""
    from sacremoses.corpus import NonbreakingPrefixes

    known = {*NonbreakingPrefixes().available_langs.values(), "zh", "ja", "ko"}
    if language in known:
        return language, language
    reason = f"no rules for {language!r}" if language else "the target's language is unknown"
    return "en", f"en, the default: {reason}"


def _compound_split(lines: list[str], language: str) -> list[str]:
    from sacremoses import MosesTokenizer  # needed for the paper's measure alone

    tokenizer = MosesTokenizer(lang=language)
    return [
        re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", tokenizer.tokenize(line, return_str=True))
        for line in lines
    ]
