"""What a start needs of the upstream, asked beforehand by ``drainer --check`` and ``ctl doctor``: the Pumps, the DDL history, the account of ``[spark.upstream]``.

Promises: reads only, as the account itself, with the queries of ``--bootstrap``. If nothing is to be copied, no remark about the account hinders.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark_tidb_binlog.binlog_source.cluster.discovery import OfflinePump, discovery_of
from pyspark_tidb_binlog.binlog_source.cluster.history_place import history_at
from pyspark_tidb_binlog.binlog_source.source.delivery import serving, unfit
from pyspark_tidb_binlog.binlog_source.source.departed import DepartedPumps
from pyspark_tidb_binlog.binlog_source.source.offset import BinlogOffset
from pyspark_tidb_binlog.conf.model import DrainerConfig, SourceConfig
from pyspark_tidb_binlog.jobs.entry.drainer_options import BootstrapRequest
from pyspark_tidb_binlog.jobs.stream.upstream_cluster import StreamServers, ports_at, silent_among, unverified
from pyspark_tidb_binlog.schemas.errors import ApplyError, BootstrapRefused, ConfigError, PumpUnavailable
from pyspark_tidb_binlog.schemas.events import Delivery
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.history_feed import HistoryFeed
from pyspark_tidb_binlog.schemas.remarks import Remark, hinders, note, some
from pyspark_tidb_binlog.schemas.tls import TlsSettings
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import SnapshotSource, upstream_of
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, table_name
from pyspark_tidb_binlog.sinks.mysql.rights import account_in, grants_in, reading
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.routing.replicated import Selection

_ASK_SECONDS = 5.0
"""The patience for the Pumps' answers."""
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class PumpsSeen:
    """What the registry and the Pumps answer."""

    source: SourceConfig
    cluster_id: int
    addresses: Mapping[str, str]
    """The address of each Pump that may answer."""
    states: Mapping[str, str]
    """The registered state of each Pump; none without a registry."""
    offline: Mapping[str, OfflinePump]
    trouble: Mapping[str, str]
    """Why a Pump does not serve this stream; those that are registered as offline are among them."""
    absent: str = ""
    """Why no Pump is known, though the cluster's id is."""

    @property
    def unfit(self) -> dict[str, str]:
        """By id, why a Pump that may answer does not serve this stream."""
        return {pump: why for pump, why in self.trouble.items() if pump in self.addresses}

    def unread(self, resolved_ts: int) -> dict[str, str]:
        """By id, the Pumps that are registered as offline and end a stream at ``resolved_ts``, which may not have read them, and why."""
        before, found = BinlogOffset(Delivery.SORTED, resolved_ts, 0, {}), {}
        silent = {pump: why for pump, why in self.trouble.items() if pump not in self.addresses}
        for pump, gone in self.offline.items():
            if gone.upto_ts > resolved_ts:
                try:
                    DepartedPumps(self.source, 0.0).membership(before, {pump: gone.address}, {pump: gone}, silent)
                except PumpUnavailable as error:
                    found[pump] = str(error)
        return found


def ask_pumps(config: DrainerConfig) -> PumpsSeen:
    """Ask the registry for the Pumps and the cluster's id, and each Pump whether it serves this stream.

    Raises:
        PumpUnavailable: the registry does not answer.
    """
    source = config.source
    with contextlib.closing(discovery_of(source)) as discovery:
        cluster_id = source.cluster_id or discovery.cluster_id()
        try:
            addresses = serving(discovery)
        except PumpUnavailable as error:
            return PumpsSeen(source, cluster_id, {}, {}, {}, {}, str(error))
        offline = discovery.offline()
        asked = {pump: gone.address for pump, gone in offline.items()} | dict(addresses)
        return PumpsSeen(source, cluster_id, addresses, discovery.states(), offline, unfit(source, discovery, asked, _ASK_SECONDS))


@dataclass(frozen=True, slots=True)
class HistorySeen:
    """What the TiDB servers answer."""

    history: SchemaHistory
    servers: StreamServers
    versions: Mapping[str, str] = field(default_factory=dict)
    """The version of each TiDB server, by its address, if a status port reports them."""
    silent: tuple[str, ...] | None = None
    """The servers that write no binlogs, though others do, in words; None = not known."""


def read_history(config: DrainerConfig) -> HistorySeen:
    """Read the DDL history.

    Raises:
        HistoryUnavailable, PumpUnavailable: no status port answers.
    """
    tls = TlsSettings.of(config.source.security)
    where = history_at(config.source, tls)
    found = HistorySeen(HistoryFeed(where, None, tls).snapshot(), lambda: ports_at(where, tls).servers())
    with contextlib.suppress(PumpUnavailable):
        ports = ports_at(where, tls)
        found = replace(found, versions=ports.versions())
        found = replace(found, silent=tuple(server.words for server in silent_among(ports.binlogs())))
    return found


