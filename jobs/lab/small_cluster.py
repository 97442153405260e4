"""A small cluster on this machine: a registry that is its own upstream, with a workload, and Pumps, each a process. Demo, playground, notebook and tests use it.

Promises: no JVM and no Spark. The processes end with the block, and also if this process is killed (``emulator.process``).
"""

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark_tidb_binlog.binlog_source.cluster.registry_client import RegistryClient
from pyspark_tidb_binlog.conf.load import load_drainer
from pyspark_tidb_binlog.conf.model import DrainerConfig, PumpConfig, SourceConfig, TargetConfig
from pyspark_tidb_binlog.jobs.lab.emulator.workload import WorkloadConfig
from pyspark_tidb_binlog.jobs.lab.emulator.workload_process import WorkloadProcess
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.lab.pump_process import PUMP, PumpProcess
from pyspark_tidb_binlog.jobs.lab.target_use import DEMO_CLUSTER
from pyspark_tidb_binlog.schemas.errors import ConfigError, ReplicationError

PUMPS = 2
CALM = WorkloadConfig(rate=40, sessions=2, ddl_every=80, probe_interval=0)
"""A slow workload, whose changes a person can follow."""
FAKE_INTERVAL = 0.2
"""Seconds without a write after which a Pump here writes a fake binlog: an idle one must not hold the others back."""
_POLL_SECONDS = 0.02
_FIRST_DDLS = 3


@contextlib.contextmanager
def upstream(
    work_dir: Path,
    config: WorkloadConfig,
    pumps: int = PUMPS,
    *,
    module: str = PUMP,
    fake_interval: float = FAKE_INTERVAL,
    addr: str = "127.0.0.1:0",
) -> Iterator[WorkloadProcess]:
    """A workload that is ready to begin, and its ``pumps`` Pumps, each in its own process, stopped at the end of the block.

    ``module``: what runs as a Pump; ``fake_interval``: its ``fake_binlog_interval``; ``addr``: where the registry serves.
    """
    with contextlib.ExitStack() as stack:
        workload = WorkloadProcess(work_dir / "upstream", DEMO_CLUSTER, config, addr)
        workload.start()
        stack.callback(workload.stop)
        for number in range(1, pumps + 1):
            pump = PumpProcess(
                PumpConfig(
                    node_id=f"pump-{number}",
                    addr="127.0.0.1:0",
                    data_dir=str(work_dir / f"pump-{number}"),
                    registry=workload.url,
                    cluster_id=DEMO_CLUSTER,
                    fake_binlog_interval=fake_interval,
                    stop_write_at_available_space="",
                ),
                module,
            )
            pump.start()
            stack.callback(pump.stop)
        try:
            yield workload
        finally:
            # a transaction that is under way needs its Pump; it may have ended already, or not begun
            with contextlib.suppress(ReplicationError):
                workload.end()


def settings_for(workload: WorkloadProcess, config: DrainerConfig, target: TargetConfig, work_dir: Path) -> DrainerConfig:
    """The Drainer's settings for a stream from ``workload`` to ``target``, from before its first table on; the rest from ``config``."""
    registry = RegistryClient(workload.url)
    begin = registry.tso()
    registry.close()
    source = dataclasses.replace(
        config.source, pumps=workload.url, cluster_id=DEMO_CLUSTER, starting_commit_ts=begin, tidb_status=workload.url
    )
    return privately(config, source, target, work_dir)


def privately(config: DrainerConfig, source: SourceConfig, target: TargetConfig, work_dir: Path) -> DrainerConfig:
    """``config`` from ``source`` to ``target`` without PD, on any port, with what it records in ``work_dir``."""
    return dataclasses.replace(
        config,
        source=source,
        target=target,
        pd_urls="",
        addr="127.0.0.1:0",
        checkpoint_dir=str(work_dir / "spark"),
        delta_dir=str(work_dir / "delta"),
    )


def into_lake(config: DrainerConfig, directory: Path) -> DrainerConfig:
    """``config`` with a new lake in ``directory`` as the target.

    Raises:
        ConfigError: a lake is there: another upstream's schema versions and timestamps would follow its own.
    """
    if (directory / "changes").exists():
        raise ConfigError(f"{directory} is the lake of an earlier run, whose upstream is gone: name another directory, or remove this one")
    apply = dataclasses.replace(config.apply, db_type="lake")
    return dataclasses.replace(config, apply=apply, files=dataclasses.replace(config.files, dir=str(directory.absolute())))


@contextlib.contextmanager
def small_cluster() -> Iterator[tuple[DrainerConfig, WorkloadProcess]]:
    """Two Pumps with a workload that writes and has executed its first DDLs, and a private MariaDB, which all end with the block.

    Gives the settings of a Drainer for them, and the workload.
    """
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="small-cluster-", ignore_cleanup_errors=True)))
        target = stack.enter_context(PrivateMariaDB()).target()
        workload = stack.enter_context(upstream(place, CALM))
        config = settings_for(workload, load_drainer(), target, place)
        workload.open(PUMPS)
        workload.begin()
        while workload.status().ddls < _FIRST_DDLS:
            time.sleep(_POLL_SECONDS)
        yield config, workload
