"""The embedded upstream through real Pumps: what a reader rebuilds from the binlogs and the history is what the upstream holds."""

import random
import threading
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from pyspark_tidb_binlog.binlog_source.cluster.registry import DRAINERS, NodeStatus
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import RegistryClient
from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.binlog_source.pump_client.client import PumpClient
from pyspark_tidb_binlog.binlog_source.pump_client.settings import PumpClientSettings
from pyspark_tidb_binlog.jobs.lab.emulator.process import UpstreamProcess
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.emulator.tablestore import WriteConflict
from pyspark_tidb_binlog.jobs.lab.emulator.upstream import Upstream
from pyspark_tidb_binlog.schemas import reference_decoder, stages
from pyspark_tidb_binlog.schemas.ddl_jobs import Job
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.explode import explode
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from tests.support.eventually import eventually
from tests.support.golden_case import GOLDEN
from tests.support.pump_pulls import Pull
from tests.support.pump_writes import CLUSTER, config_of

pytestmark = pytest.mark.grpc
ID = Column("id", "bigint")
SETTINGS = PumpClientSettings(prewrite_pause=0.01, outcome_pause=0.05)
IMPATIENT = replace(SETTINGS, write_timeout=0.3)
"""For a Pump that stays away. A Pump that only answers late is taken for one, too."""


@pytest.fixture
def upstream(pumps):
    with Upstream(PumpClient.fixed([p.address for p in pumps], CLUSTER, SETTINGS)) as upstream:
        upstream.ddl.create_database("d")
        yield upstream


def pulled(pump, delivery="sorted"):
    """All that a Pump delivers up to now."""
    # An answered write is durable, but visible only once it is indexed.
    end = pump.service.store.catch_up()
    if delivery == "sorted" and not end.sorted_promise:
        return []  # it would wait for a fake
    with Pull(pump.address, (("tidb-binlog-delivery", delivery),), cluster=CLUSTER) as pull:
        got = []
        for entity in pull:
            got.append(binlog_pb2.Binlog.FromString(entity.payload))
            if delivery == "sorted" and got[-1].commit_ts >= end.sorted_promise:
                break
            if delivery == "raw" and got[-1].start_ts == got[-1].commit_ts:
                break
    return got


def transactions(upstream, pumps):
    upstream.flush()
    return sorted((b for p in pumps for b in pulled(p) if b.tp == 1), key=lambda b: b.commit_ts)


def rebuilt(upstream, pumps, table):
    """``table`` from its binlogs, the history and the scalar decoder."""
    history = SchemaHistory.of([Job.from_json(job) for job in upstream.jobs()])
    rows = {}
    binlogs = transactions(upstream, pumps)
    batch = pa.RecordBatch.from_pylist(
        [{"start_ts": b.start_ts, "commit_ts": b.commit_ts, "payload": b.SerializeToString()} for b in binlogs],
        schema=stages.TRANSACTION,
    )
    for event in explode(batch).rows.to_pylist():
        at = history.table_at(event["table_id"], upstream.schema_version)
        if at is None or f"{at.schema}.{at.name}" != table:
            continue
        ops, cells = np.array([event["op"]], np.int32), pa.array([event["row"]], pa.binary())
        versions = np.array([event["schema_version"]], np.int64)
        (key,) = reference_decoder.row_keys(at, ops, cells).to_pylist()
        if event["op"] == Op.DELETE:
            assert key in rows
            del rows[key]
        else:
            assert (key in rows) == (event["op"] == Op.UPDATE)
            (rows[key],) = reference_decoder.new_images(at, ops, cells, versions).to_pylist()
    return sorted(map(plain, rows.values()))


def plain(row):
    return str({name: value.decode() if isinstance(value, bytes) else value for name, value in row.items()})


def present(upstream, table):
    return sorted(map(plain, upstream.rows(table).values()))


