"""Every setting as a field of a frozen, validated dataclass, with its default and unit.

Promises: pure; an invalid value raises ``ValueError`` in ``__post_init__``, naming the setting.
``conf/drainer.toml`` and ``conf/pump.toml`` repeat the defaults with comments; a test keeps them equal.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark_tidb_binlog.conf.sql_mode import refusals
from pyspark_tidb_binlog.conf.units import days_or_duration, pause_of, size_of


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


LOG_LEVELS = ("debug", "info", "warn", "error")


def _require_log_level(level: str) -> None:
    _require(level in LOG_LEVELS, f"log-level: {level!r} is not debug, info, warn or error")


def _require_parsed(config: object, name: str, parse: Callable[[str], float], table: str = "") -> None:
    try:
        parse(getattr(config, name))
    except ValueError as error:
        raise ValueError(f"{table}{name.replace('_', '-')}: {error}") from None


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """Where binlogs come from. TOML table ``[source]``; also the options of ``format("tidb_binlog")``."""

    pumps: str = ""
    """``host:port,host:port``, or the registry's URL: ``http://host:port``, or ``pd://host:port,host:port`` for PD."""
    cluster_id: int = 0
    """Cluster id that Pumps check; 0 = ask the registry."""
    delivery: str = ""
    """``sorted``, ``raw`` or empty: raw when every Pump offers it, else sorted."""
    starting_commit_ts: int = -1
    """Where to start without a checkpoint: exclusive TSO, 0 = the beginning, -1 = now."""
    ending_commit_ts: int = 0
    """Stop after this TSO (inclusive); 0 = never."""
    max_bytes_per_trigger: int = 128 * 1024 * 1024
    """Binlog bytes that a batch may read, and approximately those it may release; one transaction is always admitted. Bytes."""
    fail_on_data_loss: bool = True
    """False: a lost span is logged as a warning and recorded in Delta instead of raising an error."""
    pairing_buckets: int = 8
    """Buckets of start_ts that the pairing state is keyed by; fixed for the life of a checkpoint."""
    max_pending_bytes: int = 1024 * 1024 * 1024
    """Raw delivery: limit, over all buckets and Pumps, of binlogs that wait in the pairing state for a Pump holding resolved_ts. Bytes."""
    wake_idle_pumps: str = "200ms"
    """How often, at most, an idle Pump that holds resolved_ts back is sent a fake binlog: ``200ms``, ``1s``; ``0`` = never."""

    @property
    def wake_interval(self) -> float:
        """``wake_idle_pumps`` in seconds; 0 = never."""
        return pause_of(self.wake_idle_pumps)

    def __post_init__(self) -> None:
        _require(self.delivery in ("", "sorted", "raw"), f"source.delivery must be sorted, raw or empty, not {self.delivery!r}")
        _require(self.max_bytes_per_trigger > 0, "source.max-bytes-per-trigger must be above 0")
        _require(self.max_pending_bytes > 0, "source.max-pending-bytes must be above 0")
        _require(1 <= self.pairing_buckets <= 4096, "source.pairing-buckets must be 1 to 4096")
        _require_parsed(self, "wake_idle_pumps", pause_of, "source.")


@dataclass(frozen=True, slots=True)
class PairConfig:
    """When the upstream is asked about an orphan Prewrite, and when that is settled as rolled back. TOML table ``[pair]``."""

    orphan_ask_after: float = 1.0
    """Age from which the resolver is asked about a Prewrite without outcome. Seconds."""
    orphan_timeout: float = 600.0
    """Seconds, by the monotonic clock, that it must have been observed waiting before its absence upstream settles it as rolled back."""
    resolver: str = ""
    """Status ports of TiDB or of the embedded upstream, ``http://host:port,http://host:port``; empty = none."""


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """The target: the MySQL-protocol server that is written to. TOML table ``[syncer.to]``."""

    host: str = "127.0.0.1"
    port: int = 3306
    user: str = "root"
    password: str = field(default="", repr=False)
    """Better in ``TIDB_BINLOG__SYNCER__TO__PASSWORD`` or in ``password_file`` than in a flag: `ps` shows flags."""
    password_file: str = ""
    """File whose content is the password; a trailing line feed is ignored."""
    socket: str = ""
    """Unix socket; wins over host and port."""
    read_timeout: float = 60.0
    """Seconds that a statement may take before the connection counts as lost."""
    ssl_ca: str = ""
    """File with the CAs of the target's certificate, PEM; empty = TLS where the target offers it, without verifying it."""
    ssl_cert: str = ""
    """File with the certificate that is shown to the target, PEM."""
    ssl_key: str = ""
    """File with its key, PEM, without a passphrase."""
    cert_allowed_cn: tuple[str, ...] = ()
    """If not empty: the Common Names of which the target's certificate, or a CA's above it, must have one."""
    params: tuple[tuple[str, str], ...] = ()
    """Session variables set after connecting."""


