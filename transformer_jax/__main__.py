"""The programs of this package: transformer-jax PROGRAM, or python -m transformer_jax PROGRAM

transformer-jax PROGRAM --help describes a program and its flags. A config is a Python file, or the
name of one that comes with the package, as in

    transformer-jax train --config=gpt/quickstart --workdir=runs/mine
"""

import ast
import difflib
import pathlib
import runpy
import sys

_FOLDER = pathlib.Path(__file__).parent


def main() -> None:
    """Runs the program that the first argument names, or lists all of them."""
    arguments = sys.argv[1:]
    programs = _programs()
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        print(f"{__doc__}\n{_listed(programs)}")
        return
    name = arguments[0]
    if name not in programs:
        close = difflib.get_close_matches(name, programs, n=1)
        hint = f"; did you mean {close[0]}?" if close else "; --help lists them"
        print(f"error: no program {name}{hint}", file=sys.stderr)
        raise SystemExit(2)
    # As `python -m` sets it, for the program's own help and errors.
    sys.argv = [str(programs[name]), *arguments[1:]]
    runpy.run_module(f"transformer_jax.{name}", run_name="__main__", alter_sys=True)


def _programs() -> dict[str, pathlib.Path]:
    """Returns {name: file} of the programs: files, and folders with a __main__.py."""
    files = {path.stem: path for path in sorted(_FOLDER.glob("*.py"))}
    folders = {path.parent.name: path for path in sorted(_FOLDER.glob("*/__main__.py"))}
    programs = {
        name: path
        for name, path in {**files, **folders}.items()
        if not name.startswith("__") and '__name__ == "__main__"' in path.read_text("utf-8")
    }
    return dict(sorted(programs.items()))


def _listed(programs: dict[str, pathlib.Path]) -> str:
    """Returns a line for each program: its name, and the beginning of its docstring."""
    width = max(map(len, programs))
    return "\n".join(f"  {name:{width}}  {_purpose(path)}" for name, path in programs.items())


def _purpose(path: pathlib.Path) -> str:
    # Read and not imported, because some programs need JAX.
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return " ".join(text.split()).partition(": ")[0].partition(". ")[0].removesuffix(".")


if __name__ == "__main__":
    main()
