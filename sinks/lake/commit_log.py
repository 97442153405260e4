"""The log of a Delta table on a local disk: its commits are forced to the disk, and what a loss of power has broken of the newest ones goes.

    force     files of rows, then entries of the log, then their directories
    broken    the oldest of the newest versions that is not whole: its entry is no JSON, or a file that it has added has not its size, or no Parquet footer
    cut       entries of the log from a version on go, with their checkpoints: nobody has built on them

delta-rs itself forces nothing. A writer forces each commit before it makes the next one that counts on it, so only the last ones can be broken.
"""

import base64
import json
import os
import re
import string
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pyspark_tidb_binlog.schemas.errors import ApplyError

_LOOKED_AT = 8
"""The newest versions that are looked at. Of older ones, files that no newer version needs may be gone."""
_MAGIC = b"PAR1"
_HINT = "_last_checkpoint"
_ENTRY = re.compile(r"\d{20}\.json")
_FROM_Z85 = str.maketrans(
    string.digits + string.ascii_lowercase + string.ascii_uppercase + ".-:+=^!/*?&<>()[]{}@%$#",
    string.digits + string.ascii_uppercase + string.ascii_lowercase + "!#$%&()*+-;<=>?@^_`{|}~",
)
"""To the digits of ``base64.b85decode``: it is the same code otherwise."""


class NotForced(ApplyError):
    """The disk refuses to keep a commit, which is in the log: whether it stays is not known before the next start."""


def is_local(uri: str) -> bool:
    """Whether a table is on a disk of this machine. A store keeps what it has confirmed."""
    return "://" not in uri


def vector_file(vector: str) -> str:
    """The file of a deletion vector that a log names: a directory, if there is one, and a UUID in Z85."""
    directory, name = vector[:-20], uuid.UUID(bytes=base64.b85decode(vector[-20:].translate(_FROM_Z85)))
    return f"{directory}/deletion_vector_{name}.bin" if directory else f"deletion_vector_{name}.bin"


class CommitLog:
    """The log of one table, which a local directory has."""

    def __init__(self, directory: str | Path) -> None:
        """Nothing is read."""
        self._root = Path(directory)
        self._log = self._root / "_delta_log"

    def __str__(self) -> str:
        """Which table it is of, in messages."""
        return str(self._root)

    def force(self, after: int, upto: int) -> None:
        """Force the commits of (after, upto] to the disk.

        Raises:
            NotForced: the disk refuses.
        """
        entries = [self._entry(version) for version in range(after + 1, upto + 1)]
        try:
            files = {self._root / name for entry in entries for name, _ in _files_of(_actions_in(entry))}
            folders = {folder for file in files for folder in file.relative_to(self._root).parents}
            made = (self._root, self._root.parent, self._root.parent.parent) if after < 0 else ()
            for path in (*sorted(files), *(self._root / folder for folder in sorted(folders, reverse=True)), *entries, self._log, *made):
                _force(path)
        except OSError as error:
            raise NotForced(f"commits {after + 1} to {upto} of {self._root} cannot be forced to the disk: {error}") from error

    def versions(self) -> list[int]:
        """The versions that have an entry."""
        return sorted(int(path.name[:20]) for path in self._log.glob("*.json") if _ENTRY.fullmatch(path.name))

    def broken(self, after: int | None = None) -> int | None:
        """The oldest of the newest versions that is not whole, or not there; None: they are whole. ``after``: a version that is."""
        versions = self.versions()
        if not versions or versions[-1] == after:
            return None
        looked_at = range(max(versions[-1] - _LOOKED_AT + 1, versions[0] if after is None else after + 1), versions[-1] + 1)
        added = dict[str, tuple[int, int | None]]()
        for version in looked_at:
            if (actions := _actions_in(self._entry(version))) is None:
                # Whatever it has removed, the versions before it have.
                looked_at = range(looked_at.start, version)
                break
            for action in actions:
                if removed := action.get("remove"):
                    added.pop(unquote(removed["path"]), None)
            added |= {name: (version, size) for name, size in _files_of(actions)}
        lacking = [version for name, (version, size) in added.items() if not _is_whole(self._root / name, size)]
        end = [looked_at.stop] if looked_at.stop <= versions[-1] else []
        return min([*lacking, *end], default=None)

    def broken_checkpoints(self) -> list[Path]:
        """Checkpoints that cannot be read, or are ahead of all entries, and the hint if it names such a one, or none."""
        last, hint = f"{max(self.versions(), default=0):020}.", self._log / _HINT
        found = [path for path in self._log.glob("*.checkpoint.parquet") if path.name[: len(last)] > last or not _is_parquet(path)]
        try:
            named = self._log / f"{json.loads(hint.read_bytes())['version']:020}.checkpoint.parquet"
            return found if named.exists() and named not in found else [*found, hint]
        except FileNotFoundError:
            return found
        except (ValueError, KeyError, TypeError):
            return [*found, hint]

    def cut(self, begin: int | None) -> None:
        """Remove what the log has from version ``begin`` on, None: nothing, and checkpoints that cannot be read.

        Raises:
            ApplyError: an entry cannot be removed.
        """
        numbers = ((path, path.name.removeprefix(".")[:20]) for path in self._log.glob("*"))
        gone = [path for path, number in numbers if begin is not None and number.isdecimal() and int(number) >= begin]
        try:
            # The newest first: whatever of it a crash leaves has no gap.
            for path in sorted(gone, key=lambda path: path.name.removeprefix("."), reverse=True):
                path.unlink(missing_ok=True)
            for path in self.broken_checkpoints():
                path.unlink()
            _force(self._log)
        except OSError as error:
            raise ApplyError(f"what is broken of the log of {self._root} cannot be removed: {error}") from error

    def record(self, version: int, app: str) -> str | None:
        """What ``app`` has recorded in a commit; None: nothing."""
        actions = _actions_in(self._entry(version)) or []
        return next((str(action["commitInfo"][app]) for action in actions if app in action.get("commitInfo", {})), None)

    def _entry(self, version: int) -> Path:
        return self._log / f"{version:020}.json"


def _actions_in(entry: Path) -> list[dict[str, Any]] | None:
    """The actions of a commit; None: they are not all there."""
    try:
        actions = [json.loads(line) for line in entry.read_bytes().splitlines() if line.strip()]
    except (FileNotFoundError, ValueError):
        return None
    return actions or None


def _files_of(actions: Iterable[dict[str, Any]] | None) -> Iterator[tuple[str, int | None]]:
    """The files that a commit has added, each with its size if it is Parquet; vectors, too."""
    for action in actions or ():
        if added := action.get("add"):
            yield unquote(added["path"]), added["size"]
            if (vector := added.get("deletionVector") or {}).get("storageType") == "u":
                yield vector_file(vector["pathOrInlineDv"]), None


def _is_whole(path: Path, size: int | None) -> bool:
    """Whether a file is there; if ``size`` is given, as Parquet of this size."""
    try:
        return path.exists() if size is None else path.stat().st_size == size and _is_parquet(path)
    except FileNotFoundError:
        return False


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        head, size = file.read(len(_MAGIC)), file.seek(0, os.SEEK_END)
        file.seek(max(size - len(_MAGIC), 0))
        return head == file.read() == _MAGIC


def _force(path: Path) -> None:
    """Force a file or a directory to the disk; another program may have removed it since."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
