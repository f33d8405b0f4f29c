"""The checkpoints of a run, which are written and read with Orbax and verified by digests."""

import concurrent.futures
import contextlib
import fnmatch
import functools
import hashlib
import json
import logging
import math
import os
import pathlib
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from absl import logging as absl_logging
from jax.experimental import multihost_utils
from orbax.checkpoint.checkpoint_managers import preservation_policy

from transformer_jax.config import RunError, UserError
from transformer_jax.distributed import hosts
from transformer_jax.layers import parameters
from transformer_jax.storage import buckets
from transformer_jax.storage.buckets import write_whole
from transformer_jax.training import step as training_step

# Checkpoints of all formats up to this one can be read; a run of a later one is refused.
FORMAT = 1


class Checkpoints:
    """The checkpoints of a run in `folder`.

    A checkpoint is a folder <step>/ with the items `params`, `rest` (the rest of the state) and
    `meta` (JSON), and with `digests.json`. Saves run in the background and are atomic: a checkpoint
    appears complete or not at all. When the context ends, the last save is complete. Kept are the
    newest `config.keep` checkpoints and, of those that were evaluated, the best one by
    `config.best_metric`.

    digests.json is written before the commit and verified before anything is restored, because
    Orbax writes no checksums, so that a flipped bit in a compressed chunk could pass for a weight.
    Checkpoints in a bucket have no digests, because the bucket verifies its objects itself.

    Frozen parameters, which no update changes, are written once, to frozen/<digest>/ beside
    `folder`. The `meta` of each checkpoint refers to them by their digest.
    """

    def __init__(
        self,
        folder: pathlib.Path | buckets.Path,
        config,
        read_only: bool = False,
        is_frozen: Callable[[tuple[str, ...]], bool] | None = None,
        kept: Sequence[int] = (),
    ):
        """`config` is config.checkpoint. Only a run that saves needs `is_frozen(path)`.

        Checkpoints of the steps `kept` are never deleted.

        Raises UserError if the checkpoints are `read_only` and there are none.
        """
        self.folder = buckets.path(folder).absolute()
        if read_only and not self.folder.is_dir():
            raise UserError(f"{self.folder}: no checkpoint yet")
        self._config = config
        self._is_frozen = is_frozen
        self._frozen: str | None = None  # the digest of the frozen parameters, written only once
        self._saving: int | None = None  # the step of the latest save, which errors name
        self._verified: set[int] = set()  # steps that need not be compared with their digests again
        self._has_digests = isinstance(self.folder, pathlib.Path)
        if isinstance(self.folder, buckets.Path):
            assume_flat_buckets()
        self._score = partial(rank, config)
        if read_only:
            options = reading(self._score)
        else:
            options = writing(
                config,
                self._score,
                kept,
                part_written=partial(self._write_digests, write_part_of_digests),
                written=partial(self._write_digests, write_digests),
            )
        with self._writing():
            self._manager = Manager(self.folder, options=options, handler_registry=handlers())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.wait()
        self._manager.close()

    def wait(self) -> None:
        """Waits until the latest save is complete. Raises RunError if it failed."""
        with self._writing():
            self._manager.wait_until_finished()

    def steps(self) -> list[int]:
        return sorted(self._manager.all_steps())

    def save(self, state, totals: dict, scores: dict[str, float]) -> None:
        """Starts to save the state under its step, as soon as the previous save is complete.

        `scores` are the results of an evaluation at this step, if there was one. Raises RunError if
        this save can't be started, or if the previous one failed.
        """
        sums = {
            name: [value.item() for value in pair]
            for name, pair in jax.device_get(state.metrics).items()
        }
        trained = state.params
        if self._is_frozen:
            trained, unchanged = parameters.split(state.params, self._is_frozen)
            self._write_frozen(unchanged)
        args = ocp.args.Composite(
            params=ocp.args.PyTreeSave(trained),
            rest=ocp.args.PyTreeSave(state.rest()),
            meta=self._meta(totals, sums),
        )
        self._save(int(state.step), args, metrics=scores or None)

    def _write_frozen(self, params) -> None:
        """Writes the frozen parameters, unless this run or an earlier start has written them."""
        if not params or self._frozen:
            return
        digest = digest_of_params(params)
        with Checkpoints(self._frozen_folder(digest), self._config) as written:
            if not written.steps():
                written.save_params(params)
        self._frozen = digest

    def _frozen_folder(self, digest: str) -> pathlib.Path | buckets.Path:
        return self.folder.parent / "frozen" / digest

    def score(self, step: int, scores: dict[str, float]) -> None:
        """Adds scores to a checkpoint that was saved without an evaluation.

        All processes may call it, one after another; only the first one writes.
        """
        path = self.folder / str(step) / SCORES
        if scores and not path.exists():
            write_whole(path, json.dumps(scores))
        # Orbax keeps the checkpoints and their scores in memory, and does not notice the new file.
        self._manager.reload()

    def save_params(self, params) -> None:
        """Starts to save parameters, without the rest of a state, as step 0.

        Another run can be initialized from such a checkpoint, but no run can resume from it.
        """
        args = ocp.args.Composite(params=ocp.args.PyTreeSave(params), meta=self._meta({}, {}))
        self._save(0, args)

    def _save(self, step, args, **scores):
        # Waiting here, and before `_saving` changes, makes an error name the save that failed.
        self.wait()
        self._saving = step
        with self._writing():
            # `force` skips Orbax's own decision about intervals, because the trainer has made it.
            self._manager.save(step, args=args, force=True, **scores)

    def _meta(self, totals, sums):
        meta = {"format": FORMAT, "totals": dict(totals), "sums": sums}
        meta |= {"sealed": self._has_digests}
        return ocp.args.JsonSave(meta | ({"frozen": self._frozen} if self._frozen else {}))

    def _write_digests(self, write: Callable[[pathlib.Path], None]) -> None:
        if self._has_digests:
            # Until the commit, the name of the folder has a suffix.
            write(next(self.folder.glob(f"{self._saving}.*")))

    @contextlib.contextmanager
    def _writing(self):
        """Turns an error of the disk or of the bucket into a RunError with a one-line message."""
        try:
            with without_warnings():
                yield
        # TensorStore raises ValueError, and the operating system raises OSError.
        except (ValueError, OSError) as error:
            why = reason(error)
            if self._saving is None:
                raise RunError(f"{self.folder}: can't be opened ({why})") from None
            raise RunError(
                f"checkpoint {self.folder / str(self._saving)} can't be written ({why}); "
                "earlier checkpoints are complete"
            ) from None

    def restore(self, abstract_state, step: int):
        """Restores a step with the shardings of `abstract_state`; it may come from another mesh.

        Returns (state, totals). Metrics that the checkpoint lacks start from zero, because a newer
        version of a task may have added them. Raises RunError if a file is damaged.
        """
        rest = restored_as(abstract_state.rest())
        params, items = self._params(step, abstract_state.params, rest=rest)
        sums = _restored_sums(items.meta["sums"], abstract_state.metrics)
        state = abstract_state.replace(params=params, metrics=sums, **items.rest)
        return state, dict(items.meta["totals"])

    def restore_params(self, abstract_params, step: int):
        """Returns the parameters of a step, with the shapes and shardings of `abstract_params`."""
        return self._params(step, abstract_params)[0]

    def _params(self, step: int, abstract_params, **args):
        """Returns the parameters of a step, frozen ones included, and the items in `args`."""
        unchanged = {}
        if written := self._frozen_of(step):
            names = parameters.paths(written.abstract_params(0))
            abstract_params, frozen = parameters.split(abstract_params, names.__contains__)
            unchanged = written.restore_params(frozen, 0)
        params = restored_as(abstract_params)
        meta = ocp.args.JsonRestore()
        items = self._read(step, ocp.args.Composite(params=params, meta=meta, **args))
        return parameters.merged(items.params, unchanged), items

    def _frozen_of(self, step: int) -> "Checkpoints | None":
        """Returns the checkpoints whose step 0 is the frozen parameters of `step`, or None."""
        meta = self._read(step, ocp.args.Composite(meta=ocp.args.JsonRestore())).meta
        if "frozen" not in meta:
            return None
        folder = self._frozen_folder(meta["frozen"])
        if not (folder / "0").is_dir():
            raise self._unreadable(step, f"{folder}: missing")
        return Checkpoints(folder, self._config, read_only=True)

    def abstract_params(self, step: int):
        """Returns the shapes and dtypes of the parameters of a step, as a tree."""
        self._verify(step)
        with without_warnings():
            folder = self.folder / str(step) / "params"
            tree = ocp.StandardCheckpointer().metadata(folder).item_metadata.tree
        written = self._frozen_of(step)
        return parameters.merged(tree, written.abstract_params(0)) if written else tree

    def _read(self, step, args):
        self._verify(step)
        try:
            items = self._manager.restore(step, args=args)
            path = self.folder / str(step) / DIGESTS
            # `meta` says whether there were digests, so that losing the file is damage, too.
            if items.meta.get("sealed") and not path.exists():
                raise FileNotFoundError(f"{DIGESTS}: missing")
        # Orbax and TensorStore raise these for damaged files.
        except (ValueError, KeyError, OSError) as error:
            raise self._unreadable(step, reason(error)) from None
        return items

    def _verify(self, step):
        """Raises RunError if a file differs from its digest.

        Checkpoints of earlier versions, which have no digests, pass.
        """
        folder = self.folder / str(step)
        if step in self._verified or not (folder / DIGESTS).exists():
            return
        if found := damage(folder):
            raise self._unreadable(step, found)
        self._verified.add(step)

    def _unreadable(self, step, reason) -> RunError:
        return RunError(f"checkpoint {self.folder / str(step)} can't be read ({reason})")

    def set_aside(self, step: int) -> None:
        """Renames a checkpoint that can't be read, so that its step can be saved again.

        All processes may call it, one after another; only the first one renames.
        """
        folder = self.folder / str(step)
        # The time makes the name unique, because the same step may be damaged once more.
        if folder.exists():
            folder.rename(self.folder / f"damaged-{step}-{time.time_ns()}")
        self._manager.reload()

    def delete(self, step: int) -> None:
        """Deletes a checkpoint, whose step will be saved again."""
        self._manager.delete(step)

    def pick(self, name: str | int) -> int:
        """Returns the step of a checkpoint, which `name` gives as "best", "latest" or a number.

        "best" is the latest checkpoint if none has been evaluated. Raises UserError if there is no
        such checkpoint.
        """
        steps = self.steps()
        if not steps:
            raise UserError(f"{self.folder}: no checkpoint yet")
        if name == "latest":
            return steps[-1]
        if name == "best":
            # If no checkpoint has a score, Orbax returns one without a score as the best.
            best = self._manager.best_step()
            if best is None or self._score(self._manager.metrics(best) or {}) == -math.inf:
                return steps[-1]
            return best
        if not str(name).isdecimal() or int(name) not in steps:
            known = ", ".join(map(str, steps))
            raise UserError(
                f"{self.folder}: no checkpoint {name!r}; there are best, latest, {known}"
            )
        return int(name)


