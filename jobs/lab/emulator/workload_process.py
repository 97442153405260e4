"""The workload with its whole upstream (oracle, registry, history, MVCC, tables) as a separate process.

    python -m pyspark_tidb_binlog.jobs.lab.emulator.workload_process --data-dir DIR --cluster-id 7 [--rate 200] ...

Promises: prints ``serving HOST:PORT`` before any Pump exists, so that Pumps can register there. ``open`` then waits for the Pumps and creates the tables.
Commands are POST requests of its HTTP service: ``open``, ``start``, ``stop``, ``status``, ``client``, ``tables``, ``rows``, ``probes``, ``binlog``, and
``mistake``; ``WorkloadProcess`` has a method for each but the last. SIGTERM and Ctrl-C end the process.
"""

import argparse
import dataclasses
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from pyspark_tidb_binlog.binlog_source.cluster.registry import PUMPS, NodeState
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import RegistryClient
from pyspark_tidb_binlog.binlog_source.pump_client.client import PumpClient
from pyspark_tidb_binlog.binlog_source.pump_client.settings import ClientStats, PumpClientSettings
from pyspark_tidb_binlog.jobs.lab.emulator.process import ServerProcess
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Json
from pyspark_tidb_binlog.jobs.lab.emulator.upstream import Upstream
from pyspark_tidb_binlog.jobs.lab.emulator.values import comparable
from pyspark_tidb_binlog.jobs.lab.emulator.workload import (
    ORDERS,
    PROBE,
    DdlMix,
    WorkloadConfig,
    WorkloadSession,
    create_tables,
    write_together,
)
from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import ClusterService, nothing_known
from pyspark_tidb_binlog.jobs.lab.registry.oracle import Oracle
from pyspark_tidb_binlog.jobs.lab.registry.standalone import until_signalled
from pyspark_tidb_binlog.schemas.backoff import Retries, steady
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable, ReplicationError
from pyspark_tidb_binlog.schemas.http_client import FAILURES, fetch
from pyspark_tidb_binlog.schemas.tableinfo import TableInfo

_OPEN_TIMEOUT = 30.0
_POLL = steady(0.05)
_CALL_TIMEOUT = 120.0
_CATCH_UP_SECONDS = 1.0


