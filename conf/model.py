"""Every setting as a field of a frozen, validated dataclass, with its path, default, unit and one-line help.

Promises: pure. An invalid value raises ``ValueError`` in ``__post_init__``, with the setting's name. Paths, types and meanings are those of
the real Drainer and Pump (drainer.md 3, pump.md 3). Settings that only this project has are in the table ``[spark]``. ``conf.reference``
writes ``docs/settings.md`` and ``conf/*.toml`` from here; a test keeps them equal. ``conf.load`` says which of those that are given have no effect, and
refuses what is not built.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from pyspark_tidb_binlog.conf.kafka_options import refused
from pyspark_tidb_binlog.conf.setting import DAYS, DURATION, LEVEL, NAMES, Program, Setting, nested, ours, setting, without_effect
from pyspark_tidb_binlog.conf.sql_mode import refusals
from pyspark_tidb_binlog.conf.units import days_or_duration, pause_of, size_of, wrong_port
from pyspark_tidb_binlog.conf.unset import fill_drainer, fill_pump

_SQL, _LAKE, _KAFKA = ("mysql", "tidb"), ("lake",), ("kafka",)
_OTHER_CHECKPOINT, _ROUTES_OF_EVENTS = "syncer.to.checkpoint.type", "syncer.table-migrate-rule"
_TRANSACTIONS = "spark.atomic-rows bounds a transaction of net changes"
_LOG_LEVELS = ("debug", "info", "warn", "error", "fatal")
_DELTA_SCHEMES = ("file", "s3", "s3a", "gs", "az", "abfs", "abfss", "hdfs", "viewfs")


def require(condition: bool, message: str) -> None:
    """Raise ``ValueError(message)`` unless ``condition``."""
    if not condition:
        raise ValueError(message)


def require_logging(level: str, form: str) -> None:
    """``log-level`` and ``spark.log-format``."""
    require(level in _LOG_LEVELS, f"log-level: {level!r} is not debug, info, warn, error or fatal")
    require(form in ("text", "json"), f"spark.log-format: {form!r} is not text or json")


def require_addr(name: str, addr: str) -> None:
    """``host:port``; an empty host is any address of this machine."""
    host, _, port = addr.rpartition(":")
    whole = ":" not in host or (host.startswith("[") and host.endswith("]"))
    require(
        whole and port.isascii() and port.isdigit() and int(port) < 1 << 16,
        f"{name}: {addr!r} is not of the form host:port, with a port up to 65535",
    )


def require_parsed(config: object, name: str, parse: Callable[[str], float], prefix: str) -> None:
    """``parse`` takes the value of the field ``name`` of ``config``; ``prefix``: of the setting's path."""
    try:
        parse(getattr(config, name))
    except ValueError as error:
        raise ValueError(f"{prefix}{name.replace('_', '-')}: {error}") from None


