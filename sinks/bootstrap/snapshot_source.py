"""The upstream TiDB as one snapshot (``tidb_snapshot``) that any number of connections read. [db]

Promises: reads only. Every session that ``SnapshotSource.at`` opens, on any machine, sees rows and table definitions at the same timestamp. When TiKV's
GC has passed that timestamp, the first statement raises ``SnapshotCollected``. Another product with such snapshots is a subclass: no other
part of the copy knows where it reads.
"""

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Self

from pyspark_tidb_binlog.conf.model import ApplyConfig, TargetConfig, UpstreamConfig
from pyspark_tidb_binlog.schemas.column_pairs import visible
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError, BootstrapRefused, ConfigError, ServerRefused, SnapshotCollected
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType
from pyspark_tidb_binlog.sinks.bootstrap.key_ranges import Handle, Key, KeyRange, even_boundaries, ranges_between
from pyspark_tidb_binlog.sinks.bootstrap.upstream_values import cells_of, expression, form_of, shows, whole
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import column_type
from pyspark_tidb_binlog.sinks.mysql.dialect import table_name
from pyspark_tidb_binlog.sinks.mysql.lease import Lease, look
from pyspark_tidb_binlog.sinks.mysql.literals import LiteralForm
from pyspark_tidb_binlog.sinks.mysql.password import Broadcast, Here, ShippedTarget
from pyspark_tidb_binlog.sinks.mysql.session import KeptSessions, Session, connect
from pyspark_tidb_binlog.sinks.mysql.structure import ABSENT
from pyspark_tidb_binlog.sinks.mysql.target import as_text
from pyspark_tidb_binlog.sinks.mysql.upstream_collations import account_of

_log = logging.getLogger(__name__)

_COLLECTED = frozenset({8055, 9006})
"""TiDB: the snapshot is older than the GC safe point; TiKV: the same, met while reading."""
_NO_SAFE_POINT = "tikv_gc_safe_point"
"""In TiDB's error 1105 where ``tidb_snapshot`` is set and GC has never run."""
_NO_COLUMN = 1054
_SECONDS = 300.0
"""How long one answer may take."""
_IDLE_SECONDS = 600.0
"""After how long a session that nobody uses is closed by the server."""
_EVEN_RANGES = 32
ROWID = "_tidb_rowid"
"""TiDB's name for the handle of a table without a clustered primary key."""
_INTEGERS = frozenset({ColumnType.TINYINT, ColumnType.SMALLINT, ColumnType.INT, ColumnType.MEDIUMINT, ColumnType.BIGINT})


def handle_of(columns: Sequence[ColumnInfo]) -> Handle:
    """The handle that consists of ``columns``; empty: ``_tidb_rowid``."""
    if not columns:
        return Handle((ROWID,), (ROWID,), (LiteralForm.BARE,), True)
    return Handle(
        tuple(quote_name(c.name) for c in columns),
        tuple(map(expression, columns)),
        tuple(map(form_of, columns)),
        len(columns) == 1 and columns[0].tp in _INTEGERS,
    )


class SchemaMoves(BootstrapRefused):
    """The upstream's tables at the snapshot are not those of the DDL history: a DDL is under way."""


@dataclass(frozen=True, slots=True)
class TidbServer:
    """One TiDB server of the upstream's cluster."""

    id: str
    """Its own, of this life of the process; no other server of any cluster has it."""
    address: str
    binlog: str
    """``On``, ``Off``, ``Skipping`` or ``Unknown``."""


