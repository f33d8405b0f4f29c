"""How checkpoint.py uses Orbax: its handlers, its log and its paths."""

import contextlib
import functools
import logging

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging as absl_logging

_MIN_SLICE = 2**20  # bytes: arrays below it are written by one device that has a copy


def handlers() -> ocp.handlers.CheckpointHandlerRegistry:
    """Orbax's handlers of a checkpoint's items; its global registries stay as they are.

    Several devices write one array in parts only where it is large. Cutting arrays up compiles a
    program for every shape: on 8 devices, most of a small run's time.
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
def without_remarks():
    """Within it Orbax logs errors alone, not what it thinks of the options it is given."""
    log = absl_logging.get_absl_logger()
    log.addFilter(_is_no_remark)
    try:
        yield
    finally:
        log.removeFilter(_is_no_remark)


def _is_no_remark(record: logging.LogRecord) -> bool:
    return "/orbax/" not in record.pathname or record.levelno >= logging.ERROR


def restored_as(abstract) -> ocp.args.PyTreeRestore:
    """Arguments that restore a tree laid out as `abstract` says."""
    restore_args = ocp.checkpoint_utils.construct_restore_args(abstract)
    return ocp.args.PyTreeRestore(item=abstract, restore_args=restore_args)


@functools.cache
def ask_no_bucket_for_folders() -> None:
    """Orbax takes each bucket for one without hierarchical folders.

    It would ask by Google's client library, which is not installed, and has no option for it.
    `buckets` lists and deletes the objects of either kind of bucket.
    """
    from orbax.checkpoint._src.path import gcs_utils

    gcs_utils.is_hierarchical_namespace_enabled = lambda path: False