def require_delta_place(name: str, uri: str) -> None:
    """A path or URI at which delta-rs writes and Spark finds what it has written."""
    scheme, colon, _ = uri.partition(":")
    require(
        not colon or "/" in scheme or scheme in _DELTA_SCHEMES,
        f"{name}: {uri!r} is at no place that delta-rs writes to; name a local path, or a URI of {', '.join(_DELTA_SCHEMES)}",
    )
    odd = next((c for c in "%[]\\" if c in uri), "")
    require(not odd, f"{name}: {uri!r} has {odd!r} in it, with which delta-rs finds no files; name another directory")


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """TLS of one table ``security``; what it means is in ``docs/tls.md``."""

    ssl_ca: str = setting("", "PEM file of the trusted CAs; setting it turns TLS on")
    ssl_cert: str = setting("", "PEM file of this side's certificate chain", needs=".ssl-ca")
    ssl_key: str = setting("", "PEM file of its key, without a passphrase", needs=".ssl-ca")
    cert_allowed_cn: tuple[str, ...] = setting(
        (), "Common Names, one of which the other side's certificate must have; empty = any", needs=".ssl-ca"
    )

    def __post_init__(self) -> None:
        names = any(name.strip() for name in self.cert_allowed_cn)
        require(
            bool(self.ssl_ca) or not names, "security: cert-allowed-cn needs ssl-ca: without it there is no TLS, and everybody is served"
        )


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """Where binlogs come from; also the options of ``format("tidb_binlog")``."""

    pumps: str = ours(
        "",
        "the Pumps, host:port,host:port, or a registry: http://host:port, https://…, pd://host:port,host:port; empty = pd-urls",
    )
    cluster_id: int = ours(0, "cluster id that Pumps check; 0 = ask PD or the registry")
    delivery: str = ours("", "sorted (any Pump), raw (our Pumps), or empty: raw if every Pump offers it")
    starting_commit_ts: int = setting(
        -1,
        "without a checkpoint start after this TSO; 0 = the beginning, -1 = now",
        "initial-commit-ts",
        flag="initial-commit-ts",
    )
    ending_commit_ts: int = ours(0, "stop after this TSO, inclusive; 0 = never")
    max_bytes_per_trigger: int = ours(128 * 1024 * 1024, "bytes of binlogs in a batch, about; one transaction always fits")
    fail_on_data_loss: bool = ours(True, "false: a lost span is a warning in log and Delta, not an error")
    max_pending_bytes: int = ours(1024 * 1024 * 1024, "raw delivery: bytes that may wait for a Pump that holds resolved_ts")
    wake_idle_pumps: str = ours("200ms", "shortest time between two fake binlogs to an idle Pump that holds resolved_ts; 0 = never")
    compressor: str = setting("", "gzip: Pumps compress what they send", "compressor", flag="compressor")
    security: SecurityConfig = nested("security", SecurityConfig)
    """Of everything inside the cluster, in both directions: the Drainer's own listener too."""
    gone_pumps: str = ours(
        "",
        "ids of Pumps, comma separated, that are gone for ever: what only they had is recorded as lost. A registered Pump is read unless it is offline",
    )
    tidb_status: str = ours(
        "",
        "TiDB's status ports, http://host:10080,..., for DDL history and orphans, or a recorded history, .json[.gz]; empty = those that PD knows",
    )

    @property
    def gone(self) -> frozenset[str]:
        """The ids in ``gone_pumps``."""
        return frozenset(filter(None, map(str.strip, self.gone_pumps.split(","))))

    @property
    def wake_interval(self) -> float:
        """``wake_idle_pumps`` in seconds; 0 = never."""
        return pause_of(self.wake_idle_pumps)

    def __post_init__(self) -> None:
        by_pd = self.pumps.startswith("pd://")
        for path, addresses in (("pd-urls" if by_pd else "spark.pumps", self.pumps), ("spark.tidb-status", self.tidb_status)):
            require(not (port := wrong_port(addresses)), f"{path}: {port} is not a port, 1 to 65535")
        require(self.delivery in ("", "sorted", "raw"), f"spark.delivery must be sorted, raw or empty, not {self.delivery!r}")
        require(self.compressor in ("", "gzip"), f"compressor: {self.compressor!r} is not gzip")
        require(self.max_bytes_per_trigger > 0, "spark.max-bytes-per-trigger must be above 0")
        require(self.max_pending_bytes > 0, "spark.max-pending-bytes must be above 0")
        require(-1 <= self.starting_commit_ts < 1 << 63, "initial-commit-ts must be a TSO, 0 or -1")
        require_parsed(self, "wake_idle_pumps", pause_of, "spark.")


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """The target: the MySQL-protocol server that is written to. TOML table ``[syncer.to]``."""

    host: str = setting("127.0.0.1", "the target's host", unset="MYSQL_HOST, else localhost")
    port: int = setting(3306, "the target's port", unset="MYSQL_PORT, else 3306")
    user: str = setting("root", "the account that writes", unset="MYSQL_USER, else root")
    password: str = setting("", "its password; better in MYSQL_PSWD or spark.password-file: ps shows a flag", secret=True)
    password_file: str = ours("", "file with the target's password")
    socket: str = ours("", "the target's Unix socket; wins over host and port")
    read_timeout: float = setting(60.0, "time after which a statement counts as lost", kind=DURATION)
    params: tuple[tuple[str, str], ...] = setting((), "session variables to set")
    encrypted_password: str = setting("", "the password, encrypted; wins over password", "syncer.to.encrypted_password", secret=True)
    security: SecurityConfig = nested("syncer.to.security", SecurityConfig)

    def __post_init__(self) -> None:
        require(0 <= self.port < 1 << 16, f"syncer.to.port: {self.port} is not a port, 1 to 65535")
        require(self.read_timeout > 0, "syncer.to.read-timeout must be above 0")


