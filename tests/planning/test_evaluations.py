"""The memory of evaluations beside the training state, and the verdict that includes it."""

import dataclasses

import pytest

from tests.finetuning.examples import build
from tests.planning.test_estimate import SMALL, on_chip, program_of
from transformer_jax.planning import estimate, verdict
from transformer_jax.runs.spec import make_task
from transformer_jax.training.step import Program


@pytest.fixture(scope="module")
def translation():
    """A translation with BLEU, on 8 virtual devices."""
    sizes = dict(task__source_length=32, task__target_length=32, decode__batch=12)
    return program_of("encoder_decoder", mesh__fsdp=4, mesh__tensor=2, **sizes)


def test_a_beam_search_is_counted_beside_the_training_state(translation):
    *_, program = translation
    evaluated = verdict.evaluations(*translation)
    names = [each.name for each in evaluated]
    assert names == ["mean loss", "beam search, reading", "beam search, searching"]
    state = estimate.bytes_per_device(program.state)
    mean_loss, reading, searching = evaluated
    assert state < mean_loss.arguments < reading.arguments < searching.arguments
    assert all(each.temporaries > 0 and each.fits is None for each in evaluated)


def test_the_arrays_of_a_beam_search_are_those_that_it_reads(translation):
    _, task, program = translation
    searching = task.evaluation_programs(program.state.params)["beam search, searching"]
    prepared, running, _ = searching.held
    read = searching.lowered.compile().memory_analysis().argument_size_in_bytes
    assert estimate.bytes_per_device((prepared, running)) == pytest.approx(read, rel=0.01)


def test_each_task_names_the_programs_of_its_evaluations(tmp_path):
    _, task, program = program_of("gpt", task__sample_tokens=20, mesh__fsdp=4)
    sample = task.evaluation_programs(program.state.params)["a sample"]
    assert estimate.bytes_per_device(sample.held) > 0
    config = build(tmp_path, "classification", "", task__labels=("cat", "dog"))
    config.init_from = ""
    tuned = make_task(config)
    params = Program.of(config, tuned).state.params
    assert list(tuned.evaluation_programs(params)) == ["scores"] and not tuned.evaluates_rows


def test_the_verdict_includes_the_evaluations():
    config, task, program = program_of("gpt", mesh__data=4, mesh__tensor=2)
    update = estimate.Estimate(
        None, 8, 1e9, estimate.arguments(program), 10**8, 0, 10**8, 2 * 10**8, {}, 0.0, None
    )

    def verdict_on(gigabytes):
        chip = dataclasses.replace(SMALL, memory=gigabytes * 1e9)
        larger = verdict.Evaluated("a", chip, 10**8, 7 * 10**8, 0.0, "--config.decode.batch=8")
        smaller = dataclasses.replace(larger, name="b", temporaries=1)
        each = [smaller, larger]
        lines = verdict.lines(config, task, program, on_chip(update, chip), each)
        return verdict.fits(on_chip(update, chip), each), "\n".join(lines)

    fits, text = verdict_on(1)
    # The verdict comes first, and then what would help.
    assert fits and text.startswith(
        "it fits: 0.8 of the 1.0 GB of a small chip, in an evaluation (a)\n"
    )
    fits, text = verdict_on(0.5)
    assert not fits and "(a) needs 0.8 GB, an update 0.2 GB; a small chip has 0.5 GB" in text
    assert text.partition("\n")[2].startswith("what would help:\n  --config.decode.batch=8\n")
    fits, text = verdict_on(0.1)
    assert not fits and "--config.train.accumulation=4" in text and "decode.batch" in text
