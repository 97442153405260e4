"""``./spark-submit.sh drainer --check``: would a stream with these settings run? No stream and no JVM starts.

Prints a line for each remark: where, what, what to do. The checks read the settings, the registry, the DDL history and the account of
``[spark.upstream]``, and ask each Pump what a start asks. Of a MySQL-protocol target they read the account's rights, the server's variables, databases
and tables, and the DDLs that wait between the checkpoint and now. ``ctl doctor`` asks the same functions.

Promises: applies, registers and creates nothing but temporary tables of its session. It takes no lease: a lock with another name is tried and released at once. The target's
session is in a READ ONLY transaction otherwise, if the server supports them. Exit code 0: nothing hinders the stream; 1: something does; 2: a setting is wrong.
"""

import argparse
import contextlib
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TypeVar

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig
from pyspark_tidb_binlog.jobs.check.upstream_checks import UpstreamSight, ask_pumps, read_history, upstream_remarks
from pyspark_tidb_binlog.jobs.entry.cli import EXIT_FAILED, config_of
from pyspark_tidb_binlog.jobs.entry.drainer_options import NO_BOOTSTRAP, BootstrapRequest, drainer_options
from pyspark_tidb_binlog.jobs.stream.resume import start_ignored
from pyspark_tidb_binlog.jobs.stream.targets import resume_state
from pyspark_tidb_binlog.schemas.alarms import NAMED
from pyspark_tidb_binlog.schemas.ddl_jobs import DbInfo
from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError, ReplicationError
from pyspark_tidb_binlog.schemas.events import SchemaVersion, tso
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.remarks import Remark, hinders, note, some
from pyspark_tidb_binlog.schemas.tls import TlsSettings
from pyspark_tidb_binlog.sinks.bootstrap.target_tables import FILL_IT, WantedTable, making, none_there, not_empty
from pyspark_tidb_binlog.sinks.engine.choice import decided
from pyspark_tidb_binlog.sinks.engine.frozen import NONE_FROZEN, FrozenTables, writable
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs
from pyspark_tidb_binlog.sinks.mysql import lease, rights
from pyspark_tidb_binlog.sinks.mysql.checkpoint_row import TargetCheckpoint, only_cluster
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import applied_at, load_frozen
from pyspark_tidb_binlog.sinks.mysql.ddl.foreseen import WaitingDdls, begun, foreseen, forms
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import LOST_IN_GBK, dialect_of
from pyspark_tidb_binlog.sinks.mysql.ddl.target_here import is_empty
from pyspark_tidb_binlog.sinks.mysql.elsewhere import table_in_target
from pyspark_tidb_binlog.sinks.mysql.exactness import inexact, out_of_gbk
from pyspark_tidb_binlog.sinks.mysql.folded_keys import folded_keys
from pyspark_tidb_binlog.sinks.mysql.moved_record import move_of
from pyspark_tidb_binlog.sinks.mysql.own_tables import MADE, faults
from pyspark_tidb_binlog.sinks.mysql.server_variables import NAMES, judged
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from pyspark_tidb_binlog.sinks.mysql.state_table import State, StateTable
from pyspark_tidb_binlog.sinks.mysql.structure import Inventory, TargetTable, inventory_of, read_tables
from pyspark_tidb_binlog.sinks.mysql.target_fit import needed_key, other_words, own_keys
from pyspark_tidb_binlog.sinks.mysql.upstream_collations import with_collations
from pyspark_tidb_binlog.sinks.routing.replicated import DdlFate, Selection
from pyspark_tidb_binlog.sinks.sink import TargetProgress

A = TypeVar("A")
_ABSENT = frozenset({1049, 1146, 1142, 1044})
"""No such database or table, or no right to read it; the right has its own remark."""
_MORE_CONNECTIONS = 4
"""Connections for the lease, the driver and a DDL, beside those of parts or workers."""
_FIRST = "test"
"""The database that TiDB has from the start, without a DDL."""
_SHOWN = 20
_ASKED = (
    ("SELECT GET_LOCK('tidb_binlog.check', 0), RELEASE_LOCK('tidb_binlog.check')", "a start fails, because the lease is such a lock"),
    ("SHOW GLOBAL STATUS LIKE 'Uptime'", "a start after a crash fails, because it checks whether the server was restarted"),
)
"""Statements of a start that need no right, and what breaks without each."""


