"""Reads what a lake's ledger says of its past, in this process: definitions, DDLs, and the net changes of rows.

Promises: nothing is written. Of the ledger only files are read whose statistics do not exclude the span and the tables.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_tidb_binlog.schemas.changes.column_lineage import lineage
from pyspark_tidb_binlog.schemas.ddl_jobs import Job, JobEffect, JobType, RowsAfter
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.history_fold import Dropped, TableSnapshot
from pyspark_tidb_binlog.sinks.lake.lake_table import scanned
from pyspark_tidb_binlog.sinks.lake.ledger import Ledger, ledger_ddls
from pyspark_tidb_binlog.sinks.lake.ledger_rows import ORDER
from pyspark_tidb_binlog.sinks.lake.moments import Published, Snapshots

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

NET_COLUMNS = ("commit_ts", "seq", "schema_version", "op", "table_id", "row_key", "before", "after")
"""Of the ledger, which row changes are read with."""
_TAKE = (JobEffect.EMPTIES, JobEffect.DROPS_PARTITION, JobEffect.EMPTIES_PARTITION, JobEffect.EXCHANGES)
Ids = set[int] | None
"""Of tables; None: of all."""
WITHOUT_DDL = "give a span on one side of it, or other tables"


_ALWAYS = (1 << 63) - 1


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

    @classmethod
    def of(cls, history: SchemaHistory, ddls: Sequence[tuple[int, int]], loaded: frozenset[int] = frozenset()) -> "PastSchema":
        """``ddls``: commit_ts and schema version of each, in order."""
        versions = np.maximum.accumulate(np.array([0, *(version for _, version in ddls)], np.int64))
        return cls(history, np.array([ts for ts, _ in ddls], np.int64), versions, loaded)

    def version_at(self, commit_ts: int) -> int:
        """The schema version after all DDLs up to ``commit_ts``."""
        return int(self.versions[np.searchsorted(self.ddl_ts, commit_ts, "right")])

    def version_of(self, commit_ts: Ints) -> Ints:
        """The schema versions that rows of ``commit_ts`` were written with: an early DDL has the commit_ts of the transaction before it."""
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
                taken = job.kind.effect in (JobEffect.EMPTIES, JobEffect.EXCHANGES)
                return (table_id, job) if taken else self.end_of(heir, job.version, upto)
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

    def left_at(self, end: tuple[int, Job | None], upto: int) -> TableAt:
        """The table at one of ``ends_of``: of rows that a job took, as it was just before."""
        table_id, gone = end
        return self.last_of(table_id, upto) if gone is None else self.table_of(table_id, int(gone.version) - 1)

    def only(self, table_ids: set[int]) -> "PastSchema":
        """The definitions of some tables: small enough to ship to executors."""

        def of(ids: set[int]) -> list[Job]:
            return [job for job in self.history.jobs.values() if ids & {job.table_id, *self.history.tables_of_job(job)}]

        # What a table is after an exchange follows from the other table, too.
        exchanged = {i for job in of(table_ids) if job.kind.effect is JobEffect.EXCHANGES for i in self.history.tables_of_job(job)}
        return PastSchema(SchemaHistory.of(of(table_ids | exchanged)), self.ddl_ts, self.versions, self.loaded & table_ids)

    def names_of(self, columns: Collection[int], ids: set[int]) -> Iterator[tuple[int, int, dict[int, str]]]:
        """The former names of columns of a table that has had these ids: after a commit_ts, up to another, by the columns' ids now."""
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
        """A DDL of the ledger, and its commit_ts: its FinishedTS is later."""
        commit_ts = self.begin_of(int(job.version))
        return f"{job.query[:200].strip()} at {as_time(commit_ts)} ({commit_ts})"

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
        """The jobs among ``jobs`` that took or gave rows of tables without row changes.

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


@dataclass(frozen=True)
class PastChanges:
    """The ledger up to a moment."""

    directory: str
    published: Published
    commit_ts: int

    @cached_property
    def _ddls(self) -> list[tuple[int, Job]]:
        """Each DDL with its commit_ts, in order."""
        return [(ddl.commit_ts, ddl.job) for ddl in ledger_ddls(self.directory, self.commit_ts)]

    @cached_property
    def schema(self) -> PastSchema:
        """All definitions."""
        defined = Snapshots(self.directory).definitions()
        history = SchemaHistory.of([*defined, *(job for _, job in self._ddls)])
        older = (i for ts, job in self._ddls if ts <= self.published.begin_ts for i in history.tables_of_job(job))
        loaded = frozenset([*older, *(job.table_id for job in defined)])
        return PastSchema.of(history, [(ts, int(job.version)) for ts, job in self._ddls], loaded)

    @cached_property
    def _ledger(self) -> Ledger:
        return Ledger(self.directory)

    @property
    def version(self) -> int:
        """The schema version at the moment."""
        return self.schema.version_at(self.commit_ts)

    @cached_property
    def begin_ts(self) -> int:
        """The first moment of which the ledger has all changes since."""
        files = self._ledger.files() if self._ledger.load() is not None else []
        return max(self.published.begin_ts, min([file.first_ts - 1 for file in files] + [self.published.first_ts or 0]))

    def require_known(self, after_ts: int) -> None:
        """Raises ``ConfigError`` if the ledger does not have all changes since ``after_ts``."""
        if after_ts < self.begin_ts:
            raise ConfigError(
                f"the lake {self.directory} begins at {as_time(self.begin_ts)} ({self.begin_ts}), so changes since {as_time(after_ts)} ({after_ts}) are not "
                "known; a time is written as 2026-11-20T12:34:56, a number is a TSO"
            )

    def require_same_tables(self, after_ts: int, names: Sequence[str], ids: Iterable[int] = ()) -> None:
        """Raises ``ConfigError`` if one of the tables with these names or ``ids`` has its name from another one, which was there at ``after_ts``.

        Else all rows of the table that took the place would be new ones, and nobody would see those of the other.
        """
        for table_id in sorted({self.published.called(name, self.commit_ts).table_id for name in names} | set(ids)):
            now = self.schema.last_of(table_id, self.version)
            then = self.schema.history.find(now.schema, now.name, self.schema.version_at(after_ts))
            if then is not None and then.table_id not in self.schema.former_ids(table_id):
                jobs = self.schema.history.jobs_of_table(then.table_id, then.version, self.version)
                since = f"since {self.schema.in_words(jobs[-1])} " if jobs else ""
                raise ConfigError(
                    f"{now.schema}.{now.name} was another table at {as_time(after_ts)} ({after_ts}): {since}the name is that of table {table_id}, before of "
                    f"{then.table_id}; give a later span, or read what was there with lake.at({after_ts})"
                )

    def jobs(self, after_ts: int, upto_ts: int) -> list[Job]:
        """The DDLs of a span."""
        return [job for ts, job in self._ddls if after_ts < ts <= upto_ts]

    def ids_of(self, *names: str) -> set[int]:
        """The tables that have these names, under all ids that they had before. ``ConfigError``: there is no such table."""
        return {i for name in names for i in self.schema.former_ids(self.published.called(name, self.commit_ts).table_id)}

    def changes(self, after_ts: int, upto_ts: int, ids: Ids, columns: Sequence[str] = NET_COLUMNS, where: str = "true") -> pa.Table:
        """The row changes of a span, in order, as far as they were kept at the moment. ``ConfigError``: the ledger begins later by now."""
        after_ts = max(after_ts, self.published.begin_ts)
        chosen = among("table_id", ids) if ids is not None else "true"
        rows = self._rows(columns, f"op <> 'ddl' AND commit_ts > {after_ts} AND commit_ts <= {upto_ts} AND {chosen} AND {where}")
        # Behind the reading: the retention may remove them meanwhile.
        self._ledger.require_kept(after_ts)
        return rows

    def ddl_rows(self, after_ts: int, upto_ts: int, ids: set[int], columns: Sequence[str]) -> pa.Table:
        """The ledger's rows of the DDLs of these tables."""
        jobs = [job.id for job in self.jobs(after_ts, upto_ts) if ids & {job.table_id, *self.schema.history.tables_of_job(job)}]
        return self._rows(columns, f"op = 'ddl' AND {among('job_id', jobs)}")

    def _rows(self, columns: Sequence[str], where: str) -> pa.Table:
        found = scanned(f"{self.directory}/changes", columns, where)
        assert found is not None
        return found.read_all().sort_by(ORDER)

    def taking(self, after_ts: int, upto_ts: int, ids: Ids) -> list[Job]:
        """The DDLs of a span that took rows of these tables, which mirrors have that are kept.

        ``ConfigError``: the lake does not have such a table before.
        """
        history = self.schema.history
        jobs = [job for job in self.jobs(after_ts, upto_ts) if job.kind.effect in _TAKE]
        found = [job for job in jobs if ids is None or ids & set(history.tables_of_job(job))]
        for job in found:
            if all(history.table_at(i, job.version - 1) is None for i in history.tables_of_job(job)):
                raise ConfigError(
                    f"the lake has no definition of the table before {self.schema.in_words(job)}, and none of its rows; {WITHOUT_DDL}"
                )
        return found

    def around(self, after_ts: int, upto_ts: int, ids: Ids, jobs: Iterable[Job]) -> Iterator[tuple[TableAt | None, TableAt]]:
        """The tables among ``ids`` that jobs of a span took rows of: before the span, None if it has made them, and behind it."""
        history, (then, now) = self.schema.history, map(self.schema.version_at, (after_ts, upto_ts))
        touched = {i for job in jobs for i in history.tables_of_job(job)}
        for table_id in sorted(history.tracks if ids is None else ids):
            former = self.schema.former_ids(table_id)
            if touched & former and (table := history.table_at(table_id, now)) is not None:
                yield next((t for i in former if (t := history.table_at(i, then)) is not None), None), table

    def unfollowed(self, ids: set[int]) -> list[Job]:
        """The DDLs since the begin whose effect on rows of a table under its former ids, but for TRUNCATE, is not in the ledger."""
        jobs = [job for job in self.jobs(self.published.begin_ts, self.commit_ts) if job.kind.effect is not JobEffect.EMPTIES]
        # Each by the tables of its time: a former id is gone by now.
        return [job for job in jobs if self.schema.rowless([job], int(job.version) - 1, ids)]

    def require_images(self, after_ts: int, upto_ts: int, ids: Ids, known: Collection[int] = (), todo: str = WITHOUT_DDL) -> None:
        """Raises ``ConfigError`` if a DDL of the span took or gave rows of these tables without row changes, but for jobs that are ``known``.

        ``todo``: what a person can do.
        """
        jobs = [job for job in self.jobs(after_ts, upto_ts) if job.id not in known]
        if jobs := self.schema.rowless(jobs, self.schema.version_at(after_ts), ids):
            shown = "; ".join(map(self.schema.in_words, jobs[:5]))
            raise ConfigError(
                f"rows went or came without row changes, which the ledger does not have: {shown}{', …' * (len(jobs) > 5)}; {todo}"
            )


def among(column: str, values: Iterable[int | bytes]) -> str:
    """A condition on the ledger."""
    listed = ", ".join(f"X'{value.hex()}'" if isinstance(value, bytes) else str(value) for value in sorted(values))
    return f"{column} IN ({listed})" if listed else "false"
