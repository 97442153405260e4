"""The Pump client over real gRPC: fail-over, outcomes that follow, duplicates, a Pump killed in mid-write, other Pumps than ours."""

import dataclasses
import functools
import itertools
import os
import signal
import threading
import time
from concurrent import futures

import grpc
import pytest

from pyspark_tidb_binlog.binlog_source.cluster.registry import PUMPS, NodeState, NodeStatus
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import RegistryClient
from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.binlog_source.pump.storage.record import fake
from pyspark_tidb_binlog.binlog_source.pump_client.client import PumpClient
from pyspark_tidb_binlog.binlog_source.pump_client.settings import PumpClientSettings
from pyspark_tidb_binlog.binlog_source.pump_client.writer import PumpWriter, WriteFailed
from pyspark_tidb_binlog.conf.model import PumpConfig
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.emulator.upstream import Upstream
from pyspark_tidb_binlog.jobs.lab.pump_process import PumpProcess
from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import ClusterService
from pyspark_tidb_binlog.jobs.lab.registry.oracle import Oracle
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable
from pyspark_tidb_binlog.schemas.proto import binlog_pb2, pump_pb2
from tests.support.binlogs import payload
from tests.support.eventually import eventually
from tests.support.faulty_client import Faults, FaultyClient
from tests.support.pump_pulls import RAW, Pull

pytestmark = pytest.mark.grpc
CLUSTER = 7
PREWRITE, COMMIT = 0, 1
ENDS = itertools.count(10**9)
"""Timestamps above every other in these tests."""
QUICK = PumpClientSettings(write_timeout=0.5, prewrite_pause=0.01, outcome_pause=0.02, probe_interval=0.02, watch_wait=0.1)
TABLE = Table("t", (Column("id", "bigint"),), ("id",))
record = functools.partial(payload, prewrite_key=b"k")


@pytest.fixture
def pumps(tmp_path):
    """Three Pumps, each with a port that it keeps over restarts."""
    made = [PumpServer(config(tmp_path, f"p{n}")).start() for n in (1, 2, 3)]
    for pump in made:
        pump.config = dataclasses.replace(pump.config, addr=pump.address)
    yield made
    for pump in made:
        pump.stop()


def config(path, node_id, **more):
    given = {"addr": "127.0.0.1:0", "data_dir": str(path / node_id), "cluster_id": CLUSTER, "fake_binlog_interval": 0, "sync_log": False}
    return PumpConfig(node_id=node_id, **(given | more))


def stored(address):
    """What the log of a Pump holds: (type, start_ts) in its order.

    A Pump answers a write before readers see it. So a fake binlog is written, and the log is read up to that fake.
    """
    end = next(ENDS)
    writer = PumpWriter(address, CLUSTER, 30.0, tls=None)
    writer.write(fake(end).payload)
    writer.close()
    with Pull(address, RAW, cluster=CLUSTER) as pull:
        found = []
        for entity in pull:
            binlog = binlog_pb2.Binlog.FromString(entity.payload)
            if binlog.commit_ts == end:
                break
            if binlog.start_ts != binlog.commit_ts:
                found.append((binlog.tp, binlog.start_ts))
    return found


def test_fail_over_and_the_commit_follows_after_a_restart(pumps):
    addresses = [pump.address for pump in pumps]
    with PumpClient.fixed(addresses, CLUSTER, QUICK) as client:
        client.prewrite(10, record(PREWRITE, 10))
        pumps[0].stop()
        client.outcome(10, record(COMMIT, 10, 15))
        for start_ts in range(20, 26):
            client.prewrite(start_ts, record(PREWRITE, start_ts))
            client.outcome(start_ts, record(COMMIT, start_ts, start_ts + 100))
        assert client.stats().failovers >= 1
        with pytest.raises(PumpUnavailable, match=f"{addresses[0]} did not accept 1 outcomes"):
            client.flush(0.05)
        pumps[0].start()
        client.flush()
        assert client.stats().outcomes_given_up == 0
    assert stored(addresses[0]) == [(PREWRITE, 10), (COMMIT, 10)]
    assert sorted(stored(addresses[1]) + stored(addresses[2])) == [(tp, ts) for tp in (PREWRITE, COMMIT) for ts in range(20, 26)]


def test_a_demoted_pump_comes_back_by_a_probe(pumps):
    addresses, down = [pump.address for pump in pumps], pumps[0]
    with PumpClient.fixed(addresses, CLUSTER, QUICK) as client:
        down.stop()
        start_ts = 0
        while addresses[0] in client.available():
            start_ts += 1
            client.prewrite(start_ts, record(PREWRITE, start_ts))
        assert client.stats().demotions == 1 and start_ts <= 33
        down.start()
        eventually(lambda: addresses[0] in client.available())
        assert client.stats().probes >= 1
        for start_ts in (101, 102, 103):
            client.prewrite(start_ts, record(PREWRITE, start_ts))
    assert stored(addresses[0]) == [(PREWRITE, 101)]


