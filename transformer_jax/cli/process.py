"""The command line: flags, exit codes, and one clear line for every mistake."""

import contextlib
import logging
import os
import platform
import sys
import threading
import traceback
from collections.abc import Callable

from absl import flags
from absl import logging as absl_logging

from transformer_jax.cli import help as cli_help
from transformer_jax.config import Interrupted, Preempted, RunError, UserError
from transformer_jax.distributed import hosts
from transformer_jax.training import memory

FLAGS = flags.FLAGS
EXIT_USER = 2


def define_commands(*names: str) -> None:
    """Programs that do several things are told which by their first argument; `command()` gives it."""
    _commands.extend(names)


def command() -> str:
    return _command[0]


def define_config(required: bool = True) -> None:
    if not required:
        _optional.append("config")
    _define(
        "config",
        None,
        "Config file, FILE.py or FILE.py:ARGUMENT; --config.section.key=VALUE overrides a key.",
    )
    if "help_config" not in FLAGS:
        flags.DEFINE_bool(
            "help_config", False, "Print every key of --config: its type, default and meaning."
        )


def define_workdir(several: bool = False) -> None:
    """`several`: the flag may be left out or given several times; the program says how many it
    takes.
    """
    meaning = "Folder of the run, on a disk or in a bucket (gs://BUCKET/NAME)."
    if several:
        _optional.append("workdir")
        flags.DEFINE_multi_string(
            "workdir", [], f"{meaning} For some purposes several may be given."
        )
    else:
        _define("workdir", None, meaning)


def define_training() -> None:
    """What the trainers share."""
    define_config()
    define_workdir()
    define_hosts()
    flags.DEFINE_string(
        "profile", None, "FROM:TO, updates to trace into WORKDIR/profile, for xprof or TensorBoard."
    )


def define_seeds() -> None:
    flags.DEFINE_integer(
        "seeds",
        0,
        "Runs that differ in config.train.seed and config.data.seed alone: 0, 1,"
        " ... ; 0: one run, with the config's.",
        lower_bound=0,
    )


def define_hosts() -> None:
    """Slurm and Cloud TPU say themselves where the other processes of a run are."""
    flags.DEFINE_string("coordinator", None, "HOST:PORT of process 0, of a run on several hosts.")
    flags.DEFINE_integer("num_processes", None, "Processes of the run, one a host.")
    flags.DEFINE_integer("process_id", None, "Number of this one, from 0.")
    flags.DEFINE_integer(
        "patience",
        300,
        "Seconds to wait for the others at the start.",
        lower_bound=1,
        upper_bound=10**6,
    )


def define_step() -> None:
    _define("step", "best", "Checkpoint: best, latest or a step.")


def _define(name: str, default: str | None, meaning: str) -> None:
    """A flag that several programs share; without a default it must be given."""
    if name not in FLAGS:
        flags.DEFINE_string(name, default, meaning)


def overrides(allowed: tuple[str, ...]) -> list[tuple[str, str]]:
    """The --config.section.key=VALUE overrides of a run that is over: only keys that begin with one
    of `allowed`.
    """
    for key, _ in _overrides:
        if not key.startswith(allowed):
            raise UserError(
                f"--config.{key}: fixed by the run in --workdir; here only {', '.join(f'config.{a}*' for a in allowed)} may be set"
            )
    return _overrides


def load_config(without: str = "", argument: str = ""):
    """The config that --config (with `argument`, if that is given) and its overrides name,
    validated.

    With `without`, (that, overrides of keys that begin so, which are left out).
    """
    from transformer_jax import config

    apart = [(key, value) for key, value in _overrides if without and key.startswith(without)]
    path = f"{FLAGS.config}:{argument}" if argument else FLAGS.config
    found = config.load(path, [override for override in _overrides if override not in apart])
    return (found, apart) if without else found


def load_settled():
    """As `load_config`; a fine-tuning config has the model of its config.init_from."""
    from transformer_jax.runs import workdir

    config, of_model = load_config(without="model.")
    return (
        workdir.settled(config, os.devnull, of_model)
        if workdir.fine_tunes(config)
        else load_config()
    )


_overrides: list[tuple[str, str]] = []
_commands: list[str] = []  # of this program
_command: list[str] = []  # the one given
_optional: list[str] = []  # flags that may be left out


