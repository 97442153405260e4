"""Reads what a lake's ledger says of its past, in this process: definitions, DDLs, and the net changes of rows.

Promises: nothing is written. Of the ledger only files are read whose statistics do not exclude the span and the tables.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from pyspark_tidb_binlog.schemas.ddl_jobs import Job, JobEffect
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.sinks.lake.lake_moment import Published
from pyspark_tidb_binlog.sinks.lake.ledger import Ledger, scanned
from pyspark_tidb_binlog.sinks.lake.ledger_ddls import ledger_ddls
from pyspark_tidb_binlog.sinks.lake.moments import Snapshots
from pyspark_tidb_binlog.sinks.lake.net_changes import ORDER
from pyspark_tidb_binlog.sinks.past.net_rows import NET_COLUMNS, NetRows, PastSchema, in_words, net_rows

_TAKE = (JobEffect.EMPTIES, JobEffect.DROPS_PARTITION, JobEffect.EMPTIES_PARTITION, JobEffect.EXCHANGES)
Ids = set[int] | None
"""Of tables; None: of all."""
WITHOUT_DDL = "give a span on one side of it, or other tables"


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

    def require_same_tables(self, after_ts: int, names: Sequence[str], nets: Sequence[NetRows] = ()) -> None:
        """Raises ``ConfigError`` if one of these tables has its name from another one, which was there at ``after_ts``.

        Else all rows of the table that took the place would be new ones, and nobody would see those of the other.
        """
        ids = {self.published.called(name, self.commit_ts).table_id for name in names} | {net.table.table_id for net in nets}
        for table_id in sorted(ids):
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

    def net(self, after_ts: int, upto_ts: int, ids: Ids, version: int) -> Iterator[NetRows]:
        """The net changes of a span, table by table, under the columns of a schema version."""
        return net_rows(self.changes(after_ts, upto_ts, ids), self.schema, version)

    def taking(self, after_ts: int, upto_ts: int, ids: Ids) -> list[tuple[int, Job]]:
        """The DDLs of a span that took rows of these tables, which mirrors have that are kept, each with its commit_ts."""
        found = [(ts, job) for ts, job in self._ddls if after_ts < ts <= upto_ts and job.kind.effect in _TAKE]
        return [(ts, job) for ts, job in found if ids is None or ids & set(self.schema.history.tables_of_job(job))]

    def unfollowed(self, ids: set[int]) -> list[Job]:
        """The DDLs since the begin whose effect on rows of a table under its former ids, but for TRUNCATE, is not in the ledger."""
        jobs = [job for job in self.jobs(self.published.begin_ts, self.commit_ts) if job.kind.effect is not JobEffect.EMPTIES]
        # Each by the tables of its time: a former id is gone by now.
        return [job for job in jobs if self.schema.rowless([job], int(job.version) - 1, ids)]

    def around(self, ts: int, job: Job, ids: Ids) -> list[tuple[TableAt, TableAt]]:
        """The tables among ``ids`` whose rows a DDL at ``ts`` takes, as they were just before and as they are then.

        ``ConfigError``: no moment is just before, or the tables are not known there.
        """
        pairs = [(t, heir) for t, heir in self.schema.around(job) if ids is None or ids & {t.table_id, heir.table_id}]
        if not pairs:
            raise ConfigError(f"the lake has no definition of the table before {in_words(job, ts)}, and none of its rows; {WITHOUT_DDL}")
        if self.changes(ts - 1, ts, {t.table_id for t, _ in pairs}).num_rows:
            raise ConfigError(f"the lake has no moment between {in_words(job, ts)} and the transaction before it; {WITHOUT_DDL}")
        return pairs

    def require_images(self, after_ts: int, upto_ts: int, ids: Ids, known: Collection[int] = (), todo: str = WITHOUT_DDL) -> None:
        """Raises ``ConfigError`` if a DDL of the span took or gave rows of these tables without row changes, but for jobs that are ``known``.

        ``todo``: what a person can do.
        """
        jobs = [job for job in self.jobs(after_ts, upto_ts) if job.id not in known]
        if jobs := self.schema.rowless(jobs, self.schema.version_at(after_ts), ids):
            told = "; ".join(map(self.schema.in_words, jobs[:5]))
            raise ConfigError(
                f"rows went or came without row changes, which the ledger does not have: {told}{', …' * (len(jobs) > 5)}; {todo}"
            )


def among(column: str, values: Iterable[int | bytes]) -> str:
    """A condition on the ledger."""
    listed = ", ".join(f"X'{value.hex()}'" if isinstance(value, bytes) else str(value) for value in sorted(values))
    return f"{column} IN ({listed})" if listed else "false"
