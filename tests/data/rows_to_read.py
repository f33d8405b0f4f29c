"""Rows for the tests of reader processes. A process that reads them imports no other test."""

import os
import signal

import numpy as np

from transformer_jax.config import UserError

INDICES = np.array([0, 3, 5])


def read(step, indices):
    """Returns the rows of a task without data."""
    if step == 6:
        raise UserError("the rows of update 7 are wrong")
    if step == 7:
        raise ZeroDivisionError("two\nlines")
    if step == 8:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"tokens": np.outer(indices, [step, 1])}
