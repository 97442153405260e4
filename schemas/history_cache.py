"""Cache of the parsed DDL history, a file beside the checkpoint for each Drainer. With a history of 100,000 jobs a start takes 5 s, and 50 s
without it (``bench_history``).

    history.cache = one line of JSON (format, cluster, number of jobs, SHA-256 of the rest) | the pickled jobs

Promises: a cache that is truncated, of another cluster or of another version of the code is not used. The log says why; it is never an
error. Loading creates only values of this project's plain classes. The feed checks whether the cache still matches the history.
"""

import hashlib
import io
import json
import logging
import os
import pickle
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from pyspark_tidb_binlog.schemas import tableinfo
from pyspark_tidb_binlog.schemas.ddl_jobs import DbInfo, Job, Location
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, IndexInfo, PartitionDef, TableInfo

_FORM = 1
_log = logging.getLogger(__name__)


class HistoryCache:
    """The cache of one cluster's history in one directory."""

    def __init__(self, directory: Path, cluster_id: int) -> None:
        """The directory is created when the cache is first written."""
        self._path = directory / "history.cache"
        self._cluster_id = cluster_id

    def load(self) -> list[Job]:
        """The jobs; empty when there is no usable cache."""
        try:
            with self._path.open("rb") as file:
                said, body = json.loads(file.readline()), file.read()
            if {name: said.get(name) for name in self._kind()} != self._kind():
                raise ValueError("another cluster or another version of this program wrote it")
            if said["sha256"] != hashlib.sha256(body).hexdigest():
                raise ValueError("its checksum is wrong")
            jobs: list[Job] = _SafeUnpickler(io.BytesIO(body)).load()
            if len(jobs) != said["jobs"]:
                raise ValueError("it has the wrong number of jobs")
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, pickle.UnpicklingError) as error:
            _log.warning("the cached DDL history %s is not used: %s", self._path, error)
            return []
        return jobs

    def store(self, jobs: Sequence[Job]) -> None:
        """Replace the cache; a failed write is only logged."""
        body = pickle.dumps(list(jobs), protocol=5)
        said = self._kind() | {"jobs": len(jobs), "sha256": hashlib.sha256(body).hexdigest()}
        made = self._path.with_suffix(f".{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            made.write_bytes(json.dumps(said).encode() + b"\n" + body)
            made.replace(self._path)
        except OSError as error:
            _log.warning("cannot cache the DDL history: %s", error)

    def _kind(self) -> dict[str, Any]:
        """The part of the file that must match. It includes the classes' fields: values of a class with other fields cannot be loaded."""
        shape = {kind.__name__: [f.name for f in fields(kind)] for kind in _KINDS}
        return {"form": _FORM, "cluster_id": self._cluster_id, "shape": shape}


_KINDS = (Job, DbInfo, Location, TableInfo, ColumnInfo, IndexInfo, PartitionDef)


_ALLOWED = {kind.__name__: kind for kind in _KINDS} | {
    name: kind for name, kind in vars(tableinfo).items() if isinstance(kind, type) and kind.__module__ == tableinfo.__name__
}
"""By name alone: in which module a class lies is not part of the format."""


class _SafeUnpickler(pickle.Unpickler):
    """Creates only values of this project's classes, whatever the file contains."""

    def find_class(self, module: str, name: str) -> Any:
        """The class, if it is allowed."""
        if name not in _ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed in a DDL history")
        return _ALLOWED[name]
