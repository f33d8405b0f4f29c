"""Converted runs write what transformers' `generate` writes with the options of a checkpoint."""

import json
import re

import pytest

from tests.conversion.checkpoints import copied, read_json, refused
from tests.fixtures import make_huggingface_options as make
from transformer_jax import convert
from transformer_jax.huggingface import encoder_decoder, family, generate_options
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task
from transformer_jax.storage import buckets

EXPECTED = read_json(make.FILE)
BART = "BartForConditionalGeneration"
COMBINATIONS = 40  # random ones of each architecture


class Ours:
    """The run of a checkpoint in a folder, whose options may change."""

    def __init__(self, architecture, folder):
        self.architecture, self.folder = architecture, buckets.path(folder)
        convert.from_hf(folder, folder.parent / "run")
        _, self.params = open_run(folder.parent / "run")

    def best(self, options):
        """Returns the best output of the run that a checkpoint with these options becomes."""
        (self.folder / generate_options.FILE).write_text(json.dumps(options))
        hf_config = read_json(self.folder / "config.json")
        kind = family.checkpoint_family(self.folder, hf_config)
        task = make_task(kind.read_config(hf_config, self.folder))
        kind.complete(task, hf_config, self.folder)
        prompts = [make.PROMPTS[self.architecture]]
        if self.architecture in make.PAIRS:
            task.config.decode.max_length = make.TOKENS
            return next(task.translate(self.params, prompts))[0]
        if options.get("num_beams", 1) > 1:
            return next(task.generate_beam(self.params, prompts, max_tokens=make.TOKENS))[0]
        limits = dict(max_tokens=make.TOKENS, temperature=0.0)
        return next(task.generate(self.params, prompts, **limits))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """{architecture: its run}, each converted once."""
    made = {}

    def run(architecture):
        if architecture not in made:
            folder = tmp_path_factory.mktemp(architecture) / "hf"
            make.write_checkpoint(architecture, folder)
            made[architecture] = Ours(architecture, folder)
        return made[architecture]

    return run


CASES = [(name, case) for name, entries in EXPECTED.items() for case in entries]


@pytest.mark.sample(
    "GPT2LMHeadModel-words",
    "BartForConditionalGeneration-several ends",
)
@pytest.mark.parametrize("architecture, case", CASES, ids=map("-".join, CASES))
def test_texts_and_scores_equal(architecture, case, runs):
    """The score of a beam search counts the end token. BART has no forced first token."""
    expected = EXPECTED[architecture][case]
    best = runs(architecture).best(expected["options"])
    assert best.text == expected["text"]
    if expected["score"] is not None:
        assert best.score == pytest.approx(expected["score"], abs=1e-4)


def test_live(tmp_path):
    pytest.importorskip("transformers")
    made = make.made(BART)
    assert made.keys() == EXPECTED[BART].keys()
    for case, expected in EXPECTED[BART].items():
        # The last digit of a rounded score depends on the processor.
        assert made[case] == expected | {"score": pytest.approx(expected["score"], abs=2e-5)}


def counted(architecture, folder, numbers, capsys):
    """Returns how many combinations are equal, and how many have an option that a line names."""
    theirs = make.Theirs(architecture, folder / "hf")
    ours = Ours(architecture, folder / "hf")
    counts, wrong = {"equal": 0, "named": 0}, []
    for number in numbers:
        drawn = make.drawn(number, architecture, theirs.likely, theirs.end)
        options = theirs.options(drawn)
        capsys.readouterr()
        text = ours.best(options).text
        said = capsys.readouterr().err
        expected = theirs.text(theirs.generated(options)[0], options)
        if text == expected:
            counts["equal"] += 1
        # The beams are an option of each call, which `best` gives.
        elif [key for key in drawn if f" {key}=" in said and key != "num_beams"]:
            counts["named"] += 1
        else:
            wrong.append((number, options, text, expected))
    assert not wrong, wrong
    return counts


@pytest.mark.full
@pytest.mark.parametrize("architecture", EXPECTED)
def test_random_options_are_obeyed_or_named(architecture, tmp_path, capsys):
    pytest.importorskip("transformers")
    counts = counted(architecture, tmp_path, range(COMBINATIONS), capsys)
    with capsys.disabled():
        print(f"\n{architecture}: {counts}")
    assert sum(counts.values()) == COMBINATIONS
    assert counts["equal"] > COMBINATIONS // 2