@dataclass(frozen=True, slots=True)
class ApplyConfig:
    """How changes are applied. TOML table ``[syncer]``."""

    drainer: str = "drainer"
    """This Drainer's node id: its name in the registry and in the target's lease."""
    atomic_rows: int = 50_000
    """A batch of at most this many row events is ONE transaction with its checkpoint row."""
    atomic_bytes: int = 64 * 1024 * 1024
    """The same bound in bytes of row images."""
    parts: int = 2
    """Number of parts in which a larger batch is applied (parallel connections)."""
    ddl_policy: str = "stop"
    """``stop``, ``skip`` or ``quarantine``: what to do with a DDL that the target refuses in every form."""
    on_finding: str = "record"
    """``record`` or ``stop``: what to do when the target's rows do not match the binlogs."""
    sql_mode: str = "NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION"
    """Session sql_mode; NO_AUTO_VALUE_ON_ZERO is always added. Modes that would change values are refused (``conf.sql_mode``)."""
    log_row_data: bool = False
    """True: log lines, errors and progress may show row values; otherwise they never do."""
    upstream_charset: str = "utf8mb4"
    upstream_collation: str = "utf8mb4_bin"
    """The upstream's defaults where a DDL names no charset or collation."""
    retries: int = 60
    """Minimum number of retries of a transaction after a transient error (deadlock, lost connection, restart, read-only)."""
    retry_seconds: float = 3600.0
    """Minimum time for which it is retried. Seconds."""
    history_timeout: float = 300.0
    """Seconds that a DDL binlog waits for its job to appear in the DDL history."""
    history_lag: float = 5.0
    """Seconds that the DDL history may lag behind the binlogs; rows of a schema version not seen before wait this long at most."""
    checkpoint_schema: str = "tidb_binlog"
    """Database that holds ``checkpoint``, ``spark_lease``, ``spark_progress`` and ``spark_ddl``."""
    lease_timeout: float = 30.0
    """Seconds of silence after which the target's server drops a connection of this Drainer, and another Drainer may take its lease."""
    ignore_schemas: tuple[str, ...] = ("INFORMATION_SCHEMA", "PERFORMANCE_SCHEMA", "mysql")
    replicate_do_db: tuple[str, ...] = ()
    ignore_txn_commit_ts: tuple[int, ...] = ()
    """Transactions and DDLs that are skipped: their commit_ts, or ``DdlStep.skip_ts`` of a DDL executed ahead of its binlog."""

    def __post_init__(self) -> None:
        _require(self.atomic_rows >= 1, "syncer.atomic-rows must be at least 1")
        _require(self.parts >= 1, "syncer.parts must be at least 1")
        _require(1 <= self.lease_timeout <= 3600, "syncer.lease-timeout must be 1 to 3600 seconds")
        _require(
            self.ddl_policy in ("stop", "skip", "quarantine"), f"syncer.ddl-policy: {self.ddl_policy!r} is not stop, skip or quarantine"
        )
        _require(not (why := refusals(self.sql_mode)), f"syncer.sql-mode must not contain {'; nor '.join(why)}")
        _require(self.on_finding in ("record", "stop"), f"syncer.on-finding: {self.on_finding!r} is not record or stop")


@dataclass(frozen=True, slots=True)
class DrainerConfig:
    """The replication stream. ``conf/drainer.toml``."""

    source: SourceConfig = field(default_factory=SourceConfig)
    pair: PairConfig = field(default_factory=PairConfig)
    target: TargetConfig = field(default_factory=TargetConfig)
    apply: ApplyConfig = field(default_factory=ApplyConfig)
    ddl_history: str = ""
    """``http://host:port,http://host:port`` of status ports that serve ``/ddl/history``, or a recorded ``.json[.gz]`` file."""
    checkpoint_dir: str = "var/drainer/spark"
    """Spark's checkpoint directory."""
    delta_dir: str = "var/drainer/delta"
    """Where the Delta table ``checkpoint`` lives."""
    delta_retention: str = "7"
    """How long files and log entries that the Delta tables no longer need are kept for slow readers: days, or ``8h``, ``1h30m``."""
    addr: str = "127.0.0.1:0"
    """host:port that Pumps notify this Drainer at, port 0 = any free one; only with a registry (a real Drainer: 8249)."""
    advertise_addr: str = ""
    """host:port that is registered; empty = addr."""
    log_level: str = "info"
    """``debug``, ``info``, ``warn`` or ``error``: what goes to the log file; Spark's own log is one level quieter."""

    def __post_init__(self) -> None:
        _require_log_level(self.log_level)
        _require_parsed(self, "delta_retention", days_or_duration)