TABLES = [
    Table("ints", (ID, Column("v", "varchar(20)"), Column("n", "int")), ("id",)),
    Table("strings", (Column("id", "varchar(20)"), Column("v", "varchar(20)"), Column("n", "int")), ("id",)),
    Table("loose", (ID, Column("v", "varchar(20)"), Column("n", "int")), ("id",), clustered=False),
    Table("keyless", (ID, Column("v", "varchar(20)"), Column("n", "int"))),
]


@pytest.mark.parametrize("table", TABLES, ids=lambda t: t.name)
def test_rows_come_out_as_they_are(upstream, pumps, table):
    upstream.ddl.create_table("d", table)
    chance = random.Random(7)
    name = f"d.{table.name}"
    for _ in range(60):
        txn = upstream.begin()
        handles = list(upstream.rows(name))
        for _ in range(chance.randint(1, 4)):
            key = chance.randint(0, 40)
            if handles and chance.random() < 0.3:
                handle = handles.pop(chance.randrange(len(handles)))
                if chance.random() < 0.5:
                    txn.delete(name, handle)
                else:
                    txn.update(name, handle, {"v": f"u{key}", "n": None})
                continue
            try:
                txn.insert(name, {"id": key if table.name != "strings" else f"k{key}", "v": "x", "n": key})
            except WriteConflict:
                continue
        txn.commit()
    assert rebuilt(upstream, pumps, name) == present(upstream, name)
    assert len(upstream.rows(name)) > 5


def test_a_changed_key_is_a_delete_and_an_insert(upstream, pumps):
    upstream.ddl.create_table("d", TABLES[0])
    txn = upstream.begin()
    handle = txn.insert("d.ints", {"id": 1, "v": "a"})
    assert txn.update("d.ints", handle, {"id": 2}) == 2
    txn.commit()
    value = binlog_pb2.PrewriteValue.FromString(transactions(upstream, pumps)[-1].prewrite_value)
    assert list(value.mutations[0].sequence) == [0, 4, 0]
    assert rebuilt(upstream, pumps, "d.ints") == present(upstream, "d.ints")


def test_rows_and_ddl_out_of_step(upstream, pumps):
    upstream.ddl.create_table("d", TABLES[0])
    old = upstream.schema_version
    seed = upstream.begin()
    seed.insert("d.ints", {"id": 1, "v": "a"})
    seed.commit()
    ddl = upstream.ddl.add_column("d.ints", Column("c", "int", not_null=True, default=5), emit=False)
    early = upstream.begin()
    early.insert("d.ints", {"id": 2, "c": 6})
    early_ts = early.commit()
    ddl.emit()
    late = upstream.begin(old)
    late.insert("d.ints", {"id": 3, "v": "b"})
    late.update("d.ints", 1, {"v": "z"})
    late.commit()
    order = [b.ddl_job_id or binlog_pb2.PrewriteValue.FromString(b.prewrite_value).schema_version for b in transactions(upstream, pumps)]
    assert order[-3:] == [ddl.version, ddl.job["id"], old]
    assert early_ts < ddl.job["binlog"]["FinishedTS"]
    assert {handle: row["c"] for handle, row in upstream.rows("d.ints").items()} == {1: 5, 2: 6, 3: 5}
    assert rebuilt(upstream, pumps, "d.ints") == present(upstream, "d.ints")


def test_columns_dropped_and_modified(upstream, pumps):
    upstream.ddl.create_table("d", TABLES[0])
    txn = upstream.begin()
    txn.insert("d.ints", {"id": 1, "v": "a", "n": 3})
    txn.commit()
    dropped = upstream.ddl.drop_column("d.ints", "v")
    between = upstream.begin(dropped.version - 1)
    between.insert("d.ints", {"id": 2, "n": 4})
    between.commit()
    upstream.ddl.modify_column("d.ints", Column("n", "varchar(9)"), convert=str)
    txn = upstream.begin()
    txn.update("d.ints", 1, {"n": "three"})
    txn.commit()
    states = [b.ddl_schema_state for b in transactions(upstream, pumps) if b.ddl_job_id == dropped.job["id"]]
    assert states == [1, 0]
    assert upstream.rows("d.ints") == {1: {"id": 1, "n": "three"}, 2: {"id": 2, "n": "4"}}
    history = SchemaHistory.of([Job.from_json(job) for job in upstream.jobs()])
    info = history.table_at(upstream.store.table("d.ints").id, upstream.schema_version).info
    assert [(c.id, c.name) for c in info.public_columns()] == [(1, "id"), (4, "n")]


