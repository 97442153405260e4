"""Makes the target consistent from the relay log, if the whole upstream is away at a start (drainer.md 8). No JVM is started.

Promises: does nothing unless three things hold: ``syncer.relay.log-dir`` has files; no part of the upstream answers (PD or the registry, the status ports
and Pumps of the settings); the target's checkpoint says ``consistent`` false. Then the relay log is replayed in safe mode, and the job ends with an error
and exit code 1. Start the job again when the upstream is back: the stream continues from there.
"""

import contextlib
import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from pyspark_tidb_binlog.binlog_source.cluster.discovery import names_registry
from pyspark_tidb_binlog.binlog_source.cluster.registry import PUMPS
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import open_registry
from pyspark_tidb_binlog.binlog_source.cluster.status_port import status_ports
from pyspark_tidb_binlog.conf.entry import comparing
from pyspark_tidb_binlog.conf.model import DrainerConfig, SourceConfig
from pyspark_tidb_binlog.jobs.stream.targets import relay_stream
from pyspark_tidb_binlog.schemas.binlogfile import files_in
from pyspark_tidb_binlog.schemas.errors import ApplyError, PumpUnavailable, Stopped
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.tls import TlsSettings
from pyspark_tidb_binlog.sinks.mysql.checkpoint_row import TargetCheckpoint, only_cluster
from pyspark_tidb_binlog.sinks.mysql.elsewhere import is_elsewhere, real_checkpoint, table_in_target
from pyspark_tidb_binlog.sinks.mysql.session import connect
from pyspark_tidb_binlog.sinks.mysql.structure import ABSENT
from pyspark_tidb_binlog.sinks.replay.file_replay import Replayed
from pyspark_tidb_binlog.sinks.replay.relay_replay import RelayReplay
from pyspark_tidb_binlog.sinks.translate.column_values import ReadBack, process_zone

_log = logging.getLogger(__name__)

_CONNECT_SECONDS = 5.0


def recover_without_upstream(config: DrainerConfig, stop: threading.Event) -> None:
    """Recover, and raise an error. Return at once if there is nothing to recover: the stream then starts, or reports its own error.

    Raises:
        PumpUnavailable: the upstream is away, and the target was made consistent.
        ReplicationError: the upstream is away, and the target could not be made consistent.
    """
    directory = Path(config.relay.log_dir)
    if config.apply.db_type not in ("mysql", "tidb") or not config.relay.log_dir or not files_in(directory):
        return
    away = upstream_away(config)
    cluster_id = _cluster_left_open(config) if away else 0
    if not cluster_id:
        return
    _log.warning("%s; the target's checkpoint is not consistent: the relay log in %s is replayed", away, directory)
    done = replayed(config, cluster_id, stop)
    if done is not None:
        raise PumpUnavailable(f"{away}. {replayed_words(done, directory)}")


def replayed(config: DrainerConfig, cluster_id: int, stop: threading.Event) -> Replayed | None:
    """Replay the relay log; None: the target is already consistent."""

    def pause(seconds: float) -> None:
        if stop.wait(seconds):
            raise Stopped("stopped before all of the relay log was replayed; the next start goes on with it")

    how = ReadBack(process_zone())
    with contextlib.closing(RelayReplay(config, cluster_id, relay_stream(config, cluster_id), how, pause)) as sink:
        found = sink.start()
        done = None if found.consistent else sink.replay(found)
    for table, count in how.doubtful_times.items():
        _log.warning("%s: %d TIMESTAMP values are in the hour that occurs twice; the replay used the earlier moment", table, count)
    return done


def replayed_words(done: Replayed, directory: Path) -> str:
    """The text for the operator: what the replay did, and what to do."""
    text = (
        f"The relay log in {directory} was replayed: {done.transactions} transactions with {done.operations} row operations and {done.ddls} DDLs. The target "
        f"is consistent at {done.commit_ts} ({as_time(done.commit_ts)}). Start again when the upstream is back: the stream continues from there"
    )
    if done.keyless:
        text += f". Compare with the upstream the tables whose equal rows have no unique key: {comparing(*sorted(done.keyless))}"
    return f"{text}. {done.findings.total()} findings are in the log" if done.findings else text


def upstream_away(config: DrainerConfig) -> str:
    """A text that no part of the upstream answers; empty if any part does."""
    source = config.source
    if names_registry(source):
        try:
            with contextlib.closing(open_registry(source.pumps, TlsSettings.of(source.security))) as registry:
                registry.listing(PUMPS)
            return ""
        except PumpUnavailable as error:
            named = str(error)
    else:
        named = f"none of the Pumps {source.pumps} answers"
    return "" if any(map(_answers, _addresses(source))) else f"the upstream cannot be reached: {named}"


def _addresses(source: SourceConfig) -> Iterator[str]:
    """``//host:port`` of the Pumps and status ports that the settings name; of a registry, the Pumps are not known."""
    if not names_registry(source):
        yield from (f"//{one.strip()}" for one in source.pumps.split(","))
    if "://" in source.tidb_status:
        yield from status_ports(source.tidb_status)


def _answers(url: str) -> bool:
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 0), _CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def _cluster_left_open(config: DrainerConfig) -> int:
    """The cluster whose checkpoint is not consistent; 0 where there is none."""
    schema = config.apply.checkpoint_schema
    try:
        with connect(config.target, config.apply) as session:
            cluster_id = config.source.cluster_id or only_cluster(session, schema, table_in_target(config))
            recorded = TargetCheckpoint(cluster_id, schema, table_in_target(config)).load(session) if cluster_id else None
            if recorded is None and cluster_id and is_elsewhere(config):
                recorded = real_checkpoint(config, cluster_id).read()
    except ApplyError as error:
        if error.errno in ABSENT:
            return 0
        raise
    return cluster_id if recorded is not None and not recorded.consistent else 0
