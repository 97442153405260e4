"""``./spark-submit.sh drainer --check``: would a stream with these settings run? No stream and no JVM starts.

Prints a line for each remark: where, what, what to do. The check reads the settings, the registry, the DDL history and the account of
``[spark.upstream]``, and asks each Pump what a start asks. Of a MySQL-protocol target it reads the account's rights, the server's variables, databases
and tables, and the DDLs that wait between the checkpoint and now.

Promises: applies, registers and creates nothing but temporary tables of its session. It takes no lease: a lock with another name is tried and released at once. The target's
session is in a READ ONLY transaction otherwise, if the server supports them. Exit code 0: nothing hinders the stream; 1: something does; 2: a setting is wrong.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pyspark_tidb_binlog.binlog_source.cluster.discovery import OfflinePump, discovery_of
from pyspark_tidb_binlog.binlog_source.cluster.history_place import history_at
from pyspark_tidb_binlog.binlog_source.source.delivery import serving, unfit
from pyspark_tidb_binlog.binlog_source.source.departed import DepartedPumps
from pyspark_tidb_binlog.binlog_source.source.offset import BinlogOffset
from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig
from pyspark_tidb_binlog.jobs.check.upstream_account import UpstreamSight, upstream_remarks
from pyspark_tidb_binlog.jobs.entry.cli import EXIT_FAILED, drainer_config
from pyspark_tidb_binlog.jobs.entry.drainer_options import NOTHING, BootstrapRequest, drainer_options
from pyspark_tidb_binlog.jobs.stream.resume import passed_over
from pyspark_tidb_binlog.jobs.stream.targets import resume_state
from pyspark_tidb_binlog.jobs.stream.upstream_cluster import StreamServers, ports_at, servers_at, silent_among
from pyspark_tidb_binlog.schemas.alarms import NAMED
from pyspark_tidb_binlog.schemas.ddl_jobs import DbInfo
from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError, PumpUnavailable, ReplicationError
from pyspark_tidb_binlog.schemas.events import Delivery, SchemaVersion, tso
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.history_feed import HistoryFeed
from pyspark_tidb_binlog.schemas.remarks import Remark, hinders, note
from pyspark_tidb_binlog.schemas.tls import TlsSettings
from pyspark_tidb_binlog.sinks.bootstrap.target_tables import FILL_IT, WantedTable, making, none_there, not_empty
from pyspark_tidb_binlog.sinks.engine.choice import decided
from pyspark_tidb_binlog.sinks.engine.frozen import NONE_FROZEN, FrozenTables, writable
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs
from pyspark_tidb_binlog.sinks.mysql import lease
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
from pyspark_tidb_binlog.sinks.mysql.rights import Granted, WantedRights, may_write_read_only, missing_rights, read_grants, statements
from pyspark_tidb_binlog.sinks.mysql.server_variables import NAMES, judged
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from pyspark_tidb_binlog.sinks.mysql.state_table import State, StateTable
from pyspark_tidb_binlog.sinks.mysql.structure import Inventory, inventory_of, read_tables
from pyspark_tidb_binlog.sinks.mysql.target_fit import needed_key, other_words, own_keys
from pyspark_tidb_binlog.sinks.mysql.upstream_collations import with_collations
from pyspark_tidb_binlog.sinks.routing.replicated import DdlFate, Selection
from pyspark_tidb_binlog.sinks.sink import TargetProgress

_ABSENT = frozenset({1049, 1146, 1142, 1044})
"""No such database or table, or no right to read it; the right has its own remark."""
_MORE_CONNECTIONS = 4
"""Connections for the lease, the driver and a DDL, beside those of parts or workers."""
_ASK_SECONDS = 5.0
"""The patience for the Pumps' answers."""
_FIRST = "test"
"""The database that TiDB has from the start, without a DDL."""
_SHOWN = 20
_ASKED = (
    ("SELECT GET_LOCK('tidb_binlog.check', 0), RELEASE_LOCK('tidb_binlog.check')", "a start fails, because the lease is such a lock"),
    ("SHOW GLOBAL STATUS LIKE 'Uptime'", "a start after a crash fails, because it checks whether the server was restarted"),
)
"""Statements of a start that need no right, and what breaks without each."""