def rank(config, scores: Mapping[str, float | None]) -> float:
    """Returns the score that decides which evaluation is the best, negated if lower is better.

    `config` is config.checkpoint. A score that is missing or not finite is the worst.
    """
    score = scores.get(config.best_metric)
    if score is None or not math.isfinite(score):
        return -math.inf
    return score if config.best_mode == "max" else -score


def _restored_sums(saved: dict, abstract_metrics):
    """Returns the saved sums of metrics as global arrays; zeros for metrics that were not saved."""
    sums = {}
    for name, pair in abstract_metrics.items():
        values = saved.get(name, (0, 0))
        sums[name] = tuple(
            training_step.put(np.asarray(value, like.dtype), like.sharding)
            for value, like in zip(values, pair)
        )
    return sums


# --------------------------------------------------------------------------------------------------
# Digests of the files in a checkpoint, which reveal whether a file has changed.
#
# The compressed chunks that Orbax writes have no checksums. Each process hashes the files that it
# has written itself, so that no process has to read the whole checkpoint back.

DIGESTS = "digests.json"  # {name: SHA-256} of the other files in its folder
# Each of several processes writes such a file for its own files, and DIGESTS holds its digest
# instead of theirs.
_PART = "digests-{}.json"
# This file has no digest, because Orbax writes the time of the commit into it afterwards. Nothing
# is restored from it.
_STAMP = "_CHECKPOINT_METADATA"


