"""What a span of the ledger has made of rows: each as it was before, and as it was after. Pure.

    insert 7, update 7, delete 8, insert 9, delete 9   ->   7: not there, then its last image;  8: its first image, then gone

A row is found by the upstream's handle (``row_key``). Rows go on under another table id where a DDL gives their table one and keeps them.

The life of a row goes on under one key after the other:

    insert 42, update 42, (delete 42, insert 43), update 43, delete 43       of which the pair is an update of the key (``key_updates``)

Promises: whole columns at a time. Images of any definition are given under the columns of one, by the rules of the mirrors (``mirror_ddl``): a value is
kept exactly, or a ``ConfigError`` names the DDL.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas.arrowtypes import image_schema
from pyspark_tidb_binlog.schemas.changes.change_rows import columns_of, commit_time
from pyspark_tidb_binlog.schemas.changes.row_images import images_of
from pyspark_tidb_binlog.schemas.changes.variant_values import VARIANT, laid_out
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.sinks.lake.ledger_rows import ORDER
from pyspark_tidb_binlog.sinks.lake.mirror_ddl import ColumnMapping, Unfollowed
from pyspark_tidb_binlog.sinks.lake.net_changes import first_and_last, mirror_cells
from pyspark_tidb_binlog.sinks.mysql.matching import differ
from pyspark_tidb_binlog.sinks.past.past_changes import Ints, Mask, PastSchema

HISTORY_MARKS = {"commit_ts": "bigint", "seq": "int", "row_key": "binary", "there": "boolean", "chain": "bigint", "ends": "timestamp"}
"""The columns before the table's own, and their types. ``chain``: the id under which the row ended, or is; ``ends``: when a DDL took it."""


@dataclass(frozen=True, slots=True)
class NetRows:
    """Rows of one table, which are not the same before and after."""

    table: TableAt
    """Whose columns the images have."""
    was: pa.RecordBatch
    """Images (``schemas.arrowtypes``) before; anything where the row was not there."""
    now: pa.RecordBatch
    """After, likewise."""
    was_there: Mask
    now_there: Mask

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.was_there)

    @property
    def inserted(self) -> Mask:
        """The rows that came."""
        return self.now_there & ~self.was_there

    @property
    def deleted(self) -> Mask:
        """The rows that went."""
        return self.was_there & ~self.now_there

    @property
    def updated(self) -> Mask:
        """The rows that are others."""
        return self.was_there & self.now_there

    @property
    def counts(self) -> tuple[int, int, int]:
        """The numbers of rows that came, went and changed."""
        return int(self.inserted.sum()), int(self.deleted.sum()), int(self.updated.sum())

    def only(self, rows: Mask | Ints) -> "NetRows":
        """Some of the rows."""
        chosen = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        at = pa.array(chosen)
        return NetRows(self.table, self.was.take(at), self.now.take(at), self.was_there[chosen], self.now_there[chosen])

    def changed(self, names: Sequence[str]) -> Mask:
        """The updated rows that are not the same in one of these columns."""
        return differ(self.was, self.now, names) & self.updated


def carried(images: pa.RecordBatch, table: TableAt, schema: PastSchema, upto: int) -> pa.RecordBatch:
    """Images of a table under the columns that it has at schema version ``upto``. Columns go on over a TRUNCATE, too."""
    table_id, info = table.table_id, table.info
    for job in schema.history.jobs_of_table(table_id, table.version, upto):
        heir = schema.heir_of(job, table_id)
        after = schema.history.table_at(heir if heir is not None else table_id, job.version)
        if after is None:
            continue
        try:
            mapping = ColumnMapping.of(info, after.info, job.query)
            images = images if mapping.none else mapping.carried(images)
        except Unfollowed as error:
            raise ConfigError(
                f"{after.schema}.{after.name}: {schema.in_words(job)}: {error}; name other tables, or a span behind it"
            ) from error
        if after.table_id != table_id:
            return carried(images, after, schema, upto)
        info = after.info
    return images


def images_under(variants: pa.StructArray, ids: Ints, commit_ts: Ints, schema: PastSchema, target: TableAt) -> pa.RecordBatch:
    """Images of the ledger under the columns of ``target``; ``ids``, ``commit_ts``: of each row."""
    pieces, places = list[pa.RecordBatch](), list[Ints]()
    for table, at in schema.tables_of(ids, commit_ts):
        images = images_of(variants.take(pa.array(at)), table.info.target_columns())
        pieces.append(carried(images, table, schema, int(target.version)))
        places.append(at)
    order = pa.array(np.argsort(np.concatenate(places), kind="stable"))
    whole = pa.Table.from_batches(pieces, image_schema(target.info.target_columns())).take(order).combine_chunks()
    return whole.to_batches()[0] if whole.num_rows else pieces[0]


