"""BLEU as the paper counted it, and in the languages that sacreBLEU has tokenizers for."""

import itertools
import re

import pytest
import sacrebleu
from sacrebleu.tokenizers import tokenizer_ja_mecab, tokenizer_ko_mecab

from tests.conftest import build_config
from tests.tasks.test_text_to_text import build as build_text_to_text
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.data.sources.pairs import GrammarPairs, TextPairs, TfdsPairs, open_pairs
from transformer_jax.inference.translating import Hypothesis, SequenceToSequenceUse, comparison
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task
from transformer_jax.scores import predictions, texts


def test_bleu_as_the_paper_counted_it():
    """Moses tokenisation, compounds split at hyphens, BLEU of the tokens."""
    outputs = ["das ist ein Test-Satz .", "ganz gleich und auch lang genug ."]
    references = ["das ist ein Probe-Satz .", "ganz gleich und auch lang genug ."]
    score = texts.signatures(outputs, references, "de")["bleu_tokenized_compound_split"]
    sides = [
        [re.sub("-", " ##AT##-##AT## ", line) for line in side] for side in (outputs, references)
    ]
    expected = sacrebleu.corpus_bleu(sides[0], [sides[1]], tokenize="none", force=True).score
    assert score == pytest.approx(expected) and 50 < score < 100
    split = texts._compound_split(["Ein Test-Satz, ja!"], "de")
    assert split == ["Ein Test ##AT##-##AT## Satz , ja !"]
    assert texts.scores(references, references)["bleu"] == pytest.approx(100)


@pytest.mark.parametrize(
    "name, label",
    [
        ("test.fr", "(fr)"),
        ("test.FR.txt", "(fr)"),
        ("v1.test.de", "(de)"),
        ("test.txt", "(en, the default: the target's language is unknown)"),
        ("test.hr", "(en, the default: no rules for 'hr')"),
    ],
)
def test_the_names_of_files_hold_their_languages(name, label):
    language = TextPairs("test.en", f"/data.de/{name}").target_language
    signatures = texts.signatures(["ein Satz"], ["ein Satz"], language)
    assert f"|moses tokenizer {label}|" in signatures["bleu_tokenized_compound_split_signature"]


def test_the_languages_of_sets_and_of_the_grammar():
    assert TfdsPairs("set", "test", ("en", "fr")).target_language == "fr"
    assert GrammarPairs("test", 3).target_language == "de"


def test_the_grammar_is_read_in_both_directions():
    config = configs.load("configs/wmt/quickstart.py")
    forward = open_pairs(config.data, "test")
    config.data.source_language, config.data.target_language = "de", "en"
    backward = open_pairs(config.data, "test")
    assert [pair[::-1] for pair in itertools.islice(backward, 20)] == [
        *itertools.islice(forward, 20)
    ]
    assert backward.target_language == "en"
    assert backward.fingerprint() != forward.fingerprint()
    config.data.target_language = "fr"
    with pytest.raises(UserError, match="the grammar has en and de"):
        open_pairs(config.data, "test")


@pytest.mark.full
def test_an_evaluation_names_the_language_of_its_files(translation, tmp_path):
    for name in ("test.en", "test.fr"):
        (tmp_path / name).write_text("a dog runs\n")
    files = {"data.test_source": f"{tmp_path}/test.en", "data.test_target": f"{tmp_path}/test.fr"}
    task, params = open_run(translation.workdir, overrides={**files, "decode.beam": 1})
    signature = task.evaluate(params, "test")["bleu_tokenized_compound_split_signature"]
    assert "moses tokenizer (fr)" in signature


CHINESE = (
    ["我喜欢在公园里散步。", "一只狗在公园里跑。", "他昨天买了 iPhone。"],
    ["我喜欢在公园中散步。", "一只狗在公园里跑步。", "他昨天买了一部 iPhone。"],
)
JAPANESE = ["私は公園を散歩するのが好きです。"], ["私は公園の中を散歩するのが好きです。"]
KOREAN = ["나는 공원에서 산책하는 것을 좋아한다."], ["나는 공원에서 걷는 것을 좋아한다."]
GERMAN = ["Ein Hund rennt im Park."], ["Ein Hund läuft im Park."]


@pytest.mark.parametrize(
    "language, references, tokenizer",
    [
        ("zh", GERMAN[1], "zh"),  # the language that is named decides
        ("zh-CN", GERMAN[1], "zh"),
        ("ja_JP", CHINESE[1], "ja-mecab"),
        ("KO", GERMAN[1], "ko-mecab"),
        ("de", GERMAN[1], "13a"),
        (None, GERMAN[1], "13a"),
        (None, [], "13a"),
        (None, ["", "12.5 %"], "13a"),
        # ... and otherwise the script
        (None, CHINESE[1], "zh"),
        ("yue", CHINESE[1], "zh"),
        ("summary", CHINESE[1], "zh"),
        (None, ["使用 PyTorch 训练 Transformer 模型。"], "zh"),
        (None, ["The book 三体 by Liu Cixin (刘慈欣) has won a prize last year."], "13a"),
        (None, JAPANESE[1], "ja-mecab"),
        (None, ["カタカナ", "ｶﾀｶﾅ"], "ja-mecab"),
        (None, KOREAN[1], "ko-mecab"),
        (None, ["Собака бежит.", "كلب يركض", "หมาวิ่ง"], "13a"),
    ],
)
def test_the_tokenizer_of_the_language_or_else_of_the_script(language, references, tokenizer):
    assert texts.bleu_tokenizer(references, language) == tokenizer