@dataclass(frozen=True, slots=True)
class UpstreamConfig:
    """An account of the upstream TiDB: may read ``mysql.tidb``, and tables that are copied (``--bootstrap``). TOML table ``[spark.upstream]``."""

    host: str = setting("", "a TiDB of the upstream, for SQL and --bootstrap; empty = none")
    port: int = setting(4000, "its port for SQL")
    user: str = setting("root", "an account with SELECT on mysql.tidb, for --bootstrap also on the tables")
    password: str = setting("", "its password", secret=True)
    encrypted_password: str = setting("", "the password, encrypted; wins over password", "spark.upstream.encrypted_password", secret=True)
    security: SecurityConfig = nested("spark.upstream.security", SecurityConfig)

    def __post_init__(self) -> None:
        require(0 < self.port < 1 << 16, f"spark.upstream.port: {self.port} is not a port, 1 to 65535")


@dataclass(frozen=True, slots=True)
class TableName:
    """A table, or a pattern for tables: ``[[syncer.ignore-table]]``."""

    db_name: str = setting("", "database: an anchored regular expression, or ~ and one that is searched; case does not matter")
    tbl_name: str = setting("", "table, likewise")


@dataclass(frozen=True, slots=True)
class EventFilterRule:
    """What a rule drops: ``[syncer.binlog-filter-rule.NAME]``."""

    name: str = setting("", "the rule's name, by which table-migrate-rule refers to it")
    ignore_event: tuple[str, ...] = setting((), "events, such as insert, all ddl, drop table")
    ignore_sql: tuple[str, ...] = setting((), "regular expressions for the text of DDLs")


@dataclass(frozen=True, slots=True)
class TableMigrateRule:
    """Which tables which rules apply to: ``[[syncer.table-migrate-rule]]``."""

    binlog_filter_rule: tuple[str, ...] = setting((), "names of rules")
    source_schema: str = setting("", "database upstream; * at the end, ? and [..] are wildcards", "source.schema")
    source_table: str = setting("", "table upstream, likewise", "source.table")
    target_schema: str = setting("", "database at an Oracle target", "target.schema")
    target_table: str = setting("", "table at an Oracle target", "target.table")


@dataclass(frozen=True, slots=True)
class TableRoute:
    """Under which name, and with which columns and rows, a table is replicated: ``[[spark.route]]``."""

    db_name: str = setting("", "database upstream")
    tbl_name: str = setting("", "table upstream; empty = every table of the database")
    to_db: str = setting("", "database at the target; empty = the same")
    to_tbl: str = setting("", "table at the target; empty = the same")
    columns: tuple[str, ...] = setting((), "the columns that are replicated, those of a clustered primary key among them; empty = all")
    where: str = setting("", "condition for rows, an expression of Spark SQL; empty = all rows")


