"""The identity of an event's row: events of the same row have the same identity. Pure.

Promises: whole columns at a time; the identity of a row does not depend on the schema version of the event.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from pyspark_tidb_binlog.schemas import decoder as decode
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.sinks.engine.fold import Indexes


class EventColumns:
    """The events' columns as arrays."""

    def __init__(self, events: pa.Table) -> None:
        self.ops = events["op"].to_numpy()
        self.table_ids = events["table_id"].to_numpy()
        self.versions = events["schema_version"].to_numpy()
        self.commit_ts = events["commit_ts"].to_numpy()
        self._rows = events["row"].combine_chunks()

    def rows_at(self, indexes: Indexes) -> pa.BinaryArray:
        """Row bytes of some events."""
        if len(indexes) == len(self._rows) and bool(np.all(np.diff(indexes) == 1)):
            return self._rows
        return self._rows.take(pa.array(indexes))


def row_identities(events: pa.Table, tables: Mapping[int, TableAt]) -> pa.BinaryArray:
    """``schemas.decoder.row_keys`` over the events of many tables, in the events' order."""
    if events.num_rows == 0:
        return pa.array([], pa.binary())
    source = EventColumns(events)
    pieces: list[pa.BinaryArray] = []
    places: list[Indexes] = []
    for table_id in np.unique(source.table_ids).tolist():
        rows = np.flatnonzero(source.table_ids == table_id)
        pieces.append(decode.row_keys(tables[table_id], source.ops[rows], source.rows_at(rows)))
        places.append(rows)
    if len(pieces) == 1:
        return pieces[0]
    return pa.concat_arrays(pieces).take(pa.array(np.argsort(np.concatenate(places), kind="stable")))