def net_rows(rows: pa.Table, schema: PastSchema, upto: int, *, chained: bool = False) -> Iterator[NetRows]:
    """The net change of each row among ``rows``: row changes of any tables, in the order of the upstream (columns ``NET_COLUMNS``).

    Images are under the columns of schema version ``upto``, of tables that are gone by then under their last ones. ``chained``: a row whose key is updated
    is one row, else two.
    """
    if not rows.num_rows:
        return
    ends, which = schema.ends_of(rows["table_id"].to_numpy(), rows["commit_ts"].to_numpy(), upto)
    kinds = [(table_id, int(job.version) if job is not None else 0) for table_id, job in ends]
    for table_id, gone_at in sorted(set(kinds)):
        numbers = [number for number, kind in enumerate(kinds) if kind == (table_id, gone_at)]
        here = np.isin(which, numbers)
        target = schema.left_at(ends[numbers[0]], upto)
        # Of one table they are not copied.
        mine = rows if here.all() else rows.filter(pa.array(here))
        yield _folded(mine.combine_chunks(), schema, target, gone=gone_at > 0, chained=chained)


def _folded(rows: pa.Table, schema: PastSchema, target: TableAt, *, gone: bool, chained: bool) -> NetRows:
    keys, before, after = (rows[name].combine_chunks() for name in ("row_key", "before", "after"))
    ids, commit_ts = rows["table_id"].to_numpy(), rows["commit_ts"].to_numpy()
    if chained and len(updates := key_updates(rows, schema)):
        keys = pa.array(_chains(keys.dictionary_encode().indices.to_numpy().astype(np.int64), updates))
    first, last = first_and_last(keys)
    was, now = (
        images_under(side.take(pa.array(at)), ids[at], commit_ts[at], schema, target) for side, at in ((before, first), (after, last))
    )
    was_there = before.is_valid().to_numpy(zero_copy_only=False)[first]
    now_there = after.is_valid().to_numpy(zero_copy_only=False)[last] & (not gone)
    found = NetRows(target, was, now, was_there, now_there)
    return found.only(found.inserted | found.deleted | found.changed([c.name for c in target.info.target_columns()]))


def _chains(codes: Ints, updates: Ints) -> Ints:
    """A number for the row that each change is of; ``codes``: of the keys. Where a key is updated, the row goes on under the key of the next change."""
    found, row_of, fresh = codes.copy(), dict[int, int](), int(codes.max()) + 1
    moves = set(updates.tolist())
    for place in np.flatnonzero(np.isin(codes, codes[np.concatenate([updates, updates + 1])])).tolist():
        code = int(codes[place])
        if place in moves:
            row_of[int(codes[place + 1])] = found[place] = found[place + 1] = row_of.get(code, code)
            # Who has the former key from here on is another row.
            row_of[code], fresh = fresh, fresh + 1
        elif place - 1 not in moves:
            found[place] = row_of.get(code, code)
    return found


def key_updates(rows: pa.Table, schema: PastSchema) -> Ints:
    """The places of those deletes among ``rows`` (``NET_COLUMNS``, in order) that are an update of the key with the next row, an insert.

    The binlog has such an update so. Two rows of one transaction and table are taken for one if at least half of the columns that are in no key are the
    same, or if there are none.
    """
    ops, keys = (rows[name].combine_chunks() for name in ("op", "row_key"))
    gone, came = (pc.equal(ops, op).to_numpy(zero_copy_only=False) for op in ("delete", "insert"))
    pairs = gone[:-1] & came[1:] & pc.not_equal(keys[:-1], keys[1:]).to_numpy(zero_copy_only=False)
    for name, step in (("commit_ts", 0), ("table_id", 0), ("seq", 1)):
        pairs &= np.diff(rows[name].to_numpy()) == step
    deletes, found = np.flatnonzero(pairs), [np.zeros(0, np.int64)]
    for table, mine in schema.tables_of(*(rows[name].to_numpy()[deletes] for name in ("table_id", "commit_ts"))):
        at, keyed = deletes[mine], {c.name for key in table.info.unique_keys() for c in key}
        sides = (rows["before"].take(pa.array(at)), rows["after"].take(pa.array(at + 1)))
        old, new = (images_of(side.combine_chunks(), table.info.target_columns()) for side in sides)
        others = [name for name in old.schema.names if name not in keyed]
        alike = np.zeros(len(at), np.int64)
        for name in others:
            alike += ~differ(old, new, [name])
        found.append(at[2 * alike >= len(others)])
    return np.concatenate(found)