@dataclass(frozen=True, slots=True)
class ApplyConfig:
    """How changes are applied. TOML table ``[syncer]``, and ours."""

    drainer: str = setting(
        "drainer",
        "this Drainer's name in the registry and the target's lease",
        "node-id",
        flag="node-id",
        unset="its name with this checkpoint, else hostname:port of addr, whose port must then not be 0",
    )
    atomic_rows: int = ours(50_000, "a batch of at most this many row events is ONE transaction with its checkpoint row")
    parts: int = ours(2, "parallel connections that apply a larger batch")
    ddl_policy: str = ours(
        "stop", "stop, skip or quarantine (skip under another word) a DDL without which rows could not be held or found", targets=_SQL
    )
    on_finding: str = ours("record", "record or stop, when the target's rows do not match the binlogs", targets=_SQL)
    sql_mode: str = setting(
        "NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION",
        "sql_mode of the sessions, always with NO_AUTO_VALUE_ON_ZERO and ALLOW_INVALID_DATES, without NO_ZERO_DATE and NO_ZERO_IN_DATE; strict modes "
        "hold for DDLs only; modes that change what values mean are refused",
        targets=_SQL,
    )
    log_row_data: bool = ours(False, "true: logs, errors and progress may show row values, which findings in Delta always have")
    upstream_collation: str = ours("utf8mb4_bin", "the upstream's default collation, with its charset, where a DDL names none")
    retry_seconds: float = ours(
        3600.0, "seconds, at least, to retry a transient error (deadlock, lost connection, read-only)", targets=_SQL + _KAFKA
    )
    checkpoint_schema: str = setting(
        "tidb_binlog",
        "the target's database for checkpoint and spark_* tables",
        "syncer.to.checkpoint.schema",
        targets=_SQL,
    )
    lease_timeout: float = ours(30.0, "seconds of silence after which another Drainer may take over, 1 to 3600", targets=_SQL + _LAKE)
    lake_interval: float = ours(
        1.0, "seconds from a batch of a lake to the next one, at least: each leaves two files; 0 = none", targets=_LAKE
    )
    mirror_interval: float = ours(60.0, "seconds between moments of a lake; 0 = as soon as there are changes", targets=_LAKE)
    reload_interval: float = ours(
        3600.0,
        "a table that a lake sets aside is loaded from spark.upstream: at once, then after so many seconds, then after twice as many, …; 0 = never by itself",
        targets=_LAKE,
    )
    lake_json: str = ours("string", "JSON columns of a lake's new tables: string, which any engine reads, or variant", targets=_LAKE)
    ignore_schemas: tuple[str, ...] = setting(
        ("INFORMATION_SCHEMA", "PERFORMANCE_SCHEMA", "mysql"),
        "databases to leave out; wins over replicate-do-*",
        flag="ignore-schemas",
        kind=NAMES,
    )
    replicate_do_db: tuple[str, ...] = setting((), "if set, only these databases and replicate-do-table")
    ignore_txn_commit_ts: tuple[int, ...] = setting((), "transactions and DDLs to skip: commit_ts, or the number that a refused DDL names")
    replicate_do_table: tuple[TableName, ...] = setting((), "if set, only these tables and replicate-do-db")
    ignore_table: tuple[TableName, ...] = setting((), "tables to leave out; wins over replicate-do-*")
    case_sensitive: bool = setting(False, "whether case counts in table-migrate-rule", needs=_ROUTES_OF_EVENTS)
    table_migrate_rule: tuple[TableMigrateRule, ...] = setting((), "which tables the rules of binlog-filter-rule apply to")
    binlog_filter_rule: tuple[EventFilterRule, ...] = setting((), "rules that drop kinds of events")
    routes: tuple[TableRoute, ...] = ours((), "other names, fewer columns or rows at a MySQL-protocol target", "route")
    db_type: str = setting("mysql", "kind of target: mysql, tidb, file (or pb), kafka, or lake (ours)", flag="dest-db-type")
    txn_batch: int = setting(20, "most row operations in a transaction", flag="txn-batch", targets=_SQL, by_row=_TRANSACTIONS)
    txn_batch_time: float = ours(
        0.0, "how long a transaction of txn-batch may take, about; 0 = any time", kind=DURATION, targets=_SQL, by_row=_TRANSACTIONS
    )
    worker_count: int = setting(
        16, "parallel connections, at most 1024", flag="c", targets=_SQL, by_row="spark.parts is the number of connections for net changes"
    )
    sync_ddl: bool = setting(True, "false: DDLs are not applied; rows get the target's columns", flag="sync-ddl")
    sync_mode: int = setting(
        1,
        "2: columns that the target lacks are left out; 1: they are an error",
        "syncer.to.sync-mode",
        targets=_SQL,
    )
    safe_mode: bool = setting(
        False, "rows may be there already: REPLACE, and deletes that may find nothing", flag="safe-mode", targets=_SQL
    )
    enable_dispatch: bool = setting(
        True,
        "false: one worker keeps the upstream's transactions; net-change is then false unless set",
        flag="enable-dispatch",
        targets=_SQL,
    )
    enable_detect: bool = setting(
        True,
        "false: operations on one unique key other than the first may change places",
        flag="enable-detect",
        targets=_SQL,
        by_row="two net changes of a row are never applied at the same time",
    )
    net_change: bool = ours(True, "apply the net change of a batch; false: every row operation of the upstream", targets=_SQL)
    load_schema_snapshot: bool = setting(
        False,
        "begin with the schemas at the checkpoint, from TiDB's status port",
        flag="load-schema-snapshot",
    )
    loopback_control: bool = setting(
        False,
        "mark transactions, and leave out those with channel-id's mark, for replication in both directions",
        flag="loopback-control",
    )
    channel_id: int = setting(
        0, "with loopback-control: the same number for both Drainers of a ring", flag="channel-id", needs="syncer.loopback-control"
    )
    upstream_new_collations: str = ours(
        "auto",
        "true: collations keep their names (upstream first set up by v6.0 or later); false: each becomes a NO PAD _bin; auto: ask spark.upstream, "
        "else only utf8mb4_bin becomes NO PAD",
    )

    def __post_init__(self) -> None:
        require(self.atomic_rows >= 1, "spark.atomic-rows must be at least 1")
        require(self.parts >= 1, "spark.parts must be at least 1")
        strange = [ts for ts in self.ignore_txn_commit_ts if not -(1 << 63) <= ts < 1 << 63]
        require(not strange, f"syncer.ignore-txn-commit-ts: {strange} are not numbers of 64 bits")
        require(1 <= self.lease_timeout <= 3600, "spark.lease-timeout must be 1 to 3600 seconds")
        require(self.lake_interval >= 0, "spark.lake-interval must not be negative")
        require(self.mirror_interval >= 0, "spark.mirror-interval must not be negative")
        require(self.reload_interval >= 0, "spark.reload-interval must not be negative")
        require(self.lake_json in ("string", "variant"), f"spark.lake-json: {self.lake_json!r} is not string or variant")
        require(self.ddl_policy in ("stop", "skip", "quarantine"), f"spark.ddl-policy: {self.ddl_policy!r} is not stop, skip or quarantine")
        require(not (why := refusals(self.sql_mode)), f"syncer.sql-mode must not contain {'; nor '.join(why)}")
        require(self.on_finding in ("record", "stop"), f"spark.on-finding: {self.on_finding!r} is not record or stop")
        require(self.txn_batch >= 1, "syncer.txn-batch must be at least 1")
        require(1 <= self.worker_count <= 1024, "syncer.worker-count must be 1 to 1024")
        require(-(1 << 63) <= self.channel_id < 1 << 63, f"syncer.channel-id: {self.channel_id} is not a number of 64 bits")
        require(self.txn_batch_time >= 0, "spark.txn-batch-time must not be negative")
        known = ("mysql", "tidb", "file", "kafka", "lake")
        require(self.db_type in known, f"syncer.db-type: {self.db_type!r} is not {', '.join(known[:-1])} or {known[-1]}")
        require(self.sync_mode in (1, 2), f"syncer.to.sync-mode: {self.sync_mode} is not 1 or 2")
        require(
            self.upstream_new_collations in ("auto", "true", "false"),
            f"spark.upstream-new-collations: {self.upstream_new_collations!r} is not auto, true or false",
        )
        require("" not in self.replicate_do_db, "syncer.replicate-do-db has an empty name")
        require("" not in self.ignore_schemas, "syncer.ignore-schemas has an empty name")
        for name, tables in (("replicate-do-table", self.replicate_do_table), ("ignore-table", self.ignore_table)):
            require(all(one.db_name and one.tbl_name for one in tables), f"syncer.{name} has an empty db-name or tbl-name")

    @property
    def partial_columns(self) -> bool:
        """Whether columns that the target lacks are left out of writes. Where DDLs are not synced, the target's tables are the only measure."""
        return self.sync_mode == 2 or not self.sync_ddl