@pytest.mark.parametrize("language", [None, "zh", "zh-TW"])
def test_bleu_of_chinese(language):
    outputs, references = CHINESE
    expected = sacrebleu.corpus_bleu(outputs, [references], tokenize="zh").score
    assert 50 < expected < 100
    assert texts.scores(outputs, references, language)["bleu"] == pytest.approx(expected)
    measure = texts.Bleu(language)
    sampled = predictions.scores(measure, measure.statistics(outputs, references))
    assert sampled["bleu"] == pytest.approx(expected)
    assert "|tok:zh|" in texts.signatures(outputs, references, language)["bleu_signature"]


@pytest.mark.parametrize(
    "module, code, both", [("MeCab", "ja", JAPANESE), ("mecab_ko", "ko", KOREAN)]
)
def test_bleu_by_mecab(module, code, both):
    pytest.importorskip(module)
    outputs, references = both
    expected = sacrebleu.BLEU(trg_lang=code).corpus_score(outputs, [references]).score
    for language in (None, code):
        assert texts.scores(outputs, references, language)["bleu"] == pytest.approx(expected)
        signature = texts.signatures(outputs, references, language)["bleu_signature"]
        assert f"|tok:{code}-mecab-" in signature


@pytest.fixture
def no_mecab(monkeypatch):
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    monkeypatch.setattr(tokenizer_ko_mecab, "MeCab", None)


def test_a_missing_mecab_is_an_error_before_training(no_mecab, tmp_path):
    for code, lines in (("ja", JAPANESE[1]), ("ko", KOREAN[1])):
        with pytest.raises(UserError, match=rf"{code}-mecab: pip install 'sacrebleu\[{code}\]'"):
            texts.scores(lines, lines)
    files = {"data__valid_source": tmp_path / "v.en", "data__valid_target": tmp_path / "v.txt"}
    files["data__valid_source"].write_text("a walk\n")
    files["data__valid_target"].write_text(f"{JAPANESE[1][0]}\n")
    overrides = {key: str(path) for key, path in files.items()}
    make_task(build_config(tmp_path, task__bleu_lines=0, **overrides)).rows()  # no BLEU, no error
    with pytest.raises(UserError, match="ja-mecab: pip install"):
        make_task(build_config(tmp_path, task__bleu_lines=1, **overrides)).rows()
    table = tmp_path / "pairs.tsv"
    table.write_text(f"a walk\t{KOREAN[1][0]}\n")
    config = build_text_to_text(
        tmp_path,
        task__scores=("bleu",),
        data__train_files=str(table),
        data__valid_files=str(table),
    )
    with pytest.raises(UserError, match="ko-mecab: pip install"):
        make_task(config).rows()


def test_evaluations_during_training_use_the_tokenizer_of_the_targets(monkeypatch, tmp_path):
    outputs, references = CHINESE
    expected = sacrebleu.corpus_bleu(outputs, [references], tokenize="zh").score

    def translate(task, params, lines, *_, **__):
        return ([Hypothesis(output, 0.0)] for output, _ in zip(outputs, lines))

    monkeypatch.setattr(SequenceToSequenceUse, "translate", translate)
    (tmp_path / "valid.en").write_text("a\nb\nc\n")
    for name in ("valid.zh", "valid.txt"):
        (tmp_path / name).write_text("\n".join(references) + "\n")
        files = dict(
            data__valid_source=f"{tmp_path}/valid.en", data__valid_target=f"{tmp_path}/{name}"
        )
        task = make_task(build_config(tmp_path, task__bleu_lines=3, **files))
        assert task.evaluations()["valid"](None)["bleu"] == pytest.approx(expected)
        results = task.evaluate(None, "valid")
        assert results["bleu"] == pytest.approx(expected)
        assert "|tok:zh|" in results["bleu_signature"]
        low, high = results["intervals"]["bleu"]
        assert low <= expected <= high
        own = task.split_outputs(None, "valid")
        compared = comparison(task.measures, own, own._replace(outputs=references))
        assert compared["bleu"]["score"] == pytest.approx(expected)
        assert compared["bleu"]["against"] == pytest.approx(100)
    table = tmp_path / "pairs.csv"
    table.write_text("en,zh\n" + "".join(f"a,{line}\n" for line in references))
    config = build_text_to_text(
        tmp_path,
        task__scores=("bleu",),
        task__source="en",
        task__target="zh",
        data__train_files=str(table),
        data__valid_files=str(table),
    )
    task = make_task(config)
    assert task.evaluations()["valid"](None)["bleu"] == pytest.approx(expected)
    results = task.evaluate(None, "valid")
    assert results["bleu"] == pytest.approx(expected) and "|tok:zh|" in results["bleu_signature"]