def write_part_of_digests(folder: pathlib.Path) -> None:
    """Writes the digests of the files that this process, one of several, has written.

    Orbax gives each process a folder for its shards of the arrays. Afterwards it merges the folders
    into one database, which refers to their files without changing them, so that the digests stay
    valid.
    """
    own = [
        name
        for part in folder.glob(f"*/ocdbt.process_{jax.process_index()}")
        for name in _files_below(folder, part)
    ]
    # Until the merge, the folder of an item, such as params, has a suffix, which is removed here.
    final = [re.sub(r"^([^./]*)[^/]*", r"\1", name) for name in own]
    _save_digests(folder / _PART.format(jax.process_index()), zip(final, _digests_of(folder, own)))


def write_digests(folder: pathlib.Path) -> None:
    """Writes the digests of all files below `folder` that do not have one yet."""
    parts = folder.glob(_PART.format("*"))
    written = {name for part in parts for name in json.loads(part.read_bytes())}
    names = [name for name in _files_below(folder, folder) if name not in {*written, _STAMP}]
    _save_digests(folder / DIGESTS, zip(names, _digests_of(folder, names)))


def _files_below(folder: pathlib.Path, below: pathlib.Path) -> list[str]:
    """Returns the sorted paths of the files below a folder, relative to `folder`."""
    return sorted(str(path.relative_to(folder)) for path in below.rglob("*") if path.is_file())


