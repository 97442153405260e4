"""A round of the mirrors: the rows and DDLs of a span of the ledger on their way into them.

Promises: rows of a table are never folded across a DDL of it, and ``published`` has a row before and after each. A table that cannot follow is set aside.
A failure that may pass ends the round (``RoundFailed``), and nothing of it counts.
"""

import json
import logging
import shutil
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas.ddl_jobs import Job, JobEffect, JobType, RowsAfter
from pyspark_tidb_binlog.schemas.errors import LeaseLost, Stopped
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.tableinfo import TableInfo
from pyspark_tidb_binlog.sinks.lake.commit_log import CommitLog, is_local
from pyspark_tidb_binlog.sinks.lake.lake_table import runs
from pyspark_tidb_binlog.sinks.lake.large_mirrors import LargeMirrors
from pyspark_tidb_binlog.sinks.lake.mirror_ddl import ColumnMapping, Unfollowed, rows_of_partitions
from pyspark_tidb_binlog.sinks.lake.mirror_table import FAULTS, GONE, MirrorTable, Stamp, is_error
from pyspark_tidb_binlog.sinks.lake.moments import DROPPED, LOADING, MIRRORED, STALE, MirrorState
from pyspark_tidb_binlog.sinks.lake.net_changes import MirrorChanges, RowPieces, hidden_column, mirror_schema, net_changes
from pyspark_tidb_binlog.sinks.routing.replicated import Selection
from pyspark_tidb_binlog.sinks.sink import KeptTable

_log = logging.getLogger(__name__)

_AT_ONCE = 2
"""Merges at a time."""
_HANDLES = 2_000
_LONG = 300.0
"""Seconds for which a table holds up the others before it is set aside."""
_WORDS = 300
"""Of an error, in ``why``."""
NOT_FROM_THE_BEGINNING = "the ledger does not hold the table's rows from its beginning"


