"""A trainer that logs the rows that it reads: python -m tests.hosts_program LOG TRAINER FLAGS...

Each line of LOG is [process, update, places].
"""

import json
import runpy
import sys

from transformer_jax.data import rows
from transformer_jax.distributed import hosts

log, trainer = sys.argv[1:3]
sys.argv[1:3] = []
read = rows.TrainRows.batch


def logged(self, step, places):
    with open(log, "a") as out:
        print(json.dumps([hosts.index(), step, [int(place) for place in places]]), file=out)
    return read(self, step, places)


rows.TrainRows.batch = logged
runpy.run_module(f"transformer_jax.{trainer}", run_name="__main__")
