"""The remarks of ``drainer --check`` about ``[spark.upstream]``: is it a TiDB of the stream's cluster, may the account read, how long does GC keep a snapshot?

Promises: reads only, as the account itself, with the queries of ``--bootstrap``. If nothing is to be copied, no remark hinders.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.jobs.entry.drainer_options import BootstrapRequest
from pyspark_tidb_binlog.jobs.stream.upstream_cluster import StreamServers, unverified
from pyspark_tidb_binlog.schemas.errors import ApplyError, BootstrapRefused, ConfigError
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.remarks import Remark, hinders, note
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import SnapshotSource, upstream_of
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, table_name
from pyspark_tidb_binlog.sinks.mysql.rights import read_grants, reading
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.routing.replicated import Selection

_SHOWN = 5
_LET_IT = "let the account run this statement: every copy begins with it"


@dataclass(frozen=True, slots=True)
class UpstreamSight:
    """What the check knows of the stream's side."""

    cluster_id: int
    history: SchemaHistory | None
    servers: StreamServers


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
    account = _Account(config, request, sight, source or upstream_of(config.upstream))
    for remark in account.remarks():
        yield remark if request else replace(remark, hinders=False)


class _Account:
    def __init__(self, config: DrainerConfig, request: BootstrapRequest, sight: UpstreamSight, source: SnapshotSource) -> None:
        self._selection = Selection.of(config.apply)
        self._holds_gc = config.source.pumps.startswith("pd://")
        self._request = request
        self._sight = sight
        self._source = source
        self._where = f"spark.upstream {source.where}"

    def remarks(self) -> Iterator[Remark]:
        source, where = self._source, self._where
        try:
            with source.newest() as session:
                if session.flavour is not Flavour.TIDB:
                    yield hinders(where, f"is no TiDB ({session.version})", "name a TiDB server of the upstream")
                    return
                yield from self._rights(session)
                yield from self._collection(session)
        except (ApplyError, ConfigError) as error:
            yield hinders(where, str(error), "correct spark.upstream.host, port, user or password, or start the server")
            return
        yield from self._snapshot()
        yield from self._cluster()

    def _tables(self) -> Sequence[TableAt]:
        history = self._sight.history
        return self._selection.live(history, history.newest_version) if history is not None else ()

    def _rights(self, session: Session) -> Iterator[Remark]:
        tables = self._tables()
        account = str(session.query("SELECT CURRENT_USER()")[0][0])
        user, _, host = account.rpartition("@")
        granted = read_grants(str(line[0]) for line in session.query("SHOW GRANTS"))
        databases = sorted({table.schema for table in tables})
        views = any(table.info.is_view for table in tables)
        yield note(
            f"account '{user}'@'{host}' at {self._where}",
            "needs these rights, and no others",
            "; ".join(reading(databases, f"'{user}'@'{host}'", views=views)),
        )
        covered = {name for name in databases if any(one.covers("SELECT", name) for one in granted)}
        unread = [
            f"{t.schema}.{t.name}" for t in tables if t.schema not in covered and not t.info.is_sequence and not _may_read(session, t)
        ]
        if unread:
            shown = ", ".join(unread[:_SHOWN]) + (f" and {len(unread) - _SHOWN} more" if len(unread) > _SHOWN else "")
            yield hinders(
                f"account '{user}'@'{host}' at {self._where}", f"may not read {shown}: they cannot be copied", "grant it SELECT on them"
            )

    def _collection(self, session: Session) -> Iterator[Remark]:
        life = self._source.gc_life_time(session)
        if not life:
            yield note(
                self._where,
                "does not report tidb_gc_life_time, which limits how long a snapshot is readable",
                "finish a copy within that time",
            )
        elif self._holds_gc:
            yield note(
                self._where,
                f"tidb_gc_life_time is {life}; PD keeps GC behind the snapshot while the Drainer copies, but not between two starts",
            )
        else:
            yield note(
                self._where,
                f"tidb_gc_life_time is {life}, and nothing holds GC back, because PD is not the registry: a copy must end within that time",
                "SET GLOBAL tidb_gc_life_time = '24h' while tables are copied",
            )

    def _snapshot(self) -> Iterator[Remark]:
        """Whether the account may read a snapshot at all, of a moment that has just passed."""
        try:
            with self._source.at(self._source.now()) as session:
                self._source.tables(session)
        except (BootstrapRefused, ApplyError) as error:
            yield hinders(self._where, f"no snapshot can be read: {error}", "" if isinstance(error, BootstrapRefused) else _LET_IT)

    def _cluster(self) -> Iterator[Remark]:
        try:
            why = unverified(self._source, self._sight.cluster_id, self._sight.servers)
            deaf = [server for server in self._source.servers() if server.binlog.lower() not in ("on", "")]
        except BootstrapRefused as error:
            yield hinders(self._where, str(error), "set spark.upstream to a TiDB of the stream's cluster")
            return
        except ApplyError as error:
            yield note(
                self._where,
                f"does not report its TiDB servers: {error}",
                f"make sure that it belongs to cluster {self._sight.cluster_id}, whose binlogs the stream reads",
            )
            return
        if why:
            yield note(
                self._where, f"cannot be verified to belong to cluster {self._sight.cluster_id}, whose binlogs the stream reads: {why}"
            )
        for server in deaf:
            yield hinders(
                self._where,
                f"TiDB server {server.address} has binlog {server.binlog}: rows written through this server never reach the stream",
                "enable binlog there (binlog.enable), or recover it (POST /binlog/recover at its status port), before tables are copied",
            )


def _may_read(session: Session, table: TableAt) -> bool:
    try:
        session.query(f"SELECT 1 FROM {table_name(table.schema, table.name)} LIMIT 0")
    except ApplyError:
        return False
    return True