def _save_digests(path: pathlib.Path, digests: Iterable[tuple[str, str | None]]) -> None:
    with path.open("w") as file:
        json.dump(dict(digests), file, indent=0)
        # The folder gets its final name after this. Without fsync, a crash of the machine could
        # leave a complete checkpoint with an empty file of digests.
        file.flush()
        os.fsync(file.fileno())


def damage(folder: pathlib.Path) -> str | None:
    """Compares all files with their digests, and returns a description of the first damage or None.

    All processes must call it, because each one reads a part of the files. If one of them finds
    damage, all of them return it.
    """
    reason = _damage_of_part(folder)
    if jax.process_count() > 1:
        # All processes must go on to the same older checkpoint, so damage that one finds counts for
        # all.
        is_damaged = multihost_utils.process_allgather(np.array(reason is not None)).any()
        if is_damaged and not reason:
            return "another process found damage"
    return reason


def _damage_of_part(folder: pathlib.Path) -> str | None:
    try:
        digests = json.loads((folder / DIGESTS).read_bytes())
        # The digests that other processes have written are verified before they are relied upon.
        parts = [name for name in digests if fnmatch.fnmatch(name, _PART.format("*"))]
        if reason := _mismatch(folder, digests, parts):
            return reason
        for part in parts:
            digests |= json.loads((folder / part).read_bytes())
        return _mismatch(
            folder, digests, sorted(digests)[jax.process_index() :: jax.process_count()]
        )
    except (ValueError, TypeError):
        return f"{DIGESTS}: damaged"


def _mismatch(folder: pathlib.Path, digests: Mapping[str, str], names: Sequence[str]) -> str | None:
    for name, digest in zip(names, _digests_of(folder, names)):
        if digest != digests[name]:
            return f"{name}: {'checksum mismatch' if digest else 'missing'}"
    return None


