"""The sink of ``syncer.db-type``, and its name in messages."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.conf.units import days_or_duration
from pyspark_tidb_binlog.jobs.stream.resume import ResumeState, TargetWords
from pyspark_tidb_binlog.jobs.stream.table_loader import TableLoader
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.sinks.file.file_sink import FileTarget, file_sink
from pyspark_tidb_binlog.sinks.kafka.kafka_sink import BrokerSettings, Topic, kafka_sink
from pyspark_tidb_binlog.sinks.mysql.mysql_sink import MySQLSink
from pyspark_tidb_binlog.sinks.relay.relay_log import RelayLog, RelayStream
from pyspark_tidb_binlog.sinks.relay.relayed_sink import RelayedSink, RelaySettings
from pyspark_tidb_binlog.sinks.routing.replicated import Selection
from pyspark_tidb_binlog.sinks.sink import Sink
from pyspark_tidb_binlog.sinks.translate.column_values import process_zone
from pyspark_tidb_binlog.sinks.translate.message_sink import MessageSettings
from pyspark_tidb_binlog.sinks.translate.secondary_binlogs import SecondaryBinlogs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def sink_of(
    config: DrainerConfig,
    cluster_id: int,
    pause: Callable[[float], None],
    now: Callable[[], int] | None = None,
    spark: "SparkSession | None" = None,
    loader: TableLoader | None = None,
) -> Sink:
    """The sink of a stream of cluster ``cluster_id``; nothing is opened.

    ``pause`` waits for the given seconds, or raises to end the wait. ``now``: the upstream's timestamp of now; None: this machine's clock. ``spark`` and
    ``loader``: with which a lake keeps large mirrors, and loads tables.

    Raises:
        ConfigError: there is no such sink, or one of its settings is wrong.
    """
    if config.apply.db_type in ("mysql", "tidb"):
        sink = MySQLSink(config, cluster_id, pause, now)
        return _relayed(sink, config, cluster_id) if config.relay.log_dir else sink
    if config.apply.db_type == "file":
        return file_sink(FileTarget(_directory(config), config.files.retention_time), _message_settings(config, cluster_id))
    if config.apply.db_type == "lake":
        return _lake(config, cluster_id, pause, spark, loader)
    if config.apply.db_type == "kafka":
        return kafka_sink(_topic(config, cluster_id, pause), _message_settings(config, cluster_id))
    raise ConfigError(f"syncer.db-type = {config.apply.db_type!r} is not a known target")


def _lake(
    config: DrainerConfig, cluster_id: int, pause: Callable[[float], None], spark: "SparkSession | None", loader: TableLoader | None
) -> Sink:
    """The lake in ``syncer.to.dir``."""
    apply = config.apply
    if not config.files.dir:
        raise ConfigError('syncer.to.dir: with syncer.db-type = "lake" it names the directory, or the URI, of the lake')
    partial = {
        "where and columns of spark.route": any(route.where or route.columns for route in apply.routes),
        "syncer.table-migrate-rule": bool(apply.table_migrate_rule),
        "syncer.loopback-control": apply.loopback_control,
        "syncer.sync-ddl = false": not apply.sync_ddl,
    }
    if given := [name for name, is_given in partial.items() if is_given]:
        # Of a row whose DELETE was left out, the next INSERT would be a second one.
        raise ConfigError(
            f"{given[0]}: a lake has every change of its tables, or its mirrors are not the upstream's; remove it. Filters leave out whole tables"
        )
    if odd := [c for c in "#?%[]\\*" if c in config.files.dir]:
        raise ConfigError(
            f"syncer.to.dir: {config.files.dir!r} has {odd[0]!r} in it, with which delta-rs and Spark find no files; name another directory"
        )
    try:
        # Not at the top: whoever has no delta-rs may ask for the other sinks.
        from pyspark_tidb_binlog.sinks.bootstrap.lake_load import LakeLoad
        from pyspark_tidb_binlog.sinks.lake.lake_sink import LakeSettings, LakeSink
        from pyspark_tidb_binlog.sinks.lake.large_mirrors import LargeMirrors
        from pyspark_tidb_binlog.sinks.lake.mirrors import TableLoads
    except ModuleNotFoundError as error:
        raise ConfigError(
            f'syncer.db-type = "lake": {error}. Install the wheel\'s extra lake, or: pip install "deltalake>=1.6.6,<1.7"'
        ) from error
    settings = LakeSettings(
        config.files.dir,
        cluster_id,
        apply.drainer,
        apply.lease_timeout,
        frozenset(apply.ignore_txn_commit_ts),
        Selection.of(apply),
        apply.mirror_interval,
        days_or_duration(config.delta_retention),
        apply.lake_json == "variant",
        config.files.retention_time,
    )
    again = apply.reload_interval if config.upstream.host else 0.0
    loads = TableLoads(loader.of_first_lake, LakeLoad(loader.of_cluster, loader.gc_held, spark).at, again) if loader is not None else None
    # Spark's commits to a store are not tried.
    large = LargeMirrors(spark) if spark is not None and "://" not in config.files.dir else None
    return LakeSink(settings, pause, loads, large)


def _topic(config: DrainerConfig, cluster_id: int, pause: Callable[[float], None]) -> Topic:
    settings = broker_settings(config, cluster_id)
    try:
        # Not at the top: whoever has no client of Kafka may ask for the other sinks.
        from pyspark_tidb_binlog.sinks.kafka.confluent_topic import ConfluentTopic
    except ModuleNotFoundError as error:
        raise ConfigError(
            f'syncer.db-type = "kafka": {error}. Install the wheel\'s extra kafka, or: pip install "confluent-kafka>=2.16,<3"'
        ) from error
    return ConfluentTopic(settings, pause)


def _relayed(sink: Sink, config: DrainerConfig, cluster_id: int) -> Sink:
    """``sink`` behind a relay log."""
    apply = config.apply
    if any(route.where for route in apply.routes):
        raise ConfigError(
            "syncer.relay.log-dir: a relay log holds whole transactions, with the rows that a where of spark.route excludes; "
            "remove the relay log or the where"
        )
    log = RelayLog(Path(config.relay.log_dir), config.relay.max_file_size, relay_stream(config, cluster_id))
    settings = RelaySettings(not apply.net_change, not apply.routes, frozenset(apply.ignore_txn_commit_ts))
    return RelayedSink(sink, log, SecondaryBinlogs(process_zone()), settings)


def relay_stream(config: DrainerConfig, cluster_id: int) -> RelayStream:
    """The settings that decide which transactions a relay log holds."""
    return RelayStream(cluster_id, Selection.of(config.apply).text, frozenset(config.apply.ignore_txn_commit_ts))


def require_server(config: DrainerConfig) -> DrainerConfig:
    """``config``, if its target is a MySQL-protocol server, which the job needs to compare tables.

    Raises:
        ConfigError: the target is another one.
    """
    if config.apply.db_type not in ("mysql", "tidb"):
        raise ConfigError(
            f"syncer.db-type = {config.apply.db_type!r}: this job compares tables, so its target must be a MySQL-protocol server; use drainer"
        )
    return config


def broker_settings(config: DrainerConfig, cluster_id: int) -> BrokerSettings:
    """Where the topic is, and how it is written."""
    kafka = config.kafka
    return BrokerSettings(
        addrs=kafka.addrs,
        topic=kafka.topic or f"{cluster_id}_obinlog",
        client_id=kafka.client_id,
        max_messages=kafka.max_messages,
        max_message_bytes=kafka.max_message_size,
        retry_seconds=config.apply.retry_seconds,
        options=kafka.options,
    )


def words_for(config: DrainerConfig) -> TargetWords:
    """What the target and its record are called."""
    cluster_id, schema = config.source.cluster_id, config.apply.checkpoint_schema
    if config.apply.db_type in ("mysql", "tidb"):
        where = config.target.socket or f"{config.target.host}:{config.target.port}"
        row = f"""INSERT INTO {schema}.checkpoint VALUES ({cluster_id}, '{{"consistent":true,"commitTS":TS}}')"""
        return TargetWords(where, f"database {schema}", f"{schema}.spark_ddl and spark_state hold no rows of this cluster", row)
    if config.apply.db_type == "lake":
        where, begin = config.files.dir, "a lake takes no record by hand: set initial-commit-ts to that TS, and name an empty directory"
        return TargetWords(where, f"table {where}/changes", f"{where} holds nothing", begin)
    where = str(_directory(config))
    if config.apply.db_type == "kafka":
        kafka = broker_settings(config, cluster_id)
        where = f"topic {kafka.topic} at {kafka.addrs}"
    row = f"write the lines consistent = true and commitTS = TS into {config.data_dir}/savepoint"
    return TargetWords(where, f"record in {config.data_dir}", f"{where} holds nothing", row)


def resume_state(config: DrainerConfig) -> ResumeState:
    """What of the settings determines where the stream resumes."""
    source = config.source
    return ResumeState(words_for(config), source.cluster_id, config.checkpoint_dir, config.delta_dir, source.starting_commit_ts)


def _directory(config: DrainerConfig) -> Path:
    return Path(config.files.dir or config.data_dir)


def _message_settings(config: DrainerConfig, cluster_id: int) -> MessageSettings:
    apply = config.apply
    ignored, from_now = frozenset(apply.ignore_txn_commit_ts), config.source.starting_commit_ts < 0
    return MessageSettings(Path(config.data_dir), cluster_id, apply.sync_ddl, ignored, from_now)
