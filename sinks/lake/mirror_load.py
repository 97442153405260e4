"""What a load of mirrors needs of the upstream, for tables whose rows the ledger does not have from the beginning. Pure.

A table that is to be loaded is ``LOADING`` in ``snapshots``, and rounds pass over its rows. When all mirrors are at a moment, it is read from the
upstream as it was at this moment, into a new directory. So the ledger goes on from there, as for any mirror.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from pyspark_tidb_binlog.schemas.ddl_jobs import Job
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.sinks.lake.ledger import WrittenPart


class LoadLater(Exception):
    """A table cannot be loaded at this moment, but perhaps at a later one; the text says why."""


class TablesThen(Protocol):
    """The upstream's tables as they were at one moment."""

    def files_of(self, table: TableAt, uri: str, stored: pa.Schema) -> Sequence[WrittenPart]:
        """All rows of ``table`` in files of the mirror at ``uri``, which has them as ``stored``. No commit knows the files yet.

        Raises:
            LoadLater: see there.
            Stopped: the stream ends.
            Exception: the table cannot be loaded, and why.
        """
        ...


@dataclass(frozen=True, slots=True)
class TableLoads:
    """Which tables come from the upstream, and how."""

    first: Callable[[SchemaHistory, int], Sequence[Job]]
    """Of a lake that begins at a schema version: those to be loaded, each as ``schema_snapshot.table_as_job``."""
    at: Callable[[int, Callable[[], bool]], AbstractContextManager[TablesThen]]
    """The tables at a ts, as long as they are read; the other argument: whether the stream ends. It raises ``LoadLater``, too."""
    again: float = 0.0
    """Seconds from the first load of a table that was set aside to the next one (``spark.reload-interval``); 0: a person asks for each."""