@dataclass(frozen=True, slots=True)
class RelayConfig:
    """The relay log. TOML table ``[syncer.relay]``."""

    log_dir: str = setting("", "directory of the relay log; empty = none", flag="relay-log-dir")
    max_file_size: int = setting(10_485_760, "bytes of a relay log file", flag="relay-max-file-size", needs=".log-dir")

    def __post_init__(self) -> None:
        require(self.max_file_size >= 1, "syncer.relay.max-file-size must be at least 1")


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """Where the checkpoint is kept; its database is ``ApplyConfig.checkpoint_schema``. TOML table ``[syncer.to.checkpoint]``."""

    type: str = setting("", "mysql or tidb, with db-type mysql or tidb; file (ours): <data-dir>/savepoint; empty = at the target")
    table: str = setting("", "name of its table; empty = checkpoint", targets=_SQL)
    host: str = setting("", "with type: another server for the checkpoint; empty = the target", needs=_OTHER_CHECKPOINT)
    port: int = setting(0, "that server's port", needs=_OTHER_CHECKPOINT)
    user: str = setting("", "the account there", needs=_OTHER_CHECKPOINT)
    password: str = setting("", "its password", secret=True, needs=_OTHER_CHECKPOINT)
    encrypted_password: str = setting(
        "", "the password, encrypted; wins over password", "syncer.to.checkpoint.encrypted_password", secret=True, needs=_OTHER_CHECKPOINT
    )
    security: SecurityConfig = nested("syncer.to.checkpoint.security", SecurityConfig, needs=_OTHER_CHECKPOINT)

    def __post_init__(self) -> None:
        known = ("", "mysql", "tidb", "file", "kafka", "pb")
        require(self.type in known, f"syncer.to.checkpoint.type: {self.type!r} is not mysql, tidb or file")
        require(0 <= self.port < 1 << 16, f"syncer.to.checkpoint.port: {self.port} is not a port, 1 to 65535")


