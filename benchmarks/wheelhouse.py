"""Collects what a machine with one GPU and no network lacks, so that it can be brought there.

python benchmarks/wheelhouse.py [--list] [--python=3.12] [DIR]

The machine has wheels of jax[cuda13], flax, optax, orbax-checkpoint, torch and transformers; pip
fetches the others (WHEELS) for its Python, on x86-64 Linux, into DIR, by default .wheels. Then it
checks that they and the checkout together stay within 64 MiB. There:

python -m pip install --no-index --no-deps --target=.site .wheels/*.whl
PYTHONPATH=.:.site python benchmarks/accelerator.py
"""

import argparse
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT = 64 * 2**20  # bytes
# {distribution: (its release, the module that is imported)}. TensorFlow Datasets is not among them:
# it is imported only for a config that names one of its sets.
WHEELS = {
    "grain": ("0.2.18", "grain"),
    "array_record": ("0.8.6", "array_record"),  # of grain
    "portpicker": ("1.6.0", "portpicker"),  # of grain
    "ml-collections": ("1.1.0", "ml_collections"),
    "sacremoses": ("0.1.1", "sacremoses"),
    "tensorboardX": ("2.6.5", "tensorboardX"),
}
MODULES = {name: module for name, (_, module) in WHEELS.items()}
# pip matches a tag of manylinux exactly, so each is named.
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 24, 17)] + ["manylinux2014_x86_64"]


def fetch(folder: pathlib.Path, python: str) -> None:
    """Downloads the wheels. Raises CalledProcessError if pip finds none."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", f"--python-version={python}", "--implementation=cp"]
    command += [f"--platform={platform}" for platform in PLATFORMS]
    command += [
        f"--dest={folder}",
        *(f"{name}=={release}" for name, (release, _) in WHEELS.items()),
    ]
    subprocess.run(command, check=True)


def size(folder: pathlib.Path, root: pathlib.Path = ROOT) -> tuple[int, int]:
    """Returns the bytes of the wheels, and of the checkout: what git tracks or does not ignore.

    Raises SystemExit, which names the largest files, if both together exceed the limit.
    """
    command = [
        "git",
        "-C",
        str(root),
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    wheels = {path.resolve(): path.stat().st_size for path in folder.glob("*.whl")}
    tree = {(root / name).resolve() for name in names if name and (root / name).is_file()}
    tree = {path: path.stat().st_size for path in tree - {*wheels}}
    total = sum(wheels.values()) + sum(tree.values())
    if total > LIMIT:
        largest = sorted((wheels | tree).items(), key=lambda item: -item[1])[:3]
        raise SystemExit(
            f"the wheels and the checkout are {total / 2**20:.1f} MiB, more than "
            f"{LIMIT / 2**20:.0f}; the largest files: "
            + ", ".join(f"{path.name} ({bytes_ / 2**20:.1f} MiB)" for path, bytes_ in largest)
        )
    return sum(wheels.values()), sum(tree.values())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=ROOT / ".wheels")
    parser.add_argument("--list", action="store_true", help="print the wheels, fetch nothing")
    parser.add_argument("--python", default="3.12", help="the release of Python there")
    arguments = parser.parse_args()
    if arguments.list:
        print(*(f"{name}=={release}" for name, (release, _) in WHEELS.items()), sep="\n")
        return
    fetch(arguments.folder, arguments.python)
    wheels, tree = size(arguments.folder)
    print(f"wheels {wheels / 2**20:.1f} MiB, checkout {tree / 2**20:.1f} MiB: {arguments.folder}")


if __name__ == "__main__":
    main()
