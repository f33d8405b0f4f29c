"""The point of a run at which all processes stop after a signal to one of them."""

import json
import signal
import threading
from collections.abc import Callable


class StopPoint:
    """Counts the points of a run, and lets all processes stop at the same one.

    Every process passes all points in the same order. The threads that watch the other hosts agree
    over JAX's key-value store: each holds its process before the next point, and sends the number
    of points that it has passed. All stop at the first point that none has passed.

    Attributes:
      signal: the signal on which they have agreed, or None.
    """

    def __init__(self, client, index: int, count: int):
        """`client` is that of the key-value store; `index` and `count` of the processes."""
        self.signal: int | None = None
        self._client = client
        self._index = index
        self._count = count
        self._lock = threading.Lock()  # held from `_send` until they have agreed
        self._passed = 0  # points
        self._last: int | None = None  # the number of the last point
        self._has_sent = False
        self._call: Callable[[int], None] | None = None

    def ask(self, number: int) -> None:
        """Asks all processes to stop: this one has received the signal `number`."""
        self._client.key_value_set(f"stop/{self._index}", str(number), allow_overwrite=True)

    def on_agreed(self, call: Callable[[int], None] | None) -> None:
        """Sets a function of the signal. The watching thread calls it once all have agreed."""
        self._call = call
        if call and self.signal is not None:
            call(self.signal)

    def reached(self) -> bool:
        """Whether all stop at this point. Every process calls it at every point."""
        with self._lock:
            self._passed += 1
            return self._last is not None and self._passed >= self._last

    def is_next(self) -> bool:
        """Whether all stop at the next point, or at an earlier one."""
        return self._last is not None and self._passed + 1 >= self._last

    def look(self) -> None:
        """Makes a step towards the agreement. The watching thread calls it again and again."""
        if self._last is not None:
            return
        if not self._has_sent:
            requests = self._client.key_value_dir_get("stop/")
            if not requests:
                return
            self._lock.acquire()
            self._send(min(int(number) for _, number in requests))
        answers = [json.loads(value) for _, value in self._client.key_value_dir_get("stopping/")]
        if len(answers) == self._count:
            self._last = 1 + max(passed for passed, _ in answers)
            self.signal = min(number for _, number in answers)
            self._lock.release()
            if self._call:
                self._call(self.signal)

    def leave(self) -> None:
        """This process passes no more points, so the others need not wait for its answer."""
        if not self._has_sent:
            self._send(signal.SIGTERM)

    def _send(self, number: int) -> None:
        self._has_sent = True
        answer = json.dumps([self._passed, number])
        self._client.key_value_set(f"stopping/{self._index}", answer, allow_overwrite=True)
