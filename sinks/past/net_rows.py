"""What a span of the ledger has made of rows: each as it was before, and as it was after. Pure.

    insert 7, update 7, delete 8, insert 9, delete 9   ->   7: not there, then its last image;  8: its first image, then gone

A row is found by the upstream's handle (``row_key``). Rows go on under another table id where a DDL gives their table one and keeps them.

Promises: whole columns at a time. Images of any definition are given under the columns of one, by the rules of the mirrors (``mirror_ddl``): a value is
kept exactly, or a ``ConfigError`` names the DDL.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas.arrowtypes import image_schema
from pyspark_tidb_binlog.schemas.changes.column_lineage import lineage
from pyspark_tidb_binlog.schemas.changes.row_images import images_of
from pyspark_tidb_binlog.schemas.ddl_jobs import Job, JobEffect, JobType, RowsAfter
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.history_fold import Dropped, TableSnapshot
from pyspark_tidb_binlog.sinks.lake.mirror_ddl import ColumnMoves, Unfollowed
from pyspark_tidb_binlog.sinks.lake.net_changes import first_and_last
from pyspark_tidb_binlog.sinks.mysql.matching import differ

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

NET_COLUMNS = ("commit_ts", "seq", "schema_version", "op", "table_id", "row_key", "before", "after")
"""Of the ledger, which row changes are read with."""
_ALWAYS = (1 << 63) - 1


def in_words(job: Job, commit_ts: int) -> str:
    """A DDL, and when it was: its FinishedTS is later."""
    return f"{job.query[:200].strip()} at {as_time(commit_ts)} ({commit_ts})"


@dataclass(frozen=True, slots=True)
class NetRows:
    """Rows of one table, which are not the same before and after."""

    table: TableAt
    """Whose columns the images have."""
    keys: pa.BinaryArray
    """The handle of each."""
    was: pa.RecordBatch
    """Images (``schemas.arrowtypes``) before; anything where the row was not there."""
    now: pa.RecordBatch
    """After, likewise."""
    was_there: Mask
    now_there: Mask
    partners: Ints
    """For each row, the number of the one that it is under another key; -1: of none."""

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
        """How many rows came, went and are others."""
        return int(self.inserted.sum()), int(self.deleted.sum()), int(self.updated.sum())

    def only(self, rows: Mask | Ints) -> "NetRows":
        """Some of the rows."""
        chosen = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        at, numbers = pa.array(chosen), np.full(len(self) + 1, -1, np.int64)
        numbers[chosen] = np.arange(len(chosen))
        images = (self.keys.take(at), self.was.take(at), self.now.take(at))
        return NetRows(self.table, *images, self.was_there[chosen], self.now_there[chosen], numbers[self.partners[chosen]])

    def with_partners(self, rows: Ints) -> Ints:
        """``rows``, and what they are under other keys."""
        both = np.unique(np.concatenate([rows, self.partners[rows]]))
        return both[both >= 0]

    def changed(self, names: Sequence[str]) -> Mask:
        """The updated rows that are not the same in one of these columns."""
        return differ(self.was, self.now, names) & self.updated


@dataclass(frozen=True, slots=True)
class PastSchema:
    """The definitions of a ledger's rows."""

    history: SchemaHistory
    ddl_ts: Ints
    """The commit_ts of the ledger's DDLs, ascending."""
    versions: Ints
    """The schema version before the first, and after each of them."""
    loaded: frozenset[int] | set[int] = frozenset()
    """Tables that were there before the row changes of the ledger: they may have rows that it shows no change of."""
    passed: frozenset[int] = frozenset()
    """The DDL jobs whose effect on rows is among the changes (``taken_rows``): the table that they leave is the one before."""

    @classmethod
    def of(cls, history: SchemaHistory, ddls: Sequence[tuple[int, int]], loaded: frozenset[int] = frozenset()) -> "PastSchema":
        """``ddls``: commit_ts and schema version of each, in order."""
        versions = np.maximum.accumulate(np.array([0, *(version for _, version in ddls)], np.int64))
        return cls(history, np.array([ts for ts, _ in ddls], np.int64), versions, loaded)

    def version_at(self, commit_ts: int) -> int:
        """After all DDLs up to ``commit_ts``."""
        return int(self.versions[np.searchsorted(self.ddl_ts, commit_ts, "right")])

    def version_of(self, commit_ts: Ints) -> Ints:
        """Those whose tables rows of ``commit_ts`` were written with: an early DDL has the commit_ts of the transaction before it."""
        return self.versions[np.searchsorted(self.ddl_ts, commit_ts, "left")]

    def table_of(self, table_id: int, version: int) -> TableAt:
        """The table of rows; of one that was loaded, or that a DDL brings at this time, as it is first. ``ConfigError``: the lake has no definition."""
        later = (e.version for e in self._entries(table_id) if isinstance(e, TableSnapshot) and e.version > version)
        found = next((table for at in (version, *later) if (table := self.history.table_at(table_id, at)) is not None), None)
        if found is None:
            raise ConfigError(
                f"the lake has no definition of table {table_id} at schema version {version}: the lake began later than the table"
            )
        return found

    def tables_of(self, ids: Ints, commit_ts: Ints) -> Iterator[tuple[TableAt, Ints]]:
        """The tables that rows of these ids and times were written with, each with the numbers of its rows."""
        versions = self.version_of(commit_ts)
        for table_id, version in sorted(set(zip(ids.tolist(), versions.tolist(), strict=True))):
            yield self.table_of(table_id, version), np.flatnonzero((ids == table_id) & (versions == version))

    def last_of(self, table_id: int, upto: int) -> TableAt:
        """The table at ``upto``, or as it was when it went. ``ConfigError``: the lake has no definition."""
        if self.history.table_at(table_id, upto) is None and (jobs := self.history.jobs_of_table(table_id, 0, upto)):
            upto = int(jobs[-1].version) - 1
        return self.table_of(table_id, upto)

    def end_of(self, table_id: int, version: int, upto: int) -> tuple[int, Job | None]:
        """The id under which rows of a table are at ``upto``, and the job that took them all, if one has."""
        jobs = self.history.jobs_of_table(table_id, version, upto)
        for job in jobs:
            if (heir := self.heir_of(job, table_id)) is not None:
                return (table_id, job) if self.takes_all(job) else self.end_of(heir, job.version, upto)
        return table_id, (jobs[-1] if jobs and self.history.table_at(table_id, upto) is None else None)

    def ends_of(self, ids: Ints, commit_ts: Ints, upto: int) -> tuple[list[tuple[int, Job | None]], Ints]:
        """``end_of`` for rows, and which of these ends each has. An id may be another table's later: after an exchange, or FLASHBACK TABLE."""
        (tables, first), (versions, second) = (np.unique(a, return_inverse=True) for a in (ids, self.version_of(commit_ts)))
        pairs, which = np.unique(first * len(versions) + second, return_inverse=True)
        return [self.end_of(int(tables[n // len(versions)]), int(versions[n % len(versions)]), upto) for n in pairs.tolist()], which

    def heir_of(self, job: Job, table_id: int) -> int | None:
        """The other id that a job gives a table; None: it keeps its own."""
        if job.table_id != table_id or job.table_info is None:
            return None
        if job.kind.effect is JobEffect.EXCHANGES:
            return next((i for i in self.history.tables_of_job(job) if i not in (table_id, job.table_info.id)), None)
        return job.table_info.id if job.kind.new_table_id and job.table_info.id != table_id else None

    def takes_all(self, job: Job) -> bool:
        """Whether none of the rows of the table with an heir is in the heir."""
        return job.kind.effect in (JobEffect.EMPTIES, JobEffect.EXCHANGES) and job.id not in self.passed

    def around(self, job: Job) -> list[tuple[TableAt, TableAt]]:
        """The tables whose rows a job takes: as they were, and as they are then."""
        before = [t for i in self.history.tables_of_job(job) if (t := self.history.table_at(i, job.version - 1)) is not None]
        heirs = [self.history.table_at(self.heir_of(job, t.table_id) or t.table_id, job.version) for t in before]
        return [(table, heir) for table, heir in zip(before, heirs, strict=True) if heir is not None]

    def passing(self, jobs: Iterable[int]) -> "PastSchema":
        """With the effect of these jobs on rows among the changes."""
        return replace(self, passed=frozenset(jobs))

    def only(self, table_ids: set[int]) -> "PastSchema":
        """Those of some tables: small enough to ship to executors."""

        def of(ids: set[int]) -> list[Job]:
            return [job for job in self.history.jobs.values() if ids & {job.table_id, *self.history.tables_of_job(job)}]

        # What a table is after an exchange follows from the other table, too.
        exchanged = {i for job in of(table_ids) if job.kind.effect is JobEffect.EXCHANGES for i in self.history.tables_of_job(job)}
        return PastSchema(SchemaHistory.of(of(table_ids | exchanged)), self.ddl_ts, self.versions, self.loaded & table_ids)

    def names_of(self, columns: Collection[int], ids: set[int]) -> Iterator[tuple[int, int, dict[int, str]]]:
        """What columns of a table, which has had these ids, were called: after a commit_ts, up to another, by the columns' ids now."""
        for one in sorted(ids):
            entries = self._entries(one)
            bounds = [0, *(self.begin_of(int(e.version)) for e in entries[1:]), _ALWAYS]
            for entry, begin, end in zip(entries, bounds, bounds[1:], strict=False):
                if isinstance(entry, TableSnapshot):
                    later = lineage(self.history, one, int(entry.version), int(self.history.newest_version)).ids
                    called = {i: c.name for c in entry.info.target_columns() if (i := later.get(c.id, c.id)) in columns}
                    if len(called) == len(columns) and begin < end:
                        yield begin, end, called

    def _entries(self, table_id: int) -> Sequence[TableSnapshot | Dropped]:
        return self.history.tracks[table_id].entries if table_id in self.history.tracks else ()

    def in_words(self, job: Job) -> str:
        """A DDL of the ledger, and its commit_ts."""
        return in_words(job, self.begin_of(int(job.version)))

    def begin_of(self, version: int) -> int:
        """The commit_ts after which rows are of ``version`` or a later one."""
        at = int(np.searchsorted(self.versions[1:], version, "left"))
        return int(self.ddl_ts[at]) if at < len(self.ddl_ts) else 0

    def former_ids(self, table_id: int) -> set[int]:
        """The table's id, and those that it had before."""
        found, more = {table_id}, True
        while more:
            came = {j.table_id for j in self.history.ordered if self.heir_of(j, j.table_id) in found}
            more = not came <= found
            found |= came
        return found

    def rowless(self, jobs: Sequence[Job], after: int, ids: set[int] | None) -> list[Job]:
        """Those of ``jobs`` that took or gave rows of tables without row changes.

        Args:
            jobs: DDLs behind schema version ``after``.
            after: what was made later is left out: its rows are all in the ledger, and none of them was there before.
            ids: of the tables; None: of all.
        """

        def matters(job: Job) -> bool:
            # What is brought back was not there, but its rows are older; what is exchanged has rows that came under another id.
            back = job.kind.effect.rows in (RowsAfter.BACK, RowsAfter.EXCHANGED)
            mine = {i for i in self.history.tables_of_job(job) if back or self.history.table_at(i, after) is not None}
            named = job.type == JobType.FLASHBACK_CLUSTER or bool(mine & ids if ids is not None else mine)
            if job.kind.effect.rows is RowsAfter.DIVIDED:
                return named and any(not t.info.handle_columns() for i in mine if (t := self.history.table_at(i, after)) is not None)
            return named and job.kind.rowless

        return [job for job in jobs if matters(job)]


def carried(images: pa.RecordBatch, table: TableAt, schema: PastSchema, upto: int) -> pa.RecordBatch:
    """Images of a table under the columns that it has at schema version ``upto``."""
    table_id, info = table.table_id, table.info
    for job in schema.history.jobs_of_table(table_id, table.version, upto):
        heir = schema.heir_of(job, table_id)
        if heir is not None and schema.takes_all(job):
            break
        after = schema.history.table_at(heir if heir is not None else table_id, job.version)
        if after is None:
            continue
        try:
            moves = ColumnMoves.of(info, after.info, job.query)
            images = images if moves.none else moves.carried(images)
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


def net_rows(rows: pa.Table, schema: PastSchema, upto: int) -> Iterator[NetRows]:
    """The net change of each row among ``rows``: row changes of any tables, in the order of the upstream (columns ``NET_COLUMNS``).

    Images are under the columns of schema version ``upto``, of tables that are gone by then under their last ones.
    """
    if not rows.num_rows:
        return
    ends, which = schema.ends_of(rows["table_id"].to_numpy(), rows["commit_ts"].to_numpy(), upto)
    kinds = [(table_id, int(job.version) if job is not None else 0) for table_id, job in ends]
    for table_id, gone_at in sorted(set(kinds)):
        here = np.isin(which, [number for number, kind in enumerate(kinds) if kind == (table_id, gone_at)])
        target = schema.table_of(table_id, gone_at - 1) if gone_at else schema.last_of(table_id, upto)
        # Of one table they are not copied.
        mine = rows if here.all() else rows.filter(pa.array(here))
        yield _folded(mine.combine_chunks(), schema, target, gone=gone_at > 0)


def _folded(rows: pa.Table, schema: PastSchema, target: TableAt, *, gone: bool) -> NetRows:
    keys, before, after = (rows[name].combine_chunks() for name in ("row_key", "before", "after"))
    ids, commit_ts = rows["table_id"].to_numpy(), rows["commit_ts"].to_numpy()
    codes, first, last = first_and_last(keys)
    was, now = (
        images_under(side.take(pa.array(at)), ids[at], commit_ts[at], schema, target) for side, at in ((before, first), (after, last))
    )
    was_there = before.is_valid().to_numpy(zero_copy_only=False)[first]
    now_there = after.is_valid().to_numpy(zero_copy_only=False)[last] & (not gone)
    partners = _partners(rows, codes, len(first), schema)
    # Where a key has been used for another row as well, each of the two rows is undone on its own.
    alone = (was_there != now_there) & (was_there == now_there[partners]) & (now_there == was_there[partners])
    partners = np.where((partners >= 0) & alone, partners, -1)
    found = NetRows(target, keys.take(pa.array(first)), was, now, was_there, now_there, partners)
    return found.only(found.inserted | found.deleted | found.changed([c.name for c in target.info.target_columns()]))


def _partners(rows: pa.Table, codes: Ints, count: int, schema: PastSchema) -> Ints:
    """For each of ``count`` rows, whose keys have these codes, the number of the one that it is at the other end of the span (``NetRows.partners``)."""
    found = np.full(count, -1, np.int64)
    moves = set(key_moves(rows, schema).tolist())
    origins: dict[int, int | None] = {}
    for place in np.flatnonzero(pc.not_equal(rows["op"], "update").to_numpy()).tolist() if moves else ():
        code = int(codes[place])
        if place - 1 in moves:
            continue
        if place in moves:
            origins[int(codes[place + 1])] = origins.get(code, code)
        origins[code] = None
    for code, origin in origins.items():
        if origin is not None and origin != code:
            found[code], found[origin] = origin, code
    return found


def key_moves(rows: pa.Table, schema: PastSchema) -> Ints:
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