def main(argv: Sequence[str]) -> int:
    """Print what there is to say."""
    settings: list[str] = []
    given = drainer_options().parsed(argv)
    config, request = drainer_config(given, settings.append), BootstrapRequest.of(given)
    hindering = seen = 0
    for remark in (*(note("settings", text) for text in settings), *preflight(config, request)):
        print(remark.words, flush=True)
        seen += 1
        hindering += remark.hinders
    print(f"{hindering} of {seen} remarks hinder the stream" if hindering else f"nothing hinders the stream ({seen} remarks)")
    return EXIT_FAILED if hindering else 0


def preflight(config: DrainerConfig, request: BootstrapRequest = NOTHING) -> Iterator[Remark]:
    """The remarks about a stream with these settings, in the order of the checks. ``request``: the tables to be copied first."""
    with contextlib.ExitStack() as closing:
        upstream = UpstreamCheck(config, closing)
        yield from upstream.remarks()
        yield from upstream_remarks(config, request, upstream.sight)
        if config.apply.db_type not in ("mysql", "tidb"):
            yield note("syncer.db-type", f"{config.apply.db_type}: only the settings and the upstream are checked")
            return
        try:
            session = closing.enter_context(connect(config.target, config.apply))
        except ApplyError as error:
            yield hinders("syncer.to", str(error), NAMED["target-silent"].todo)
            return
        target = TargetCheck(config, session, upstream.sight, request)
        yield from (hinders("Pumps", why, "") for why in upstream.unread(target.begin_ts).values())
        yield from target.remarks()


class UpstreamCheck:
    """The cluster and its DDL history."""

    def __init__(self, config: DrainerConfig, closing: contextlib.ExitStack) -> None:
        self._config = config
        self._closing = closing
        self._tls = TlsSettings.of(config.source.security)
        self.pumps: Mapping[str, str] = {}
        """The address of each Pump that may answer."""
        self.states: Mapping[str, str] = {}
        """The registered state of each Pump; none without a registry."""
        self.unfit: Mapping[str, str] = {}
        """Why a Pump does not serve this stream."""
        self._offline: Mapping[str, OfflinePump] = {}
        self._silent: Mapping[str, str] = {}
        """Of those that are registered as offline, why they do not answer."""
        self._cluster_id = config.source.cluster_id
        self._history: SchemaHistory | None = None
        self._servers: StreamServers = dict
        self.versions: Mapping[str, str] = {}
        """The version of each TiDB server, by its address, if a status port reports them."""
        self.silent: tuple[str, ...] | None = None
        """The servers that write no binlogs, though others do, in words; None = not known."""

    @property
    def sight(self) -> UpstreamSight:
        """What is known so far."""
        return UpstreamSight(self._cluster_id, self._history, self._servers)

    def remarks(self) -> Iterator[Remark]:
        """What hinders on the upstream's side."""
        if self._tls is not None:
            self._tls.check(listens=True)
        yield from self._tried("Pumps", self.ask_pumps)
        for what in self.unfit.values():
            yield hinders("Pumps", what, NAMED["pump-unreachable"].todo)
        yield from self._tried("DDL history", self.read_history)
        for what in self.silent or ():
            yield hinders("TiDB", what, NAMED["tidb-without-binlog"].todo)

    def _tried(self, where: str, act: Callable[[], object]) -> Iterator[Remark]:
        """The error of ``act``, which says itself what to do."""
        try:
            act()
        except ReplicationError as error:
            yield hinders(where, str(error), "")

    def ask_pumps(self) -> None:
        """Learn the Pumps and the cluster's id, and whether each Pump serves this stream.

        Raises:
            PumpUnavailable: the registry does not answer.
        """
        discovery = discovery_of(self._config.source)
        self._closing.callback(discovery.close)
        self._cluster_id = self._cluster_id or discovery.cluster_id()
        self.pumps = serving(discovery)
        self.states, self._offline = discovery.states(), discovery.offline()
        left = {pump: gone.address for pump, gone in self._offline.items() if pump not in self.pumps}
        trouble = unfit(self._config.source, discovery, {**left, **self.pumps}, _ASK_SECONDS)
        self.unfit = {pump: why for pump, why in trouble.items() if pump in self.pumps}
        self._silent = {pump: why for pump, why in trouble.items() if pump in left}

    def unread(self, resolved_ts: int) -> dict[str, str]:
        """By id, the Pumps that are registered as offline and end a stream at ``resolved_ts``, which may not have read them, and why."""
        before, found = BinlogOffset(Delivery.SORTED, resolved_ts, 0, {}), {}
        for pump, gone in self._offline.items():
            if gone.upto_ts > resolved_ts:
                try:
                    DepartedPumps(self._config.source, 0.0).membership(before, {pump: gone.address}, {pump: gone}, self._silent)
                except PumpUnavailable as error:
                    found[pump] = str(error)
        return found

    def read_history(self) -> SchemaHistory:
        """The DDL history.

        Raises:
            HistoryUnavailable, PumpUnavailable: no status port answers.
        """
        where = history_at(self._config.source, self._tls, self._closing)
        self._servers = partial(servers_at, where, self._tls)
        self._history = HistoryFeed(where, None, self._tls).snapshot()
        with contextlib.suppress(PumpUnavailable):
            ports = ports_at(where, self._tls)
            self.versions = ports.versions()
            self.silent = tuple(server.words for server in silent_among(ports.binlogs()))
        return self._history