@dataclass(frozen=True, slots=True)
class UpstreamSight:
    """What the checks know of the stream's side."""

    cluster_id: int
    history: SchemaHistory | None
    servers: StreamServers

    @classmethod
    def of(cls, config: DrainerConfig, pumps: PumpsSeen | None, known: HistorySeen | None) -> "UpstreamSight":
        """``pumps``, ``known``: None = they do not answer."""
        cluster_id = pumps.cluster_id if pumps is not None else config.source.cluster_id
        return cls(cluster_id, known.history, known.servers) if known is not None else cls(cluster_id, None, dict)


def upstream_remarks(
    config: DrainerConfig, request: BootstrapRequest, sight: UpstreamSight, source: SnapshotSource | None = None
) -> Iterator[Remark]:
    """The remarks about the upstream's account. ``source`` None: ``[spark.upstream]``."""
    if source is None and not config.upstream.host:
        if request:
            yield hinders(
                "spark.upstream", f"names no TiDB, and {request.flag} copies from it", "set spark.upstream.host, user and password"
            )
        return
    if request and config.apply.db_type not in ("mysql", "tidb", "lake"):
        yield hinders("syncer.db-type", f"{config.apply.db_type} has no tables for {request.flag} to fill", "start without the flag")
    for remark in _account(config, sight, source or upstream_of(config.upstream)):
        yield remark if request else replace(remark, hinders=False)


def _account(config: DrainerConfig, sight: UpstreamSight, source: SnapshotSource) -> Iterator[Remark]:
    where = f"spark.upstream {source.where}"
    try:
        with source.newest() as session:
            if session.flavour is not Flavour.TIDB:
                yield hinders(where, f"is no TiDB ({session.version})", "name a TiDB server of the upstream")
                return
            history = sight.history
            yield from _rights(session, where, Selection.of(config.apply).live(history, history.newest_version) if history else ())
            yield _collection(source.gc_life_time(session), where, holds_gc=config.source.pumps.startswith("pd://"))
    except (ApplyError, ConfigError) as error:
        yield hinders(where, str(error), "correct spark.upstream.host, port, user or password, or start the server")
        return
    try:  # whether the account may read a snapshot at all, of a moment that has just passed
        with source.at(source.now()) as session:
            source.tables(session)
    except BootstrapRefused as error:
        yield hinders(where, f"no snapshot can be read: {error}", "")
    except ApplyError as error:
        yield hinders(where, f"no snapshot can be read: {error}", "let the account run this statement: every copy begins with it")
    yield from _cluster(source, where, sight)


def _rights(session: Session, where: str, tables: Sequence[TableAt]) -> Iterator[Remark]:
    account, granted = account_in(session), grants_in(session)
    databases = sorted({table.schema for table in tables})
    views = any(table.info.is_view for table in tables)
    yield note(f"account {account} at {where}", "needs these rights, and no others", "; ".join(reading(databases, account, views=views)))
    covered = {name for name in databases if any(one.covers("SELECT", name) for one in granted)}
    asked = (t for t in tables if t.schema not in covered and not t.info.is_sequence)
    if unread := [f"{t.schema}.{t.name}" for t in asked if not _may_read(session, t)]:
        yield hinders(
            f"account {account} at {where}", f"may not read {some(unread, _SHOWN)}: they cannot be copied", "grant it SELECT on them"
        )


def _may_read(session: Session, table: TableAt) -> bool:
    try:
        session.query(f"SELECT 1 FROM {table_name(table.schema, table.name)} LIMIT 0")
    except ApplyError:
        return False
    return True


def _collection(life: str, where: str, *, holds_gc: bool) -> Remark:
    """How long GC keeps a snapshot. ``life``: ``tidb_gc_life_time``; empty: not known."""
    if not life:
        what = "does not report tidb_gc_life_time, which limits how long a snapshot is readable"
        return note(where, what, "finish a copy within that time")
    if holds_gc:
        what = f"tidb_gc_life_time is {life}; PD keeps GC behind the snapshot while the Drainer copies, but not between two starts"
        return note(where, what)
    what = f"tidb_gc_life_time is {life}, and nothing holds GC back, because PD is not the registry: a copy must end within that time"
    return note(where, what, "SET GLOBAL tidb_gc_life_time = '24h' while tables are copied")


def _cluster(source: SnapshotSource, where: str, sight: UpstreamSight) -> Iterator[Remark]:
    of_stream = f"cluster {sight.cluster_id}, whose binlogs the stream reads"
    try:
        why = unverified(source, sight.cluster_id, sight.servers)
        silent = silent_among({server.address: server.binlog for server in source.servers()})
    except BootstrapRefused as error:
        yield hinders(where, str(error), "set spark.upstream to a TiDB of the stream's cluster")
        return
    except ApplyError as error:
        yield note(where, f"does not report its TiDB servers: {error}", f"make sure that it belongs to {of_stream}")
        return
    if why:
        yield note(where, f"cannot be verified to belong to {of_stream}: {why}")
    for server in silent:
        what = f"TiDB server {server.address} has binlog {server.status}: rows written through this server never reach the stream"
        todo = "enable binlog there (binlog.enable), or recover it (POST /binlog/recover at its status port), before tables are copied"
        yield hinders(where, what, todo)
