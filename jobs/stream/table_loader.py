"""``drainer --bootstrap``: when tables are copied from the upstream, at which snapshot, and when the stream may begin. [spark]

A first load copies all tables at the current timestamp into a target without a checkpoint; the stream then begins there. Tables of an existing stream
are copied at its checkpoint, before it continues: no other table is affected, and no transaction is filtered by table.

Into a lake, tables are loaded beside the stream (``sinks/lake/mirrors.py``): here it is decided which, and where a stream of all tables begins.

Promises: the stream never begins on a partly copied table. A start first finishes the copy of an earlier start, with or without the flag. If that is not
possible, ``BootstrapRefused`` says why and what to do. If PD is the registry, GC stays behind the snapshot while it is read.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.cluster.gc_hold import GcHold
from pyspark_tidb_binlog.binlog_source.cluster.pd import PdRegistry
from pyspark_tidb_binlog.binlog_source.cluster.registry import Registry
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.conf.setting import did_you_mean
from pyspark_tidb_binlog.jobs.entry.cli import replication_error_in
from pyspark_tidb_binlog.jobs.entry.drainer_options import BootstrapRequest, named_tables
from pyspark_tidb_binlog.jobs.stream.upstream_cluster import StreamServers, unverified
from pyspark_tidb_binlog.schemas.ddl_jobs import Job
from pyspark_tidb_binlog.schemas.errors import BootstrapRefused, ConfigError, ReplicationError, Stopped
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.schema_snapshot import table_as_job
from pyspark_tidb_binlog.sinks.bootstrap.bootstrap import Bootstrap
from pyspark_tidb_binlog.sinks.bootstrap.copy_record import TABLE, CopyHead, CopyKind, CopyProgress, CopyRecord, CopyState, RecordedCopy
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import SchemaMoves, SnapshotSource, upstream_of
from pyspark_tidb_binlog.sinks.bootstrap.target_tables import FILL_IT, TargetTables, none_there
from pyspark_tidb_binlog.sinks.engine.frozen import FrozenTables
from pyspark_tidb_binlog.sinks.mysql.checkpoint_row import TargetCheckpoint
from pyspark_tidb_binlog.sinks.mysql.elsewhere import table_in_target
from pyspark_tidb_binlog.sinks.mysql.lease import Lease
from pyspark_tidb_binlog.sinks.mysql.lease_guard import fenced
from pyspark_tidb_binlog.sinks.mysql.retry_policy import RetryPolicy, patient, retrying
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect, session_for
from pyspark_tidb_binlog.sinks.mysql.structure import tables_in
from pyspark_tidb_binlog.sinks.routing.replicated import Selection

A = TypeVar("A")
_log = logging.getLogger(__name__)

_TRIES = 10
"""How many snapshots a first load tries while DDLs are running."""
_PAUSE_SECONDS = 1.0
_MADE_BY_TIDB = frozenset({"information_schema", "performance_schema", "metrics_schema", "inspection_schema", "mysql", "sys"})


@dataclass(frozen=True, slots=True)
class StreamStand:
    """The state of a stream's target when tables of it are to be copied."""

    commit_ts: int
    version: int
    history: SchemaHistory
    frozen: FrozenTables