def _digests_of(folder: pathlib.Path, names: Sequence[str]) -> list[str | None]:
    """Returns the SHA-256 of each named file in the folder; None for a missing file."""

    def digest(name: str) -> str | None:
        with contextlib.suppress(FileNotFoundError), (folder / name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    # Threads, because hashlib releases Python's lock while it hashes.
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return list(pool.map(digest, names))


# ------------------------------------------------------------------- Orbax as `Checkpoints` uses it

# Orbax writes scores only together with a checkpoint, so that scores that are measured later need a
# file of their own.
SCORES = "scores.json"
# Bytes. Below this, a slice for each replica is not worth a compiled program, see `handlers`.
_MIN_SLICE = 2**20


def reading(score: Callable[[dict], float]) -> ocp.CheckpointManagerOptions:
    """Returns the options of a manager that only reads. A higher `score(metrics)` is better."""
    return ocp.CheckpointManagerOptions(
        best_fn=score, read_only=True, create=False, save_interval_steps=0
    )


def writing(
    config,
    score: Callable[[dict], float],
    kept: Sequence[int],
    *,
    part_written: Callable[[], None],
    written: Callable[[], None],
) -> ocp.CheckpointManagerOptions:
    """Returns the options of a manager that keeps the newest checkpoints, the best one, and those
    of the steps `kept`.

    Each of several processes calls `part_written` when it has written its files. When all files of
    a checkpoint have been written, and before its folder gets its final name, process 0 calls
    `written`.
    """
    sync = ocp.multihost.get_barrier_sync_fn()

    def barrier(*, key: str, timeout_ms: int) -> None:
        # A process waits at this barrier for the others once its own files are complete. Orbax has
        # no other hook at that point.
        if "async_write_complete" in key:
            part_written()
        sync(key=key, timeout_ms=timeout_ms)

    policies = [preservation_policy.LatestN(config.keep), preservation_policy.CustomSteps(kept)]
    if config.best_metric:
        # A checkpoint without a score can't be the best, so it is kept only as one of the newest.
        best = preservation_policy.BestN(
            get_metric_fn=score, n=1, keep_checkpoints_without_metrics=False
        )
        policies.append(best)
    return ocp.CheckpointManagerOptions(
        best_fn=score,
        preservation_policy=preservation_policy.AnyPreservationPolicy(policies),
        create=True,
        cleanup_tmp_directories=True,  # a killed run leaves an unfinished checkpoint behind
        async_options=ocp.AsyncOptions(barrier_sync_fn=barrier, post_finalization_callback=written),
    )


class Manager(ocp.CheckpointManager):
    """A manager that also reads scores that were added later.

    Scores that can't be read count as missing, because whether a checkpoint is damaged is decided
    only when it is restored.
    """

    def metrics(self, step):
        with contextlib.suppress(ValueError):
            scores = super().metrics(step)
            path = self.directory / str(step) / SCORES
            return json.loads(path.read_text()) if scores is None and path.exists() else scores


def handlers() -> ocp.handlers.CheckpointHandlerRegistry:
    """Returns the handlers of the items of a checkpoint, without changing Orbax's registries.

    Several replicas each write a slice of an array only if the array is large. Slicing compiles a
    program for each shape, which on 8 devices took most of the time of a small run.
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
    """In the context, Orbax logs only errors, and no warnings, such as those about its options."""
    log = absl_logging.get_absl_logger()
    log.addFilter(_is_important)
    try:
        yield
    finally:
        log.removeFilter(_is_important)


def _is_important(record: logging.LogRecord) -> bool:
    return "/orbax/" not in record.pathname or record.levelno >= logging.ERROR


def restored_as(abstract) -> ocp.args.PyTreeRestore:
    """Returns arguments that restore a tree with the shapes, dtypes and shardings of `abstract`."""
    restore_args = ocp.checkpoint_utils.construct_restore_args(abstract)
    return ocp.args.PyTreeRestore(item=abstract, restore_args=restore_args)


@functools.cache
def assume_flat_buckets() -> None:
    """Makes Orbax treat every bucket as one without a hierarchical namespace.

    Orbax would otherwise ask Google's client library, which is not installed, and it has no option
    for this. The answer does not matter, because `storage.buckets` lists and deletes the objects of
    both kinds of bucket.
    """
    from orbax.checkpoint._src.path import gcs_utils

    gcs_utils.is_hierarchical_namespace_enabled = lambda path: False


def reason(error) -> str:
    """Returns a short message of an error.

    TensorStore's messages contain long paths and notes. If one contains an error code of the
    operating system, the system's own message for this code is shorter.
    """
    if code := re.search(r"\[os_error_code='?(\d+)", str(error)):
        return os.strerror(int(code[1]))
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return text[:200]


# ------------------------------------ the digest of the frozen parameters, which names their folder


def digest_of_params(params) -> str:
    """Returns a digest of the names, shapes and bits of parameters, which is equal on every mesh.

    Each device hashes its own elements, and the hashes are summed as integers. Integer sums have no
    rounding, so that their order, and therefore the mesh, does not matter, and no parameter has to
    be gathered.
    """
    leaves = jax.tree_util.tree_leaves_with_path(params)
    mesh = leaves[0][1].sharding.mesh
    # Replicated, because every process reads the sums, which name the same folder for all.
    replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    arrays = [leaf for _, leaf in leaves]
    program = hosts.compiled(jax.jit(_checksums, out_shardings=replicated), arrays)
    content = [
        ["/".join(parameters.names(path)), leaf.shape, str(leaf.dtype), checksum.tolist()]
        for (path, leaf), checksum in zip(leaves, jax.device_get(program(arrays)))
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _checksums(arrays: list[jax.Array]) -> list[jax.Array]:
    return [_checksum(array) for array in arrays]


def _checksum(x: jax.Array) -> jax.Array:
    """Returns two sums (2,) uint32 of hashes of the elements and their positions."""
    # Bits are hashed, because values tell neither 0 from -0 nor one NaN from another.
    bits = jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}"))
    # The flat index enters each hash, because a sum alone would not notice exchanged elements.
    position = sum(
        jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
        * jnp.uint32(math.prod(x.shape[axis + 1 :]) % 2**32)
        for axis in range(x.ndim)
    )
    # The multipliers are odd, so that each step is a bijection (as in MurmurHash3).
    first = _mixed(bits.astype(jnp.uint32) ^ _mixed(position + jnp.uint32(1)))
    # Two sums make 64 bits. With 32 alone, two sets of parameters could agree by chance.
    return jnp.stack([first.sum(dtype=jnp.uint32), _mixed(first).sum(dtype=jnp.uint32)])


def _mixed(x: jax.Array) -> jax.Array:
    """Returns the finalizer of MurmurHash3 for uint32 numbers."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