def main(argv: Sequence[str]) -> int:
    """Check the settings of this command line."""
    return report(drainer_options().parsed(argv))


def report(given: argparse.Namespace) -> int:
    """Print what there is to say."""
    settings: list[str] = []
    config, request = config_of(DrainerConfig, given, settings.append), BootstrapRequest.of(given)
    hindering = seen = 0
    for remark in (*(note("settings", text) for text in settings), *preflight(config, request)):
        print(remark.words, flush=True)
        seen += 1
        hindering += remark.hinders
    print(f"{hindering} of {seen} remarks hinder the stream" if hindering else f"nothing hinders the stream ({seen} remarks)")
    return EXIT_FAILED if hindering else 0


def preflight(config: DrainerConfig, request: BootstrapRequest = NO_BOOTSTRAP) -> Iterator[Remark]:
    """The remarks about a stream with these settings, in the order of the checks. ``request``: the tables to be copied first."""
    if (tls := TlsSettings.of(config.source.security)) is not None:
        tls.check(listens=True)
    with contextlib.ExitStack() as closing:
        pumps = yield from _tried("Pumps", partial(ask_pumps, config))
        if pumps is not None and pumps.absent:
            yield hinders("Pumps", pumps.absent, "")
        yield from (hinders("Pumps", why, NAMED["pump-unreachable"].todo) for why in (pumps.unfit.values() if pumps else ()))
        known = yield from _tried("DDL history", partial(read_history, config))
        yield from (hinders("TiDB", why, NAMED["tidb-without-binlog"].todo) for why in (known.silent or () if known else ()))
        sight = UpstreamSight.of(config, pumps, known)
        yield from upstream_remarks(config, request, sight)
        if config.apply.db_type not in ("mysql", "tidb"):
            yield note("syncer.db-type", f"{config.apply.db_type}: only the settings and the upstream are checked")
            return
        try:
            session = closing.enter_context(connect(config.target, config.apply))
        except ApplyError as error:
            yield hinders("syncer.to", str(error), NAMED["target-silent"].todo)
            return
        seen = TargetSeen(config, session, sight, request)
        yield from (hinders("Pumps", why, "") for why in (pumps.unread(seen.begin_ts).values() if pumps else ()))
        yield from target_remarks(seen)


def _tried(where: str, act: Callable[[], A]) -> Generator[Remark, None, A | None]:
    """What ``act`` returns, or a remark of its error, which says itself what to do."""
    try:
        return act()
    except ReplicationError as error:
        yield hinders(where, str(error), "")
        return None


@dataclass(frozen=True, slots=True)
class _Record:
    """The target's record."""

    cluster_id: int
    """The cluster that the target is of."""
    progress: TargetProgress
    moved: tuple[Remark, ...] = ()
    """Remarks about the place to which the settings move it."""


@dataclass(frozen=True, slots=True)
class SchemaAtCheckpoint:
    """The schema that the target should have at its checkpoint."""

    history: SchemaHistory
    commit_ts: int
    applied: AppliedJobs
    frozen: FrozenTables
    tables: tuple[TableAt, ...] = ()
    """The replicated tables, as the target should have them."""
    begun: tuple[Remark, ...] = ()
    """Remarks about DDLs that an earlier start has begun; ``applied`` contains them."""

    @property
    def made(self) -> set[str]:
        """The databases that waiting DDLs make, or change."""
        return {job.schema_name for job in self.history.ordered if job.version > self.applied.version and job.db_info is not None}

    @property
    def waiting(self) -> WaitingDdls:
        """The DDLs between the checkpoint and now."""
        return WaitingDdls(self.commit_ts, self.history, self.applied, self.frozen)


