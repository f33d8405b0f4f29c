"""The point of a run at which all processes stop, once one was sent a signal."""

import json
import signal
import threading
from collections.abc import Callable


class StopPoint:
    """Points of the run are counted; every process comes by all of them in the same order.

    The threads that watch the other hosts agree, over JAX's key-value store: each holds its
    process before the next point and says how many it has passed. All stop at the first point
    that none has passed.
    """

    def __init__(self, client, index: int, count: int):
        self.signal: int | None = None  # what they stop for, once they have agreed
        self._client, self._index, self._count = client, index, count
        self._lock = threading.Lock()  # held from `_say` to the agreement
        self._passed, self._last = 0, None  # points; the number of the last one
        self._said = False
        self._call: Callable[[int], None] | None = None

    def ask(self, number: int) -> None:
        """This process was sent the signal `number`."""
        self._client.key_value_set(f"stop/{self._index}", str(number), allow_overwrite=True)

    def on_agreed(self, call: Callable[[int], None] | None) -> None:
        """The watching thread calls `call` with the signal, once all have agreed."""
        self._call = call
        if call and self.signal is not None:
            call(self.signal)

    def reached(self) -> bool:
        """Whether all stop at this point. Every process asks at the same points."""
        with self._lock:
            self._passed += 1
            return self._last is not None and self._passed >= self._last

    def is_next(self) -> bool:
        """Whether all stop at the next point, if not before."""
        return self._last is not None and self._passed + 1 >= self._last

    def look(self) -> None:
        """A step towards the agreement, by the watching thread."""
        if self._last is not None:
            return
        if not self._said:
            if not (asked := self._client.key_value_dir_get("stop/")):
                return
            self._lock.acquire()
            self._say(min(int(number) for _, number in asked))
        said = [json.loads(value) for _, value in self._client.key_value_dir_get("stopping/")]
        if len(said) == self._count:
            self._last = 1 + max(passed for passed, _ in said)
            self.signal = min(number for _, number in said)
            self._lock.release()
            if self._call:
                self._call(self.signal)

    def leave(self) -> None:
        """This process comes by no more points: the others need not wait for its word."""
        if not self._said:
            self._say(signal.SIGTERM)

    def _say(self, number: int) -> None:
        self._said = True
        word = json.dumps([self._passed, number])
        self._client.key_value_set(f"stopping/{self._index}", word, allow_overwrite=True)