class Host:
    """One upstream and the threads that write to it. ``open`` is called once; ``start`` and ``stop`` after it, as often as wanted."""

    def __init__(self, oracle: Oracle, cluster_id: int, config: WorkloadConfig, data_dir: Path, addr: str = "127.0.0.1:0") -> None:
        """Create the service; nothing is written before ``open``."""
        self._config = config
        self._oracle = oracle
        self._upstream: Upstream | None = None
        self._client: PumpClient | None = None
        self._registry: RegistryClient | None = None
        self._sessions: list[WorkloadSession] = []
        self._ddl: DdlMix | None = None
        self._first_ddls = 0
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._turns = threading.Lock()
        """Held while the threads are started or stopped."""
        self._probes: list[tuple[int, int]] = []
        self._failure = ""
        self.service = ClusterService(
            oracle,
            cluster_id,
            addr=addr,
            data_dir=data_dir,
            history=lambda: self._upstream.jobs() if self._upstream is not None else (),
            mvcc=lambda key: self._upstream.mvcc.look_up(key) if self._upstream is not None else nothing_known(key),
            commands={
                "open": lambda query: self.open(int(query.get("pumps", 1))),
                "start": lambda query: self.start(),
                "stop": lambda query: self.stop(),
                "mistake": lambda query: self.mistake(query.get("customer", "")),
                "status": lambda query: self.status(),
                "client": lambda query: self.client(),
                "tables": lambda query: self.tables(),
                "rows": lambda query: self.rows(query["table"], rowids=query["rowids"] == "True"),
                "probes": lambda query: self._probes[int(query.get("after", 0)) :],
                "binlog": lambda query: self.service.tell_server(query["status"]),
            },
        )
        self.service.tell_server()

    def open(self, pumps: int) -> dict[str, Any]:
        """Wait for that many Pumps in the registry, then create the tables."""
        retries = Retries(_POLL, _OPEN_TIMEOUT)
        while (online := self._online()) < pumps:
            if retries.over:
                raise PumpUnavailable(f"{online} of {pumps} Pumps registered within {_OPEN_TIMEOUT:g} s: check that they run")
            retries.pause()
        self._registry = registry = RegistryClient(self.service.url)
        settings = PumpClientSettings(self._config.write_timeout, gather=self._config.gather)
        self._client = client = PumpClient.from_registry(registry, settings)
        self._upstream = upstream = Upstream(client, oracle=self._oracle)
        tables = create_tables(upstream)
        self._first_ddls = len(upstream.jobs())
        self._sessions = [WorkloadSession(upstream, number, self._config, tables) for number in range(self._config.sessions)]
        self._ddl = DdlMix(upstream, self._sessions, self._config, tables)
        return self.status()

    def start(self) -> dict[str, Any]:
        """Start writing, or go on with it."""
        self._opened()
        with self._turns:
            if not self._threads:
                self._stop.clear()
                works = [self._write, *([self._probe] if self._config.probe_interval else [])]
                self._threads = [threading.Thread(target=self._guarded, args=(work,), name=work.__name__, daemon=True) for work in works]
                for thread in self._threads:
                    thread.start()
        return self.status()

    def stop(self) -> dict[str, Any]:
        """Stop writing; everything is in the Pumps when it returns."""
        self._end_threads()
        self._opened().flush()
        return self.status()

    def mistake(self, customer: str) -> dict[str, int]:
        """Stop writing, and delete all orders of a customer in one transaction: what a person does at noon."""
        self.stop()
        upstream = self._opened()
        txn = upstream.begin()
        gone = {handle for handle, row in upstream.rows(ORDERS).items() if row["customer"] == customer}
        for handle in gone:
            txn.delete(ORDERS, handle)
        txn.commit()
        upstream.flush()
        for session in self._sessions:
            session.removed(ORDERS, gone)
        return {"deleted": len(gone)}

    def status(self) -> dict[str, Any]:
        """Counters, a ts above everything written so far, the failure, if any, and whether it writes. ``Status`` on the client's side."""
        ddls = self._ddl.done if self._ddl is not None else 0
        return {
            "transactions": sum(session.transactions for session in self._sessions) + len(self._probes),
            "changes": sum(session.changes for session in self._sessions) + len(self._probes),
            "first_ddls": self._first_ddls,
            "ddls": ddls,
            # every record written so far, DDL binlogs too, is below a ts issued now
            "upto_ts": self._oracle.next(),
            "failure": self._failure,
            "running": bool(self._threads) and not self._stop.is_set(),
        }

    def client(self) -> dict[str, int]:
        """The Pump client's counters. ``ClientStats`` on the client's side."""
        return dataclasses.asdict(self._client.stats() if self._client is not None else ClientStats())

    def tables(self) -> dict[str, Json]:
        """The table info of every table."""
        upstream = self._opened()
        with upstream.lock:
            return {name: upstream.store.table(name).info for name in upstream.tables()}

    def rows(self, table: str, *, rowids: bool) -> list[list[str | None]]:
        """Every row of a table, in comparable form. ``rowids``: behind its columns the handle of a row that has no other."""
        upstream = self._opened()
        with upstream.lock:
            info = upstream.store.table(table).at(upstream.schema_version)
            rows = upstream.rows(table).items()
        more = rowids and not info.handle_columns()
        return [[comparable(c, row[c.name]) for c in info.public_columns()] + ([str(handle)] if more else []) for handle, row in rows]

    def close(self) -> None:
        """Stop the threads and the service."""
        self._end_threads()
        if self._upstream is not None:
            self._upstream.close()
        if self._registry is not None:
            self._registry.close()
        self.service.stop()

    def _end_threads(self) -> None:
        with self._turns:
            self._stop.set()
            for thread in self._threads:
                thread.join()
            self._threads = []

    def _online(self) -> int:
        return sum(node.state is NodeState.ONLINE for node in self.service.nodes.listing(PUMPS).nodes)

    def _opened(self) -> Upstream:
        if self._upstream is None:
            raise PumpUnavailable("the workload has no Pumps yet: call open first")
        return self._upstream

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except ReplicationError as error:
            self._failure = f"{type(error).__name__}: {error}"
            self._stop.set()

    def _write(self) -> None:
        """Rounds of one transaction by each session, with a DDL between two rounds."""
        config, written = self._config, 0
        step, due = config.sessions / config.rate if config.rate else 0.0, time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            write_together(self._sessions)
            written += config.sessions
            if config.ddl_every and self._ddl is not None and written >= config.ddl_every:
                self._ddl.step()
                written = 0
            # a delay longer than that is not caught up
            due = max(due + step, time.monotonic() - _CATCH_UP_SECONDS)

    def _probe(self) -> None:
        upstream, due = self._opened(), time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            txn = upstream.begin()
            txn.insert(PROBE, {"id": len(self._probes) + 1})
            txn.commit()
            self._probes.append((len(self._probes) + 1, time.monotonic_ns()))
            due += self._config.probe_interval


