"""The command line of all programs: flags and help, environment, errors and exit codes."""

import contextlib
import logging
import os
import pathlib
import platform
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from absl import flags as absl_flags
from absl import logging as absl_logging

import transformer_jax
from transformer_jax import config as configs
from transformer_jax import storage
from transformer_jax.config import Interrupted, Preempted, RunError, UserError
from transformer_jax.distributed import hosts
from transformer_jax.training import memory

# ------------------------------------ definitions of flags, and the values that the user gives them

FLAGS = absl_flags.FLAGS

# These belong to the program that is running, and are emptied when it ends, because a process may
# run several programs in turn. `_commands` may be the first argument, and `_chosen` is the one that
# was; `_optional` names "config" and "workdir" if they may be left out.
_overrides: list[tuple[str, str]] = []  # --config.KEY=VALUE, in order, since a later one wins
_commands: list[str] = []  # the commands that are accepted as the first argument
_chosen: list[str] = []  # the command that was given
_takes_files: list[bool] = []  # not empty: arguments without a flag are allowed
_files: list[str] = []  # these arguments
_optional: list[str] = []  # "config" and "workdir", if they may be left out


def define_commands(*names: str) -> None:
    """Makes the program take one of `names` as its first argument, which `command()` returns."""
    _commands.extend(names)


def command() -> str:
    return _chosen[0]


def define_config(required: bool = True) -> None:
    if not required:
        _optional.append("config")
    _define(
        "config",
        None,
        "Config file, FILE.py or FILE.py:ARGUMENT; --config.section.key=VALUE overrides a key.",
    )
    if "help_config" not in FLAGS:
        absl_flags.DEFINE_bool(
            "help_config", False, "Print every key of --config: its type, default and meaning."
        )


def define_workdir(multiple: bool = False, required: bool = True) -> None:
    """Defines --workdir. With `multiple` it may be left out or repeated, and is a list."""
    meaning = "Folder of the run, on a disk or in a bucket (gs://BUCKET/NAME)."
    if multiple or not required:
        _optional.append("workdir")
    if multiple:
        absl_flags.DEFINE_multi_string(
            "workdir", [], f"{meaning} Some commands take more than one."
        )
    else:
        _define("workdir", None, meaning)


def define_training() -> None:
    """Defines the flags of the training programs."""
    define_config()
    define_workdir()
    define_hosts()
    absl_flags.DEFINE_string(
        "profile", None, "FROM:TO, updates to trace into WORKDIR/profile, for xprof or TensorBoard."
    )
    absl_flags.DEFINE_string(
        "budget",
        None,
        "FLOPs of the run, such as 60TFLOP or 6e13, which decide config.train.num_steps.",
    )
    absl_flags.DEFINE_integer(
        "seeds",
        0,
        "Train N runs with config.train.seed and config.data.seed 0 to N-1, in WORKDIR/seed-0 and "
        "so on; 0: one run with the seeds of the config.",
        lower_bound=0,
    )
    define_together()


def define_together() -> None:
    """Defines the flag of the commands that train several seeds."""
    absl_flags.DEFINE_bool(
        "together",
        False,
        "Train runs that differ in their seeds, or in learning rate, at once, as one program.",
    )


def check_one(only: int) -> None:
    """Raises UserError if --together is given to a job that trains one run of many."""
    if FLAGS.together:
        raise UserError(f"--together: trains all runs at once, and --only={only} one of them")


def define_preparation() -> None:
    """Defines the flags of `prepare`."""
    define_config()
    define_hosts()
    absl_flags.DEFINE_string(
        "beam_runner",
        None,
        "Runner of Apache Beam that tokenizes the parts of the text: DirectRunner, DataflowRunner, "
        "FlinkRunner, SparkRunner and so on. By default this job's processes do.",
    )
    absl_flags.DEFINE_list(
        "beam_pipeline_options",
        [],
        "Options of Beam's pipeline, KEY=VALUE separated by commas: project=P,region=R.",
    )