def test_options_of_a_decoder():
    options = dict(
        eos_token_id=[7, 5],
        forced_eos_token_id=5,
        bad_words_ids=[[3], [4, 2]],
        suppress_tokens=[-1, 9],
        begin_suppress_tokens=8,
        no_repeat_ngram_size=3,
        min_new_tokens=4,
    )
    keys = dict(
        ends=(5, 7),
        force_end=True,
        bad_words=((3,), (4, 2)),
        suppress=(9,),
        begin_suppress=(8,),
        no_repeat_ngram=3,
        min_length=5,
    )
    assert generate_options.causal_keys(options) == keys
    # transformers replaces the one by the other.
    both = dict(min_length=6, min_new_tokens=2)
    assert encoder_decoder.decode_keys(both)["min_length"] == 3
    # Without beams in the options, the beam search of a run has our defaults.
    assert generate_options.causal_keys({"length_penalty": 2.0, "num_beams": 1}) == {}
    assert generate_options.causal_keys({"num_beams": 3})["beam"] == 3
    assert list(generate_options.causal_remarks(options)) == []


@pytest.mark.parametrize(
    "options, remark",
    [
        (dict(do_sample=True, top_p=0.9), "top_p=0.9 .* --top_p=0.9"),
        (dict(repetition_penalty=1.1), "repetition_penalty=1.1 .* --repetition_penalty=1.1"),
        (dict(max_new_tokens=64), "max_new_tokens=64 .* --max_tokens=64"),
        (dict(stop_strings=["\n\n"]), "stop_strings="),
        (dict(num_beams=4), "num_beams=4 .* --beam=4"),
        (dict(max_length=50), "max_length=50 counts the prompt"),
        (dict(min_length=5), "min_length=5 counts the prompt"),
        (dict(forced_bos_token_id=1), "forced_bos_token_id=1 of .* no equivalent"),
        (dict(eos_token_id=2, forced_eos_token_id=3), "forced_eos_token_id=3 of .* no equivalent"),
        (dict(sequence_bias=[[[1], 2.0]]), "sequence_bias="),
        (dict(guidance_scale=1.5), "guidance_scale=1.5"),
        (dict(do_sample=True, min_p=0.1), "min_p=0.1"),
    ],
)
def test_an_option_that_is_not_obeyed_is_named(options, remark):
    (message,) = generate_options.causal_remarks(options)
    assert re.search(remark, message), message


@pytest.mark.parametrize(
    "options, message",
    [
        ({"eos_token_id": "</s>"}, "eos_token_id='</s>': must be an id or a list of ids"),
        ({"bad_words_ids": [[]]}, "bad_words_ids=.*: must be a list of lists of ids"),
        ({"bad_words_ids": [[500]]}, "bad_words_ids: 500 is beyond the vocabulary of 307 tokens"),
        ({"eos_token_id": [301, 900]}, "eos_token_id: 900 is beyond the vocabulary"),
        ({"min_new_tokens": "4"}, "min_new_tokens='4': must be a whole number"),
    ],
)
def test_wrong_options_are_refused(options, message, tmp_path):
    folder = copied("LlamaForCausalLM", tmp_path / "hf")
    (folder / generate_options.FILE).write_text(json.dumps(options))
    refused(folder, tmp_path, message)


def test_ends_of_config_json_and_back(tmp_path):
    """An early checkpoint has its options in config.json; a single usual end needs no key."""
    folder = copied("Qwen2ForCausalLM", tmp_path / "hf", eos_token_id=[286, 5], bad_words_ids=[[9]])
    (folder / generate_options.FILE).unlink()
    convert.from_hf(folder, tmp_path / "run")
    decode = open_run(tmp_path / "run")[0].config.decode
    assert (decode.ends, decode.bad_words) == ((286, 5), ((9,),))
    convert.to_hf(tmp_path / "run", tmp_path / "back")
    assert read_json(tmp_path / "back" / "config.json")["eos_token_id"] == [286, 5]
    written = read_json(tmp_path / "back" / generate_options.FILE)
    assert written["eos_token_id"] == [286, 5] and written["bad_words_ids"] == [[9]]


def test_unusual_first_and_start_tokens_of_a_pair(tmp_path, capsys):
    options = read_json(make.HERE / BART / generate_options.FILE)
    folder = copied(BART, tmp_path / "hf")
    for first, expected in ((0, None), (5, (5,)), (None, ())):
        changed = options | {"forced_bos_token_id": first, "decoder_start_token_id": 3}
        (folder / generate_options.FILE).write_text(json.dumps(changed))
        hf_config = read_json(folder / "config.json")
        path = buckets.path(folder)
        kind = family.checkpoint_family(path, hf_config)
        task = make_task(kind.read_config(hf_config, path))
        kind.complete(task, hf_config, path)
        decode = task.config.decode
        assert decode.force_start == expected
        assert "decoder_start_token_id=3 of transformers" in capsys.readouterr().err
        written = encoder_decoder.options_of(decode, task.tokenizer.target, 80)
        assert written.get("forced_bos_token_id") == first
