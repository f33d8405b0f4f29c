"""Files that grow or are redrawn, for a run in a bucket."""

import contextlib
import pathlib
import tempfile

from transformer_jax.config import RunError
from transformer_jax.storage.buckets import Path


class Mirror:
    """A local folder, `local`, for files that are appended to or drawn again.

    For a `folder` on a disk it is the folder itself. A bucket takes only whole objects. For a
    folder in a bucket, `local` is therefore temporary, and `send` copies every changed file.
    """

    def __init__(self, folder: pathlib.Path | Path, *fetched: str):
        """`fetched` names files that are copied from the bucket first.

        `send` does not overwrite them in the bucket where another run has written them meanwhile.
        """
        self.folder = self.local = folder
        self._temporary = None
        if not isinstance(folder, Path):
            return
        self._temporary = tempfile.TemporaryDirectory(prefix="transformer_jax-")
        self.local = pathlib.Path(self._temporary.name)
        self._sent: dict[str, tuple[int, int]] = {}  # size and time of change, by name
        self._generations: dict[str, bytes | None] = {}  # of the fetched objects, by name
        for name in fetched:
            self._generations[name] = (folder / name).stamped().stamp.generation
            with contextlib.suppress(FileNotFoundError):
                (self.local / name).write_bytes((folder / name).read_bytes())

    def send(self) -> None:
        """Copies the changed files to the bucket.

        Raises RunError where another run has written one of the fetched files.
        """
        if not self._temporary:
            return
        for file in sorted(self.local.rglob("*")):
            status = file.stat()
            name = file.relative_to(self.local).as_posix()
            version = status.st_size, status.st_mtime_ns
            if not file.is_file() or self._sent.get(name) == version:
                continue
            self._send_file(name, file.read_bytes())
            self._sent[name] = version

    def _send_file(self, name: str, content: bytes) -> None:
        target = self.folder / name
        if name not in self._generations:
            target.write_bytes(content)
            return
        self._generations[name] = target.write_if(content, self._generations[name])
        if self._generations[name] is None:
            raise RunError(
                f"{target}: another run has written this file. This run ends, and saves nothing "
                "more; use one workdir for each run"
            )

    def close(self) -> None:
        """Deletes the temporary folder."""
        if self._temporary:
            self._temporary.cleanup()