class OpenMirrors:
    """The mirrors of a lake that one writer has open."""

    def __init__(self, lake: str, selection: Selection, large: LargeMirrors | None = None, variants: bool = False) -> None:
        """``lake``: path or URI without a slash at its end. ``large``: of ``MirrorTable``. ``variants``: what new JSON columns are; else texts."""
        self._lake, self._selection, self._large, self._variants = lake, selection, large, variants
        self.epoch = 0
        """The writer's."""
        self._handles: dict[str, MirrorTable] = {}
        self._failed: dict[int, float] = {}
        """Since when tables fail, by the monotonic clock."""
        self.replaced_bytes = 0
        """Of the files of mirrors, since it was set to 0."""
        self._made: list[str] = []
        """Where mirrors were made that may not be published yet."""

    def forget(self) -> None:
        """Open each mirror anew."""
        self._handles.clear()

    def all_well(self, tables: Mapping[int, MirrorState]) -> None:
        """``tables`` are published: only those that are to be loaded may still fail."""
        self._failed = {i: since for i, since in self._failed.items() if i in tables and tables[i].state == LOADING}
        self._made.clear()

    def mirror(self, table: MirrorState, stamp: Stamp) -> MirrorTable:
        """The handle on a mirror, at its version."""
        found = self._handles.get(table.path)
        if found is None or found.version != table.version or not found.is_there:
            assert table.version is not None
            found = MirrorTable.at(self.uri(table.path), table.version, stamp, self._large)
            self.keep(table.path, found)
        return found

    def created(self, path: str, schema: pa.Schema, stamp: Stamp) -> MirrorTable:
        """A mirror without rows."""
        return MirrorTable.created(self.uri(path), schema, stamp, self._large)

    def new_column(self, field: pa.Field) -> pa.Field:
        """A column of ``mirror_schema`` as a new mirror has it."""
        return pa.field(field.name, pa.string()) if pa.types.is_struct(field.type) and not self._variants else field

    def new_schema(self, info: TableInfo) -> pa.Schema:
        """The columns of a new mirror."""
        return pa.schema(map(self.new_column, mirror_schema(info)))

    def keep(self, path: str, table: MirrorTable) -> None:
        """Remember a handle."""
        if len(self._handles) >= _HANDLES:
            self._handles.clear()
        self._handles[path] = table

    def kept(self, tables: Mapping[int, MirrorState], before: Sequence[KeptTable]) -> tuple[KeptTable, ...]:
        """The tables that are there; a mirror that is not open keeps the size that it had in ``before``."""
        sizes = {table.name: table.bytes for table in before}
        found = []
        for table in (table for table in tables.values() if table.state != DROPPED):
            name, handle = str(table), self._handles.get(table.path)
            size = handle.bytes if handle is not None else sizes.get(name)
            found.append(KeptTable(name, size, table.upto_ts, table.state, table.why or ""))
        return tuple(found)

    def new_path(self, table: MirrorState) -> str:
        """A path that is never used again. ``discard`` removes what a failure leaves there, ``upkeep`` what a death leaves."""
        path = f"tables/{table.table_id}-{uuid.uuid4().hex[:8]}"
        self._made.append(path)
        return path

    def discard(self, named: Collection[str], begin: int = 0) -> None:
        """Remove the mirrors that were made, from ``begin`` on, and are not ``named``; in a store that is not local they stay."""
        for path in self._made[begin:]:
            if path not in named and is_local(self._lake):
                shutil.rmtree(self.uri(path), ignore_errors=True)
        del self._made[begin:]

    def force(self, before: Iterable[MirrorState], made: Iterable[MirrorState]) -> None:
        """Force what the mirrors of ``made`` have become since ``before`` to the disk.

        Raises:
            ApplyError: the disk refuses.
        """
        if is_local(self._lake):
            forced = {table.path: table.version for table in before}
            for path, version in {table.path: table.version for table in made if table.path}.items():
                after = forced.get(path)
                CommitLog(self.uri(path)).force(-1 if after is None else after, version or 0)

    def uri(self, path: str) -> str:
        """The address of a mirror."""
        return f"{self._lake}/{path}"

    def stamp(self, upto_ts: int) -> Stamp:
        """The record of a commit to a mirror."""
        return Stamp(upto_ts, self.epoch)

    def tried(self, table: MirrorState, change: Callable[[MirrorState], MirrorState]) -> MirrorState:
        """Change a table. If ``change`` fails for more than ``_LONG``, or can never be done, the table is set aside: a full disk, or a race with
        a writer that was suspended, is over by then.

        Raises:
            RoundFailed: it is to be tried again.
            LoadLater, LeaseLost, Stopped: as ``change`` raises them.
        """
        begin = len(self._made)
        try:
            return change(table)
        except BaseException as error:
            self.discard((), begin)
            if isinstance(error, LoadLater | LeaseLost | Stopped) or not is_error(error):
                raise
            if isinstance(error, Unfollowed):
                return aside(table, str(error))
            if isinstance(error, GONE):
                # A person has removed it, or put an older one in its place.
                _log.warning("the mirror of %s (id %d) is gone, so the table is to be loaded: %s", table, table.table_id, error)
                return _unloaded(table)
            now = time.monotonic()
            if isinstance(error, FAULTS) and now - self._failed.setdefault(table.table_id, now) <= _LONG:
                _log.warning("table %s (id %d): %s; it is tried again", table, table.table_id, error)
                raise RoundFailed from error
            return aside(table, f"{type(error).__name__}: {str(error)[:_WORDS]}")

    def named(self, table: TableAt) -> tuple[str, str]:
        """Database and table as the lake has them."""
        to = self._selection.routes.target(table.schema, table.name)
        return to.schema, to.name

    def require_kept(self, table: TableAt) -> None:
        """Its rows come to the ledger, or ``Unfollowed``."""
        if why := self.left_out(table):
            raise Unfollowed(why)

    def left_out(self, table: TableAt) -> str:
        """Why its rows do not come to the ledger; empty if they do."""
        return "" if self._selection.keeps(table) else f"filters leave out {table.schema}.{table.name}, and its rows from here on"