class SnapshotSource:
    """A running TiDB and an account there. Picklable, for the executors."""

    def __init__(self, account: ShippedTarget) -> None:
        """Nothing is opened."""
        self._account = account

    @property
    def where(self) -> str:
        """Its address, for people."""
        public = self._account.public
        return public.socket or f"{public.host}:{public.port}"

    def within(self, seconds: float) -> Self:
        """The same, of which no answer may take longer. For this process alone."""
        made = copy.copy(self)
        made._account = ShippedTarget.of(replace(self._account.target(), read_timeout=seconds), Here)
        return made

    def now(self) -> int:
        """A timestamp of the cluster's own clock, taken now: all transactions up to it have committed, or will never."""
        with self._of_upstream(), self._connect() as session:
            return self._newest(session)

    @contextmanager
    def newest(self) -> Iterator[Session]:
        """A session that reads what there is now."""
        with self._of_upstream(), self._connect() as session:
            session.execute("SET SESSION autocommit = 1")
            yield session

    def gc_life_time(self, session: Session) -> str:
        """The time for which TiDB keeps old versions of rows, in its words; empty: not shown."""
        for sql in ("SELECT @@GLOBAL.tidb_gc_life_time", "SELECT variable_value FROM mysql.tidb WHERE variable_name = 'tikv_gc_life_time'"):
            try:
                found = session.query(sql)
            except ServerRefused as error:
                _log.debug("%s: %s", sql, error)
                continue
            if found:
                return as_text(found[0][0])
        return ""

    @contextmanager
    def at(self, ts: int, sessions: KeptSessions | None = None) -> Iterator[Session]:
        """A session that reads at ``ts``, from ``sessions_at`` or new. An error of the upstream in the block names the upstream.

        Raises:
            SnapshotCollected: GC has passed ``ts``, or passes it while the block reads.
            BootstrapRefused: GC has never run, so TiDB reads no snapshot.
        """
        with self._of_upstream(ts), sessions.use() if sessions is not None else self._open_at(ts) as session:
            yield session

    def sessions_at(self, ts: int) -> KeptSessions:
        """Sessions that read at ``ts``, one of which is kept for the next use."""
        return KeptSessions(lambda: self._open_at(ts), _IDLE_SECONDS)

    def sessions_of_process(self, ts: int) -> KeptSessions:
        """The sessions of this process that read at ``ts``: for executors, whose worker processes outlive their tasks. Sessions of another snapshot are closed."""
        key = (type(self), self._account.target(), ts)
        if key not in _of_this_process:
            for former in _of_this_process.values():
                former.close()
            _of_this_process.clear()
            _of_this_process[key] = self.sessions_at(ts)
        return _of_this_process[key]

    def _open_at(self, ts: int) -> Session:
        session = self._connect()
        try:
            self._stand_at(session, ts)
        except BaseException:
            session.close()
            raise
        session.opened()
        return session

    def is_target(self, held: Lease) -> bool:
        """Whether this is the very server that is written to under ``held``, by a mistake in the settings."""
        with self._of_upstream(), self._connect() as session:
            try:
                found = look(session, held.cluster_id, held.schema)
            except ServerRefused as error:
                _log.debug("the upstream does not say whether it has the lease table: %s", error)
                return False
            return found is not None and found.life == held.life

    def servers(self) -> tuple[TidbServer, ...]:
        """The TiDB servers of its cluster.

        Raises:
            ApplyError: the server does not show them: it is no TiDB, or one before 4.0.
        """
        with self._of_upstream(), self._connect() as session:
            found = session.query("SELECT ddl_id, ip, port, binlog_status FROM information_schema.tidb_servers_info")
            return tuple(TidbServer(as_text(uuid), f"{as_text(ip)}:{port}", as_text(binlog)) for uuid, ip, port, binlog in found)

    def tables(self, session: Session) -> tuple[tuple[str, str], ...]:
        """Every table, view and sequence at the session's snapshot, with its database."""
        found = session.query("SELECT table_schema, table_name FROM information_schema.tables")
        return tuple((as_text(schema), as_text(name)) for schema, name in found)

    def table_ids(self, session: Session) -> dict[tuple[str, str], int]:
        """TiDB's id of each table at the session's snapshot, by database and name in lower case; a server that does not tell: nothing."""
        try:
            found = session.query("SELECT table_schema, table_name, tidb_table_id FROM information_schema.tables")
        except ServerRefused as error:
            if error.errno != _NO_COLUMN:
                raise
            return {}
        return {(as_text(schema).lower(), as_text(table).lower()): int(table_id or 0) for schema, table, table_id in found}

    def columns(self, session: Session, table: TableAt) -> tuple[tuple[str, str], ...] | None:
        """The names and types of the table's columns at the session's snapshot, in order; None: there is no such table."""
        try:
            return tuple(
                (as_text(row[0]), as_text(row[1])) for row in session.query(f"SHOW COLUMNS FROM {table_name(table.schema, table.name)}")
            )
        except ServerRefused as error:
            if error.errno in ABSENT:
                return None
            raise

    def create_text(self, session: Session, table: TableAt) -> str:
        """The CREATE statement of the table, view or sequence, as the server writes it."""
        kind = "SEQUENCE" if table.info.is_sequence else "TABLE"
        return as_text(session.query(f"SHOW CREATE {kind} {table_name(table.schema, table.name)}")[0][1])

    def numbers_given(self, session: Session, sequence: TableAt) -> int | None:
        """The last number that is given, or in a server's cache, now: a snapshot does not hold it. None: the server does not say."""
        try:
            return next(
                (int(row[3]) - 1 for row in session.query(f"SHOW TABLE {table_name(sequence.schema, sequence.name)} NEXT_ROW_ID")), None
            )
        except ServerRefused as error:
            _log.warning(
                "%s.%s: the copy begins at its START, because its next number cannot be read: %s", sequence.schema, sequence.name, error
            )
            return None

    def ranges(self, session: Session, table: TableAt) -> tuple[KeyRange, ...]:
        """Ranges of the table's handle that hold about the same, for each partition; they need not, and nothing depends on it."""
        handle = handle_of(table.info.handle_columns())
        found: list[KeyRange] = []
        for partition in [p.name for p in table.info.partitions] or [""]:
            found += ranges_between(self._boundaries(session, table, handle, partition), partition)
        return tuple(found)

    def size(self, session: Session, table: TableAt) -> tuple[int, int]:
        """About how many rows it has, and bytes in each, as the server estimates; 0 = unknown."""
        sql = "SELECT table_rows, avg_row_length FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
        rows = session.query(sql, [table.schema, table.name])
        return (int(rows[0][0] or 0), int(rows[0][1] or 0)) if rows else (0, 0)

    # What depends on the product.

    def _newest(self, session: Session) -> int:
        session.begin()
        try:
            return int(session.query("SELECT @@tidb_current_ts")[0][0])
        finally:
            session.rollback()

    def _stand_at(self, session: Session, ts: int) -> None:
        # A transaction that is open would read at its own beginning.
        session.execute("SET SESSION autocommit = 1")
        session.execute(f"SET @@SESSION.tidb_snapshot = '{ts}'")

    def _boundaries(self, session: Session, table: TableAt, handle: Handle, partition: str) -> list[Key]:
        """The first key of each region; of versions before TABLESAMPLE (5.0) an even division of integers, or nothing."""
        source = table_name(table.schema, table.name) + (f" PARTITION ({quote_name(partition)})" if partition else "")
        asked = ", ".join(handle.expressions)
        try:
            return self._keys(session, f"SELECT {asked} FROM {source} TABLESAMPLE REGIONS() ORDER BY {', '.join(handle.names)}", handle)
        except ServerRefused as error:
            if error.errno in _COLLECTED:
                raise
            _log.info("%s.%s: the upstream gives no boundaries of regions: %s", table.schema, table.name, error)
        if not handle.integer:
            return []
        ((lowest, highest),) = session.query(f"SELECT MIN({asked}), MAX({asked}) FROM {source}")
        return [] if lowest is None else even_boundaries(int(lowest), int(highest), _EVEN_RANGES)

    def _connect(self) -> Session:
        return connect(self._account.target(), ApplyConfig(lease_timeout=_IDLE_SECONDS))

    def _keys(self, session: Session, sql: str, handle: Handle) -> list[Key]:
        with session.stream(sql) as blocks:
            return [key for block in blocks for key in zip(*map(whole, cells_of(handle.forms, block)), strict=True)]

    @contextmanager
    def _of_upstream(self, ts: int = 0) -> Iterator[None]:
        try:
            yield
        except ApplyError as error:
            if error.where != self.where:
                raise
            if error.errno in _COLLECTED:
                raise SnapshotCollected(collected_words(ts, self.where)) from error
            if _NO_SAFE_POINT in error.words:
                raise BootstrapRefused(
                    f"TiDB at {self.where} reads no snapshot, because it has no {_NO_SAFE_POINT} yet: GC has not run since the cluster was made. Start again "
                    "after the first run of GC (tidb_gc_run_interval, 10 minutes). A TiDB without TiKV, as in a playground with unistore, never runs GC"
                ) from error
            said = str(error).replace(f"target {self.where}", f"upstream TiDB {self.where}", 1)
            raise type(error)(said, error.errno, error.words, error.where) from error


