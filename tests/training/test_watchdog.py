"""The watchdog: silent while the run is not, and a dump of every thread's stack once it is."""
import time

from transformer_jax.training import watchdog


def test_silence_dumps_the_stacks_and_the_run_goes_on(capfd, monkeypatch):
    monkeypatch.setattr(watchdog, "SILENCE", 0.3)
    with watchdog.Watchdog() as dog:
        time.sleep(0.5)  # nothing yet: it may be compiling
        for _ in range(5):
            dog.fed()
            time.sleep(0.1)
        assert "Timeout" not in capfd.readouterr().err
        time.sleep(0.6)
        said = capfd.readouterr().err
        assert said.count("Timeout") == 1 and "most recent call first" in said and __file__ in said
        dog.fed()
    time.sleep(0.5)
    assert not capfd.readouterr().err