@dataclass(frozen=True, slots=True)
class KafkaConfig:
    """Kafka as a target. TOML table ``[syncer.to]``."""

    addrs: str = setting("", "the brokers, host:port,host:port", "syncer.to.kafka-addrs", unset="KAFKA_ADDRS, else 127.0.0.1:9092")
    version: str = setting(
        "0.8.2.0",
        "the brokers' version",
        "syncer.to.kafka-version",
        without_effect="this program asks the brokers which requests they take; Kafka 0.11 to 4 is supported",
    )
    max_messages: int = setting(1024, "most messages in a request", "syncer.to.kafka-max-messages")
    max_message_size: int = setting(
        1 << 30, "bytes of the largest message; brokers have their own limit", "syncer.to.kafka-max-message-size"
    )
    client_id: str = setting("tidb_binlog", "name of this client", "syncer.to.kafka-client-id")
    topic: str = setting("", "the topic; empty = <cluster id>_obinlog", "syncer.to.topic-name")
    options: tuple[tuple[str, str], ...] = setting(
        (),
        'TLS, SASL and compression as options of librdkafka: { "security.protocol" = "SASL_SSL", … }; encrypted(…) holds what ctl encrypt prints',
        "spark.kafka-options",
        secret=True,
    )

    def __post_init__(self) -> None:
        for name, value in self.options:
            why = refused(name, value)
            require(why is None, f"spark.kafka-options: {name} cannot be set: {why}")


@dataclass(frozen=True, slots=True)
class FileConfig:
    """Binlog files, or a lake, as a target. TOML table ``[syncer.to]``."""

    dir: str = setting("", "directory of the files, empty = data-dir; or path or URI of the lake")
    retention_time: int = setting(0, "days that files, or a lake's row changes, are kept; 0 = for ever")