def run(
    main: Callable[[], None],
    define_flags: Callable[[], None],
    before_jax: Callable[[], None] = lambda: None,
) -> None:
    """Parses the flags, runs `main`, and exits.

    Exit codes: 0 done, 2 a mistake of the user's, 75 preempted, 130 interrupted, 1 anything else.
    `before_jax` may set what jax reads from the environment when it is imported.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        # closed, as daemons are started: nothing is read there, what is written goes nowhere
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))
    use_huge_pages()
    _tell_once()
    # XLA's messages are for its developers. With jaxlib 0.10.1 each program that is loaded from the
    # compilation cache prints one as an error.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stdout.reconfigure(encoding="utf-8")  # whatever the locale: text in and out is UTF-8
    with _defined(define_flags):
        _run(main, before_jax)


@contextlib.contextmanager
def _defined(define_flags: Callable[[], None]):
    """Within it FLAGS has a program's flags; a second program in the same process has its own."""
    others = set(FLAGS)
    define_flags()
    own = set(FLAGS) - others
    try:
        yield
    finally:
        for name in own:
            delattr(FLAGS, name)
        for remembered in (_overrides, _commands, _command, _optional):
            remembered.clear()


def _run(main: Callable[[], None], before_jax: Callable[[], None]) -> None:
    """Parses the flags and runs `main`; each way to end has its exit code."""
    try:
        _parse(sys.argv, main.__module__)
        before_jax()
        _join_others()
        _set_up_jax()
        _mute_libraries()
        main()
        hosts.leave()
    except UserError as error:
        _end(f"error: {error}", EXIT_USER)
    except (Preempted, Interrupted) as stopped:
        hosts.leave()  # all stop together
        _say(str(stopped))
        sys.exit(stopped.code)
    except (RunError, OSError) as error:
        if isinstance(error, BrokenPipeError):  # the reader of stdout has gone, as `head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _end_of_error(error)
    except KeyboardInterrupt:
        _end("interrupted", Interrupted.code)
    except Exception as error:
        if memory.ran_out(error):
            _end_of_error(error)
        if hosts.count() > 1:
            hosts.await_news()
            traceback.print_exc()
            hosts.failed(
                f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", 1
            )
        raise


def _end_of_error(error: Exception) -> None:
    """Ends with one line and exit code 1."""
    ran_out = memory.ran_out(error) and not isinstance(error, RunError)
    _end(f"error: {cli_help.out_of_memory(error, _overrides) if ran_out else error}", 1)


def _parse(argv: list[str], program: str) -> None:
    """Flags into FLAGS, `--config.key` overrides aside; --help prints those of `program`, a module."""
    for argument in argv:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UserError(f"argument {argument!r}: not UTF-8") from None
    if {"--help", "-h", "-help"} & set(argv):
        own = FLAGS.main_module_help() if program == "__main__" else FLAGS.module_help(program)
        print(sys.modules[program].__doc__.strip(), own, FLAGS.module_help(__name__), sep="\n")
        sys.exit(0)
    if _commands:
        if len(argv) < 2 or argv[1] not in _commands:
            raise UserError(
                f"the first argument says what to do: {', '.join(_commands)}"
                + (f"; not {argv[1]!r}" if len(argv) > 1 else "")
            )
        _command.append(argv[1])
        argv = [argv[0], *argv[2:]]
    try:
        rest = FLAGS(_take_overrides(argv))
    except flags.UnrecognizedFlagError as error:
        meant = cli_help.meant(error.flagname, argv)
        raise UserError(f"unknown flag --{error.flagname}{meant}") from None
    except flags.Error as error:
        raise UserError(str(error).strip().replace("\n", " ")) from None
    if len(rest) > 1:
        raise UserError(f"unexpected argument {rest[1]!r}")
    if "help_config" in FLAGS and FLAGS.help_config:
        cli_help.print_keys(lambda: load_config(without="model.")[0])
    if (
        _overrides
        and not ("config" in FLAGS and FLAGS.config)
        and not ("workdir" in FLAGS and FLAGS.workdir)
    ):
        raise UserError(f"--config.{_overrides[0][0]}: there is no config here to change")
    for name in ("config", "workdir"):
        if name in FLAGS and not FLAGS[name].value and name not in _optional:
            raise UserError(
                f"--{name}=... is missing: {FLAGS[name].help[0].lower()}{FLAGS[name].help[1:]}"
            )


