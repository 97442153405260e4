"""The log of a Delta table on a local disk: its commits are forced to the disk, and after a loss of power those that are not whole are taken back.

    force       files of rows, then entries of the log, then their directories
    newest      the newest version of which all is there: each entry is JSON, and each file that it needs has its size and a Parquet footer
    cut         entries of the log behind a version go, with their checkpoints: nobody has built on them

delta-rs itself forces nothing. A writer forces each commit before it makes the next one that counts on it, so only the last ones can be broken.
"""

import base64
import json
import os
import string
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pyspark_tidb_binlog.schemas.errors import ApplyError

_LOOKED_AT = 50
"""The newest versions that are looked at."""
_MAGIC = b"PAR1"
_HINT = "_last_checkpoint"
_FROM_Z85 = str.maketrans(
    string.digits + string.ascii_lowercase + string.ascii_uppercase + ".-:+=^!/*?&<>()[]{}@%$#",
    string.digits + string.ascii_uppercase + string.ascii_lowercase + "!#$%&()*+-;<=>?@^_`{|}~",
)
"""To the digits of ``base64.b85decode``: it is the same code otherwise."""


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

    def force(self, after: int, upto: int) -> None:
        """Force the commits of (after, upto] to the disk.

        Raises:
            ApplyError: the disk refuses. What the commits have written may be lost.
        """
        entries = [self._entry(version) for version in range(after + 1, upto + 1)]
        try:
            files = {self._root / name for entry in entries for name in _files_of(_actions_in(entry))}
            folders = {folder for file in files for folder in file.relative_to(self._root).parents}
            for path in (
                *sorted(files),
                *(self._root / folder for folder in sorted(folders, reverse=True)),
                *entries,
                self._log,
                self._root,
            ):
                _force(path)
            if after < 0:
                for path in (self._root.parent, self._root.parent.parent):
                    _force(path)
        except OSError as error:
            raise ApplyError(f"commits {after + 1} to {upto} of {self._root} cannot be forced to the disk: {error}") from error

    def newest(self, before: int = 1 << 62) -> int | None:
        """The newest version, of those before ``before``, of which all is there; None: there is no table.

        Raises:
            ApplyError: none of the newest versions is whole.
        """
        versions, checkpoints = self._numbers("*.json"), self._checkpoints()
        last = max((version for version in versions if version < before), default=None)
        if last is None:
            return None
        looked_at = range(max(last - _LOOKED_AT, 0), last + 1)
        actions = {version: _actions_in(self._entry(version)) for version in looked_at if version in versions}
        for version in reversed(looked_at):
            begin = max((checkpoint for checkpoint in checkpoints if checkpoint <= version), default=-1) + 1
            known = [found for number, found in actions.items() if number <= version]
            if version in versions and versions.issuperset(range(begin, version)) and all(known) and not self._lacking(_live(known)):
                return version
        lacking = self._lacking(_live(actions[number] for number in sorted(actions)[:1])) or [self._entry(last).name]
        raise ApplyError(
            f"{self._root} is damaged: none of its versions from {max(last - _LOOKED_AT, 0)} to {last} is whole; it lacks {', '.join(lacking[:3])}. "
            "Restore the lake from a backup"
        )

    @property
    def last(self) -> int | None:
        """The newest version that an entry or a checkpoint names, whole or not."""
        return max(self._numbers("*"), default=None)

    def is_whole(self) -> bool:
        """Whether all of the newest version is there, and each checkpoint."""
        return self.newest() == self.last and not self._broken_checkpoints()

    def cut(self, version: int) -> bool:
        """Remove what the log has behind a version; whether there was something.

        Raises:
            ApplyError: an entry cannot be removed.
        """
        gone = [path for path in self._log.glob("*") if (number := _number_of(path)) is not None and number > version]
        try:
            # The newest first: whatever of it a crash leaves has no gap.
            for path in sorted(gone, key=lambda path: path.name.removeprefix("."), reverse=True):
                path.unlink(missing_ok=True)
            for path in self._broken_checkpoints():
                gone.append(path)
                path.unlink()
            if gone:
                _force(self._log)
        except OSError as error:
            raise ApplyError(f"what is behind version {version} of {self._root} cannot be removed: {error}") from error
        return bool(gone)

    def record(self, version: int, app: str) -> str | None:
        """What ``app`` has recorded in a commit; None: nothing."""
        actions = _actions_in(self._entry(version)) or []
        return next((str(action["commitInfo"][app]) for action in actions if app in action.get("commitInfo", {})), None)

    def _entry(self, version: int) -> Path:
        return self._log / f"{version:020}.json"

    def _numbers(self, pattern: str) -> set[int]:
        return {number for path in self._log.glob(pattern) if not path.name.startswith(".") and (number := _number_of(path)) is not None}

    def _checkpoints(self) -> list[int]:
        """The versions at which a read of the log can begin."""
        return [number for path in self._log.glob("*.checkpoint.parquet") if (number := _number_of(path)) is not None and _is_parquet(path)]

    def _lacking(self, files: dict[str, int | None]) -> list[str]:
        """Those of the files that are not there, or not as they were written."""
        return [name for name, size in files.items() if not _is_whole(self._root / name, size)]

    def _broken_checkpoints(self) -> list[Path]:
        """Those that cannot be read, and the hint if it names such a one, or none."""
        found, hint = [path for path in self._log.glob("*.checkpoint.parquet") if not _is_parquet(path)], self._log / _HINT
        try:
            named = self._log / f"{json.loads(hint.read_bytes())['version']:020}.checkpoint.parquet"
            return found if named.exists() and named not in found else [*found, hint]
        except FileNotFoundError:
            return found
        except (ValueError, KeyError, TypeError):
            return [*found, hint]


def _actions_in(entry: Path) -> list[dict[str, Any]] | None:
    """The actions of a commit; None: they are not all there."""
    try:
        actions = [json.loads(line) for line in entry.read_bytes().splitlines() if line.strip()]
    except (FileNotFoundError, ValueError):
        return None
    return actions or None


def _files_of(actions: Iterable[dict[str, Any]] | None) -> Iterator[str]:
    """The files that a commit has added, vectors and Spark's sums too."""
    for action in actions or ():
        if added := action.get("add"):
            yield unquote(added["path"])
            if (vector := added.get("deletionVector") or {}).get("storageType") == "u":
                yield vector_file(vector["pathOrInlineDv"])


def _live(commits: Iterable[list[dict[str, Any]] | None]) -> dict[str, int | None]:
    """The files that commits have added and left, each with its size if it is Parquet."""
    found = dict[str, int | None]()
    for actions in commits:
        for action in actions or ():
            if removed := action.get("remove"):
                found.pop(unquote(removed["path"]), None)
        for action in actions or ():
            if added := action.get("add"):
                found |= dict.fromkeys(_files_of([action]))
                found[unquote(added["path"])] = added["size"]
    return found


def _number_of(path: Path) -> int | None:
    number = path.name.removeprefix(".")[:20]
    return int(number) if number.isdecimal() else None


def _is_whole(path: Path, size: int | None) -> bool:
    """Whether a file is there; if ``size`` is given, as Parquet of this size."""
    return path.exists() and (size is None or (path.stat().st_size == size and _is_parquet(path)))


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