@dataclass(frozen=True, slots=True)
class Status:
    """The progress of a workload."""

    transactions: int
    changes: int
    """Row changes in them, as their binlogs have them: an update of the handle is two."""
    first_ddls: int
    """The DDLs that created the first tables."""
    ddls: int
    """The DDLs since then."""
    upto_ts: int
    """A ts above everything written before the request."""
    failure: str
    running: bool
    """Whether it writes."""


class WorkloadProcess(ServerProcess):
    """``python -m pyspark_tidb_binlog.jobs.lab.emulator.workload_process``, and its commands."""

    def __init__(self, data_dir: Path, cluster_id: int, config: WorkloadConfig, addr: str = "127.0.0.1:0", module: str = __name__) -> None:
        """Does not start the process; ``start`` (or ``with``) does. ``addr``: where it serves; ``module``: another one that takes the same flags."""
        flags = [f"--{field.name.replace('_', '-')}={getattr(config, field.name)}" for field in dataclasses.fields(config)]
        command = [sys.executable, "-m", module, f"--data-dir={data_dir}", f"--cluster-id={cluster_id}", f"--addr={addr}", *flags]
        super().__init__("workload", command)

    @property
    def url(self) -> str:
        """``http://host:port`` of registry, oracle, history and MVCC look-ups."""
        return f"http://{self.address}"

    def open(self, pumps: int) -> Status:
        """Wait until that many Pumps have registered, then create the tables."""
        return Status(**self._call("open", pumps=pumps))

    def begin(self) -> Status:
        """Start writing, or go on with it."""
        return Status(**self._call("start"))

    def end(self) -> Status:
        """Stop writing; everything is in the Pumps when it returns."""
        return Status(**self._call("stop"))

    def status(self) -> Status:
        """Its progress; ``ReplicationError`` if the workload failed."""
        status = Status(**self._call("status"))
        if status.failure:
            raise ReplicationError(f"the workload ended early: {status.failure}")
        return status

    def client(self) -> ClientStats:
        """The counters of its Pump client."""
        return ClientStats(**self._call("client"))

    def tables(self) -> dict[str, TableInfo]:
        """Every table by its name, ``db.table``."""
        return {name: TableInfo.from_json(info) for name, info in self._call("tables").items()}

    def rows(self, table: str, *, rowids: bool = False) -> list[tuple[str | None, ...]]:
        """Every row of a table, each value in the form of its column (``values.form_of``). ``rowids``: behind them the handle of a row that has no other."""
        return [tuple(row) for row in self._call("rows", table=table, rowids=rowids)]

    def probes(self, after: int = 0) -> list[tuple[int, int]]:
        """The probe rows past the first ``after``: (id, monotonic nanoseconds at which its commit returned)."""
        return [(number, at) for number, at in self._call("probes", after=after)]

    def binlog(self, status: str) -> None:
        """What ``/info/all`` says about its binlogs from now on; they are written all the same."""
        self._call("binlog", status=status)

    def _call(self, command: str, **parameters: object) -> Any:
        try:
            answer = fetch(f"{self.url}/{command}?{urlencode(parameters)}", _CALL_TIMEOUT, "POST", b"")
        except FAILURES as error:
            raise ReplicationError(f"the workload at {self.url} does not answer ({error}); check that its process runs") from error
        if not answer.ok:
            raise ReplicationError(f"workload, {command}: {answer.text}")
        return json.loads(answer.body)


def _config_of(given: Mapping[str, Any]) -> WorkloadConfig:
    return WorkloadConfig(**{field.name: given[field.name] for field in dataclasses.fields(WorkloadConfig)})


def main(argv: Sequence[str]) -> int:
    """Serve until stopped."""
    options = argparse.ArgumentParser(description="The embedded upstream under a seeded workload.", allow_abbrev=False)
    options.add_argument("--addr", default="127.0.0.1:0")
    options.add_argument("--data-dir", type=Path, required=True)
    options.add_argument("--cluster-id", type=int, required=True)
    for field in dataclasses.fields(WorkloadConfig):
        options.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    given = options.parse_args(argv)
    wait = until_signalled()
    host = Host(Oracle(given.data_dir / "oracle"), given.cluster_id, _config_of(vars(given)), given.data_dir, given.addr)
    host.service.start()
    print(f"serving {host.service.address}", flush=True)
    wait()
    host.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