def define_hosts() -> None:
    """Defines the flags of a run on several hosts, which Slurm and Cloud TPU do not need."""
    absl_flags.DEFINE_string(
        "coordinator", None, "HOST:PORT of process 0, of a run on several hosts."
    )
    absl_flags.DEFINE_integer("num_processes", None, "Processes of the run, one a host.")
    absl_flags.DEFINE_integer("process_id", None, "Number of this process, from 0.")
    absl_flags.DEFINE_integer(
        "patience",
        300,
        "Seconds to wait for the other processes at the start.",
        lower_bound=1,
        upper_bound=10**6,
    )


def define_only() -> None:
    """Defines the flag of programs that train many runs, of which a job of an array trains one."""
    absl_flags.DEFINE_integer(
        "only",
        None,
        "Train only the run with this number, from 0; default in a Slurm job array: the number of "
        "the task.",
        lower_bound=0,
    )


def only(count: int) -> int | None:
    """Returns the number of the only run to train, or None. Raises UserError if there is none."""
    number = FLAGS.only
    if number is None and "SLURM_ARRAY_TASK_ID" in os.environ:
        # The tasks of an array run the same command, so the number must come from Slurm.
        number = int(os.environ["SLURM_ARRAY_TASK_ID"])
    if number is not None and number >= count:
        raise UserError(f"--only={number}: there are the runs 0 to {count - 1}")
    return number


def define_step() -> None:
    _define("step", "best", "Checkpoint: best, latest or a step.")


def _define(name: str, default: str | None, meaning: str) -> None:
    """Defines a flag, unless another part of the program has. With default None, it is required."""
    if name not in FLAGS:
        absl_flags.DEFINE_string(name, default, meaning)


def overrides(allowed: tuple[str, ...] = ("",)) -> list[tuple[str, str]]:
    """Returns the --config.KEY=VALUE overrides, [(key, value), ...].

    Raises UserError for a key that starts with none of `allowed`, because the config of a finished
    run is fixed. The file of a class that the config names is always allowed.
    """
    # Files of classes are always allowed, because a run does not say where its user keeps them.
    _, others = configs.split_files(_overrides)
    for key, _ in others:
        if not key.startswith(allowed):
            keys = ", ".join(f"config.{prefix}*" for prefix in allowed)
            raise UserError(
                f"--config.{key}: fixed by the run in --workdir; here only {keys} may be set"
            )
    return list(_overrides)


def load_config(argument: str = ""):
    """Returns the validated config of --config with its overrides.

    `argument` is added as in --config=FILE.py:ARGUMENT.
    """

    path = f"{FLAGS.config}:{argument}" if argument else FLAGS.config
    return configs.load(path, _overrides)


def open_run(
    method: str,
    ability: str,
    allowed: tuple[str, ...] = ("decode.",),
    workdir: str | None = None,
    *,
    flag: str = "workdir",
    step: str | int | None = None,
):
    """Returns (task, params) of --workdir and --step, with the overrides of `allowed` keys.

    `workdir` replaces --workdir, and `step` replaces --step. Another `flag` names another run, of
    which the best checkpoint is opened. The keys of `config.mesh` are always allowed, because they
    only split the work over the local devices. Raises UserError if the task has no method `method`;
    `ability` completes the message "not one that ...".
    """
    from transformer_jax.runs.open import open_run

    workdir = workdir or FLAGS[flag].value
    step = step or (FLAGS.step if flag == "workdir" else "best")
    task, params = open_run(workdir, step, overrides((*allowed, "mesh.")))
    if not callable(getattr(task, method, None)):
        raise UserError(
            f"--{flag}={workdir}: a {task.config.task.name} run, not one that {ability}"
        )
    return task, params


def define_files() -> None:
    """Lets the program take names of files without a flag, which `files` returns."""
    _takes_files.append(True)


def files() -> list[str]:
    """Returns the arguments that belong to no flag."""
    return list(_files)


def profile() -> tuple[int, int] | None:
    """Returns the first and the last update that --profile names, or None."""
    if FLAGS.profile is None:
        return None
    first, _, last = FLAGS.profile.partition(":")
    if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
        raise UserError(
            f"--profile={FLAGS.profile}: must be FROM:TO, the first and the last update to trace, "
            "counted from 1"
        )
    return int(first), int(last)