@dataclass(frozen=True, slots=True)
class _Stand:
    """The position of the target."""

    progress: TargetProgress
    applied: AppliedJobs
    frozen: FrozenTables
    tables: tuple[TableAt, ...]
    """The replicated tables, as the target should have them."""
    begun: tuple[Remark, ...] = ()
    """Remarks about DDLs that an earlier start has begun; ``applied`` contains them."""


@dataclass(frozen=True, slots=True)
class TargetSeen:
    """A target to which a stream writes."""

    version: str
    where: str
    commit_ts: int
    """The checkpoint; 0 = none."""
    lease: str
    """Who holds the lease, as ``LeaseRow.words``; empty = nobody."""
    lacks: tuple[Remark, ...] | None
    """What the account may not do, though the stream needs it; None = not known without the DDL history."""


class TargetCheck:
    """The target, and what waits for it."""

    def __init__(self, config: DrainerConfig, session: Session, upstream: UpstreamSight, request: BootstrapRequest = NOTHING) -> None:
        with contextlib.suppress(ApplyError):  # TiDB has no such transactions
            session.execute("START TRANSACTION READ ONLY")
        self._config = config
        self._request = request
        self._session = session
        self._upstream = upstream
        self._selection = Selection.of(config.apply)
        to = config.target
        self._where = to.socket or f"{to.host}:{to.port}"

    @property
    def begin_ts(self) -> int:
        """Where the stream begins."""
        known, begin = self._record()[1], self._config.source.starting_commit_ts
        return known.commit_ts if known.known else begin if begin >= 0 else tso(time.time_ns() // 1_000_000)

    def remarks(self) -> Iterator[Remark]:
        """All that there is to say before a start."""
        history = self._upstream.history
        there = inventory_of(self._session)
        stand = self._stand(history) if history is not None else None
        grants = self._grants()
        wanted, account = self._wanted(stand, history), self._account()
        yield from self._lacks(wanted, grants, account)
        yield from self._own_tables()
        if history is not None:
            yield note(f"account {account} at {self._where}", "needs these rights, and no others", "; ".join(statements(wanted, account)))
        yield from judged(
            self._variables(), self._where, self._connections(), may_write=may_write_read_only(grants), has_zones=self._has_zones()
        )
        if stand is None or history is None:
            return
        if self._request.everything and not stand.progress.known:
            yield from self._to_be_filled(history, there)
            return
        yield from self._begins(stand)
        yield from stand.begun
        config = with_collations(self._config).apply
        yield from self._tables(stand, there, config)
        yield from self._databases(stand, there, history)
        waiting = WaitingDdls(stand.progress.commit_ts, history, stand.applied, stand.frozen)
        if not config.sync_ddl:
            yield from self._not_synced(waiting)
            return
        yield from foreseen(self._session, waiting, config, there.engines, there.databases)

    def seen(self) -> TargetSeen:
        """What matters of it while a stream runs."""
        history = self._upstream.history
        cluster_id, known, _ = self._record()
        lacks: tuple[Remark, ...] | None = None
        if history is not None:
            wanted = self._wanted(self._stand(history), history)
            lacks = tuple(one for one in self._lacks(wanted, self._grants(), self._account()) if one.hinders)
        held = lease.look(self._session, cluster_id, self._config.apply.checkpoint_schema)
        words = held.words if held is not None and held.life else ""
        return TargetSeen(self._session.version, self._where, known.commit_ts if known.known else 0, words, lacks)

    def _stand(self, history: SchemaHistory) -> _Stand:
        apply, session = self._config.apply, self._session
        cluster_id, known, remarks = self._record()
        frozen: FrozenTables = NONE_FROZEN
        version = known.schema_version
        if not known.known:
            begin = self._config.source.starting_commit_ts
            known = replace(known, commit_ts=max((job.finished_ts for job in history.ordered), default=0) if begin < 0 else begin)
            version = history.newest_version if begin < 0 else history.version_at(begin)
        applied = AppliedJobs(version or history.version_at(known.commit_ts), since=known.commit_ts)
        with _unless_absent():
            applied = applied_at(session, apply, cluster_id, (known.commit_ts, applied.version), history)
            frozen = load_frozen(session, apply, cluster_id)
        applied = applied if known.known else applied.covering(known.commit_ts, history)
        with _unless_absent():
            waiting = WaitingDdls(known.commit_ts, history, applied, frozen)
            for job, remark in begun(session, waiting, apply, cluster_id) if apply.sync_ddl else ():
                applied = applied.with_early(job)
                remarks.append(remark)
        live = (applied.table(table_id, history) for table_id in sorted(history.tracks))
        kept = (table for table in live if table is not None and self._selection.keeps(table))
        found = (writable(table, frozen[table.table_id]) if table.table_id in frozen else table for table in kept)
        tables = tuple(table for table in found if isinstance(table, TableAt))
        return _Stand(known, applied, frozen, tables, tuple(remarks))

    def _record(self) -> tuple[int, TargetProgress, list[Remark]]:
        """The cluster that the target is of, its checkpoint, and the remarks about where that is."""
        known = TargetProgress(0, True, 0, None, False)
        cluster_id, schema = self._upstream.cluster_id, self._config.apply.checkpoint_schema
        remarks: list[Remark] = []
        with _unless_absent():
            table = table_in_target(self._config)
            cluster_id = cluster_id or only_cluster(self._session, schema, table)
            with _unless_absent():
                recorded = TargetCheckpoint(cluster_id, schema, table).load(self._session)
                # A real Drainer's target has no more than that.
                known = State().progress(recorded)
                known = StateTable(schema, cluster_id).read(self._session).progress(recorded)
            moved, remarks = self._moved(cluster_id)
            known = moved or known
        return cluster_id, known, remarks

    def _moved(self, cluster_id: int) -> tuple[TargetProgress | None, list[Remark]]:
        """The record that counts if the settings move the record to another place; None: the record stays."""
        try:
            move = move_of(self._session, self._config, cluster_id, None)
        except ConfigError as error:
            return None, [hinders(self._where, str(error), "")]
        if move.record is None:
            return None, []
        there = StateTable(self._config.apply.checkpoint_schema, cluster_id).read(self._session).progress(move.record)
        return there, [note(self._where, move.words)]

    def _begins(self, stand: _Stand) -> Iterator[Remark]:
        found = stand.progress
        if not found.known:
            yield note(self._where, f"has no checkpoint of cluster {self._upstream.cluster_id}: the stream begins at initial-commit-ts")
        elif words := passed_over(resume_state(self._config), found.commit_ts):
            yield note(self._where, words)
        if found.known and not found.consistent and found.unfinished is None:
            what = f"the checkpoint at {found.commit_ts} has consistent = false and no records of this project: a real Drainer did not stop cleanly"
            yield note(
                self._where,
                what,
                "stop that Drainer cleanly first if you can; else its last transactions may be in the target in part, and the stream begins in safe mode",
            )
        held = lease.look(self._session, self._upstream.cluster_id, self._config.apply.checkpoint_schema) if found.known else None
        if held is not None and held.life == lease.PROMOTED:
            todo = lease.promoted_todo(self._upstream.cluster_id, self._config.apply.checkpoint_schema)
            yield hinders(self._where, f"nothing is replicated to this target any more: it was promoted by {held.words}", todo)
        elif held is not None and held.life:
            yield note(self._where, f"the lease is held by {held.words}", NAMED["lease-held"].todo)

    def _to_be_filled(self, history: SchemaHistory, inventory: Inventory) -> Iterator[Remark]:
        yield note(self._where, "has no checkpoint: --bootstrap-all fills the target and creates missing databases and tables")
        live = self._selection.live(history, history.newest_version)
        names = [(t.schema, t.name) for t in map(self._selection.routes.moved, live) if t.has_rows]
        there = read_tables(self._session, names)
        if filled := [f"{schema}.{name}" for schema, name in there if not is_empty(self._session, schema, name)]:
            yield hinders(self._where, not_empty(filled), "empty them, or start without --bootstrap-all")
        config, routes = with_collations(self._config).apply, self._selection.routes
        for table in (t for t in live if t.has_rows):
            subject = making(WantedTable(table, routes.moved(table), "", None), routes)
            for losses, refused in forms(self._session, subject, dialect_of(self._session, config), inventory.databases):
                yield from (note(subject.label, f"the target cannot hold: {loss}") for loss in losses)
                if refused:
                    yield hinders(subject.label, f"cannot be made: {refused}", "make it at the target by hand, so that it holds the rows")

    def _not_synced(self, waiting: WaitingDdls) -> Iterator[Remark]:
        fates = [decided(step, waiting.history, self._selection).decision.fate for step in waiting.steps()]
        if count := sum(fate is not DdlFate.FILTERED for fate in fates):
            what = f"syncer.sync-ddl = false: {count} DDLs wait and are not executed"
            yield note(self._where, what, "change the target's tables by hand where rows need the DDLs")

    def _lacking_columns(self, table: TableAt, gone: Sequence[str]) -> Remark:
        apply = self._config.apply
        what, name = f"the target's table lacks the columns {', '.join(gone)}", f"{table.schema}.{table.name}"
        written = {c.name for c in table.info.target_columns()} - set(gone)
        if apply.partial_columns and written and written.issuperset(c.name for c in table.info.handle_columns()):
            return note(name, what, "rows are written without them")
        return hinders(name, what, "add the columns at the target, or exclude the table")

    def _tables(self, stand: _Stand, there: Inventory, apply: ApplyConfig) -> Iterator[Remark]:
        lacking, keyless, dialect = [], [], dialect_of(self._session, apply)
        wanted = [t for t in map(self._selection.routes.moved, stand.tables) if not (t.info.is_view or t.info.is_sequence)]
        found = read_tables(self._session, ((t.schema, t.name) for t in wanted))
        for table in wanted:
            place, name = (table.schema.lower(), table.name.lower()), f"{table.schema}.{table.name}"
            at = found.get((table.schema, table.name))
            if at is None or place not in there.engines:
                lacking.append(name)
                continue
            gone = [c.name for c in table.info.public_columns() if not c.hidden and at.column(c.name) is None]
            if gone:
                yield self._lacking_columns(table, gone)
            for one in inexact(table, at):
                yield (hinders if one.key else note)(name, one.words, "or leave the column out")
            if statement := out_of_gbk(table, at, dialect):
                yield note(name, f"has gbk columns, in which the server has a question mark for {LOST_IN_GBK}", f"execute {statement}")
            if (keys := folded_keys(table.info, at, apply, dialect)) is not None:
                yield note(name, keys.what, keys.todo)
            if strange := [c.name for c in table.info.target_columns() if (there_as := at.column(c.name)) and other_words(c, there_as)]:
                yield hinders(
                    name,
                    f"the ENUM or SET words of {', '.join(strange)} differ from the upstream's",
                    "give the column the upstream's words, in the same order",
                )
            if not at.transactional:
                what = f"is {at.engine} at the target, which has no transactions: its rows stop the stream"
                yield hinders(name, what, f"ALTER TABLE {name} ENGINE = InnoDB")
            if place in there.triggers:
                what = f"has the trigger {there.triggers[place]} at the target, which changes rows a second time"
                yield note(name, what, "drop the trigger at the target, unless you want this")
            if not table.info.unique_keys():
                keyless.append(name)
            elif not gone and not table.frozen and (statement := needed_key(table.info, at, name)):
                yield hinders(
                    name, "lacks at the target the unique key that identifies its rows upstream: its rows stop the stream", statement
                )
            if own := own_keys(table.info, at):
                what = f"has the unique key {', '.join(key.name for key in own)} at the target, but not upstream: equal values in this key remove rows"
                yield note(name, what, "drop the key at the target, unless its values are unique upstream, too")
        if lacking and len(lacking) == len(wanted) and not stand.progress.known:
            yield hinders(self._where, none_there(lacking), FILL_IT)
        elif lacking:
            what = (
                f"the target lacks {len(lacking)} tables that the upstream has at this point: {_some(lacking)}. Their rows stop the stream"
            )
            yield hinders(self._where, what, "load the tables from the snapshot of the checkpoint, or exclude them")
        if keyless:
            what = f"{len(keyless)} tables have no unique key: {_some(keyless)}. Rows are found by all their columns, which reads the whole table"
            yield note(
                self._where,
                what,
                "add keys upstream where you can: without them, equal rows cannot be distinguished after a crash of a real Drainer",
            )

    def _databases(self, stand: _Stand, there: Inventory, history: SchemaHistory) -> Iterator[Remark]:
        wanted = {table.schema for table in stand.tables}
        version = stand.applied.version
        made = {name.lower() for name in _made(stand, history)}
        wanted |= {info.name for entries in history.schemas.values() if (info := _at(entries, version)) is not None}
        if not any(name.lower() == _FIRST for name in wanted) and _FIRST not in made:
            wanted.add(_FIRST)
        for name in sorted(wanted):
            target = self._selection.routes.database(name)
            if self._selection.tables.keeps(name) and target.lower() not in there.databases:
                why = "which TiDB has from the start, without a DDL" if name.lower() == _FIRST else "which the upstream has at this point"
                what = f"the target lacks the database {target}, {why}: the first table or row in it stops the stream"
                yield hinders(self._where, what, f"CREATE DATABASE `{target}`, or name it in syncer.ignore-schemas")

    def _wanted(self, stand: _Stand | None, history: SchemaHistory | None) -> WantedRights:
        tables = stand.tables if stand is not None else ()
        moved = tuple(map(self._selection.routes.moved, tables))
        kept = {self._selection.routes.database(name) for name in _made(stand, history) if self._selection.tables.keeps(name)}
        named = {table.schema for table in moved} | kept
        first = history is not None and not named and self._selection.tables.keeps(_FIRST)
        names = sorted(named | ({_FIRST} if first else set()))
        return WantedRights(
            names,
            self._config.apply.checkpoint_schema,
            views=any(table.info.is_view for table in moved),
            foreign_keys=any(table.info.foreign_keys for table in moved),
            asks_timestamp=self._config.apply.db_type == "tidb",
            marks=self._config.apply.loopback_control,
        )

    def _grants(self) -> tuple[Granted, ...]:
        return read_grants(str(line[0]) for line in self._session.query("SHOW GRANTS"))

    def _lacks(self, wanted: WantedRights, grants: Sequence[Granted], account: str) -> Iterator[Remark]:
        yield from missing_rights(grants, wanted, account, self._where)
        yield from self._refused_reads(account)

    def _refused_reads(self, account: str) -> Iterator[Remark]:
        """The statements of a start that the server refuses: a proxy or a managed server may, despite GRANTs."""
        for sql, breaks in _ASKED:
            try:
                self._session.query(sql)
            except ApplyError as error:
                yield hinders(
                    f"account {account} at {self._where}",
                    f"{sql} is refused ({error.words}): {breaks}",
                    "allow this statement for the account",
                )

    def _own_tables(self) -> Iterator[Remark]:
        for fault in faults(self._session, self._config.apply.checkpoint_schema, (table_in_target(self._config), *MADE)):
            yield hinders(fault.table, f"{fault.what}: no start", fault.todo)

    def _account(self) -> str:
        user, _, host = str(self._session.query("SELECT CURRENT_USER()")[0][0]).rpartition("@")
        return f"'{user}'@'{host}'"

    def _variables(self) -> dict[str, str]:
        listed = ", ".join(f"'{name}'" for name in NAMES)
        return {str(name).lower(): str(value) for name, value in self._session.query(f"SHOW VARIABLES WHERE Variable_name IN ({listed})")}

    def _connections(self) -> int:
        apply = self._config.apply
        return _MORE_CONNECTIONS + (apply.parts if apply.net_change else apply.worker_count)

    def _has_zones(self) -> bool:
        return self._session.query("SELECT CONVERT_TZ('2020-07-01 00:00:00', 'UTC', 'Europe/Berlin')")[0][0] is not None


def _made(stand: _Stand | None, history: SchemaHistory | None) -> set[str]:
    """The databases that waiting DDLs make, or change."""
    if stand is None or history is None:
        return set()
    return {job.schema_name for job in history.ordered if job.version > stand.applied.version and job.db_info is not None}


def _at(entries: Sequence[tuple[SchemaVersion, DbInfo | None]], version: int) -> DbInfo | None:
    """The newest entry up to ``version``; None: there is none, or the database is gone."""
    return next((info for at, info in reversed(entries) if at <= version), None)


@contextlib.contextmanager
def _unless_absent() -> Iterator[None]:
    """Keep the default for what does not exist yet or is not readable."""
    try:
        yield
    except ApplyError as error:
        if error.errno not in _ABSENT:
            raise


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
