"""The rows of the ledger: each row change and each DDL of the stream. Pure.

The columns of ``schemas.changes.change_rows`` without ``pump``, and

    table_id      the upstream's table
    row_key       which row it is: TiDB's handle, in the bytes of its datums
    resolved_ts   the end of the step that it was committed with
    job_id, early, job   of a DDL: its id, whether rows needed it before its binlog came, and all that TiDB says of it (``schemas.job_json``)

``order by commit_ts, seq, schema_version`` is the order in which the target had them. An early DDL has the commit_ts of the last transaction
before the row that needs it, and comes after that transaction: its ``seq`` is the largest there is.

Promises: every row change once, however the step's events are ordered, cut or doubled. In a JSON column, NULL leaves the field out of an image;
JSON's null is a variant null.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_tidb_binlog.schemas.changes.change_rows import CHANGE, Commits, change_rows, commit_time
from pyspark_tidb_binlog.schemas.changes.row_choice import Ints, RowsOfTable, output_bounds, within
from pyspark_tidb_binlog.schemas.changes.variant_values import STORED_VARIANT, VARIANT, laid_out
from pyspark_tidb_binlog.schemas.errors import SchemaMismatch
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.job_json import job_json
from pyspark_tidb_binlog.sinks.engine.segments import DdlStep

_PARQUET_VARIANT = {b"ARROW:extension:name": b"arrow.parquet.variant", b"ARROW:extension:metadata": b""}
_OWN = (
    pa.field("table_id", pa.int64()),
    pa.field("row_key", pa.binary()),
    pa.field("resolved_ts", pa.int64()),
    pa.field("job_id", pa.int64()),
    pa.field("early", pa.bool_()),
    pa.field("job", pa.string()),
)


def _stored(field: pa.Field) -> pa.Field:
    """``field`` of a change as Parquet has it."""
    if field.type != VARIANT:
        return field
    return pa.field(field.name, STORED_VARIANT, metadata=_PARQUET_VARIANT)


LEDGER = pa.schema([*(_stored(f) for f in CHANGE if f.name != "pump"), *_OWN])
ORDER = [(name, "ascending") for name in ("commit_ts", "seq", "schema_version")]
"""In which the upstream had rows of the ledger."""
MEASURED = ("commit_ts", "table_id", "op", "resolved_ts", "job_id")
"""The columns by which files are passed over: they have min and max."""
_MOST_BYTES = 32 << 20
"""About what is decoded at a time: a row may become a thousand times as long."""
LAST_SEQ = (1 << 31) - 1
_ORDER = [("commit_ts", "ascending"), ("seq", "ascending")]
_Place = tuple[int, int]
"""commit_ts and seq: where a row change is in the stream."""


class Doubled:
    """Finds row changes that came before: a Prewrite that was sent to two Pumps comes from both."""

    def __init__(self) -> None:
        """Nothing has come."""
        self._blocks: list[tuple[_Place, _Place, pa.Table]] = []

    def once(self, rows: pa.Table) -> pa.Table:
        """The new ones among ``rows`` (``ROW_EVENT``, in order)."""
        if not rows.num_rows:
            return rows
        commit_ts, seq = _places(rows)
        fresh = np.append(True, (np.diff(commit_ts) != 0) | (np.diff(seq) != 0))
        first, last = ((int(commit_ts[at]), int(seq[at])) for at in (0, -1))
        for begin, end, block in self._blocks:
            if begin <= last and end >= first:
                fresh &= ~_among(commit_ts, seq, block)
        self._blocks.append((first, last, rows.select(["commit_ts", "seq"])))
        return rows if fresh.all() else rows.filter(pa.array(fresh))


def ledger_rows(rows: pa.Table, tables: Mapping[int, TableAt], resolved_ts: int, doubled: Doubled) -> Iterator[pa.RecordBatch]:
    """``rows`` (``ROW_EVENT``, in any order, without unwanted ones) as ``LEDGER``; ``tables``: as the target has them.

    Raises:
        SchemaMismatch: a table is missing, or a value does not fit its column.
    """
    rows = doubled.once(rows.sort_by(_ORDER))
    if not rows.num_rows:
        return
    (events,) = rows.combine_chunks().to_batches()
    table_ids, ops, versions = (events.column(name).to_numpy() for name in ("table_id", "op", "schema_version"))
    there = np.unique(table_ids).tolist()
    if unknown := [i for i in there if i not in tables]:
        at = int(events.column("commit_ts")[0].as_py())
        raise SchemaMismatch(
            f"from commit_ts {at} on there are rows of tables {unknown}, which are not in the DDL history; if that does not reach back to their "
            "CREATE TABLE, set syncer.load-schema-snapshot = true"
        )
    groups = []
    for table_id in there:
        places = np.flatnonzero(table_ids == table_id)
        images = events.column("row").take(pa.array(places))
        groups.append(RowsOfTable(tables[table_id], places, ops[places], versions[places], images))
    commits = _commits(events)
    for begin, end in pairwise(output_bounds(len(events), groups, _MOST_BYTES).tolist()):
        changes = change_rows(commits, events, within(groups, begin, end), (), json_nulls=True)
        assert changes is not None and len(changes) == end - begin
        yield _batch(changes, {"table_id": events.column("table_id")[begin:end]}, resolved_ts)


def ddl_row(step: DdlStep, name: tuple[str, str]) -> pa.RecordBatch:
    """The row of a DDL, of the database and table ``name``."""
    job = step.job
    values = {
        "database": name[0] or None,
        "table": name[1] or None,
        "op": "ddl",
        "commit_ts": step.commit_ts,
        "seq": LAST_SEQ if step.early else 0,
        "schema_version": int(job.version),
        "ddl": step.restored,
    }
    made = {name: pa.array([value], CHANGE.field(name).type) for name, value in values.items()}
    made["commit_time"] = commit_time(np.array([step.commit_ts], np.int64))
    arrays = [made[f.name] if f.name in made else pa.nulls(1, f.type) for f in CHANGE]
    own = {
        "table_id": pa.array([job.table_id], pa.int64()),
        "job_id": pa.array([job.id], pa.int64()),
        "early": pa.array([step.early]),
        "job": pa.array([json.dumps(job_json(job), ensure_ascii=False, separators=(",", ":"))]),
    }
    return _batch(pa.RecordBatch.from_arrays(arrays, schema=CHANGE), own, step.commit_ts)


def _batch(changes: pa.RecordBatch, own: Mapping[str, pa.Array], resolved_ts: int) -> pa.RecordBatch:
    count = len(changes)
    columns = {"resolved_ts": pa.array(np.full(count, resolved_ts, np.int64)), **own}
    arrays = []
    for field in LEDGER:
        if field.name in changes.schema.names:
            arrays.append(laid_out(changes.column(field.name), field.type))
        else:
            arrays.append(columns.get(field.name, pa.nulls(count, field.type)))
    return pa.RecordBatch.from_arrays(arrays, schema=LEDGER)


def _commits(events: pa.RecordBatch) -> Commits:
    commit_ts, first = np.unique(events.column("commit_ts").to_numpy(), return_index=True)
    start_ts = events.column("start_ts").fill_null(0).to_numpy()[first]
    return Commits(commit_ts, start_ts, pa.nulls(len(commit_ts), pa.string()))


def _places(rows: pa.Table) -> tuple[Ints, Ints]:
    return rows.column("commit_ts").to_numpy(), rows.column("seq").to_numpy()


def _among(commit_ts: Ints, seq: Ints, block: pa.Table) -> npt.NDArray[np.bool_]:
    """A mask of the places that rows of ``block`` have, too."""
    other_ts, other_seq = _places(block)
    shared = np.isin(commit_ts, other_ts)
    if shared.any():
        others = set(zip(other_ts.tolist(), other_seq.tolist(), strict=True))
        pairs = zip(commit_ts[shared].tolist(), seq[shared].tolist(), strict=True)
        shared[shared] = [pair in others for pair in pairs]
    return shared