def check_output(name: str) -> None:
    """Raises UserError if the file that the flag `name` names can't be written.

    Programs call it before they compute anything, so that no result is lost.
    """
    path = FLAGS[name].value
    folder = os.path.dirname(path or "") or "."
    if path and not os.path.isdir(folder):
        raise UserError(f"--{name}={path}: no such folder")
    if path and (os.path.isdir(path) or not os.access(folder, os.W_OK)):
        raise UserError(f"--{name}={path}: no file can be written here")


def forget(names: set[str]) -> None:
    """Removes the flags of a program that has ended, and the values given to them."""
    # absl's flags are global, so that the next program in this process would inherit them.
    for name in names:
        delattr(FLAGS, name)
    for values in (_overrides, _commands, _chosen, _optional, _takes_files, _files):
        values.clear()


def parse(argv: list[str], program: str) -> None:
    """Parses the arguments of the module named `program`. --help prints its flags and exits."""
    for argument in argv:
        try:
            # Other bytes arrive as surrogates, which would fail much later, where they are written.
            argument.encode()
        except UnicodeEncodeError:
            raise UserError(f"argument {argument!r}: not UTF-8") from None
    # Before anything is parsed, so that --help answers beside wrong and missing flags.
    if {"--help", "-h", "-help"} & set(argv):
        own = FLAGS.main_module_help() if program == "__main__" else FLAGS.module_help(program)
        print(sys.modules[program].__doc__.strip(), own, FLAGS.module_help(__name__), sep="\n")
        sys.exit(0)
    argv = _without_overrides(_without_command(argv))
    try:
        rest = FLAGS(argv)
    except absl_flags.UnrecognizedFlagError as error:
        remedy = suggestion(error.flagname, argv)
        raise UserError(f"unknown flag --{error.flagname}{remedy}") from None
    except absl_flags.Error as error:
        raise UserError(str(error).strip().replace("\n", " ")) from None
    if len(rest) > 1 and not _takes_files:
        raise UserError(f"unexpected argument {rest[1]!r}")
    _files.extend(rest[1:])
    if "help_config" in FLAGS and FLAGS.help_config:
        # A fine-tuning run takes its model from another run, which is not read here, so overrides
        # of that model may name keys that the model in the file does not have.
        file_overrides = [
            (key, value)
            for key, value in _overrides
            if not key.startswith("model.") or key == "model.name"
        ]
        print_keys(FLAGS.config, file_overrides)
    _check_required()


def _without_command(argv: list[str]) -> list[str]:
    """Removes the command from the arguments of a program that has commands, and remembers it."""
    if not _commands:
        return argv
    if len(argv) < 2 or argv[1] not in _commands:
        wrong = f", not {argv[1]!r}" if len(argv) > 1 else ""
        raise UserError(f"the first argument must be one of {', '.join(_commands)}{wrong}")
    _chosen.append(argv[1])
    return [argv[0], *argv[2:]]


def _without_overrides(argv: list[str]) -> list[str]:
    """Moves `--config.a.b=x` and `--config.a.b x`, which absl does not know, to `_overrides`."""
    others, arguments = [], iter(argv)
    for argument in arguments:
        if not argument.lstrip("-").startswith("config.") or not argument.startswith("-"):
            others.append(argument)
            continue
        key, equals, value = argument.lstrip("-").removeprefix("config.").partition("=")
        if not equals:
            value = next(arguments, None)
            if value is None or value.startswith("--"):
                raise UserError(f"--config.{key} needs a value: --config.{key}=VALUE")
        _overrides.append((key, value))
    return others


def _check_required() -> None:
    named = [name for name in ("config", "workdir") if name in FLAGS and FLAGS[name].value]
    if _overrides and not named:
        raise UserError(f"--config.{_overrides[0][0]}: there is no config here to change")
    for name in ("config", "workdir"):
        if name in FLAGS and name not in (*named, *_optional):
            meaning = FLAGS[name].help
            raise UserError(f"--{name}=... is missing: {meaning[0].lower()}{meaning[1:]}")


# --------------------------------- help: suggestions for a wrong flag, the keys of a config, memory