_of_this_process: dict[tuple[type[SnapshotSource], TargetConfig, int], KeptSessions] = {}
"""At most one entry: the snapshot that was read last."""


def require_same(table: TableAt, there: Sequence[tuple[str, str]] | None, table_id: int) -> None:
    """Check that the upstream's table is the table of the history. ``there``: its columns' names and types; ``table_id``: TiDB's, 0 = unknown.

    Raises:
        SchemaMoves: it is another table, or has other columns, so its values would be read wrongly.
    """
    if there is not None and table_id not in (0, table.table_id):
        raise SchemaMoves(
            f"{table.schema}.{table.name} has the id {table_id} in the upstream's snapshot, and {table.table_id} in the DDL history. Either a RENAME or TRUNCATE is "
            "running: start again when it has ended. Or spark.upstream is not the cluster whose binlogs come: correct it"
        )
    wanted = visible(table.info)
    if there is None:
        raise SchemaMoves(f"{table.schema}.{table.name} is not in the upstream's snapshot, although the DDL history has it")
    if [name.lower() for name, _ in there] != [c.name.lower() for c in wanted]:
        raise SchemaMoves(
            f"{table.schema}.{table.name} has the columns {', '.join(name for name, _ in there)} in the upstream's snapshot, and "
            f"{', '.join(c.name for c in wanted)} in the DDL history: a DDL is running. Start again when it has ended"
        )
    others = [f"{c.name} {kind} instead of {column_type(c)}" for (_, kind), c in zip(there, wanted, strict=True) if not shows(kind, c)]
    if others:
        raise SchemaMoves(
            f"{table.schema}.{table.name} has other types in the upstream's snapshot than in the DDL history: {', '.join(others[:5])}. A DDL is running. "
            "Start again when it has ended"
        )


_COPY_AGAIN = (
    "For a first load, start with --bootstrap-restart. A table of a running stream is copied at the checkpoint: start without --bootstrap until the stream is "
    "nearer to the present (docs/bootstrap.md, Beyond GC). To hold GC back during a copy, raise tidb_gc_life_time"
)


def collected_words(ts: int, where: str, todo: str = _COPY_AGAIN) -> str:
    """The error of a snapshot that GC has passed, and what to do."""
    return f"TiDB at {where} cannot be read at {ts} ({as_time(ts)}) any more: GC has passed it. {todo}"


def upstream_of(config: UpstreamConfig, broadcast: Callable[[bytes], Broadcast] = Here) -> SnapshotSource:
    """The upstream that ``[spark.upstream]`` names; ``broadcast``: of Spark, for the password, where executors read, too.

    Raises:
        ConfigError: it names none.
    """
    if not config.host:
        raise ConfigError(
            "tables are read from TiDB by SQL, but spark.upstream.host is empty. Set it, and the user and password of an account with SELECT on these tables"
        )
    return SnapshotSource(ShippedTarget.of(account_of(config, _SECONDS), broadcast))