class TableLoader:
    """Copies the requested tables, and the unfinished ones of an earlier start, in one start of a Drainer."""

    def __init__(
        self,
        spark: SparkSession,
        config: DrainerConfig,
        request: BootstrapRequest,
        stop: threading.Event,
        upstream: SnapshotSource | None = None,
        servers: StreamServers = dict,
        begins: Callable[[], object] = lambda: None,
        registry: Registry | None = None,
    ) -> None:
        """``config`` has its cluster id. ``upstream`` None: ``[spark.upstream]``. ``servers``: the stream's cluster. ``begins`` is called before the first copy.
        ``registry``: where GC is held, if it is PD.

        Raises:
            ConfigError: the settings name no upstream, or a target without tables.
        """
        self._spark = spark
        self._config = config
        self._selection = Selection.of(config.apply)
        self._request = request
        self._stop = stop
        self._upstream = upstream
        self._servers = servers
        self._looked = False
        self._begins = begins
        self._registry = registry
        self._running: Bootstrap | None = None
        self._loaded: tuple[int, frozenset[tuple[str, str]]] | None = None
        self._is_server = config.apply.db_type in ("mysql", "tidb")
        self._is_lake = config.apply.db_type == "lake"
        if request.restart and self._is_lake:
            raise ConfigError(
                "--bootstrap-restart: a lake loads each table from its beginning, and goes on with the next one; remove the flag"
            )
        if request and not (self._is_lake or self._is_server):
            raise ConfigError(f"{request.flag}: syncer.db-type = {config.apply.db_type!r} has no tables to fill; remove the flag")
        if request and config.apply.loopback_control:
            raise ConfigError(
                f"{request.flag}: in a ring (syncer.loopback-control) the target's own Drainer would send the emptying of the table back; copy the table by a dump"
            )
        if request:
            self.source()

    @property
    def words(self) -> str:
        """The progress of the copy in words; empty = no copy runs."""
        if self._running is None:
            return ""
        copied = self.copied
        return copied.words() if copied is not None else "looking at the tables that are to be copied"

    @property
    def copied(self) -> CopyProgress | None:
        """The same in numbers; None = no copy runs, or it is not known yet."""
        running = self._running
        return running.copied if running is not None else None

    def first_load(self, held: Callable[[], Lease], commit_ts: int | None, history_at: Callable[[int, bool], SchemaHistory]) -> int | None:
        """Fill a target without a checkpoint, if a first load is requested or unfinished. Returns where the stream begins; None: no first load.

        Args:
            held: the lease.
            commit_ts: the target's checkpoint.
            history_at: extends the DDL history to a timestamp, and returns it; True: an earlier start has begun there.
        """
        if self._is_lake:
            if commit_ts is not None or not self._request.everything:
                return None
            return self._at_newest(lambda ts: self._begun_lake(ts, history_at(ts, False)))
        if not self._is_server:
            return None
        record = self._record()
        if commit_ts is not None:
            if self._request.everything:
                _log.warning(
                    "--bootstrap-all: the target already has a checkpoint, %d (%s), so nothing is copied; the stream continues there",
                    commit_ts,
                    as_time(commit_ts),
                )
            return None
        first = record if record is not None and record.head.kind is CopyKind.FIRST else None
        if first is not None and not first.joined and not self._request.restart:
            return self._load_all(held(), first.head.ts, history_at(first.head.ts, True))
        if not self._request.everything and not (first is not None and not first.joined):
            if self._request.tables:
                raise BootstrapRefused(
                    "--bootstrap DB.TABLE copies tables at the stream's checkpoint, but the target has no checkpoint: fill the target with --bootstrap-all"
                )
            if self._request.restart:
                raise BootstrapRefused(
                    "--bootstrap-restart: the target has no checkpoint and no record of an unfinished first load. To copy everything, start with "
                    "--bootstrap-all --bootstrap-restart, which removes the rows of an earlier first load"
                )
            if first is not None:
                _log.warning(
                    "the target has a finished first load at %d (%s), but its checkpoint is gone: the stream begins as on a new target. "
                    "To copy everything again, start with --bootstrap-all --bootstrap-restart",
                    first.head.ts,
                    as_time(first.head.ts),
                )
            return None
        self._require_upstream(held())
        return self._at_newest(lambda ts: self._load_all(held(), ts, history_at(ts, False)))

    def unfilled(self, begin_ts: int, history: Callable[[], SchemaHistory]) -> str:
        """The error of a target that a stream begins on at ``begin_ts`` and that has no table of that moment; empty: it has one, or needs none."""
        if not self._is_server:
            return ""
        known = history()
        tables = [t for t in map(self._selection.routes.moved, self._selection.live(known, known.version_at(begin_ts))) if t.has_rows]
        names = [(t.schema, t.name) for t in tables]
        schemas = sorted({schema for schema, _ in names})
        there = self._asked(lambda session: {(schema, name) for schema in schemas for name in tables_in(session, schema)})
        if not names or any((schema, name.lower()) in there for schema, name in names):
            return ""
        return f"{none_there([f'{schema}.{name}' for schema, name in names])}: {FILL_IT}"

    def _at_newest(self, load: Callable[[int], int]) -> int:
        """``load`` at a timestamp of now, and at others while DDLs are running."""
        for attempt in range(_TRIES):
            ts = self.source().now()
            try:
                return load(ts)
            except SchemaMoves as error:
                after = self._record() if self._is_server else None
                if attempt == _TRIES - 1 or (after is not None and after.begun and after.head.ts == ts):
                    raise
                _log.warning("the first load tries another snapshot: %s", error)
                self._wait()
        raise AssertionError("the loop above returns or raises")

    # A lake.

    def _begun_lake(self, ts: int, history: SchemaHistory) -> int:
        """The ts at which the stream begins that all tables are loaded for: ``ts``, if the DDL history has them all."""
        self.of_cluster()
        self._require_same_tables(ts, self._selection.live(history, history.version_at(ts)))
        return ts

    def of_first_lake(self, history: SchemaHistory, version: int) -> Sequence[Job]:
        """The tables of a lake that begins at a schema version, to be loaded."""
        return self.requested(StreamStand(0, version, history, {})) if self._request.everything else ()

    def requested(self, stand: StreamStand) -> Sequence[Job]:
        """The tables that this start is to load into the lake.

        Raises:
            BootstrapRefused: one is not replicated, or unknown.
        """
        if self._request.everything:
            tables = [t for t in self._selection.live(stand.history, stand.version) if not t.info.is_view and not t.info.is_sequence]
        else:
            tables = self._named("--bootstrap", self._request.tables, stand)
        return [table_as_job(table, stand.history) for table in tables]

    def named(self, names: str, stand: StreamStand) -> Sequence[Job]:
        """The tables ``names`` (``DB.TABLE,...``, as upstream), to be loaded into the lake by a Drainer that runs.

        Raises:
            ReplicationError: the target is no lake, there is no upstream, or a table is not replicated, or unknown.
        """
        if not self._is_lake:
            raise ConfigError("this Drainer cannot load a table beside its stream: its target is no lake")
        self.source()
        return [table_as_job(table, stand.history) for table in self._named("reload-tables", named_tables(names, "reload-tables"), stand)]

    def of_stream(self, held: Lease, stand: StreamStand) -> None:
        """Copy tables of a stream at its checkpoint, before the stream continues; then record that the stream has joined them.

        Raises:
            BootstrapRefused: the copy is not possible, or a partly copied table cannot be finished.
        """
        if not self._is_server:
            return
        record = self._settled(held, stand)
        begun = record is not None and record.begun
        left = self._left(record)
        wanted = self._named("--bootstrap", self._request.tables, stand)
        if left and record is not None and begun and record.head.kind is CopyKind.FIRST and not self._request.restart:
            raise BootstrapRefused(
                f"a first load at {record.head.ts} ({as_time(record.head.ts)}) is unfinished, but the target has a checkpoint, {stand.commit_ts}. Start with "
                "--bootstrap-restart: it empties every table of that load and copies it again, at the checkpoint. Create missing views and sequences by hand. "
                "If the tables were filled up to that checkpoint by other means, delete the cluster's rows from "
                f"{held.schema}.{TABLE} instead"
            )
        if not left and not wanted:
            if record is not None and record.head.state is CopyState.DONE:
                self._note(held, CopyRecord.note_joined)
            if self._request.restart:
                _log.warning(
                    "--bootstrap-restart: no copy is unfinished, so nothing is copied; to copy tables of a stream, use --bootstrap DB.TABLE"
                )
            if record is not None and record.unfinished:
                _log.warning("the unfinished copy has only tables that are not replicated any more; it stays unfinished")
            return
        self._require_source(left)
        self._require_upstream(held)
        self._require_whole(held, stand)
        everything = self._to_copy(record, stand, wanted, left)
        for table in everything:
            if (at := stand.frozen.get(table.table_id)) is not None:
                raise BootstrapRefused(f"{table.schema}.{table.name} cannot be copied: {at.words}. Then start again")
        head = CopyHead(CopyKind.TABLES, stand.commit_ts)
        self._run(held, head, everything, (), stand.history, stand.version)
        self._note(held, CopyRecord.note_joined)

    def _note(self, held: Lease, note: Callable[[CopyRecord], object]) -> None:
        for attempt in retrying(self._policy):
            with attempt, fenced(self._connect, held, attempt) as session:
                note(CopyRecord(session, held.cluster_id, held.schema))

    def _settled(self, held: Lease, stand: StreamStand) -> RecordedCopy | None:
        """The record of the copy. If the target has lost a part of the first load (a crash, a fail-over to a replica), that part is copied again first."""
        record = self._record()
        first = record if record is not None and record.head.kind is CopyKind.FIRST else None
        left = self._left(first)
        if first is not None and first.head.ts == stand.commit_ts:
            known = {(t.schema, t.name) for t in first.tables}
            lost = self._loaded is not None and not self._loaded[1] <= known
            lost = lost or (first.begun and not self._request.restart and (bool(left) or self._can_read()))
        else:
            lost = self._loaded is not None and self._loaded[0] == stand.commit_ts
        if lost and self._is_whole(held, stand):
            self._require_source(left)
            _log.warning(
                "the target has the checkpoint of the first load at %d (%s), but has lost transactions of that load; "
                "the load continues where the target is",
                *(stand.commit_ts, as_time(stand.commit_ts)),
            )
            self._load_all(held, stand.commit_ts, stand.history)
            return self._record()
        if first is None or not first.begun or left:
            return record
        _log.warning(
            "the first load at %d (%s) has copied all its tables, but the target has no record of its end; check that its views and sequences exist",
            *(first.head.ts, as_time(first.head.ts)),
        )
        copied = [t.key for t in first.tables if t.state is CopyState.DONE]
        self._note(held, lambda record: record.note_all_done(copied))
        return self._record()

    def _left(self, record: RecordedCopy | None) -> list[tuple[str, str]]:
        """The replicated tables whose copy is not complete."""
        keeps = self._selection.tables.keeps
        return [(t.schema, t.name) for t in record.unfinished if keeps(t.schema, t.name)] if record else []

    def _can_read(self) -> bool:
        try:
            self.source()
        except ConfigError:
            return False
        return True

    # A first load.

    def _load_all(self, held: Lease, ts: int, history: SchemaHistory) -> int:
        """Fill the target with all tables as of ``ts``, which is returned."""
        self._loaded = None
        version = history.version_at(ts)
        live = self._selection.live(history, version)
        if why := self._selection.routes.wrong(live, history):
            raise ConfigError(f"spark.route: {why}")
        record, head = self._record(), CopyHead(CopyKind.FIRST, ts)
        tables = [t for t in live if not t.info.is_view and not t.info.is_sequence]
        others = [t for t in live if t.info.is_view or t.info.is_sequence]
        names = frozenset((t.schema, t.name) for t in tables)
        goes_on = record if record is not None and not self._request.restart and record.goes_on_at(head) else None
        if goes_on is None:
            self._require_same_tables(ts, live)
        if goes_on is not None and not goes_on.begun and names <= {(t.schema, t.name) for t in goes_on.tables}:
            copied = [t for t in goes_on.tables if (t.schema, t.name) in names]
            self._asked(lambda session: TargetTables(session, self._config.apply, held).require_still_there(copied))
        else:
            self._run(held, head, tables, others, history, version)
        self._loaded = ts, names
        return ts

    def _require_same_tables(self, ts: int, live: Sequence[TableAt]) -> None:
        with self.source().at(ts) as session:
            there = {(s.lower(), t.lower()) for s, t in self.source().tables(session) if self._selection.tables.keeps(s, t)}
        there = {name for name in there if name[0] not in _MADE_BY_TIDB}
        known = {(t.schema.lower(), t.name.lower()) for t in live if t.schema.lower() not in _MADE_BY_TIDB}
        if different := sorted(there ^ known):
            shown = ", ".join(f"{s}.{t}" for s, t in different[:5])
            raise SchemaMoves(
                f"the upstream's tables at {ts} are not those of the DDL history: {shown}. If no DDL is running, grant SELECT on them to the account of "
                "spark.upstream; or, if the DDL history does not reach back to their creation, set syncer.load-schema-snapshot = true"
            )

    # Tables of a stream.

    def _named(self, asking: str, names: Sequence[tuple[str, str]], stand: StreamStand) -> list[TableAt]:
        """The tables that are named, as they are at the checkpoint; ``asking``: what names them, for messages."""
        live = [t for t in self._selection.live(stand.history, stand.version) if not t.info.is_view and not t.info.is_sequence]
        found: dict[int, TableAt] = {}
        for schema, name in names:
            chosen = [t for t in live if t.schema.lower() == schema.lower() and name.lower() in ("*", t.name.lower())]
            if not chosen:
                meant = did_you_mean(f"{schema}.{name}", (f"{t.schema}.{t.name}" for t in live))
                raise BootstrapRefused(
                    f"{asking} {schema}.{name}: no such table is replicated at the checkpoint {stand.commit_ts} ({as_time(stand.commit_ts)})"
                    + (meant or "; give its name upstream, and check the filters")
                )
            found |= {t.table_id: t for t in chosen}
        return list(found.values())

    def _to_copy(
        self, record: RecordedCopy | None, stand: StreamStand, wanted: Sequence[TableAt], left: Sequence[tuple[str, str]]
    ) -> list[TableAt]:
        """The requested and the unfinished tables; of a continued copy also the finished ones, which its record names."""
        names = set(left)
        goes_on = record is not None and record.head.ts == stand.commit_ts and not self._request.restart
        if record is not None and record.begun and (goes_on or record.head.kind is CopyKind.FIRST):
            names |= {(t.schema, t.name) for t in record.tables}
        live = {(t.schema, t.name): t for t in self._selection.live(stand.history, stand.version)}
        gone = sorted(name for name in names if name not in live)
        for schema, name in gone:
            _log.warning("%s.%s is not copied: it is not replicated any more", schema, name)
        found = {t.table_id: t for t in (*wanted, *(live[name] for name in names if name in live))}
        return [found[i] for i in sorted(found)]

    def _require_source(self, left: Sequence[tuple[str, str]]) -> None:
        try:
            self.source()
        except ConfigError as error:
            names = ", ".join(f"{schema}.{name}" for schema, name in left[:5])
            raise BootstrapRefused(
                f"an earlier start with --bootstrap did not finish copying {names}: the target has only a part, so the stream may not begin. "
                f"To finish the copy: {error}; to continue without these tables, set syncer.ignore-table"
            ) from error

    def _is_whole(self, held: Lease, stand: StreamStand) -> bool:
        table = table_in_target(self._config)
        found = self._asked(TargetCheckpoint(held.cluster_id, held.schema, table).load)
        return found is not None and found.consistent and found.commit_ts == stand.commit_ts

    def _require_whole(self, held: Lease, stand: StreamStand) -> None:
        if not self._is_whole(held, stand):
            raise BootstrapRefused(
                f"the target is not consistent at its checkpoint {stand.commit_ts}: an earlier start, or another Drainer, has applied a part of later "
                'transactions. Start without --bootstrap until the checkpoint says "consistent":true, stop, and start with --bootstrap again'
            )

    # Both.

    def _require_upstream(self, held: Lease) -> None:
        """Refuse an upstream that is the target, or a TiDB of another cluster, as far as the servers' ids show it."""
        if not self._looked and self.source().is_target(held):
            raise BootstrapRefused(
                f"spark.upstream ({self.source().where}) is the target itself: the copy would empty its tables. Correct spark.upstream or syncer.to"
            )
        self._require_cluster(held.cluster_id)

    def _require_cluster(self, cluster_id: int) -> None:
        if self._looked:
            return
        upstream = self.source()
        if why := unverified(upstream, cluster_id, self._servers):
            _log.warning(
                "cannot verify that spark.upstream (%s) belongs to cluster %d, whose binlogs the stream reads; only the names and ids of its tables are compared: %s",
                *(upstream.where, cluster_id, why),
            )
        else:
            _log.info("spark.upstream (%s) belongs to cluster %d, whose binlogs the stream reads", upstream.where, cluster_id)
        self._looked = True

    def _run(
        self, held: Lease, head: CopyHead, tables: Sequence[TableAt], others: Sequence[TableAt], history: SchemaHistory, version: int
    ) -> None:
        self._require_upstream(held)
        self._begins()
        with self.gc_held(head.ts):
            self._running = Bootstrap(
                self._spark, self._config, held, self.source(), history, version, self._stop, removes=self._request.restart
            )
            try:
                done = self._running.run(head, tables, others)
            except PySparkException as error:
                text = replication_error_in(str(error))
                raise (ReplicationError(text) if text else error) from error
            finally:
                self._running = None
        _log.info(
            "copied %d tables with %d rows to the target, as of %d, in %.0f s (%.0f rows/s)",
            *(done.tables, done.rows, head.ts, done.seconds, done.rows / max(done.seconds, 0.1)),
        )

    @contextlib.contextmanager
    def gc_held(self, ts: int, reached: Callable[[], int] = lambda: 0) -> Iterator[None]:
        """Keep GC behind ``ts`` in the block, and behind what is ``reached`` once that is later, if PD is the registry."""
        if not isinstance(self._registry, PdRegistry):
            yield
            return
        hold = GcHold(self._registry, lambda: max(ts, reached()))
        try:
            yield
        finally:
            hold.stop()

    def source(self) -> SnapshotSource:
        """The upstream.

        Raises:
            ConfigError: the settings name none.
        """
        if self._upstream is None:
            self._upstream = upstream_of(self._config.upstream, self._spark.sparkContext.broadcast)
        return self._upstream

    def of_cluster(self) -> SnapshotSource:
        """The upstream, whose servers were asked which cluster it is.

        Raises:
            ConfigError: the settings name none.
            BootstrapRefused: it is another cluster's.
            RetryableApplyError: it does not answer.
        """
        self._require_cluster(self._config.source.cluster_id)
        return self.source()

    def _record(self) -> RecordedCopy | None:
        cluster_id, schema = self._config.source.cluster_id, self._config.apply.checkpoint_schema
        return self._asked(lambda session: CopyRecord(session, cluster_id, schema).load())

    def _asked(self, ask: Callable[[Session], A]) -> A:
        """What the target answers, asked again while its errors are transient."""
        for attempt in retrying(self._policy):
            with attempt, session_for(self._connect, attempt) as session:
                answer = ask(session)
        return answer

    def _connect(self) -> Session:
        return connect(self._config.target, self._config.apply)

    @property
    def _policy(self) -> RetryPolicy:
        return patient(self._config.apply.retry_seconds, self._wait)

    def _wait(self, seconds: float = _PAUSE_SECONDS) -> None:
        if self._stop.wait(seconds):
            raise Stopped("stopped before tables were copied")