def test_truncate_rename_drop(upstream, pumps):
    upstream.ddl.create_database("e")
    upstream.ddl.create_table("d", TABLES[0])
    old_id = upstream.store.table("d.ints").id
    assert upstream.ddl.truncate("d.ints").job["table_id"] == old_id
    upstream.ddl.rename("d.ints", "e.moved")
    txn = upstream.begin()
    txn.insert("e.moved", {"id": 1})
    txn.commit()
    assert rebuilt(upstream, pumps, "e.moved") == present(upstream, "e.moved")
    upstream.ddl.drop_table("e.moved")
    assert upstream.tables() == ()
    queries = [b.ddl_query.decode() for b in transactions(upstream, pumps) if b.ddl_job_id]
    assert queries[-3:] == ["TRUNCATE TABLE `ints`;", "RENAME TABLE `d`.`ints` TO `e`.`moved`;", "DROP TABLE `moved`;"]


def test_outcomes(upstream, pumps):
    upstream.ddl.create_table("d", TABLES[0])
    rolled, lost, empty = upstream.begin(), upstream.begin(), upstream.begin()
    rolled.insert("d.ints", {"id": 1})
    rolled.prewrite()
    rolled.rollback()
    lost.insert("d.ints", {"id": 2})
    commit_ts = lost.commit(lose_outcome=True)
    assert empty.commit() == 0
    upstream.flush()
    records = [b for p in pumps for b in pulled(p, "raw")]
    of = {
        t.start_ts: sorted(b.tp for b in records if b.start_ts == t.start_ts and b.commit_ts != b.start_ts) for t in (rolled, lost, empty)
    }
    assert of == {rolled.start_ts: [0, 2], lost.start_ts: [0], empty.start_ts: []}
    service = upstream.serve()
    key = next(b.prewrite_key for b in records if b.start_ts == lost.start_ts)
    assert service.answer(f"/mvcc/hex/{key.hex()}", {})["value"]["info"]["writes"] == [{"start_ts": lost.start_ts, "commit_ts": commit_ts}]
    key = next(b.prewrite_key for b in records if b.start_ts == rolled.start_ts)
    assert service.answer(f"/mvcc/hex/{key.hex().upper()}", {})["value"]["info"]["writes"][0]["type"] == 3
    service.stop()
    assert set(upstream.rows("d.ints")) == {2}


def test_a_refused_prewrite_aborts(pumps):
    with Upstream(PumpClient.fixed([p.address for p in pumps], CLUSTER, IMPATIENT)) as upstream:
        refused_prewrites(upstream, pumps)


def refused_prewrites(upstream, pumps):
    upstream.ddl.create_database("d")
    upstream.ddl.create_table("d", TABLES[0])
    upstream.flush()
    pumps[0].stop()
    for key in (1, 2):
        txn = upstream.begin()
        txn.insert("d.ints", {"id": key})
        txn.commit()
    pumps[1].stop()
    txn = upstream.begin()
    txn.insert("d.ints", {"id": 3})
    with pytest.raises(Exception, match="no Pump accepted the Prewrite"):
        txn.commit()
    assert set(upstream.rows("d.ints")) == {1, 2}
    for pump in pumps:
        pump.start()