@dataclass(frozen=True)
class TargetSeen:
    """A target before a start, or while a stream writes to it. Each fact is read when a check needs it first."""

    config: DrainerConfig
    session: Session
    upstream: UpstreamSight
    request: BootstrapRequest = NO_BOOTSTRAP

    def __post_init__(self) -> None:
        """Begin to read only."""
        with contextlib.suppress(ApplyError):  # TiDB has no such transactions
            self.session.execute("START TRANSACTION READ ONLY")

    @property
    def where(self) -> str:
        """The server."""
        to = self.config.target
        return to.socket or f"{to.host}:{to.port}"

    @property
    def commit_ts(self) -> int:
        """The checkpoint; 0 = none."""
        return self.record.progress.commit_ts if self.record.progress.known else 0

    @property
    def begin_ts(self) -> int:
        """Where the stream begins."""
        known, begin = self.record.progress, self.config.source.starting_commit_ts
        return known.commit_ts if known.known else begin if begin >= 0 else tso(time.time_ns() // 1_000_000)

    @cached_property
    def selection(self) -> Selection:
        """What is replicated."""
        return Selection.of(self.config.apply)

    @cached_property
    def apply(self) -> ApplyConfig:
        """The settings, with the upstream's collations."""
        return with_collations(self.config).apply

    @cached_property
    def account(self) -> str:
        """As GRANT names it."""
        return rights.account_in(self.session)

    @cached_property
    def grants(self) -> tuple[rights.Granted, ...]:
        """What the account may do."""
        return rights.grants_in(self.session)

    @cached_property
    def inventory(self) -> Inventory:
        """The target's databases, tables and triggers."""
        return inventory_of(self.session)

    @cached_property
    def lease(self) -> lease.LeaseRow | None:
        """The lease, if anybody holds it."""
        held = lease.look(self.session, self.record.cluster_id, self.config.apply.checkpoint_schema)
        return held if held is not None and held.life else None

    @cached_property
    def record(self) -> _Record:
        """The checkpoint, and where it is."""
        cluster_id, schema = self.upstream.cluster_id, self.config.apply.checkpoint_schema
        found = _Record(cluster_id, TargetProgress(0, True, 0, None, False))
        with _unless_absent():
            table = table_in_target(self.config)
            cluster_id = cluster_id or only_cluster(self.session, schema, table)
            found = replace(found, cluster_id=cluster_id)
            with _unless_absent():
                recorded = TargetCheckpoint(cluster_id, schema, table).load(self.session)
                # A real Drainer's target has no more than that.
                found = replace(found, progress=State().progress(recorded))
                state = StateTable(schema, cluster_id).read(self.session)
                found = replace(found, progress=state.progress(recorded))
            try:
                move = move_of(self.session, self.config, cluster_id, None)
            except ConfigError as error:
                return replace(found, moved=(hinders(self.where, str(error), ""),))
            if move.record is not None:
                there = StateTable(schema, cluster_id).read(self.session).progress(move.record)
                return replace(found, progress=there, moved=(note(self.where, move.words),))
        return found

    @cached_property
    def schema(self) -> SchemaAtCheckpoint:
        """The schema at the checkpoint, or where the stream begins; without a DDL history nothing."""
        history, apply, known, begin = self.upstream.history, self.config.apply, self.record.progress, self.config.source.starting_commit_ts
        if history is None:
            return SchemaAtCheckpoint(SchemaHistory.of(()), known.commit_ts, AppliedJobs(SchemaVersion(0)), NONE_FROZEN)
        at, version = known.commit_ts, known.schema_version
        if not known.known:
            at = max((job.finished_ts for job in history.ordered), default=0) if begin < 0 else begin
            version = history.newest_version if begin < 0 else history.version_at(begin)
        applied, frozen = AppliedJobs(version or history.version_at(at), since=at), NONE_FROZEN
        with _unless_absent():
            applied = applied_at(self.session, apply, self.record.cluster_id, (at, applied.version), history)
            frozen = load_frozen(self.session, apply, self.record.cluster_id)
        schema = SchemaAtCheckpoint(history, at, applied if known.known else applied.covering(at, history), frozen)
        with _unless_absent():
            for job, remark in begun(self.session, schema.waiting, apply, self.record.cluster_id) if apply.sync_ddl else ():
                schema = replace(schema, applied=schema.applied.with_early(job), begun=(*schema.begun, remark))
        live = (schema.applied.table(table_id, history) for table_id in sorted(history.tracks))
        kept = (table for table in live if table is not None and self.selection.keeps(table))
        found = (writable(table, frozen[table.table_id]) if table.table_id in frozen else table for table in kept)
        return replace(schema, tables=tuple(table for table in found if isinstance(table, TableAt)))

    @cached_property
    def wanted(self) -> rights.WantedRights:
        """What the stream does here."""
        apply, schema, keeps = self.config.apply, self.schema, self.selection.tables.keeps
        tables = tuple(map(self.selection.routes.moved, schema.tables))
        named = {table.schema for table in tables} | {self.selection.routes.database(name) for name in schema.made if keeps(name)}
        if self.upstream.history is not None and not named and keeps(_FIRST):
            named = {_FIRST}
        return rights.WantedRights(
            sorted(named),
            apply.checkpoint_schema,
            views=any(table.info.is_view for table in tables),
            foreign_keys=any(table.info.foreign_keys for table in tables),
            asks_timestamp=apply.db_type == "tidb",
            marks=apply.loopback_control,
        )


def target_remarks(seen: TargetSeen) -> Iterator[Remark]:
    """What is looked at before a start, in this order."""
    knows_tables = seen.upstream.history is not None
    yield from lacking_rights(seen)
    yield from _own_tables(seen)
    if knows_tables:
        wanted = "; ".join(rights.statements(seen.wanted, seen.account))
        yield note(f"account {seen.account} at {seen.where}", "needs these rights, and no others", wanted)
    yield from _variables(seen)
    if knows_tables and seen.request.everything and not seen.record.progress.known:
        yield from _to_be_filled(seen)
    elif knows_tables:
        for check in (_begins, _tables, _databases, _ddls):
            yield from check(seen)


def lacking_rights(seen: TargetSeen) -> Iterator[Remark]:
    """What the account may not do. A proxy or a managed server may refuse statements despite GRANTs."""
    yield from rights.missing_rights(seen.grants, seen.wanted, seen.account, seen.where)
    for sql, breaks in _ASKED:
        try:
            seen.session.query(sql)
        except ApplyError as error:
            what = f"{sql} is refused ({error.words}): {breaks}"
            yield hinders(f"account {seen.account} at {seen.where}", what, "allow this statement for the account")


def _own_tables(seen: TargetSeen) -> Iterator[Remark]:
    for fault in faults(seen.session, seen.config.apply.checkpoint_schema, (table_in_target(seen.config), *MADE)):
        yield hinders(fault.table, f"{fault.what}: no start", fault.todo)


def _variables(seen: TargetSeen) -> Iterator[Remark]:
    listed, apply = ", ".join(f"'{name}'" for name in NAMES), seen.config.apply
    answer = seen.session.query(f"SHOW VARIABLES WHERE Variable_name IN ({listed})")
    connections = _MORE_CONNECTIONS + (apply.parts if apply.net_change else apply.worker_count)
    has_zones = seen.session.query("SELECT CONVERT_TZ('2020-07-01 00:00:00', 'UTC', 'Europe/Berlin')")[0][0] is not None
    values = {str(name).lower(): str(value) for name, value in answer}
    yield from judged(values, seen.where, connections, may_write=rights.may_write_read_only(seen.grants), has_zones=has_zones)


def _begins(seen: TargetSeen) -> Iterator[Remark]:
    """Where the stream begins, and who else is there."""
    found, cluster_id = seen.record.progress, seen.upstream.cluster_id
    if not found.known:
        yield note(seen.where, f"has no checkpoint of cluster {cluster_id}: the stream begins at initial-commit-ts")
    elif words := start_ignored(resume_state(seen.config), found.commit_ts):
        yield note(seen.where, words)
    if found.known and not found.consistent and found.unfinished is None:
        what = f"the checkpoint at {found.commit_ts} has consistent = false and no records of this project: a real Drainer did not stop cleanly"
        todo = "stop that Drainer cleanly first if you can; else its last transactions may be in the target in part, and the stream begins in safe mode"
        yield note(seen.where, what, todo)
    held = seen.lease if found.known else None
    if held is not None and held.life == lease.PROMOTED:
        todo = lease.promoted_todo(cluster_id, seen.config.apply.checkpoint_schema)
        yield hinders(seen.where, f"nothing is replicated to this target any more: it was promoted by {held.words}", todo)
    elif held is not None:
        yield note(seen.where, f"the lease is held by {held.words}", NAMED["lease-held"].todo)
    yield from seen.record.moved
    yield from seen.schema.begun


def _to_be_filled(seen: TargetSeen) -> Iterator[Remark]:
    """What a first load meets."""
    yield note(seen.where, "has no checkpoint: --bootstrap-all fills the target and creates missing databases and tables")
    session, routes, history = seen.session, seen.selection.routes, seen.schema.history
    live = [table for table in seen.selection.live(history, history.newest_version) if table.has_rows]
    there = read_tables(session, [(table.schema, table.name) for table in map(routes.moved, live)])
    if filled := [f"{schema}.{name}" for schema, name in there if not is_empty(session, schema, name)]:
        yield hinders(seen.where, not_empty(filled), "empty them, or start without --bootstrap-all")
    for table in live:
        subject = making(WantedTable(table, routes.moved(table), "", None), routes)
        for losses, refused in forms(session, subject, dialect_of(session, seen.apply), seen.inventory.databases):
            yield from (note(subject.label, f"the target cannot hold: {loss}") for loss in losses)
            if refused:
                yield hinders(subject.label, f"cannot be made: {refused}", "make it at the target by hand, so that it holds the rows")


def _tables(seen: TargetSeen) -> Iterator[Remark]:
    """Whether the target's tables hold the rows."""
    there = seen.inventory
    wanted = [t for t in map(seen.selection.routes.moved, seen.schema.tables) if not (t.info.is_view or t.info.is_sequence)]
    found = read_tables(seen.session, ((t.schema, t.name) for t in wanted))
    lacking = []
    for table in wanted:
        at = found.get((table.schema, table.name))
        if at is None or (table.schema.lower(), table.name.lower()) not in there.engines:
            lacking.append(f"{table.schema}.{table.name}")
        else:
            yield from _table(seen, table, at)
    if lacking and len(lacking) == len(wanted) and not seen.record.progress.known:
        yield hinders(seen.where, none_there(lacking), FILL_IT)
    elif lacking:
        named = some(lacking, _SHOWN)
        what = f"the target lacks {len(lacking)} tables that the upstream has at this point: {named}. Their rows stop the stream"
        yield hinders(seen.where, what, "load the tables from the snapshot of the checkpoint, or exclude them")
    names = (f"{t.schema}.{t.name}" for t in wanted if not t.info.unique_keys())
    if keyless := [name for name in names if name not in lacking]:
        what = f"{len(keyless)} tables have no unique key: {some(keyless, _SHOWN)}. Rows are found by all their columns, which reads the whole table"
        todo = "add keys upstream where you can: without them, equal rows cannot be distinguished after a crash of a real Drainer"
        yield note(seen.where, what, todo)


def _table(seen: TargetSeen, table: TableAt, at: TargetTable) -> Iterator[Remark]:
    """``at``: the target's table for ``table``."""
    name, dialect, info = f"{table.schema}.{table.name}", dialect_of(seen.session, seen.apply), table.info
    gone = [c.name for c in info.public_columns() if not c.hidden and at.column(c.name) is None]
    if gone:
        what = f"the target's table lacks the columns {', '.join(gone)}"
        written = {c.name for c in info.target_columns()} - set(gone)
        if seen.apply.partial_columns and written and written.issuperset(c.name for c in info.handle_columns()):
            yield note(name, what, "rows are written without them")
        else:
            yield hinders(name, what, "add the columns at the target, or exclude the table")
    for one in inexact(table, at):
        yield (hinders if one.key else note)(name, one.words, "or leave the column out")
    if statement := out_of_gbk(table, at, dialect):
        yield note(name, f"has gbk columns, in which the server has a question mark for {LOST_IN_GBK}", f"execute {statement}")
    if (keys := folded_keys(info, at, seen.apply, dialect)) is not None:
        yield note(name, keys.what, keys.todo)
    if strange := [c.name for c in info.target_columns() if (there_as := at.column(c.name)) and other_words(c, there_as)]:
        what = f"the ENUM or SET words of {', '.join(strange)} differ from the upstream's"
        yield hinders(name, what, "give the column the upstream's words, in the same order")
    if not at.transactional:
        what = f"is {at.engine} at the target, which has no transactions: its rows stop the stream"
        yield hinders(name, what, f"ALTER TABLE {name} ENGINE = InnoDB")
    if trigger := seen.inventory.triggers.get((table.schema.lower(), table.name.lower())):
        what = f"has the trigger {trigger} at the target, which changes rows a second time"
        yield note(name, what, "drop the trigger at the target, unless you want this")
    if info.unique_keys() and not gone and not table.frozen and (statement := needed_key(info, at, name)):
        yield hinders(name, "lacks at the target the unique key that identifies its rows upstream: its rows stop the stream", statement)
    if own := own_keys(info, at):
        what = (
            f"has the unique key {', '.join(key.name for key in own)} at the target, but not upstream: equal values in this key remove rows"
        )
        yield note(name, what, "drop the key at the target, unless its values are unique upstream, too")


def _databases(seen: TargetSeen) -> Iterator[Remark]:
    """Whether the target has the databases."""
    schema = seen.schema
    at = (_at(entries, schema.applied.version) for entries in schema.history.schemas.values())
    wanted = {table.schema for table in schema.tables} | {info.name for info in at if info is not None}
    if _FIRST not in {name.lower() for name in wanted | schema.made}:
        wanted.add(_FIRST)
    for name in sorted(wanted):
        target = seen.selection.routes.database(name)
        if seen.selection.tables.keeps(name) and target.lower() not in seen.inventory.databases:
            why = "which TiDB has from the start, without a DDL" if name.lower() == _FIRST else "which the upstream has at this point"
            what = f"the target lacks the database {target}, {why}: the first table or row in it stops the stream"
            yield hinders(seen.where, what, f"CREATE DATABASE `{target}`, or name it in syncer.ignore-schemas")


def _at(entries: Sequence[tuple[SchemaVersion, DbInfo | None]], version: int) -> DbInfo | None:
    """The newest entry up to ``version``; None: there is none, or the database is gone."""
    return next((info for at, info in reversed(entries) if at <= version), None)


def _ddls(seen: TargetSeen) -> Iterator[Remark]:
    """What the target will do with the DDLs that wait."""
    waiting = seen.schema.waiting
    if seen.apply.sync_ddl:
        yield from foreseen(seen.session, waiting, seen.apply, seen.inventory.engines, seen.inventory.databases)
        return
    fates = [decided(step, waiting.history, seen.selection).decision.fate for step in waiting.steps()]
    if count := sum(fate is not DdlFate.FILTERED for fate in fates):
        what = f"syncer.sync-ddl = false: {count} DDLs wait and are not executed"
        yield note(seen.where, what, "change the target's tables by hand where rows need the DDLs")


@contextlib.contextmanager
def _unless_absent() -> Iterator[None]:
    """Keep the default for what does not exist yet or is not readable."""
    try:
        yield
    except ApplyError as error:
        if error.errno not in _ABSENT:
            raise
