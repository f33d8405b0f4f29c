"""Holding a workdir in a bucket, where nothing can be locked: an object says who is at work, and is
written anew while he lives.
"""

import contextlib
import json
import os
import pathlib
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator

from transformer_jax.config import UserError
from transformer_jax.pictures.progress import say
from transformer_jax.storage.buckets import PATIENCE, Path

# seconds between signs of life, and without one after which a holder counts as dead
RENEWAL, SILENCE = 10, 60


@contextlib.contextmanager
def held(lock: Path, what: str, overtaken: Callable[[str], None]) -> Iterator[None]:
    """Holds what the object `lock` stands for, `what` in messages, writing it every RENEWAL
    seconds; gives it back at the end.

    One that has not been written for SILENCE seconds is taken over. They are counted by who waits:
    no two machines' clocks are compared. Raises UserError where the holder lives. `overtaken` is
    called with a line, in a thread, when another has taken over from us.
    """
    me = {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "place": _place(),
        "run": uuid.uuid4().hex,
    }
    content, ended = json.dumps(me).encode(), threading.Event()
    generation = lock.write_if(content, _left(lock, what))
    if generation is None:
        raise UserError(f"{what}: another run has begun there at the same moment")

    def renew() -> None:
        nonlocal generation
        while not ended.wait(RENEWAL):
            # it may come back; meanwhile none is overtaken but by one who gets through
            with contextlib.suppress(OSError):
                if (renewed := lock.write_if(content, generation)) is None:
                    overtaken(
                        f"{what}: another run has taken over, for no sign of life from here reached the bucket within {SILENCE} s (or {lock} was deleted)"
                    )
                    return
                generation = renewed

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(PATIENCE)  # where the bucket can't be reached the lease is left to run out
        if generation is not None and not thread.is_alive():
            with contextlib.suppress(OSError):
                lock.write_if(None, generation, PATIENCE)


def _left(lock: Path, what: str) -> bytes:
    """The generation of a lock that none holds (any more). Raises UserError where one does."""
    there = lock.stamped()
    if there.state == "missing":
        return there.stamp.generation
    holder = {}
    with contextlib.suppress(FileNotFoundError, ValueError):
        holder = json.loads(lock.read_bytes())
    who = f"process {holder.get('process')} on {holder.get('host')}"
    if (
        (here := _place())
        and holder.get("place") == here
        and not os.path.exists(f"/proc/{holder['process']}")
    ):
        return there.stamp.generation
    began = time.monotonic()
    say(
        f"{what} is held by {who}: waiting up to {SILENCE} s to see whether it lives (if you know better: delete {lock})"
    )
    while time.monotonic() - began < SILENCE:
        time.sleep(min(1, SILENCE / 10))
        now = lock.stamped()
        if now.stamp.generation != there.stamp.generation:
            if now.state == "missing":
                return now.stamp.generation
            raise UserError(
                f"{what}: another run is at work there, {who}; its last sign of life came just now. Killed, it can be gone on with {SILENCE} s later"
            )
    say(f"no sign of life from {who} for {SILENCE} s: taking over")
    return there.stamp.generation


def _place() -> str | None:
    """Where process numbers mean what they mean here: this boot of this machine, this container.
    None where the system does not tell.
    """
    with contextlib.suppress(OSError):
        return f"{pathlib.Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    return None