def suggestion(word: str, argv: list[str]) -> str:
    """Returns '; did you mean ...?' for an unknown flag: a flag, or else a key of the config."""
    names = [
        f"--{flag.name}"
        for module, defined in FLAGS.flags_by_module_dict().items()
        for flag in defined
        if not module.startswith("absl")
    ]
    if flag := configs.known_elsewhere(word, names):
        return f"; did you mean {flag[0]}?"
    keys = _keys(argv)
    if key := _key_of_that_name(word, keys):
        return f"; did you mean {key}?"
    near_key = configs.did_you_mean(word, keys).replace("mean ", "mean --config.")
    return configs.did_you_mean(f"--{word}", names) or near_key


def _keys(argv: list[str]) -> list[str]:
    """Returns the keys of the program's config, or those that a use of a run may change."""
    if "config" not in FLAGS and "workdir" not in FLAGS:
        return []
    keys = configs.all_keys(_value(argv, "config"))
    if "config" in FLAGS:
        return keys
    return [key for key in keys if key.startswith("decode.")]  # the rest of a run's config is fixed


def _key_of_that_name(word: str, keys: list[str]) -> str:
    """Returns the key that other codebases call `word`, or whose name without the section it is."""
    if names := configs.known_elsewhere(word, keys):
        return " and ".join(f"--config.{name}" for name in names)
    return " or ".join(f"--config.{key}" for key in keys if key.rpartition(".")[2] == word)


def _value(argv: list[str], name: str) -> str | None:
    """Returns the value of a flag from arguments that have not been parsed yet."""
    for argument, following in zip(argv, [*argv[1:], ""]):
        flag, equals, value = argument.lstrip("-").partition("=")
        if argument.startswith("-") and flag == name:
            return value if equals else following
    return None


def print_keys(path: str | None, overrides: list[tuple[str, str]]) -> None:
    """Prints every key of a config file with its overrides, and exits."""
    if not path:
        raise UserError("--help_config needs --config=FILE, whose model and task have the keys")
    print("\n".join(lines(configs.load(path, overrides), path)))
    sys.exit(0)


def lines(config, path: str) -> list[str]:
    """Returns the help on the config of `path`: one line for each key, with its value there."""
    names = configs.chosen(config)
    text = [
        f"Keys of {path}. --config.KEY=VALUE sets one.",
        "KEY=VALUE here (type; default, where this config has another value): meaning",
    ]
    section = None
    for key, (kind, default) in configs.schema(*names).items():
        if key.partition(".")[0] != section:
            section = key.partition(".")[0]
            text.append("")
        value = as_flag(configs.get(config, key))
        other_default = f"; default {as_flag(default)}" if value != as_flag(default) else ""
        meaning = configs.meaning(key, *names)
        text.append(f"{key}={value} ({configs.describe(kind)}{other_default}): {meaning}")
    return text


def as_flag(value: Any) -> str:
    """Returns a value as it is written on the command line."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value) or "''"


def out_of_memory(error: Exception, overrides: list[tuple[str, str]]) -> str:
    """Returns the line about an out-of-memory error, with the sizes and remedies that are known."""
    use = remedies = ""
    # Errors are suppressed, because this may fail without a run or on an exhausted machine. The
    # line about the memory is then printed without the sizes.
    with contextlib.suppress(Exception):
        if "step" in FLAGS:
            use, remedies = _decoding_use(FLAGS.workdir, overrides)
        elif "config" in FLAGS and FLAGS.config:
            remedies = memory.training_remedies(configs.load(FLAGS.config, overrides))
    return memory.line(error, "", use, remedies)


def _decoding_use(folder: str, overrides: list[tuple[str, str]]) -> tuple[str, str]:
    """Returns texts with the size of a run's parameters, and with remedies for decoding."""
    import jax

    from transformer_jax import config as configs
    from transformer_jax.runs import spec
    from transformer_jax.runs.spec import make_task
    from transformer_jax.training import step

    # The files come first, because they define the classes whose keys the others set.
    files, others = configs.split_files(overrides)
    config = spec.read(folder, files).config
    for key, value in others:
        configs.set_key(config, key, value)
    shapes = step.abstract_params(make_task(config, folder))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    return f"parameters {memory.readable(size)}", memory.decoding_remedies(config)


