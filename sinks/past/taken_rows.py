"""Rows that a DDL took or gave without row changes, as the row changes that the ledger lacks. Pure.

    TRUNCATE, DROP PARTITION at 50    a delete at 50 of each row that the table has just before, and has not just after
    EXCHANGE PARTITION                the same in both tables, and an insert of each row that one has only after

A mirror knows no handles. A row that the span changes, too, is found by its whole image, and gets its handle from there. Any other gets one that no row has.

Promises: with these rows among its changes, a span has the net changes that it had in the upstream. Of equal rows any one is taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, kind_of
from pyspark_tidb_binlog.schemas.changes.change_rows import columns_of
from pyspark_tidb_binlog.schemas.changes.variant_values import VariantColumn, laid_out, rows_as_variants
from pyspark_tidb_binlog.schemas.ddl_jobs import Job
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnFlag
from pyspark_tidb_binlog.sinks.lake.ledger_rows import LAST_SEQ
from pyspark_tidb_binlog.sinks.lake.net_changes import ORDER
from pyspark_tidb_binlog.sinks.past.net_rows import NetRows, PastSchema, carried, in_words, net_rows
from pyspark_tidb_binlog.sinks.past.undo_sql import row_texts


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
    """``changes`` (``NET_COLUMNS``, in order) of a span, and what the DDL did to rows of the table.

    Args:
        changes: with those of earlier DDLs.
        around: the DDL.
        schema: passes it.
        upto: the schema version of now.

    Raises:
        ConfigError: a row that was changed before is not among the rows, or as of ``net_rows``.
    """
    table, job, commit_ts = around.table, around.job, changes["commit_ts"].to_numpy()
    texts, texts_after = (row_texts(table.info.target_columns(), images) for images in (around.rows, around.rows_after))
    stayed = _places(texts, texts_after)
    gone, came = np.ones(len(texts), np.bool_), stayed < 0
    gone[stayed[~came]] = False
    earlier = _net(changes.filter(pa.array(commit_ts < around.commit_ts)), schema, int(job.version) - 1, table.table_id)
    keys, known = dict[int, bytes](), set[bytes]()
    if earlier is not None:
        there = earlier.only(earlier.now_there)
        places = _places(texts, row_texts(table.info.target_columns(), there.now))
        if (lost := int((places < 0).sum())) > 0:
            raise ConfigError(
                f"{lost} changed rows of {table.schema}.{table.name} are not in the table just before {in_words(job, around.commit_ts)}: "
                "they have values that a mirror does not keep, as dates that no calendar has; give a span on one side of it"
            )
        keys = dict(zip(places.tolist(), there.keys.to_pylist(), strict=True))
        known = {key for place, key in keys.items() if not gone[place]}
    pieces = [changes, _changes(changes.schema, around, around.rows, np.flatnonzero(gone).tolist(), keys)]
    if came.any():
        images = carried(around.rows_after.filter(pa.array(came)), around.heir, schema, upto)
        last_id = schema.end_of(around.heir.table_id, int(around.heir.version), upto)[0]
        later = _net(changes.filter(pa.array(commit_ts > around.commit_ts)), schema, upto, last_id)
        keys = {}
        if later is not None:
            there = later.only(later.was_there & ~pc.is_in(later.keys, pa.array(list(known), pa.binary())).to_numpy(zero_copy_only=False))
            columns = later.table.info.target_columns()
            places = _places(row_texts(columns, images), row_texts(columns, there.was))
            keys = {int(np.flatnonzero(came)[place]): key for place, key in zip(places, there.keys.to_pylist(), strict=True) if place >= 0}
        pieces.append(_changes(changes.schema, around, around.rows_after, np.flatnonzero(came).tolist(), keys, came=True))
    return pa.concat_tables(pieces).sort_by(ORDER)


def _net(changes: pa.Table, schema: PastSchema, upto: int, table_id: int) -> NetRows | None:
    """The net changes of one table, which has this id at ``upto``."""
    ends, which = schema.ends_of(changes["table_id"].to_numpy(), changes["commit_ts"].to_numpy(), upto)
    mine = np.isin(which, [number for number, end in enumerate(ends) if end == (table_id, None)])
    return next(net_rows(changes.filter(pa.array(mine)), schema, upto), None)


def _places(texts: pa.BinaryArray, wanted: pa.BinaryArray) -> np.ndarray:
    """Where each wanted text is, each place once; -1: nowhere."""
    places: dict[bytes, list[int]] = {}
    for place, text in enumerate(texts.to_pylist()):
        places.setdefault(text, []).append(place)
    return np.array([places[text].pop() if places.get(text) else -1 for text in wanted.to_pylist()], np.int64)


def _changes(
    schema: pa.Schema, around: TableAround, rows: pa.RecordBatch, at: Sequence[int], keys: dict[int, bytes], *, came: bool = False
) -> pa.Table:
    """Some of the rows as changes, behind all others of their commit_ts; the table that loses them comes first."""
    table, rows = around.heir if came else around.table, rows.take(pa.array(at, pa.int64()))
    _require_kept(around, table, rows)
    columns = [VariantColumn(c.name, cells, kind_of(c) is CellKind.JSON) for c, cells in columns_of(table.info, rows)]
    variants = laid_out(rows_as_variants(columns, len(at), json_nulls=True), schema.field("before").type) if at else None
    nothing = pa.nulls(len(at), schema.field("before").type)
    values = {
        "commit_ts": [around.commit_ts] * len(at),
        "seq": [LAST_SEQ] * len(at),
        "schema_version": [int(around.job.version) - (not came)] * len(at),
        "op": ["insert" if came else "delete"] * len(at),
        "table_id": [table.table_id] * len(at),
        "row_key": [keys.get(place, f"\0{around.job.id} {table.table_id} {came} {place}".encode()) for place in at],
        "before": nothing if came or variants is None else variants,
        "after": variants if came and variants is not None else nothing,
    }
    return pa.Table.from_arrays(
        [values[f.name] if f.name in ("before", "after") else pa.array(values[f.name], f.type) for f in schema], schema=schema
    )


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
