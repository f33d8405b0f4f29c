"""A trainer that logs the rows that it reads: python -m tests.hosts_program LOG TRAINER FLAGS...

Each line of LOG is [process, update, indices]. With SIGNAL_AT=N in the environment, process 1 sends
itself SIGTERM before the N-th time that it continues a beam search.
"""

import itertools
import json
import os
import runpy
import signal
import sys

from transformer_jax.data import rows
from transformer_jax.distributed import hosts
from transformer_jax.inference import stream

log, trainer = sys.argv[1:3]
sys.argv[1:3] = []
read = rows.TrainRows.batch


def logged(self, step, indices):
    with open(log, "a") as out:
        print(json.dumps([hosts.index(), step, [int(index) for index in indices]]), file=out)
    return read(self, step, indices)


def signalling(queue):
    if hosts.index() == 1 and next(numbers) == int(os.environ["SIGNAL_AT"]):
        os.kill(os.getpid(), signal.SIGTERM)
    advance(queue)


rows.TrainRows.batch = logged
if "SIGNAL_AT" in os.environ:
    numbers, advance = itertools.count(1), stream._Queue.advance
    stream._Queue.advance = signalling
runpy.run_module(f"transformer_jax.{trainer}", run_name="__main__")
