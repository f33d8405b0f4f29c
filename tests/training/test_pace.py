"""Steps in flight: few enough for a fast stop and XLA's CPU client, enough for the devices."""

import dataclasses

import jax
import pytest

from transformer_jax.runs.spec import make_task
from transformer_jax.training import trainer
from transformer_jax.training.trainer import Program, run


class Device:
    """Runs steps one after another, on a simulated clock. The host waits for its fences."""

    def __init__(self):
        self.now = 0.0
        self.free = 0.0  # the end of the last step
        self.idle = 0.0  # seconds, after the first 20 steps
        self.ends = []

    def dispatch(self, seconds):
        self.now += 1e-4  # the cost of a dispatch
        if len(self.ends) > 20:
            self.idle += max(self.now - self.free, 0)
        self.free = max(self.free, self.now) + seconds
        self.ends.append(self.free)

    def in_flight(self):
        return [end - self.now for end in self.ends if end > self.now]

    def fence(self):
        device, end = self, self.free

        class Fence:
            def block_until_ready(self):
                device.now = max(device.now, end)

        return Fence()


@pytest.mark.parametrize(
    "seconds, max_steps", [(0.001, 16), (0.01, 16), (0.3, 7), (1.0, 2), (5.0, 2)]
)
def test_steps_in_flight_are_bounded_and_the_device_is_never_idle(seconds, max_steps, monkeypatch):
    device = Device()
    monkeypatch.setattr(trainer.time, "perf_counter", lambda: device.now)
    steps = trainer.Pace()
    for _ in range(200):
        device.dispatch(seconds)
        assert len(device.in_flight()) <= max_steps
        steps.dispatched(device.fence)
    assert device.idle == 0


def test_the_pace_adapts_to_longer_steps(monkeypatch):
    device = Device()
    monkeypatch.setattr(trainer.time, "perf_counter", lambda: device.now)
    steps = trainer.Pace()
    for number in range(200):
        device.dispatch(0.01 if number < 100 else 2.0)
        steps.dispatched(device.fence)
    assert len(device.in_flight()) <= 2


@pytest.mark.full
def test_a_run_keeps_few_programs_in_flight(tiny, tmp_path):
    """With 33 programs in flight, XLA's CPU client waited for ever."""
    config = tiny(train__num_steps=70, train__log_every=70, train__eval_every=70, train__batch=8)
    config.checkpoint.every = 70
    task = make_task(config)
    program = Program.of(config, task, jax.devices()[:2])
    in_flight = []
    counts = {"update": [], "evaluation": []}

    def counted(step, kind, fence):
        def call(*arguments):
            result = step(*arguments)
            in_flight[:] = [array for array in in_flight if not array.is_ready()]
            in_flight.append(fence(result))
            counts[kind].append(len(in_flight))
            return result

        return call

    watched = dataclasses.replace(
        program,
        train_step=counted(program.train_step, "update", lambda state: trainer.copied(state.step)),
        eval_step=counted(program.eval_step, "evaluation", lambda done: done[0]["loss"][0]),
    )
    run(config, task, tmp_path / "run", watched)
    assert len(counts["update"]) == 70 and max(counts["update"]) <= 16
    assert max(counts["evaluation"]) <= 2