def test_when_all_are_gone_it_says_so_and_goes_on_later(pumps):
    with PumpClient.fixed([pump.address for pump in pumps], CLUSTER, QUICK) as client:
        for pump in pumps:
            pump.stop()
        with pytest.raises(PumpUnavailable, match="no Pump accepted the Prewrite of start_ts 10 .*UNAVAILABLE"):
            client.prewrite(10, record(PREWRITE, 10))
        for pump in pumps:
            pump.start()
        client.prewrite(20, record(PREWRITE, 20))
    assert [found for pump in pumps for found in stored(pump.address)] == [(PREWRITE, 20)]


@pytest.mark.shows("pump spark.cluster-id")
def test_another_cluster_is_refused(pumps):
    with PumpClient.fixed([pump.address for pump in pumps], CLUSTER + 1, QUICK) as client:
        with pytest.raises(PumpUnavailable, match=f"UNKNOWN cluster ID are mismatch, {CLUSTER + 1} vs {CLUSTER}"):
            client.prewrite(10, record(PREWRITE, 10))


def test_an_upstream_with_faults_leaves_what_such_a_tidb_leaves(pumps):
    addresses = [pump.address for pump in pumps]
    faults = Faults(seed=5, lost_commits=0.2, late_commits=0.3, duplicates=0.5)
    client = FaultyClient.fixed(addresses, CLUSTER, dataclasses.replace(QUICK, write_timeout=15)).inject(faults)
    with Upstream(client) as upstream:
        upstream.ddl.create_database("d")
        upstream.ddl.create_table("d", TABLE)
        for number in range(40):
            txn = upstream.begin()
            txn.insert("d.t", {"id": number})
            txn.commit()
        upstream.flush()
    logs = [stored(address) for address in addresses]
    prewrites = [ts for log in logs for tp, ts in log if tp == PREWRITE]
    commits = [ts for log in logs for tp, ts in log if tp == COMMIT]
    assert len(set(prewrites)) == 42 and 8 < len(prewrites) - 42 < 34, "some lie on two Pumps"
    assert len(set(commits)) == len(commits) and 1 < 42 - len(commits) < 21, "of each transaction one Commit at most"
    for log in logs:
        assert all(log.index((PREWRITE, ts)) < log.index((COMMIT, ts)) for tp, ts in log if tp == COMMIT)
        assert len(set(log)) == len(log), "never twice on the same Pump"
    late = [log for log in logs if (order := [ts for tp, ts in log if tp == COMMIT]) != sorted(order)]
    assert late, "some were overtaken"
    assert len(upstream.rows("d.t")) == 40


def test_a_pump_killed_between_sending_and_answer(tmp_path, monkeypatch):
    first, second = (PumpProcess(config(tmp_path, f"p{n}")) for n in (1, 2))
    with first, second:
        processes = {process.address: process for process in (first, second)}
        killed = []

        def kill(address):
            processes[address].kill()
            for process in processes.values():
                if process.running:
                    os.kill(process.pid, signal.SIGCONT)

        def write_and_kill_the_first_asked(writer, payload):
            if not killed:
                killed.append(writer.address)
                threading.Timer(0.2, kill, [writer.address]).start()
            write(writer, payload)

        write = PumpWriter.write
        monkeypatch.setattr(PumpWriter, "write", write_and_kill_the_first_asked)
        client = PumpClient.fixed(list(processes), CLUSTER, QUICK)
        with Upstream(client) as upstream:
            # held, so that the answer cannot come before the kill
            for process in processes.values():
                os.kill(process.pid, signal.SIGSTOP)
            upstream.ddl.create_database("d")
            upstream.flush()
            assert client.stats().failovers == 1
        (alive,) = set(processes) - set(killed)
        assert [tp for tp, _ in stored(alive)] == [PREWRITE, COMMIT]
        processes[killed[0]].start()
        assert stored(killed[0]) == []