class LoadLater(Exception):
    """A table cannot be loaded at this moment, but perhaps at a later one; the text says why."""


class RoundFailed(Exception):
    """A table has failed: the round begins anew a little later."""


class Round:
    """The rows of a span on their way into the mirrors."""

    def __init__(self, mirrors: OpenMirrors, tables: dict[int, MirrorState], history: SchemaHistory, begin_ts: int) -> None:
        """``begin_ts``: of the ledger, which has all rows of tables that were made later."""
        self._mirrors, self.tables, self.history, self._begin_ts = mirrors, tables, history, begin_ts
        self.published: list[tuple[int, MirrorState]] = []
        self._last = dict(tables)
        """By table id: the newest row that is published or will be."""

    def run(self, rows: pa.Table, ddls: list[dict[str, Any]], upto_ts: int, pieces: RowPieces | None = None) -> None:
        """Bring all mirrors to ``upto_ts``. ``rows``: the row changes; ``ddls``: in order; ``pieces``: other row changes, which all DDLs are behind.

        At a DDL only its own tables are brought to the moment before it: readers of others add what the ledger has since their last version.
        """
        ends = [(row["commit_ts"] - (not row["early"]), row) for row in ddls]
        if pieces is not None:
            self._bring(pieces, ends[0][0] if ends else upto_ts)
        for before_ts, row in ends:
            job, ts = Job.from_json(json.loads(row["job"])), row["commit_ts"]
            ids = self._tables_of(job)
            before = np.isin(rows["table_id"].to_numpy(), list(ids)) & (rows["commit_ts"].to_numpy() <= before_ts)
            if before.any():
                self._bring([rows.filter(pa.array(before))], before_ts)
                rows = rows.filter(pa.array(~before))
            self._ddl(job, ids, ts)
            self._publish(ids, ts)
        if rows.num_rows:
            self._bring([rows], upto_ts)

    def _publish(self, table_ids: Iterable[int], ts: int) -> None:
        """Add a row of what each of these tables is at ``ts``, if that is not what its last row says."""
        for table_id in sorted(self.tables.keys() & set(table_ids)):
            now = self.tables[table_id]
            if now != self._last.get(table_id):
                self.published.append((ts, now))
                self._last[table_id] = now

    # Rows.

    def _mirrored(self, rows: pa.Table) -> MirrorState | None:
        """The table of ``rows``; None: it is not mirrored."""
        first = rows.slice(0, 1).to_pylist()[0]
        table_id, table = first["table_id"], self.tables.get(first["table_id"])
        if table is None:
            at = self.history.table_at(table_id, self.history.newest_version)
            unknown = MirrorState(table_id, first["database"], first["table"], info=at.info if at else None)
            table = self.tables[table_id] = aside(unknown, NOT_FROM_THE_BEGINNING)
        return table if table.state == MIRRORED else None

    def _bring(self, pieces: RowPieces | Sequence[pa.Table], upto_ts: int) -> None:
        """Bring the rows of pieces, all that there are up to ``upto_ts``, into the mirrors. Without ``RowPieces`` it is one piece.

        Of many pieces, what there was of the rows is removed, then what is left of them is added piece by piece: a merge per piece would write a large
        mirror again for each.
        """
        stamp, mirrors, was = self._mirrors.stamp(upto_ts), dict[int, MirrorTable](), defaultdict[int, list[pa.Table]](list)

        def mirror_of(table: MirrorState) -> MirrorTable:
            if table.table_id not in mirrors:
                mirrors[table.table_id] = self._mirrors.mirror(table, stamp)
            return mirrors[table.table_id]

        def removed(table: MirrorState) -> MirrorState:
            assert table.info is not None
            mirror_of(table).replace(pa.concat_tables(was.pop(table.table_id)), mirror_schema(table.info).empty_table(), stamp)
            return table

        def tidied(table: MirrorState) -> MirrorState:
            assert table.info is not None
            mirror = mirror_of(table)
            self._mirrors.replaced_bytes += mirror.tidy(mirror_schema(table.info), stamp)
            return replace(table, version=mirror.version, upto_ts=stamp.upto_ts)

        if isinstance(pieces, RowPieces):
            self._each(pieces, lambda table, net: None if net.fresh else was[table.table_id].append(net.found_by))
            self._still_mirrored(was, removed)
            self._each(pieces, lambda table, net: mirror_of(table).append(net.rows.filter(pc.invert(net.gone)), stamp))
        else:
            self._each(pieces, lambda table, net: mirror_of(table).merge(net, stamp))
        self._still_mirrored(mirrors, tidied)
        self._publish(self.tables, upto_ts)

    def _still_mirrored(self, table_ids: Iterable[int], change: Callable[[MirrorState], MirrorState]) -> None:
        for table in [self.tables[table_id] for table_id in table_ids]:
            if table.state == MIRRORED:
                self._changed(table, change)

    def _each(self, pieces: Iterable[pa.Table], use: Callable[[MirrorState, MirrorChanges], None]) -> None:
        """The net changes of each table in each piece; the tables stay."""

        def used(rows: pa.Table) -> None:
            def of(table: MirrorState) -> MirrorState:
                assert table.info is not None
                net = net_changes(rows, table.info)
                if net is not None:
                    use(table, net)
                return table

            if (table := self._mirrored(rows)) is not None:
                self._changed(table, of)

        with ThreadPoolExecutor(_AT_ONCE, "lake-merge") as pool:
            for piece in pieces:
                for _ in pool.map(used, _by_table(piece)):
                    pass

    def _changed(self, table: MirrorState, change: Callable[[MirrorState], MirrorState]) -> None:
        """Do something to a mirror, or set the table aside (``OpenMirrors.tried``)."""
        self.tables[table.table_id] = self._mirrors.tried(table, change)

    # DDLs.

    def _tables_of(self, job: Job) -> Collection[int]:
        """Add a DDL to the history; the ids of tables that it is about."""
        self.history = self.history.merged([job])
        if job.type == JobType.FLASHBACK_CLUSTER:
            return [i for i, t in self.tables.items() if t.state == MIRRORED]
        ids = set(self.history.tables_of_job(job))
        if job.kind.new_table_id or job.kind.effect.rows is RowsAfter.EXCHANGED:
            ids |= {job.table_id} | ({job.table_info.id} if job.table_info is not None else set())
        return ids

    def _ddl(self, job: Job, ids: Collection[int], ts: int) -> None:
        """Follow a DDL of these tables."""
        if job.kind.effect.rows is RowsAfter.EXCHANGED:
            self._exchange(job, ts)
        else:
            former = self.tables.get(job.table_id)
            for table_id in sorted(ids):
                self._follow(table_id, former, job, ts)

    def _follow(self, table_id: int, former: MirrorState | None, job: Job, ts: int) -> None:
        """Follow a job with one table; ``former``: the job's own table before it."""
        after = self.history.table_at(table_id, self.history.newest_version)
        known = self.tables.get(table_id)
        if after is None:
            if known is not None:
                self.tables[table_id] = replace(known, state=DROPPED, schema_version=int(job.version))
            return
        if after.info.is_view or after.info.is_sequence:
            return
        now = self._as_named(known, after, int(job.version))
        if known is None and (job.kind.makes_tables or job.kind.effect is JobEffect.EMPTIES) and ts > self._begin_ts:
            self._changed(now, lambda table: self._made(table, ts))
        elif known is None and job.kind.new_table_id and former is not None and former.state == MIRRORED:
            # The rows, where they are, under another id.
            moved = replace(now, path=former.path, version=former.version, upto_ts=former.upto_ts, info=former.info)
            self._changed(moved, lambda table: self._altered(table, after, job, ts))
        elif known is None and job.kind.new_table_id and former is not None and former.state == LOADING:
            self.tables[table_id] = _unloaded(now)
        elif known is None and job.kind.effect is JobEffect.RESTORES:
            # What the lake knew of it may have gone with its last kept moment.
            self.tables[table_id] = _unloaded(now)
        elif known is None:
            self.tables[table_id] = aside(now, (former.why if former is not None else None) or NOT_FROM_THE_BEGINNING)
        elif known.state == DROPPED and job.kind.effect is JobEffect.RESTORES and known.why is None:
            # One that was dropped before it was loaded has no mirror.
            self._changed(replace(now, state=MIRRORED), lambda table: self._restored(table, ts))
        elif known.state == LOADING:
            self.tables[table_id] = now
        elif known.state != MIRRORED:
            self.tables[table_id] = replace(now, state=STALE, why=known.why or NOT_FROM_THE_BEGINNING, info=known.info)
        else:
            self._changed(replace(now, info=known.info), lambda table: self._altered(table, after, job, ts))

    def _as_named(self, known: MirrorState | None, after: TableAt, version: int) -> MirrorState:
        database, name = self._mirrors.named(after)
        if known is None:
            return MirrorState(after.table_id, database, name, info=after.info, schema_version=version)
        return replace(known, database=database, table=name, info=after.info, schema_version=max(version, known.schema_version))

    def _restored(self, table: MirrorState, ts: int) -> MirrorState:
        """A table that was dropped, with its rows; it is to be loaded if its mirror went with its last kept moment."""
        return replace(table, version=self._mirrors.mirror(table, self._mirrors.stamp(ts)).version) if table.path else _unloaded(table)

    def _made(self, table: MirrorState, ts: int, batches: Iterable[pa.RecordBatch] = ()) -> MirrorState:
        """A new mirror."""
        assert table.info is not None
        path, stamp = self._mirrors.new_path(table), self._mirrors.stamp(ts)
        mirror = self._mirrors.created(path, self._mirrors.new_schema(table.info), stamp)
        for run in runs(batches):
            mirror.append(pa.Table.from_batches(run), stamp)
        self._mirrors.keep(path, mirror)
        return replace(table, path=path, version=mirror.version, upto_ts=ts)

    def _altered(self, table: MirrorState, at: TableAt, job: Job, ts: int) -> MirrorState:
        """A mirror after a job of its table, which is ``at`` then; ``table`` has the definition before."""
        self._mirrors.require_kept(at)
        before, after, stamp = table.info, at.info, self._mirrors.stamp(ts)
        assert before is not None
        if job.type == JobType.FLASHBACK_CLUSTER:
            raise Unfollowed("FLASHBACK CLUSTER changed its rows without row changes")
        if job.kind.effect.rows is RowsAfter.DIVIDED and hidden_column(before) is not None:
            raise Unfollowed(f"{job.type_name} gave its rows, which have no clustered key, other _tidb_rowids")
        done = replace(table, info=after, upto_ts=ts)
        if job.kind.effect.rows is RowsAfter.PARTITIONS_GO:
            mirror = self._mirrors.mirror(table, stamp)
            mirror.delete(rows_of_partitions(before, before.partitions_gone(after)), stamp)
            return replace(done, version=mirror.version)
        change = ColumnMapping.of(before, after, job.query)
        if change.none:
            return replace(done, upto_ts=table.upto_ts)
        mirror, metadata = self._mirrors.mirror(table, stamp), change.metadata
        if metadata is not None and mirror.alter([(self._mirrors.new_column(field), was) for field, was in metadata], stamp):
            return replace(done, version=mirror.version)
        path = self._mirrors.new_path(table)
        made = mirror.rewritten(self._mirrors.uri(path), self._mirrors.new_schema(after), change.turned, stamp)
        if made is not mirror:
            self._mirrors.keep(path, made)
            done = replace(done, path=path)
        return replace(done, version=made.version)

    def _exchange(self, job: Job, ts: int) -> None:
        """A partition and a plain table exchange their rows, and the plain table takes the partition's id."""
        parent = self.tables.get(job.table_info.id) if job.table_info is not None else None
        plain, stamp = self.tables.get(job.table_id), self._mirrors.stamp(ts)
        if plain is not None:
            self.tables[plain.table_id] = replace(plain, state=DROPPED, schema_version=int(job.version))
        newest = self.history.newest_version
        ids = [i for i in self.history.tables_of_job(job) if i != job.table_id and (parent is None or i != parent.table_id)]
        came = next((t for i in ids if (t := self.history.table_at(i, newest)) is not None), None)
        after = self.history.table_at(parent.table_id, newest) if parent is not None else None
        taken = self._as_named(None, came, int(job.version)) if came is not None else None
        states = [table.state if table is not None else None for table in (parent, plain)]
        if came is None or after is None or states != [MIRRORED, MIRRORED]:
            for table in (t for t in (parent, taken) if t is not None):
                why = f"a partition was exchanged with a table that is not mirrored ({job.query[:200]})"
                self.tables[table.table_id] = _unloaded(table) if LOADING in states else aside(table, why)
            return
        assert parent is not None and plain is not None and taken is not None and parent.info is not None and plain.info is not None
        mirrored, before, other, former = parent, parent.info, plain, plain.info

        def came_out(table: MirrorState) -> MirrorState:
            rows = self._mirrors.mirror(mirrored, stamp).read(rows_of_partitions(before, before.partitions_gone(after.info)))
            return self._made(table, ts, _under(mirror_schema(came.info), mirror_schema(before), rows))

        def went_in(table: MirrorState) -> MirrorState:
            mirror = self._mirrors.mirror(table, stamp)
            brought = _under(mirror_schema(before), mirror_schema(former), self._mirrors.mirror(other, stamp).read())
            mirror.delete(rows_of_partitions(before, before.partitions_gone(after.info)), stamp)
            for run in runs(brought):
                mirror.append(pa.Table.from_batches(run), stamp)
            require_own_rowids(before, mirror)
            if "WITHOUT VALIDATION" in " ".join(job.query.upper().split()):
                raise Unfollowed("a partition has rows that came WITHOUT VALIDATION, which may belong to another one")
            return replace(table, info=after.info, version=mirror.version, upto_ts=ts, schema_version=int(job.version))

        self._changed(taken, came_out)
        self._changed(parent, went_in)


