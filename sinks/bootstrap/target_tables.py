"""Prepares the target's tables before their rows are copied: creates them as they are upstream at the snapshot, or empties them. [db]

Promises: a table that was there before a copy is never dropped, so it keeps its own partitions, keys and triggers. For a first load it must be
empty; for a table of a running stream its rows are removed. A missing table is created in the first form that the target takes (``ddl.attempt``). Everything runs under the lock of DDLs and after a check of the lease, and may be repeated.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.column_pairs import visible
from pyspark_tidb_binlog.schemas.ddl_jobs import STATE_SYNCED, DbInfo, Job, JobType
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import BootstrapRefused, ServerRefused
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.remarks import some
from pyspark_tidb_binlog.schemas.schema_snapshot import table_as_job
from pyspark_tidb_binlog.schemas.tableinfo import PUBLIC, TableInfo
from pyspark_tidb_binlog.sinks.bootstrap.copy_record import TABLE, CopiedTable, CopyState
from pyspark_tidb_binlog.sinks.bootstrap.table_copy import CopyPlan
from pyspark_tidb_binlog.sinks.mysql import lease
from pyspark_tidb_binlog.sinks.mysql.ddl.attempt import make
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_plan import out_of_place
from pyspark_tidb_binlog.sinks.mysql.ddl.presence import lacks
from pyspark_tidb_binlog.sinks.mysql.ddl.server_quirks import SentDdl, execute
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import DdlDelivery, DdlForm, Subject, referring
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect, dialect_of
from pyspark_tidb_binlog.sinks.mysql.ddl.target_here import column_names, is_empty
from pyspark_tidb_binlog.sinks.mysql.dialect import table_name
from pyspark_tidb_binlog.sinks.mysql.exactness import inexact
from pyspark_tidb_binlog.sinks.mysql.lease import Lease
from pyspark_tidb_binlog.sinks.mysql.lease_guard import DDL, alone
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.mysql.structure import TargetTable, kinds_of, read_tables, read_whole
from pyspark_tidb_binlog.sinks.mysql.target_fit import Misfit, as_found, left_out, with_stored
from pyspark_tidb_binlog.sinks.mysql.transactions import with_autocommit
from pyspark_tidb_binlog.sinks.routing.routes import Routes

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WantedTable:
    """One table, view or sequence to be made or emptied."""

    source: TableAt
    """SnapshotSource."""
    target: TableAt
    """Under its name at the target, with the columns that are replicated."""
    create_text: str
    """What creates it, as the upstream writes it."""
    database: DbInfo | None
    """The upstream's database."""