def test_pumps_come_and_go_by_the_registry(tmp_path):
    service = ClusterService(Oracle(), CLUSTER).start()
    registry = RegistryClient(service.url)
    with pytest.raises(PumpUnavailable, match=f"no pump found in the registry {service.url}"):
        PumpClient.from_registry(registry)
    one, two = (PumpServer(config(tmp_path, f"p{n}", registry=service.url)) for n in (1, 2))
    one.start()
    with PumpClient.from_registry(registry, QUICK) as client:
        assert (client.cluster_id, client.available()) == (CLUSTER, ("p1",))
        two.start()
        eventually(lambda: client.available() == ("p1", "p2"))
        client.prewrite(registry.tso(), record(PREWRITE, registry.tso()))
        one.stop()
        eventually(lambda: client.available() == ("p2",))
        one.start()
        eventually(lambda: client.available() == ("p1", "p2"))
        # a crashed Pump stays online in the registry
        registry.put_status(PUMPS, NodeStatus("p3", "127.0.0.1:9", NodeState.ONLINE))
        eventually(lambda: client.available() == ("p1", "p2", "p3"))
        for _ in range(40):
            ts = registry.tso()
            client.prewrite(ts, record(PREWRITE, ts))
        assert client.available() == ("p1", "p2") and client.stats().demotions == 1
    for pump in (one, two):
        pump.stop()
    registry.close()
    service.stop()


def test_our_pump_by_its_socket_and_with_its_size_limit(tmp_path):
    socket = f"unix://{tmp_path}/pump.sock"
    pump = PumpServer(config(tmp_path, "p1", socket=socket, max_message_size=10_000)).start()
    with PumpClient.fixed([], CLUSTER, dataclasses.replace(QUICK, socket=socket)) as client:
        client.write(record(PREWRITE, 10))
        client.write(record(COMMIT, 10, 15))
        with pytest.raises(WriteFailed, match="start_ts 20 is too large for Pump local"):
            client.prewrite(20, record(PREWRITE, 20, prewrite_value=b"x" * 20_000))
    assert stored(pump.address) == [(PREWRITE, 10), (COMMIT, 10)]
    pump.stop()


class PlainPump:
    """A Pump with WriteBinlog only and gRPC's own size limit; answers the ``errmsg`` that it is told."""

    def __init__(self, address):
        self.errmsg, self.taken = "", []
        self.server = grpc.server(futures.ThreadPoolExecutor(4))
        handler = grpc.unary_unary_rpc_method_handler(self._write)
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("binlog.Pump", {"WriteBinlog": handler}),))
        port = self.server.add_insecure_port(address)
        self.address = address if address.startswith("unix:") else f"127.0.0.1:{port}"
        self.server.start()

    def _write(self, request, context):
        self.taken.append(pump_pb2.WriteBinlogReq.FromString(request).payload)
        return pump_pb2.WriteBinlogResp(errmsg=self.errmsg).SerializeToString()


@pytest.fixture(params=["127.0.0.1:0", "unix"])
def plain(request, tmp_path):
    pump = PlainPump(f"unix://{tmp_path}/pump.sock" if request.param == "unix" else request.param)
    yield pump
    pump.server.stop(0).wait()


def test_a_pump_that_lacks_the_batch_gets_them_one_by_one(plain):
    payloads = [b"%d" % number for number in range(5)]
    writer = PumpWriter(plain.address, CLUSTER, tls=None)
    writer.start_many(payloads).result()
    writer.start_many(payloads[:2]).result()
    assert plain.taken == payloads + payloads[:2]
    writer.close()
    with pytest.raises(WriteFailed, match="CANCELLED") as failure:
        writer.write(b"x")
    assert failure.value.code == "CANCELLED"


@pytest.mark.shows("wire gotcha 4")
def test_an_errmsg_is_a_failure_though_the_status_is_ok(plain):
    plain.errmsg = "the disk is full"
    writer = PumpWriter(plain.address, CLUSTER, tls=None)
    with pytest.raises(WriteFailed, match="refused a binlog: the disk is full") as failure:
        writer.write(b"x")
    assert (failure.value.code, failure.value.text) == ("OK", "the disk is full")
    writer.close()


def test_a_message_too_large_fails_at_once(plain):
    with PumpClient.fixed([plain.address], CLUSTER) as client:
        begun = time.monotonic()
        with pytest.raises(WriteFailed, match="start_ts 10 is too large for Pump .*larger than max"):
            client.prewrite(10, record(PREWRITE, 10, prewrite_value=b"x" * 5_000_000))
        assert time.monotonic() - begun < 10
        client.prewrite(20, record(PREWRITE, 20))
        client.outcome(20, record(COMMIT, 20, 25))
        client.flush()
    assert plain.taken == [record(PREWRITE, 20), record(COMMIT, 20, 25)]


def test_the_local_socket(tmp_path):
    address = f"unix://{tmp_path}/pump.sock"
    pump = PlainPump(address)
    with PumpClient.fixed([], CLUSTER, PumpClientSettings(socket=address)) as client:
        client.write(record(PREWRITE, 10))
        client.write(record(COMMIT, 10, 15))
    assert pump.taken == [record(PREWRITE, 10), record(COMMIT, 10, 15)]
    pump.server.stop(0).wait()