@dataclass(frozen=True, slots=True)
class PumpConfig:
    """A Pump server. ``conf/pump.toml``."""

    node_id: str = ""
    """Unique name in the cluster; empty = the content of ``<data-dir>/.node``, else hostname:port, which is written there."""
    addr: str = "127.0.0.1:8250"
    """host:port to listen on, for gRPC and HTTP."""
    advertise_addr: str = ""
    """host:port that is registered; empty = addr."""
    socket: str = ""
    """``unix:///path``: also listen there."""
    data_dir: str = "var/pump"
    pd_urls: str = ""
    """``http://host:2379,http://host:2379`` of PD: source of registry, timestamps and cluster id; empty = ``registry``."""
    registry: str = ""
    """``http://host:port`` of the standalone registry and oracle; both empty = this Pump's own clock, unregistered."""
    tidb_status: str = ""
    """``http://host:10080,…``: status ports to ask for the outcome of orphan Prewrites; empty = those that PD names, or the registry."""
    cluster_id: int = 0
    """0 = ask PD or the registry."""
    labels: tuple[tuple[str, str], ...] = ()
    """Registered with the status; a Pump client with the same ones prefers this Pump."""
    score: int = 0
    """Registered with the status: weight for Pump clients of strategy ``score``."""
    fake_binlog_interval: float = 3.0
    """Seconds without a write after which a fake binlog is written."""
    heartbeat_interval: float = 2.0
    """Seconds between two registrations of the status."""
    gc: str = "7"
    """How long binlogs are kept: days, or ``8h``, ``1h30m``."""
    orphan_timeout: float = 600.0
    """Seconds that this process must have observed an orphan Prewrite waiting before its absence upstream settles it as rolled back."""
    max_message_size: int = (1 << 63) - 1 - (4 << 20)
    """Largest request. Bytes."""
    max_unfinished_bytes: int = 256 * 1024 * 1024
    """Memory for incomplete requests; one request larger than a quarter of it is admitted on top. Bytes."""
    max_pulls: int = 512
    """Concurrent PullBinlogs calls."""
    max_pulls_per_peer: int = 64
    """Concurrent PullBinlogs calls from one address, so that no client locks the Drainers out."""
    max_connections: int = 4096
    """Concurrent connections, at most half of the process's file descriptors; above it idle ones are closed."""
    max_connections_per_peer: int = 512
    """Concurrent connections from one address."""
    stop_write_at_available_space: str = "10 GiB"
    """Free space on the data directory's disk at which binlogs are refused: ``10 GiB``, ``42 MB``; empty = never."""
    max_file_size: int = 500 * 1024 * 1024
    """Value-log file size after which a new file is started. Bytes."""
    step_bytes: int = 1024 * 1024
    """Bytes of log after which a batch may be cut (``source.max-bytes-per-trigger`` is applied in such steps)."""
    sync_log: bool = True
    """fdatasync each batch of records."""
    kv_chan_cap: int = 65_536
    """Records that may wait for the index (a real Pump: 1048576)."""
    slow_chaser_threshold: float = 1.0
    """Seconds that a push to the index's queue may wait before the slow chaser takes over (a real Pump: 3)."""
    slow_chaser_poll: float = 0.5
    """Seconds between two checks whether it is switched on."""
    slow_chaser_quick_pass: float = 1.0
    """Seconds: a catch-up faster than this may be followed by a recovery."""
    slow_chaser_recovery_interval: float = 60.0
    """Seconds between two recoveries."""
    slow_chaser_recovery_timeout: float = 1.0
    """Seconds for which a recovery may block writers."""
    log_level: str = "info"
    """``debug``, ``info``, ``warn`` or ``error``: what goes to the log file."""

    def __post_init__(self) -> None:
        _require_log_level(self.log_level)
        _require_parsed(self, "gc", days_or_duration)
        _require_parsed(self, "stop_write_at_available_space", size_of)
        _require(not (self.pd_urls and self.registry), "pd-urls and registry are both set: a Pump has one registry")
        _require("/" not in self.node_id, f"node-id {self.node_id!r} must not contain '/'")
        _require(not self.socket or self.socket.startswith("unix://"), f"socket {self.socket!r} is not of the form unix:///path")
        _require(self.kv_chan_cap >= 1, "kv-chan-cap must be at least 1")
        _require(self.max_unfinished_bytes >= 1 << 20, "max-unfinished-bytes must be at least 1 MiB")
        _require(1 <= self.max_pulls_per_peer <= self.max_pulls, "max-pulls-per-peer must be at least 1 and at most max-pulls")
        each, total = self.max_connections_per_peer, self.max_connections
        _require(1 <= each <= total, "max-connections-per-peer must be at least 1 and at most max-connections")