def check_output(name: str) -> None:
    """Raises UserError, before anything is computed, where the file that a flag names has no folder
    to be in, or can't be written there.
    """
    path = FLAGS[name].value
    if path and not os.path.isdir(os.path.dirname(path) or "."):
        raise UserError(f"--{name}={path}: no such folder")
    if path and (os.path.isdir(path) or not os.access(os.path.dirname(path) or ".", os.W_OK)):
        raise UserError(f"--{name}={path}: no file can be written here")


def profile() -> tuple[int, int] | None:
    """The updates --profile names."""
    if FLAGS.profile is None:
        return None
    first, _, last = FLAGS.profile.partition(":")
    if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
        raise UserError(
            f"--profile={FLAGS.profile}: FROM:TO is asked for, the first and the last update to trace, from 1"
        )
    return int(first), int(last)


def train(task_name: str | None = None) -> None:
    """The body of a trainer: the config's run, started or gone on with in --workdir.

    A trainer of one task names it; another task is then refused.
    """
    config = load_config()
    if task_name and config.task.name != task_name:
        raise UserError(
            f"--config={FLAGS.config}: config.task.name={config.task.name!r}, this trainer's is {task_name!r}"
        )
    from transformer_jax.runs import workdir

    workdir.train(config, FLAGS.workdir, profile=profile())


def _take_overrides(argv: list[str]) -> list[str]:
    """Takes `--config.a.b=x` and `--config.a.b x` out of the arguments; absl knows no such flags."""
    kept, arguments = [], iter(argv)
    for argument in arguments:
        if not argument.lstrip("-").startswith("config.") or not argument.startswith("-"):
            kept.append(argument)
            continue
        key, given, value = argument.lstrip("-").removeprefix("config.").partition("=")
        if not given:
            value = next(arguments, None)
            if value is None or value.startswith("--"):
                raise UserError(f"--config.{key} needs a value: --config.{key}=VALUE")
        _overrides.append((key, value))
    return kept


def use_huge_pages() -> None:
    """Starts this program again under a malloc that asks for huge pages and keeps what it got,
    where that is to be had (glibc from 2.35).

    XLA on CPU allocates its buffers anew at each step: by pages of 4 kB their faults take a third
    of the time (fine-tuning a BERT of 3 layers of 192 on rows of 256, two cores: 5,800 -> 9,400
    tokens/s). The setting is read at a program's start alone.
    """
    library, version = platform.libc_ver()
    if (
        library == "glibc"
        and tuple(map(int, version.split("."))) >= (2, 35)
        and "GLIBC_TUNABLES" not in os.environ
    ):
        os.environ["GLIBC_TUNABLES"] = (
            "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=68719476736"
        )
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _tell_once() -> None:
    """What goes wrong with a disk is said by the main thread, in one line: not again by every write
    under way (TensorStore's, TensorBoard's), each with a traceback.
    """

    def heard(hook):
        return lambda args: (
            None
            if isinstance(args.exc_value, OSError) or str(args.exc_value) == "Event loop is closed"
            else hook(args)
        )

    sys.unraisablehook, threading.excepthook = (
        heard(sys.unraisablehook),
        heard(threading.excepthook),
    )


def _join_others() -> None:
    if (
        "coordinator" in FLAGS
        and (found := hosts.several(FLAGS.coordinator, FLAGS.num_processes, FLAGS.process_id))
        is not None
    ):
        hosts.supervise()
        hosts.connect(found, FLAGS.patience)


def _set_up_jax() -> None:
    """The compilation cache, so that the same program is compiled once per machine."""
    import jax

    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update(
            "jax_compilation_cache_dir", os.path.expanduser("~/.cache/transformer_jax/compiled")
        )
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def _mute_libraries() -> None:
    """Each error is reported once, by the program.

    Orbax logs its steps, and each error twice, through absl's logger. Of several writes that fail
    together, asyncio logs all but the first.
    """
    for logger in (absl_logging.get_absl_logger(), logging.getLogger("asyncio")):
        logger.setLevel(logging.CRITICAL)


def _say(line: str) -> None:
    named = f"process {hosts.index()}: {line}" if hosts.index() else line
    print(named, file=sys.stderr, flush=True)


def _end(line: str, code: int) -> None:
    _say(line)
    hosts.failed(line, code)
    sys.exit(code)