class TargetTables:
    """Makes and empties tables, one after the other, on the caller's session."""

    def __init__(self, session: Session, apply: ApplyConfig, held: Lease) -> None:
        self.session = session
        self._apply = apply
        self._lease = held

    def is_there(self, schema: str, name: str) -> bool:
        """Whether there is a table, view or sequence of this name."""
        return bool(column_names(self.session, schema, name))

    def make_ready(self, wanted: WantedTable, *, may_empty: bool) -> tuple[str, ...]:
        """Make the target have the table without a row, and with every column that is copied; what it lacks of the upstream's, if it is made here.

        Args:
            wanted: the table.
            may_empty: existing rows are the stream's, and are removed.

        Raises:
            BootstrapRefused: there are rows, and they may not be removed; or a column is missing.
        """
        name = (wanted.target.schema, wanted.target.name)
        with self._alone():
            was_there, losses = self.is_there(*name), tuple[str, ...]()
            if not was_there:
                losses = self._make(wanted)
            elif not is_empty(self.session, *name):
                if not may_empty:
                    raise BootstrapRefused(not_empty([wanted.target.label]))
                self.session.execute(f"TRUNCATE TABLE {table_name(*name)}")
            there = read_tables(self.session, [name]).get(name)
            self._require_columns(wanted, there)
            if was_there and there is not None and (words := other_keys(wanted.target.info, there)):
                _log.warning(
                    "%s is at the target and keeps its definition: %s. To have it created as it is upstream, drop it there before the start",
                    wanted.target.label,
                    words,
                )
        return losses

    def as_made(self, plan: CopyPlan) -> CopyPlan:
        """``plan`` for the table as it is there: a STORED column that the target does not compute is copied."""
        if not any(c.generated_stored for c in plan.target.info.columns):
            return plan
        name = (plan.target.schema, plan.target.name)
        there = read_tables(self.session, [name]).get(name)
        return plan if there is None else replace(plan, source=with_stored(plan.source, there), target=with_stored(plan.target, there))

    def drop(self, schema: str, name: str) -> None:
        """Remove a table, view or sequence that a copy has made, if it is there."""
        with self._alone():
            for kind in kinds_of(self.session, schema, name):
                what = "VIEW" if "VIEW" in kind else "SEQUENCE" if kind == "SEQUENCE" else "TABLE"
                self.session.execute(f"DROP {what} IF EXISTS {table_name(schema, name)}")

    def empty(self, schema: str, name: str) -> None:
        """Remove the rows of a table that a copy has filled, if it is there."""
        with self._alone():
            if self.is_there(schema, name):
                self.session.execute(f"TRUNCATE TABLE {table_name(schema, name)}")

    def make_other(self, wanted: WantedTable, history: SchemaHistory) -> tuple[str, tuple[str, ...]]:
        """Make a view or a sequence; why the target refuses it, perhaps as long as others are missing; what it lacks of the upstream's, if it is made."""
        with self._alone():
            if why := out_of_place(making(wanted, Routes.of(self._apply)), history, self._apply):
                return why, ()
            try:
                return "", self._make(wanted)
            except ServerRefused as error:
                _log.info("%s cannot be made yet: %s", wanted.target.label, error)
                return str(error), ()

    def require_still_there(self, tables: Iterable[CopiedTable]) -> None:
        """Check that what is recorded as copied is at the target.

        Raises:
            BootstrapRefused: somebody has emptied or dropped it since.
        """
        lost = [
            ".".join(table.place)
            for table in tables
            if table.to and table.state in (CopyState.EMPTY, CopyState.DONE)
            if not self.is_there(*table.place) or (table.copied and is_empty(self.session, *table.place))
        ]
        if lost:
            raise BootstrapRefused(
                f"{', '.join(lost[:5])}: {self._lease.schema}.{TABLE} records this table as copied, but at the target it is empty or does not exist. If the "
                "target was rebuilt or the table emptied, start with --bootstrap-restart, which copies everything again"
            )

    def rows_in(self, tables: Iterable[tuple[str, str]]) -> list[str]:
        """The tables that exist and have rows."""
        found = (name for name in tables if self.is_there(*name) and not is_empty(self.session, *name))
        return [f"{schema}.{table}" for schema, table in found]

    def make_database(self, schema: str, info: DbInfo | None) -> None:
        """The database is there."""
        with self._alone():
            self._make_database(schema, info)

    def _make_database(self, schema: str, info: DbInfo | None) -> None:
        found = self._dialect.charset(info.charset, info.collate) if info else self._dialect.charset("", "")
        options = f"CHARACTER SET = {found.charset} COLLATE = {found.collate}"
        self.session.execute(f"CREATE DATABASE IF NOT EXISTS {quote_name(schema)} {options}")

    def _make(self, wanted: WantedTable) -> tuple[str, ...]:
        self._make_database(wanted.target.schema, wanted.database)
        self.session.use(wanted.target.schema)
        info = wanted.source.info
        number = None if info.is_view or info.is_sequence else 0
        losses = make(SentDdl(self.session, making(wanted, Routes.of(self._apply)), self._dialect, number=number), execute)
        for loss in losses:
            _log.warning("%s", loss)
        return losses

    def _require_columns(self, wanted: WantedTable, there: TargetTable | None) -> None:
        found = as_found(wanted.target, there, partial=True, keyed=False) if there is not None else wanted.target
        missing = "" if isinstance(found, Misfit) else ", ".join(left_out(wanted.target, found))
        why = found.why if isinstance(found, Misfit) else f"it has no column {missing}" if missing else ""
        if not why and there is not None:
            strange = inexact(wanted.target, there)
            why = ", ".join(one.words for one in strange if one.key or self._apply.on_finding == "stop")
            for one in strange:
                _log.warning("%s: %s", wanted.target.label, one.words)
        if why:
            raise BootstrapRefused(
                f"{wanted.target.label} at the target: {why}, so its rows cannot be copied. Drop the table there and start again: the start creates it as it is upstream"
            )

    @property
    def _dialect(self) -> Dialect:
        return dialect_of(self.session, self._apply)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        name = lease.lock_name(DDL, self._lease.schema, self._lease.cluster_id)
        with alone(self.session, name), with_autocommit(self.session):
            lease.check(self.session, self._lease)
            yield


def not_empty(tables: list[str]) -> str:
    """Why a first load is refused."""
    return (
        f"a first load needs an empty target, but there are rows in {some(tables, 5)}. Drop these tables if nobody needs them, or leave them out with "
        "syncer.ignore-table. --bootstrap-restart removes what an earlier first load has copied. To copy tables of a running stream, name them: "
        "--bootstrap DB.TABLE"
    )