def aside(table: MirrorState, why: str) -> MirrorState:
    """A table that is not mirrored any more."""
    _log.warning("table %s (id %d) is not mirrored any more: %s", table, table.table_id, why)
    return replace(table, state=STALE, why=why)


def _unloaded(table: MirrorState) -> MirrorState:
    """A table that is to be loaded, whatever it was."""
    return replace(table, path="", version=None, upto_ts=0, state=LOADING, why=None)


def require_own_rowids(info: TableInfo, mirror: MirrorTable) -> None:
    """An exchange of partitions may leave two rows with one ``_tidb_rowid``."""
    hidden = hidden_column(info)
    if (
        info.partitions
        and hidden is not None
        and mirror.is_true_of_some(f"SELECT {hidden.name} FROM t GROUP BY {hidden.name} HAVING count(*) > 1")
    ):
        raise Unfollowed("EXCHANGE PARTITION left two rows with one _tidb_rowid")


def _by_table(rows: pa.Table) -> list[pa.Table]:
    """The row changes of each table, in order."""
    rows = rows.sort_by([("table_id", "ascending"), ("commit_ts", "ascending"), ("seq", "ascending")]).combine_chunks()
    begins = np.unique(rows["table_id"].to_numpy(), return_index=True)[1].tolist()
    return [rows.slice(begin, end - begin) for begin, end in zip(begins, [*begins[1:], rows.num_rows], strict=False)]


def _under(schema: pa.Schema, former: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of a table with the columns ``former`` under the columns, in the same places, of another table."""
    return (pa.RecordBatch.from_arrays(batch.select(former.names).columns, names=schema.names) for batch in batches)
