"""Converted runs write what transformers' `generate` writes, for random options of a checkpoint."""

import json
import random

import pytest

from tests.conversion.checkpoints import copied, read_json
from tests.fixtures import make_huggingface_outputs
from transformer_jax import convert
from transformer_jax.huggingface import encoder_decoder, family
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task
from transformer_jax.storage import buckets

CAUSAL = ("GPT2LMHeadModel", "LlamaForCausalLM")
PAIRS = ("BartForConditionalGeneration", "MarianMTModel", "T5ForConditionalGeneration")
PROMPTS = dict.fromkeys((*CAUSAL, *PAIRS[:1]), "the cat saw a")
PROMPTS |= {"MarianMTModel": "A dog runs .", "T5ForConditionalGeneration": "the cat sat on a mat"}
TOKENS = 8  # of an output, at most
COMBINATIONS = 40  # of each architecture


def drawn(number: int, architecture: str, likely: list[int], end: int) -> dict:
    """Returns random options. `likely` are the tokens of an output without any."""
    chance = random.Random(f"{architecture} {number}")

    def some(count):
        return chance.sample(likely, min(count, len(likely)))

    def word():
        first = chance.randrange(max(len(likely) - 2, 1))
        return likely[first : first + chance.randint(1, 3)]

    choices = {
        "eos_token_id": lambda: [end, *some(chance.randint(1, 2))],
        "bad_words_ids": lambda: [word() for _ in range(chance.randint(1, 3))],
        "suppress_tokens": lambda: some(chance.randint(1, 3)),
        "begin_suppress_tokens": lambda: some(chance.randint(1, 2)) + likely[:1],
        "no_repeat_ngram_size": lambda: chance.randint(1, 3),
        "min_new_tokens": lambda: chance.randint(1, 5),
        "forced_eos_token_id": lambda: end,
        "renormalize_logits": lambda: True,
        "num_beams": lambda: chance.randint(2, 4),
        "length_penalty": lambda: chance.choice([0.0, 0.6, 2.0]),
        "early_stopping": lambda: chance.choice([True, False, "never"]),
        "repetition_penalty": lambda: 1.3,
        "sequence_bias": lambda: [[likely[:1], -3.0]],
    }
    if architecture in PAIRS:
        choices |= {
            "forced_bos_token_id": lambda: chance.choice([0, 5, *likely]),
            "min_length": lambda: chance.randint(2, 6),
            "encoder_no_repeat_ngram_size": lambda: 2,
        }
    keys = chance.sample(sorted(choices), chance.randint(1, 4))
    options = {key: choices[key]() for key in keys}
    # transformers refuses to suppress a token that it has to write.
    forced = options.get("forced_bos_token_id")
    if forced in options.get("suppress_tokens", []):
        del options["forced_bos_token_id"]
    return options


class Pair:
    """A checkpoint in transformers, and its run here."""

    def __init__(self, architecture: str, folder):
        import transformers

        self.architecture, self.folder = architecture, folder / "hf"
        if architecture in PAIRS:
            make_huggingface_outputs.checkpoint(architecture, self.folder)
        else:
            copied(architecture, self.folder)
        cls = getattr(transformers, architecture)
        self.model = cls.from_pretrained(self.folder).eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder)
        convert.from_hf(self.folder, folder / "run")
        _, self.params = open_run(folder / "run")
        self.hf_config = read_json(self.folder / "config.json")
        self.path = self.folder / encoder_decoder.FILE
        # Marian's padding is written here only if an option says so.
        known = read_json(self.path)
        keys = ("eos_token_id", "pad_token_id", "decoder_start_token_id", "bos_token_id")
        self.base = {key: known[key] for key in keys if key in known}
        self.never = known.get("bad_words_ids", [])
        self.end = self.base["eos_token_id"]
        ids = self.ids_of_transformers({})
        self.likely = [i for i in dict.fromkeys(ids) if i not in (self.end, *sum(self.never, []))]

    def options(self, number: int) -> dict:
        options = drawn(number, self.architecture, self.likely, self.end)
        if self.never:
            options["bad_words_ids"] = options.get("bad_words_ids", []) + self.never
        return self.base | options

    def ids_of_transformers(self, options: dict) -> list[int]:
        import transformers

        generation = transformers.GenerationConfig(**self.base | options)
        if generation.pad_token_id is None:
            generation.pad_token_id = self.end
        prompt = self.tokenizer(PROMPTS[self.architecture], return_tensors="pt")
        self.model.generation_config = generation
        (ids,) = self.model.generate(
            input_ids=prompt.input_ids,
            attention_mask=prompt.attention_mask,
            max_new_tokens=TOKENS,
        )
        start = 1 if self.architecture in PAIRS else prompt.input_ids.shape[1]
        return ids[start:].tolist()

    def text_of_transformers(self, options: dict) -> str:
        ids = self.ids_of_transformers(options)
        ends = options["eos_token_id"]
        ends = ends if isinstance(ends, list) else [ends]
        ids = ids[: next((n for n, i in enumerate(ids) if i in ends), len(ids))]
        if self.architecture in PAIRS:
            return self.tokenizer.decode(ids, skip_special_tokens=True)
        before = self.tokenizer(PROMPTS[self.architecture]).input_ids
        start, text = (self.tokenizer.decode(each) for each in (before, before + ids))
        return text[len(start) :]

    def text(self, options: dict) -> str:
        """Returns what the run writes whose checkpoint has these options."""
        self.path.write_text(json.dumps(options))
        folder = buckets.path(self.folder)
        kind = family.checkpoint_family(folder, self.hf_config)
        config = kind.read_config(self.hf_config, folder)
        task = make_task(config)
        kind.complete(task, self.hf_config, folder)
        prompt = PROMPTS[self.architecture]
        if self.architecture in PAIRS:
            task.config.decode.max_length = TOKENS
            ((best,),) = task.translate(self.params, [prompt])
        elif options.get("num_beams", 1) > 1:
            ((best,),) = task.generate_beam(self.params, [prompt], max_tokens=TOKENS)
        else:
            (best,) = task.generate(self.params, [prompt], max_tokens=TOKENS, temperature=0.0)
        return best.text


def compared(architecture, folder, numbers, capsys) -> dict[str, int]:
    """Returns how many combinations are equal, and how many have a key that a line names."""
    pair = Pair(architecture, folder)
    counts = {"equal": 0, "named": 0}
    wrong = []
    for number in numbers:
        options = pair.options(number)
        capsys.readouterr()
        ours, theirs = pair.text(options), pair.text_of_transformers(options)
        said = capsys.readouterr().err
        named = [key for key in options if f" {key}=" in said and "option of each call" not in said]
        named += [key for key in ("repetition_penalty",) if f" {key}=" in said]
        if ours == theirs:
            counts["equal"] += 1
        elif named:
            counts["named"] += 1
        else:
            wrong.append((number, options, ours, theirs))
    assert not wrong, wrong
    return counts


@pytest.mark.full
@pytest.mark.parametrize("architecture", [*CAUSAL, *PAIRS])
def test_random_options_are_obeyed_or_named(architecture, tmp_path, capsys):
    pytest.importorskip("transformers")
    counts = compared(architecture, tmp_path, range(COMBINATIONS), capsys)
    with capsys.disabled():
        print(f"\n{architecture}: {counts}")
    assert counts["equal"] + counts["named"] == COMBINATIONS
    assert counts["equal"] > COMBINATIONS // 2