def none_there(tables: Sequence[str]) -> str:
    """The error of a target that a stream begins on, and that has none of the ``tables`` of that moment. Pure."""
    return f"the target has none of the upstream's {len(tables)} tables ({some(tables, 5)}), and the stream begins after they were created"


FILL_IT = "start with --bootstrap-all, which copies them from [spark.upstream]; or set initial-commit-ts = 0, if the binlogs of the Pumps reach back to their CREATE TABLE"
"""What to do then."""


def other_keys(info: TableInfo, there: TargetTable) -> str:
    """The unique keys that only one of the two tables has, in words; empty: none. Pure."""
    upstream = {tuple(c.name.lower() for c in key) for key in info.unique_keys()}
    target = {tuple(name.lower() for name, _ in key.columns) for key in there.unique_keys}
    words = []
    for word, keys in (("lacks", upstream - target), ("has of its own", target - upstream)):
        if keys and not (info.has_computed_key and word != "lacks"):
            shown = ", ".join("(" + ", ".join(key) + ")" for key in sorted(keys))
            words.append(f"it {word} the unique key {shown}")
    return " and ".join(words)


def making(wanted: WantedTable, routes: Routes) -> Subject:
    """The DDL as if a job of the upstream made the object. Pure."""
    source, target = wanted.source, wanted.target
    kind = JobType.CREATE_VIEW if source.info.is_view else JobType.CREATE_SEQUENCE if source.info.is_sequence else JobType.CREATE_TABLE
    described = table_as_job(source, SchemaHistory())
    job = replace(described, id=0, type=int(kind), state=STATE_SYNCED, schema_state=PUBLIC, query=wanted.create_text)
    narrowed = bool(routes.columns_of(source))
    # What its foreign keys refer to has routes, too.
    info = target.info if narrowed else referring(source, routes.target).info
    after = replace(source, schema=target.schema, name=target.name, info=info)
    given = DdlDelivery(DdlForm.TEXT if (after == source and not narrowed) or source.info.is_view else DdlForm.INFOS)
    return Subject(job, wanted.create_text, target.schema, target.name, (), (after,), given, routes)


def require_up_to_date(session: Session, apply: ApplyConfig, held: Lease, history: SchemaHistory, tables: Iterable[TableAt]) -> None:
    """Tables that are there have what DDLs that were filtered have changed of them; ``tables``: as they are upstream at the snapshot.

    Raises:
        BootstrapRefused: one has not; it would keep the definition of before the filter, and later rows come for the other.
    """
    sql = f"SELECT job_id FROM {quote_name(held.schema)}.spark_ddl WHERE cluster_id = %s AND note = 'filtered'"
    filtered = {int(job_id) for (job_id,) in session.query(sql, [held.cluster_id])}
    found = [words for table in tables if filtered for words in _behind(session, apply, history, table, filtered)]
    if found:
        raise BootstrapRefused(
            f"{'; '.join(found[:5])}: a filter left out the DDLs that made this change. Either drop the table at the target and start again, which creates it as it "
            "is upstream; or make the same change there"
        )


def _behind(session: Session, apply: ApplyConfig, history: SchemaHistory, table: TableAt, filtered: Collection[int]) -> list[str]:
    """The changes that the table at the target lacks, in words."""
    first = next((job for job in history.jobs_of_table(table.table_id, 0, table.version) if job.id in filtered), None)
    if first is None:
        return []
    routes = Routes.of(apply)
    after = routes.moved(table)
    there = read_whole(session, after.schema, after.name)
    if there is None:
        return []
    before = _before(history, table, first)
    was = () if before is None else (replace(routes.moved(before), table_id=after.table_id),)
    subject = Subject(first, "", after.schema, after.name, was, (after,))
    found = lacks(subject, dialect_of(session, apply), {(after.schema, after.name): there})
    # A column that only the target has is no change of the DDLs, and one that is missing there is refused for itself. A table without partitions needs none.
    needed = {"type", "key", "foreign key"} | ({"partition"} if there.partitions else set())
    gone = {c.name.lower() for old in was for c in visible(old.info)} - {c.name.lower() for c in visible(after.info)}
    stays = [f"{after.schema}.{after.name}: column {c.name} still there" for c in there.columns if c.name.lower() in gone]
    return [lack.words for lack in found if lack.kind in needed] + stays


def _before(history: SchemaHistory, table: TableAt, first: Job) -> TableAt | None:
    """The table before its first DDL that was left out: another one by its id, if that was a TRUNCATE; None: the DDL made it."""
    found = history.table_at(table.table_id, first.version - 1)
    return found if found is not None or first.table_id == table.table_id else history.table_at(first.table_id, first.version - 1)
