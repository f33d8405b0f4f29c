"""The settings with which checkpoint.py uses Orbax: options, handlers, log and paths."""

import contextlib
import functools
import json
import logging
import os
import re
from collections.abc import Callable

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging as absl_logging
from orbax.checkpoint.checkpoint_managers import preservation_policy

# The scores of a checkpoint that was evaluated after it was saved.
SCORES = "scores.json"
# Bytes. Smaller arrays are written by one device that has a copy.
_MIN_SLICE = 2**20


def reading(score: Callable[[dict], float]) -> ocp.CheckpointManagerOptions:
    """Options of a manager that only reads. `score(metrics)` is higher for better checkpoints."""
    return ocp.CheckpointManagerOptions(
        best_fn=score, read_only=True, create=False, save_interval_steps=0
    )


def writing(
    config,
    score: Callable[[dict], float],
    *,
    part_written: Callable[[], None],
    written: Callable[[], None],
) -> ocp.CheckpointManagerOptions:
    """Options of a manager that keeps the newest `config.keep` checkpoints and the best one.

    Process 0 calls `written` when all files of a checkpoint are written, before the folder gets its
    name. Before that, each of several processes calls `part_written` when it has written its files.
    """
    sync = ocp.multihost.get_barrier_sync_fn()

    def barrier(*, key: str, timeout_ms: int) -> None:
        # Where a process has written its files, it waits for the others at this barrier.
        if "async_write_complete" in key:
            part_written()
        sync(key=key, timeout_ms=timeout_ms)

    policies = [preservation_policy.LatestN(config.keep)]
    if config.best_metric:
        best = preservation_policy.BestN(
            get_metric_fn=score, n=1, keep_checkpoints_without_metrics=False
        )
        policies.append(best)
    return ocp.CheckpointManagerOptions(
        best_fn=score,
        preservation_policy=preservation_policy.AnyPreservationPolicy(policies),
        create=True,
        cleanup_tmp_directories=True,
        async_options=ocp.AsyncOptions(barrier_sync_fn=barrier, post_finalization_callback=written),
    )


class Manager(ocp.CheckpointManager):
    """Reads scores that were added later. Scores that can't be read count as missing.

    Whether a checkpoint is damaged is decided when it is restored.
    """

    def metrics(self, step):
        with contextlib.suppress(ValueError):
            scores = super().metrics(step)
            path = self.directory / str(step) / SCORES
            return json.loads(path.read_text()) if scores is None and path.exists() else scores


def handlers() -> ocp.handlers.CheckpointHandlerRegistry:
    """Handlers of the items of a checkpoint. Orbax's global registries do not change.

    Several devices write parts of one array only if the array is large. To cut an array compiles a
    program for its shape; on 8 devices this took most of the time of a small run.
    """
    arrays = ocp.type_handlers.ArrayHandler(min_slice_bytes_for_replica_parallel=_MIN_SLICE)
    leaves = ocp.type_handlers.create_type_handler_registry(
        (np.ndarray, ocp.type_handlers.NumpyHandler()), (jax.Array, arrays)
    )
    return ocp.handlers.create_default_handler_registry(
        params=ocp.PyTreeCheckpointHandler(type_handler_registry=leaves),
        rest=ocp.PyTreeCheckpointHandler(type_handler_registry=leaves),
        meta=ocp.JsonCheckpointHandler(),
    )


@contextlib.contextmanager
def without_warnings():
    """In the context Orbax logs only errors, and no warnings about its options."""
    log = absl_logging.get_absl_logger()
    log.addFilter(_is_important)
    try:
        yield
    finally:
        log.removeFilter(_is_important)


def _is_important(record: logging.LogRecord) -> bool:
    return "/orbax/" not in record.pathname or record.levelno >= logging.ERROR


def restored_as(abstract) -> ocp.args.PyTreeRestore:
    """Arguments that restore a tree with the shapes, dtypes and shardings of `abstract`."""
    restore_args = ocp.checkpoint_utils.construct_restore_args(abstract)
    return ocp.args.PyTreeRestore(item=abstract, restore_args=restore_args)


@functools.cache
def assume_flat_buckets() -> None:
    """Makes Orbax treat every bucket as one without hierarchical folders.

    To find out, Orbax would import Google's client library, which is not installed, and it has no
    option for this. `storage.buckets` lists and deletes the objects of both kinds of bucket.
    """
    from orbax.checkpoint._src.path import gcs_utils

    gcs_utils.is_hierarchical_namespace_enabled = lambda path: False


def reason(error) -> str:
    """Returns the message of an error, in short.

    TensorStore's messages contain long paths and notes. Their error code of the system has a short
    message.
    """
    if code := re.search(r"\[os_error_code='?(\d+)", str(error)):
        return os.strerror(int(code[1]))
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return text[:200]