# -------------------------------------------------------------------------------- running a program

# Its environment is set up, and every error ends in one line and an exit code, because users and
# schedulers cannot act on a traceback.

EXIT_USER = 2


def run(
    main: Callable[[], None],
    define_flags: Callable[[], None],
    before_jax: Callable[[], None] = lambda: None,
) -> None:
    """Parses the flags, runs `main`, and exits.

    Exit codes: 0 done, 2 a mistake of the user, 75 preempted, 130 interrupted, 1 any other failure.
    `before_jax` may set environment variables that jax reads when it is imported.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the stream was closed, as it is for a daemon
            setattr(sys, name, open(os.devnull, mode))
    use_huge_pages()
    _drop_write_errors_of_threads()
    # The messages of XLA are muted, because they are for its developers. With jaxlib 0.10.1, for
    # example, each program that is loaded from the compilation cache prints one as an error.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stdout.reconfigure(encoding="utf-8")  # the locale may lack characters of a text
    transformer_jax.counts_from_import = True  # for the first training of this program
    with _defined(define_flags):
        _run(main, before_jax)


@contextlib.contextmanager
def _defined(define_flags: Callable[[], None]):
    """In the context, FLAGS has the flags of one program; a process may run several in turn."""
    others = set(FLAGS)
    define_flags()
    own = set(FLAGS) - others
    try:
        yield
    finally:
        forget(own)


def _run(main: Callable[[], None], before_jax: Callable[[], None]) -> None:
    """Parses the flags, runs `main`, and turns each kind of error into its exit code."""
    try:
        parse(sys.argv, main.__module__)
        before_jax()
        # Before jax looks for devices, because a process that has done so can't join others.
        _join_other_hosts()
        use()
        _mute_libraries()
        main()
        hosts.leave()
    except UserError as error:
        _end(f"error: {error}", EXIT_USER)
    except (Preempted, Interrupted) as stopped:
        hosts.leave()  # all processes stop at the same point, so each of them gets here
        _say(str(stopped))
        sys.exit(stopped.code)
    except (RunError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            # The reader of stdout has ended, as `head` does. Python flushes stdout once more when
            # it exits, which would print a second error.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _end_with_error(error)
    except KeyboardInterrupt:
        _end("interrupted", Interrupted.code)
    except Exception as error:
        if memory.ran_out(error):
            _end_with_error(error)
        if hosts.count() > 1:
            # This error may only follow from the death of another process, of which it would not
            # tell.
            hosts.await_news()
            traceback.print_exc()
            first_line = str(error).partition("\n")[0]
            hosts.failed(f"{type(error).__name__}: {first_line}", 1)
        raise


def use_huge_pages() -> None:
    """Restarts this program with a malloc that uses huge pages and returns no memory to the system.

    XLA on CPU allocates its buffers anew at each step, and with pages of 4 kB, page faults take a
    third of the time: with huge pages, fine-tuning a BERT with 3 layers of width 192 on rows of 256
    tokens on two cores rises from 5,800 to 9,400 tokens/s. The restart is needed, because glibc
    (from 2.35) reads this setting only when a program starts.
    """
    library, version = platform.libc_ver()
    if library != "glibc" or tuple(map(int, version.split("."))) < (2, 35):
        return
    if "GLIBC_TUNABLES" in os.environ:  # by the user, or before the restart, which must not repeat
        return
    os.environ["GLIBC_TUNABLES"] = (
        "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=68719476736"
    )
    # `orig_argv` instead of `argv`, because only it has the interpreter's own options, such as -m.
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _drop_write_errors_of_threads() -> None:
    """Silences OSErrors in other threads, because the main thread reports them in one line.

    Otherwise each write in progress, by TensorStore or TensorBoard, would print the error again,
    with a traceback.
    """
    sys.unraisablehook = _without_write_errors(sys.unraisablehook)
    threading.excepthook = _without_write_errors(threading.excepthook)


def _without_write_errors(hook: Callable) -> Callable:
    def filtered(args) -> None:
        error = args.exc_value
        if not isinstance(error, OSError) and str(error) != "Event loop is closed":
            hook(args)

    return filtered


def _join_other_hosts() -> None:
    if "coordinator" not in FLAGS:
        return
    arguments = hosts.arguments(FLAGS.coordinator, FLAGS.num_processes, FLAGS.process_id)
    if arguments is not None:
        hosts.supervise()
        hosts.connect(arguments, FLAGS.patience)


def _mute_libraries() -> None:
    """Mutes the loggers of libraries, so that each error is reported once.

    Orbax logs what it does, and each error twice, through absl's logger. If several writes fail
    together, asyncio logs all of them but the first. huggingface_hub logs each try of a download.
    """
    names = ("asyncio", "huggingface_hub")
    for logger in (absl_logging.get_absl_logger(), *map(logging.getLogger, names)):
        logger.setLevel(logging.CRITICAL)


def _end_with_error(error: Exception) -> None:
    """Prints one line and exits with 1."""
    # A RunError is printed as it is, because it says itself what to do.
    ran_out = memory.ran_out(error) and not isinstance(error, RunError)
    line = out_of_memory(error, overrides()) if ran_out else error
    _end(f"error: {line}", 1)


def _end(line: str, code: int) -> None:
    _say(line)
    hosts.failed(line, code)
    sys.exit(code)


def _say(line: str) -> None:
    prefix = f"process {hosts.index()}: " if hosts.index() else ""
    print(f"{prefix}{line}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------------------- the compilation cache

# With it, each program is compiled only once per machine. Its size is limited here and not by JAX,
# which would read the times of all entries at each new entry (seconds with 20,000 entries), and
# refuses a folder that was ever used without its limit.

# An environment variable and no flag, because all programs of a machine share one folder. Without
# it, the limit is _BYTES.
LIMIT = "TRANSFORMER_JAX_COMPILED_GB"
_BYTES = 10e9  # the limit without it
_SECONDS = 3600  # between two checks, each of which looks at every file of the folder


def use() -> None:
    """Caches compiled programs in the user's cache folder, or in JAX_COMPILATION_CACHE_DIR."""
    import jax

    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        folder = pathlib.Path("~/.cache/transformer_jax/compiled").expanduser()
        jax.config.update("jax_compilation_cache_dir", str(folder))
        keep_small(folder)
    # All programs are cached, because a run has many that compile in less than a second, which JAX
    # leaves out by default.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def keep_small(folder: pathlib.Path) -> None:
    """Removes the least recently used programs beyond the limit, checking it at most once an hour.

    Several processes may call it at the same time. Removing the file of a program that is in use
    is harmless, because the program itself is in memory.
    """
    most = storage.cache_limit(LIMIT, _BYTES)
    looked = folder / ".looked"
    # The folder may be read-only or just being removed, and a cache that cannot be tidied is no
    # reason to fail.
    with contextlib.suppress(OSError):
        if looked.exists() and time.time() - looked.stat().st_mtime < _SECONDS:
            return
        # Before the files are looked at, so that a process that starts meanwhile does not repeat
        # it.
        looked.touch()
        if removed := storage.remove_least_used(_entries(folder), most, _remove):
            from transformer_jax.pictures.progress import say

            say(
                f"removed from {folder}, beyond {LIMIT}={most / 1e9:g}: the {len(removed):,} "
                "compiled programs that were not used for longest"
            )


def _entries(folder: pathlib.Path) -> list[storage.CacheEntry]:
    entries = []
    for file in os.scandir(folder):
        # Another process may have removed the file since the folder was listed.
        with contextlib.suppress(FileNotFoundError):
            if file.name.endswith("-cache"):
                status = file.stat()
                # The later of the two times, because most file systems update the time of access at
                # most once a day, and others never.
                used = max(status.st_atime, status.st_mtime)
                entries.append(storage.CacheEntry(pathlib.Path(file.path), used, status.st_size))
    return entries


def _remove(path: pathlib.Path) -> bool:
    path.unlink(missing_ok=True)
    return True