@dataclass(frozen=True, slots=True)
class DrainerConfig(Program):
    """The replication stream. ``conf/drainer.toml``."""

    PREFIX: ClassVar[str] = "BINLOG_SERVER_"
    WITHOUT_FIELD: ClassVar[tuple[Setting, ...]] = (
        without_effect("detect-interval", 5, "this program reads the list of Pumps for every batch", "detect-interval"),
        *(
            Setting(f"syncer.disable-{name}", (), bool, False, f"deprecated: overrides enable-{name}, with the contrary", f"disable-{name}")
            for name in ("dispatch", "detect")
        ),
        without_effect("syncer.to.merge", False, "spark.net-change says whether the changes of a row are combined"),
        Setting("syncer.to.zookeeper-addrs", (), str, "", "ZooKeeper, to ask for Kafka's brokers", targets=_KAFKA),
        *(
            without_effect(f"syncer.to.{name}", "", "Oracle is no target")
            for name in (
                "oracle-service-name",
                "oracle-connect-string",
                "checkpoint.oracle-service-name",
                "checkpoint.oracle-connect-string",
            )
        ),
        without_effect(
            "cache-binlog-count", 8, "spark.max-bytes-per-trigger bounds the bytes that are read ahead", "cache-binlog-count", in_file=False
        ),
        without_effect("log-rotate", "", "deprecated in the real program too; logs are rotated by size", "log-rotate", in_file=False),
    )
    fill = staticmethod(fill_drainer)
    source: SourceConfig = nested("", SourceConfig)
    target: TargetConfig = nested("syncer.to", TargetConfig, targets=_SQL)
    upstream: UpstreamConfig = nested("spark.upstream", UpstreamConfig, needs="spark.upstream.host")
    apply: ApplyConfig = nested("syncer", ApplyConfig)
    checkpoint_dir: str = ours("var/drainer/spark", "Spark's checkpoint directory", unset="<data-dir>/spark")
    delta_dir: str = ours(
        "var/drainer/delta", "path or URI of the Delta table checkpoint; findings is next to it", unset="<data-dir>/delta"
    )
    delta_retention: str = ours(
        "7",
        "how long unneeded files of Delta tables are kept, and how far back a lake's tables can be read: days, or 8h, 1h30m",
        kind=DAYS,
    )
    addr: str = setting(
        "127.0.0.1:0",
        "host:port for Pumps and HTTP pages; port 0 = any free one",
        flag="addr",
        unset="127.0.0.1:8249; with PD or a registry elsewhere <first IPv4 that is not loopback>:8249",
    )
    advertise_addr: str = setting("", "host:port that is registered; empty = addr", flag="advertise-addr")
    log_level: str = setting("info", "debug, info, warn, error or fatal; Spark's log is one level quieter", flag="L", kind=LEVEL)
    log_format: str = ours("text", "text: lines as TiDB's tools write them, or json: one object per line")
    log_file: str = setting(
        "",
        "empty = TIDB_BINLOG_LOG, else var/log/JOB.log, installed below ~/.local/state",
        flag="log-file",
    )
    data_dir: str = setting("data.drainer", "what this Drainer keeps on disk", flag="data-dir")
    pd_urls: str = setting("", "PD, http://host:2379,...; empty = none", flag="pd-urls", unset="http://127.0.0.1:2379")
    upstream_timeout: float = ours(60.0, "seconds without an answer of PD or the registry (at a start, of a Pump) after which the job ends")
    synced_check_time: int = setting(5, "minutes without a new binlog after which /status says synced", flag="synced-check-time")
    metrics_addr: str = setting("", "host:port or URL of a Prometheus push gateway; empty = none", flag="metrics-addr", in_file=False)
    metrics_interval: int = setting(15, "seconds between two pushes", flag="metrics-interval", in_file=False, needs="metrics-addr")
    relay: RelayConfig = nested("syncer.relay", RelayConfig, targets=_SQL)
    checkpoint: CheckpointConfig = nested("syncer.to.checkpoint", CheckpointConfig)
    kafka: KafkaConfig = nested("syncer.to", KafkaConfig, targets=_KAFKA)
    files: FileConfig = nested("syncer.to", FileConfig, targets=("file", "lake"))

    @property
    def findings_dir(self) -> str:
        """Path or URI of the Delta table ``findings``: next to that of ``checkpoint``, which must contain nothing else."""
        return self.delta_dir.rstrip("/") + "-findings"

    @property
    def verification_dir(self) -> str:
        """Path or URI of the Delta table ``verification``."""
        return self.delta_dir.rstrip("/") + "-verification"

    def __post_init__(self) -> None:
        require_logging(self.log_level, self.log_format)
        require_parsed(self, "delta_retention", days_or_duration, "spark.")
        require_delta_place("spark.delta-dir", self.delta_dir)
        require(self.upstream_timeout >= 0, "spark.upstream-timeout must be at least 0")
        require_addr("addr", self.addr)
        require_addr("advertise-addr", self.advertise_addr or self.addr)
        require("/" not in self.apply.drainer, f"node-id {self.apply.drainer!r} must not contain '/'")
        require(
            self.apply.db_type in ("mysql", "tidb") or self.checkpoint.type not in ("mysql", "tidb"),
            f"syncer.to.checkpoint.type = {self.checkpoint.type!r}: with db-type {self.apply.db_type!r} the checkpoint is a file, savepoint in data-dir. "
            f"A real Drainer has kept it in a row: take the commitTS of SELECT checkPoint FROM {self.apply.checkpoint_schema}.{self.checkpoint.table or 'checkpoint'} "
            f"on that server, write the two lines\n  consistent = true\n  commitTS = THAT NUMBER\ninto {self.data_dir}/savepoint, then remove "
            "the type. Without the file this stream would not go on from there",
        )