def typed_history(rows: pa.Table, schema: PastSchema, target: TableAt) -> pa.Table:
    """The states that ``rows`` (``NET_COLUMNS``) leave, of a table that is ``target`` at the end."""
    rows = rows.sort_by(ORDER).combine_chunks()
    keys = rows["row_key"].combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
    ids, upto = rows["table_id"].to_numpy(), max(int(target.version), int(schema.history.newest_version))
    ends, which = schema.ends_of(ids, rows["commit_ts"].to_numpy(), upto)
    chains = np.array([table_id for table_id, _ in ends], np.int64)[which]
    _, first = np.unique(np.stack([chains, keys]), axis=1, return_index=True)
    was = first[rows["before"].combine_chunks().is_valid().to_numpy(zero_copy_only=False)[first]]
    at = np.concatenate([was, np.arange(rows.num_rows)])
    sides = pa.concat_arrays([rows["before"].combine_chunks().take(pa.array(was)), rows["after"].combine_chunks()])
    images = images_under(sides, ids[at], rows["commit_ts"].to_numpy()[at], schema, target)
    commit_ts = np.concatenate([np.zeros(len(was), np.int64), rows["commit_ts"].to_numpy()])
    # Not its FinishedTS, which is later: rows of then may be in the table that follows.
    ended = np.array([schema.begin_of(int(job.version)) if job is not None else 0 for _, job in ends], np.int64)[which[at]]
    times = commit_time(ended)
    marks = [
        pa.array(commit_ts),
        rows["seq"].combine_chunks().take(pa.array(at)),
        rows["row_key"].combine_chunks().take(pa.array(at)),
        sides.is_valid(),
        pa.array(chains[at]),
        pa.array(times.to_pylist(), times.type, mask=ended == 0),
    ]
    cells = [laid_out(mirror_cells(column, found), VARIANT) for column, found in columns_of(target.info, images)]
    return pa.Table.from_arrays([*marks, *cells], names=[*HISTORY_MARKS, *(c.name for c in target.info.target_columns())])


Place = tuple[int, int]
"""commit_ts and seq: where a change is in the stream."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """A change of a row; ``key``: its handle."""

    place: Place
    key: bytes
    op: str


KeyUpdate = tuple[RowChange, RowChange]
"""The delete and the insert by which a row got another key."""


def life(
    keys: Collection[bytes],
    changes_of: Callable[[Collection[bytes]], Iterable[RowChange]],
    updates_of: Callable[[Collection[int]], Iterable[KeyUpdate]],
) -> set[Place]:
    """The places of all changes of the rows that were ever under ``keys``, with those under the keys that the rows had before and afterwards.

    Args:
        keys: the handles.
        changes_of: all changes under some handles, in order.
        updates_of: the updates of keys in some transactions, by commit_ts.
    """
    found, known = set[Place](), _rows_by_key(changes_of(keys))
    fresh = [row for rows in known.values() for row in rows]
    while fresh:
        found |= {change.place for row in fresh for change in row}
        times = {change.place[0] for row in fresh for change in (row[0], row[-1]) if change.op != "update"}
        pairs = [pair for before, after in (updates_of(times) if times else ()) for pair in ((before, after), (after, before))]
        wanted = [other for one, other in pairs if one.place in found and other.place not in found]
        missing = {change.key for change in wanted} - known.keys()
        known |= _rows_by_key(changes_of(missing)) if missing else {}
        fresh = [row for change in wanted for row in known[change.key] if change in row]
    return found


def _rows_by_key(changes: Iterable[RowChange]) -> dict[bytes, list[list[RowChange]]]:
    """The changes of each key, in their order, row by row: a row begins with an insert, or with the ledger, and ends with a delete, or not yet."""
    found: dict[bytes, list[list[RowChange]]] = {}
    for change in changes:
        rows = found.setdefault(change.key, [])
        if not rows or change.op == "insert" or rows[-1][-1].op == "delete":
            rows.append([])
        rows[-1].append(change)
    return found