def test_two_transactions_never_have_one_row(upstream):
    upstream.ddl.create_table("d", TABLES[0])
    txn = upstream.begin()
    txn.insert("d.ints", {"id": 1})
    txn.commit()
    one, two = upstream.begin(), upstream.begin()
    one.update("d.ints", 1, {"n": 1})
    with pytest.raises(WriteConflict, match="locked"):
        two.update("d.ints", 1, {"n": 2})
    one.rollback()
    two.update("d.ints", 1, {"n": 2})
    two.commit()
    assert upstream.rows("d.ints")[1]["n"] == 2


def test_many_threads(upstream, pumps):
    upstream.ddl.create_table("d", TABLES[0])
    failures = []

    def work(first):
        try:
            for n in range(30):
                txn = upstream.begin()
                txn.insert("d.ints", {"id": first + n, "n": n})
                txn.commit()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n * 1000,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert rebuilt(upstream, pumps, "d.ints") == present(upstream, "d.ints") and len(present(upstream, "d.ints")) == 180


def test_history_over_http_with_a_lag(upstream):
    service = upstream.serve()
    client = RegistryClient(service.url)
    assert client.cluster_id() == CLUSTER
    first = client.tso(100)
    assert client.tso() >= first + 100
    upstream.history.lag = 3600
    upstream.ddl.create_table("d", TABLES[0])
    assert [job["type"] for job in client._json("GET", "/ddl/history")] == [1]
    with pytest.raises(Exception, match="400"):
        client._json("GET", "/ddl/history?start_job_id=1")
    with pytest.raises(Exception, match="404"):
        client._json("GET", "/nothing")
    client.close()
    service.stop()


def test_failed_and_repeated_jobs(upstream, pumps):
    upstream.ddl.create_table("d", TABLES[0])
    failed = upstream.ddl.failed("d.ints", 7, "ALTER TABLE `ints` ADD UNIQUE `u`(`v`);")
    repeated = upstream.ddl.add_column("d.ints", Column("c", "int"), emit=False)
    repeated.emit_next(rolled_back=True)
    repeated.emit()
    binlogs = transactions(upstream, pumps)
    assert [b.ddl_job_id for b in binlogs][-2:] == [failed.job["id"], repeated.job["id"]]
    assert failed.version == 0 and failed.job["state"] == 3
    assert sum(b.ddl_job_id == repeated.job["id"] and b.tp == 0 for p in pumps for b in pulled(p, "raw")) == 2


def test_a_lost_outcome_is_asked_for(tmp_path, upstream):
    upstream.ddl.create_table("d", TABLES[0])
    service = upstream.serve()
    pump = PumpServer(config_of(tmp_path, 3, registry=service.url)).start()
    with Upstream(PumpClient.fixed([pump.address], CLUSTER), oracle=upstream.oracle) as other:
        other.mvcc = upstream.mvcc
        other.ddl.create_database("d")
        other.ddl.create_table("d", TABLES[0])
        txn = other.begin()
        txn.insert("d.ints", {"id": 1})
        commit_ts = txn.commit(lose_outcome=True)
        other.flush()
        eventually(lambda: pump.service.store.state.sorted_promise >= commit_ts)
    last = pulled(pump)[-1]
    assert (last.tp, last.commit_ts, bool(last.prewrite_value)) == (1, commit_ts, True)
    pump.stop()
    service.stop()


def test_the_registry_as_a_process(tmp_path):
    history = GOLDEN / "txn" / "ddl_history.json.gz"
    floor = 1 << 62
    with UpstreamProcess(tmp_path, CLUSTER, history=history, floor=floor) as process:
        client = RegistryClient(process.url)
        assert client.cluster_id() == CLUSTER
        given = client.tso()
        assert given > floor
        client.put_status(DRAINERS, NodeStatus("d1", "h:1", max_commit_ts=5))
        assert len(client._json("GET", "/ddl/history")) > 10
        process.kill()
        process.start()
        assert client.tso() > given
        assert client.listing(DRAINERS).nodes == (NodeStatus("d1", "h:1", max_commit_ts=5),)
        client.close()