@dataclass(frozen=True, slots=True)
class PumpConfig(Program):
    """A Pump server. ``conf/pump.toml``."""

    PREFIX: ClassVar[str] = "PUMP_"
    WITHOUT_FIELD: ClassVar[tuple[Setting, ...]] = (
        without_effect("storage.slow_write_threshold", 1.0, "the metric binlog_pump_storage_write_binlog_duration_time shows slow writes"),
        *(
            without_effect(f"storage.kv.{name}", default, "the index is RocksDB, not goleveldb")
            for name, default in (
                ("block-cache-capacity", 8 << 20),
                ("block-restart-interval", 16),
                ("block-size", 4096),
                ("compaction-L0-trigger", 8),
                ("compaction-table-size", 64 << 20),
                ("compaction-total-size", 512 << 20),
                ("compaction-total-size-multiplier", 8.0),
                ("write-buffer", 64 << 20),
                ("write-L0-pause-trigger", 24),
                ("write-L0-slowdown-trigger", 17),
            )
        ),
        without_effect("enable-debug", False, 'use log-level = "debug"', "enable-debug", in_file=False),
        *(
            without_effect(name, default, "deprecated in the real Pump too", name, in_file=False)
            for name, default in (("binlog-file-size", 0), ("enable-binlog-slice", False), ("binlog-slice-size", 0))
        ),
        without_effect("log-rotate", "", "deprecated in the real program too; logs are rotated by size", "log-rotate", in_file=False),
    )
    fill = staticmethod(fill_pump)
    node_id: str = setting("", "unique name in the cluster; empty = that in <data-dir>/.node, else hostname:port", flag="node-id")
    addr: str = setting(
        "127.0.0.1:8250",
        "host:port for gRPC and HTTP",
        flag="addr",
        unset="127.0.0.1:8250; with PD or a registry elsewhere <first IPv4 that is not loopback>:8250",
    )
    advertise_addr: str = setting("", "host:port that is registered; empty = addr", flag="advertise-addr")
    socket: str = setting("", "unix:///path: also listen there; with systemd's PrivateTmp not in /tmp", flag="socket")
    data_dir: str = setting("data.pump", "directory of the value log and its index", flag="data-dir")
    pd_urls: str = setting(
        "",
        "PD, http://host:2379,...; empty = spark.registry, or none",
        flag="pd-urls",
        unset="http://127.0.0.1:2379",
    )
    registry: str = ours("", "http://host:port of the standalone registry; without it and PD: own clock, unregistered")
    tidb_status: str = ours("", "TiDB's status ports, http://host:10080,..., for orphans; empty = those that PD or the registry names")
    cluster_id: int = ours(0, "cluster id; 0 = ask PD or the registry")
    labels: tuple[tuple[str, str], ...] = ours((), "a Pump client with the same ones prefers this Pump")
    score: int = ours(0, "weight for Pump clients of strategy score")
    fake_binlog_interval: float = setting(
        3.0, "idle seconds after which a fake binlog is written; 0 = never", "gen-binlog-interval", flag="fake-binlog-interval"
    )
    heartbeat_interval: float = setting(2.0, "seconds between two registrations of the status", flag="heartbeat-interval")
    gc: str = setting("7", "how long binlogs are kept: days, or 8h, 1h30m", flag="gc", kind=DAYS)
    max_message_size: int = setting(
        (1 << 63) - 1 - (4 << 20), "largest request, in bytes", "spark.max-message-size", flag="max-message-size"
    )
    log_row_data: bool = ours(False, "true: GET /debug/binlog/TS shows rows and keys")
    stop_write_at_available_space: str = setting(
        "10 GiB",
        "free space on data-dir's disk at which binlogs are refused: 10 GiB, 42 MB; empty = never",
        "storage.stop-write-at-available-space",
    )
    sync_log: bool = setting(
        True, "fdatasync each batch of records; false: a crash of the machine may lose acknowledged binlogs", "storage.sync-log"
    )
    kv_chan_cap: int = setting(65_536, "records that may wait for the index (a real Pump: 1048576)", "storage.kv_chan_cap")
    log_level: str = setting("info", "debug, info, warn, error or fatal: what goes to the log file", flag="L", kind=LEVEL)
    log_format: str = ours("text", "text: lines as TiDB's tools write them, or json: one object per line")
    log_file: str = setting(
        "",
        "empty = TIDB_BINLOG_LOG, else var/log/pump.log, installed below ~/.local/state",
        flag="log-file",
    )
    metrics_addr: str = setting("", "host:port or URL of a Prometheus push gateway; empty = none", flag="metrics-addr", in_file=False)
    metrics_interval: int = setting(15, "seconds between two pushes", flag="metrics-interval", in_file=False, needs="metrics-addr")
    security: SecurityConfig = nested("security", SecurityConfig)

    def __post_init__(self) -> None:
        require_logging(self.log_level, self.log_format)
        require_parsed(self, "gc", days_or_duration, "")
        require_parsed(self, "stop_write_at_available_space", size_of, "storage.")
        require(not (self.pd_urls and self.registry), "pd-urls and spark.registry are both set: a Pump has one registry")
        require_addr("addr", self.addr)
        require_addr("advertise-addr", self.advertise_addr or self.addr)
        require(self.heartbeat_interval > 0, "heartbeat-interval must be above 0")
        require(self.fake_binlog_interval >= 0, "gen-binlog-interval must be 0 or above")
        require("/" not in self.node_id, f"node-id {self.node_id!r} must not contain '/'")
        require(not self.socket or self.socket.startswith("unix://"), f"socket {self.socket!r} is not of the form unix:///path")
        require(self.kv_chan_cap >= 1, "storage.kv_chan_cap must be at least 1")
