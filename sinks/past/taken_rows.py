"""Rows that a DDL took or gave without row changes, as the row changes that the ledger lacks. Pure.

    TRUNCATE, DROP PARTITION at 50    a delete at 50 of each row that the table has just before, and has not just after
    EXCHANGE PARTITION                the same in both tables, and an insert of each row that one has only after

A mirror knows no handles. A row that the span changes, too, is found by its whole image, and gets its handle from there. Any other gets one that no row has.

Promises: with these rows among its changes, a span has the net changes that it had in the upstream. Of equal rows any one is taken.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas.changes.change_rows import image_variants
from pyspark_tidb_binlog.schemas.changes.variant_values import laid_out
from pyspark_tidb_binlog.schemas.ddl_jobs import Job
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnFlag
from pyspark_tidb_binlog.sinks.lake.ledger_rows import LAST_SEQ, ORDER
from pyspark_tidb_binlog.sinks.past.net_rows import NetRows, carried, net_rows
from pyspark_tidb_binlog.sinks.past.past_changes import Mask, PastSchema, in_words
from pyspark_tidb_binlog.sinks.past.undo_plan import places_of, row_texts


@dataclass(frozen=True, slots=True)
class TableAround:
    """A table just before a DDL and just after it."""

    job: Job
    commit_ts: int
    table: TableAt
    rows: pa.RecordBatch
    """Images of all its rows."""
    heir: TableAt
    """What it is afterwards, maybe under another id, with the same columns."""
    rows_after: pa.RecordBatch


def with_taken(changes: pa.Table, around: TableAround, schema: PastSchema, upto: int) -> pa.Table:
    """``changes`` (``NET_COLUMNS``, in order) of a span, with those of earlier DDLs, and what the DDL did to rows of the table.

    ``schema`` passes the DDL; ``upto``: the schema version of now. ``ConfigError``: a row that was changed before is not among the rows.
    """
    table, heir, commit_ts = around.table, around.heir, changes["commit_ts"].to_numpy()
    columns = table.info.target_columns()
    texts, texts_after = row_texts(columns, around.rows), row_texts(columns, around.rows_after)
    stayed = places_of(texts, texts_after)
    gone, came = np.ones(len(texts), np.bool_), stayed < 0
    gone[stayed[~came]] = False
    keys, keys_after = np.full(len(texts), None), np.full(len(texts_after), None)
    for earlier in _net(changes.filter(pa.array(commit_ts < around.commit_ts)), schema, int(around.job.version) - 1, table.table_id):
        there = earlier.only(earlier.now_there)
        places = places_of(texts, row_texts(columns, there.now))
        if (lost := int((places < 0).sum())) > 0:
            raise ConfigError(
                f"{lost} changed rows of {table.schema}.{table.name} are not in the table just before {in_words(around.job, around.commit_ts)}: "
                "they have values that a mirror does not keep, as dates that no calendar has; give a span on one side of it"
            )
        keys[places] = there.keys.to_pylist()
    pieces = [changes, _changes(changes.schema, around, gone, keys)]
    if came.any():
        images, known = carried(around.rows_after.filter(pa.array(came)), heir, schema, upto), set(keys[~gone])
        last_id = schema.end_of(heir.table_id, int(heir.version), upto)[0]
        for later in _net(changes.filter(pa.array(commit_ts > around.commit_ts)), schema, upto, last_id):
            there = later.only(later.was_there & np.array([key not in known for key in later.keys.to_pylist()], np.bool_))
            columns = later.table.info.target_columns()
            places = places_of(row_texts(columns, images), row_texts(columns, there.was))
            found = places >= 0
            keys_after[np.flatnonzero(came)[places[found]]] = there.keys.filter(pa.array(found)).to_pylist()
        pieces.append(_changes(changes.schema, around, came, keys_after, came=True))
    return pa.concat_tables(pieces).sort_by(ORDER)


def _net(changes: pa.Table, schema: PastSchema, upto: int, table_id: int) -> Iterator[NetRows]:
    """The net changes of one table, which has this id at ``upto``."""
    ends, which = schema.ends_of(changes["table_id"].to_numpy(), changes["commit_ts"].to_numpy(), upto)
    mine = np.isin(which, [number for number, end in enumerate(ends) if end == (table_id, None)])
    return net_rows(changes.filter(pa.array(mine)), schema, upto)


def _changes(schema: pa.Schema, around: TableAround, chosen: Mask, keys: np.ndarray, *, came: bool = False) -> pa.Table:
    """Rows as changes, behind all others of their commit_ts; the table that loses them comes first. ``keys``: those that are known."""
    table, rows = (around.heir, around.rows_after) if came else (around.table, around.rows)
    rows, at, kind = rows.filter(pa.array(chosen)), np.flatnonzero(chosen).tolist(), schema.field("before").type
    _require_kept(around, table, rows)
    images = laid_out(image_variants(table.info, rows, len(at), json_nulls=True), kind), pa.nulls(len(at), kind)
    values = {
        "commit_ts": around.commit_ts,
        "seq": LAST_SEQ,
        "schema_version": int(around.job.version) - (not came),
        "op": "insert" if came else "delete",
        "table_id": table.table_id,
    }
    cells = {name: pa.array([value] * len(at), schema.field(name).type) for name, value in values.items()}
    cells["row_key"] = pa.array([keys[place] or f"\0{around.job.id} {table.table_id} {came} {place}".encode() for place in at], pa.binary())
    cells["before"], cells["after"] = images[::-1] if came else images
    return pa.table(cells, schema)


def _require_kept(around: TableAround, table: TableAt, rows: pa.RecordBatch) -> None:
    """Raises ``ConfigError`` where a mirror shows that it does not have a value: only the ledger has its text."""
    for column in table.info.target_columns():
        cells = rows.column(column.name)
        if column.flag & ColumnFlag.NOT_NULL and cells.null_count:
            what = "NULL in place of dates that no calendar has"
        elif (
            pa.types.is_binary(cells.type)
            and not column.charset.startswith(("utf8", "binary"))
            and pc.any(pc.match_substring(cells, "\ufffd")).as_py()
        ):
            what = "U+FFFD in place of bytes that are no UTF-8"
        else:
            continue
        raise ConfigError(
            f"column {column.name} of {table.schema}.{table.name} has {what} in the table beside {in_words(around.job, around.commit_ts)}, so its rows cannot come "
            "back as they were; give a span on one side of it"
        )
