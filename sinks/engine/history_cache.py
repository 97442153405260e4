"""The parsed DDL history beside the checkpoint, so that a start need not read and parse a hundred thousand jobs again. Files; one per Drainer.

    history.cache = one line of JSON (what it is, of which cluster, how many jobs, SHA-256 of the rest) | the jobs, packed

Promises: a cache that is torn, of another cluster or written by other code is not used, and the log says why; it is never an error. Nothing but
this project's plain values can come out of it. Whether it still fits the history it was made of is for the feed to check.
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

from schemas.jobs import DbInfo, Job, Location
from schemas.tableinfo import ColumnInfo, IndexInfo, PartitionDef, TableInfo

_FORM = 1
_log = logging.getLogger(__name__)


class HistoryCache:
    """The cache of one cluster's history in one directory."""

    def __init__(self, directory: Path, cluster_id: int) -> None:
        """The directory is made when the cache is first written."""
        self._path = directory / "history.cache"
        self._cluster_id = cluster_id

    def load(self) -> list[Job]:
        """The jobs; none when there is no cache that can be used."""
        try:
            with self._path.open("rb") as file:
                said, body = json.loads(file.readline()), file.read()
            if {name: said.get(name) for name in self._kind()} != self._kind():
                raise ValueError("it is of another cluster, or of another version of this program")
            if said["sha256"] != hashlib.sha256(body).hexdigest():
                raise ValueError("its checksum is wrong")
            jobs: list[Job] = _Reader(io.BytesIO(body)).load()
            if len(jobs) != said["jobs"]:
                raise ValueError("it is not whole")
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, pickle.UnpicklingError) as error:
            _log.warning("the cached DDL history %s is not used: %s", self._path, error)
            return []
        return jobs

    def store(self, jobs: Sequence[Job]) -> None:
        """Replace what is cached; a disk that refuses is logged."""
        body = pickle.dumps(list(jobs), protocol=5)
        said = self._kind() | {"jobs": len(jobs), "sha256": hashlib.sha256(body).hexdigest()}
        made = self._path.with_suffix(f".{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            made.write_bytes(json.dumps(said).encode() + b"\n" + body)
            made.replace(self._path)
        except OSError as error:
            _log.warning("the DDL history is not cached: %s", error)

    def _kind(self) -> dict[str, Any]:
        """What must be equal for a cache to be used: the fields too, for a class that gained one cannot be read from before."""
        shape = {kind.__name__: [f.name for f in fields(kind)] for kind in _KINDS}
        return {"form": _FORM, "cluster_id": self._cluster_id, "shape": shape}


_KINDS = (Job, DbInfo, Location, TableInfo, ColumnInfo, IndexInfo, PartitionDef)


class _Reader(pickle.Unpickler):
    """Makes this project's values and nothing else, whatever the file says."""

    def find_class(self, module: str, name: str) -> Any:
        """A class by its name."""
        if module.startswith("schemas.") and module.count(".") == 1:
            found = super().find_class(module, name)
            if isinstance(found, type) and (found in _KINDS or found.__module__ == TableInfo.__module__):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a DDL history")
