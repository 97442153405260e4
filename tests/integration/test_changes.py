"""``format("tidb_binlog")`` as people use it: changes of rows, by real Spark queries on real Pumps."""

import datetime
import json
import re
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.binlog_source.wire.recorded_case import RecordedCase, load
from pyspark_tidb_binlog.jobs.lab.emulator.rehearsal import Log, feed, schedule
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import ClusterService
from pyspark_tidb_binlog.jobs.lab.registry.oracle import Oracle
from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, kind_of
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo
from tests.support.change_scene import ITEM, ChangeScene, rows_of_changes
from tests.support.eventually import eventually
from tests.support.golden_case import GOLDEN, load_case
from tests.support.pump_writes import config_of
from tests.support.recorded_tables import comparable, recorded_rows
from tests.support.spark_queries import WAIT

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
TYPES = load_case("types")


@contextmanager
def recorded(case: RecordedCase, directory: Path, logs: Sequence[Log] = ()) -> Iterator[dict[str, str]]:
    """The options with which the recorded case is read from Pumps."""
    pumps = [PumpServer(config_of(directory, number, cluster_id=case.cluster_id)).start() for number in (1, 2)]
    try:
        list(feed(case, [p.address for p in pumps], logs=logs or schedule(case)))
        yield {
            "pumps": ",".join(p.address for p in pumps),
            "clusterId": str(case.cluster_id),
            "startingCommitTs": str(case.start_ts),
            "endingCommitTs": str(case.end_ts),
            "tidbStatus": str(case.history),
        }
    finally:
        for pump in pumps:
            pump.stop()


@pytest.fixture(scope="module")
def types(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with recorded(load(GOLDEN / "types"), tmp_path_factory.mktemp("types")) as options:
        yield options


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChangeScene]:
    """One row of ``shop.item``, for tests that write nothing."""
    directory = tmp_path_factory.mktemp("shop")
    pumps = [PumpServer(config_of(directory, number)).start() for number in (1, 2)]
    with ChangeScene(spark, pumps, directory / "checkpoints") as made:
        made.write(lambda txn: txn.insert("shop.item", {"id": 1}))
        yield made
    for pump in pumps:
        pump.stop()


def newest(changes: DataFrame, key: str, image: str) -> DataFrame:
    """The rows of a table as its changes leave them, one column ``row``."""
    last = F.max_by(F.struct("op", F.col(image).alias("row")), F.struct("commit_ts", "seq"))
    return changes.groupBy(F.expr(key)).agg(last.alias("last")).where("last.op <> 'delete'").select("last.row")


def cell_of(column: ColumnInfo) -> str:
    """A cell of the variant ``row``, as Spark SQL takes it out."""
    kinds = {CellKind.FLOAT: "float", CellKind.DOUBLE: "double"}
    kind = kinds.get(kind_of(column), "binary" if kind_of(column) is CellKind.BYTES and column.is_binary else "string")
    path = f"$.{column.name}"
    return f"to_json(variant_get(row, '{path}'))" if kind_of(column) is CellKind.JSON else f"variant_get(row, '{path}', '{kind}')"


def test_every_type_as_variant_equals_the_recorded_tables(spark: SparkSession, types: dict[str, str]) -> None:
    changes = spark.read.format("tidb_binlog").options(**types).load().where("op <> 'ddl'").persist()
    for database, name in TYPES.info["tables"]:
        info = TYPES.history.find(database, name, TYPES.history.newest_version).info  # type: ignore[union-attr]
        columns = info.target_columns()
        rows = newest(changes.where(F.col("table") == name), "variant_get(key, '$.id', 'bigint')", "after")
        found = rows.selectExpr(*map(cell_of, columns)).toArrow()
        got = [tuple(comparable(c, v.as_py()) for c, v in zip(columns, row, strict=True)) for row in zip(*found.columns, strict=True)]
        wanted = recorded_rows(GOLDEN / "types", f"{database}.{name}", info)
        assert without_json_null(columns, got) == without_json_null(columns, wanted), name
    changes.unpersist()


def without_json_null(columns: tuple[ColumnInfo, ...], rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """In a variant the JSON document null is no other than NULL."""
    kinds = [kind_of(column) for column in columns]
    same = [tuple(None if k is CellKind.JSON and v == "null" else v for k, v in zip(kinds, row, strict=True)) for row in rows]
    return sorted(same, key=repr)


def test_every_type_as_columns_equals_the_recorded_tables(spark: SparkSession, types: dict[str, str]) -> None:
    for database, name in TYPES.info["tables"]:
        info = TYPES.history.find(database, name, TYPES.history.newest_version).info  # type: ignore[union-attr]
        columns = info.target_columns()
        asked = types | {"table": f"{database}.{name}", "invalidDates": "string"}
        changes = spark.read.format("tidb_binlog").options(**asked).load().where("_change_type <> 'update_preimage'")
        last = "max_by(struct(*), struct(_commit_version, _change_seq))"
        rows = changes.groupBy("id").agg(F.expr(last).alias("last")).where("last._change_type <> 'delete'").select("last.*").toArrow()
        cells = zip(*(rows.column(c.name).to_pylist() for c in columns), strict=True)
        got = [tuple(comparable(c, v) for c, v in zip(columns, row, strict=True)) for row in cells]
        assert sorted(got, key=repr) == recorded_rows(GOLDEN / "types", f"{database}.{name}", info), name


def test_columns_have_the_types_that_a_data_engineer_expects(spark: SparkSession, types: dict[str, str]) -> None:
    def read(name: str, **more: str) -> DataFrame:
        return spark.read.format("tidb_binlog").options(**types, table=f"g_types.{name}", **more).load()

    def kinds(frame: DataFrame) -> dict[str, str]:
        return {f.name: f.dataType.simpleString() for f in frame.schema if not f.name.startswith("_")}

    assert kinds(read("ints")) == dict(
        id="bigint", t="tinyint", tu="smallint", s="smallint", su="int", m="int", mu="int", i="int", iu="bigint", b="bigint",
        bu="decimal(20,0)", z="bigint", bo="tinyint", y="int", b1="boolean", b8="bigint", b64="decimal(20,0)",
    )  # fmt: skip
    assert kinds(read("reals")) == dict(
        id="int", f="float", f2="float", d="double", d2="double", du="double", n="decimal(10,2)", n2="string", n3="string",
        n4="decimal(5,5)", nu="decimal(20,4)",
    )  # fmt: skip
    assert kinds(read("times")) == dict(
        id="int", d="date", dt="timestamp_ntz", dt3="timestamp_ntz", dt6="timestamp_ntz", ts="timestamp", ts6="timestamp", t="string",
        t3="string", t6="string",
    )  # fmt: skip
    zero = read("times").where("id = 4").selectExpr("d IS NULL", "dt IS NULL", "dt6 IS NULL", "ts IS NULL", "t").collect()
    assert [tuple(row) for row in zero] == [(True, True, True, True, "00:00:00")]
    with pytest.raises(PySparkException, match="column d holds '0000-00-00', which is not a date.*invalidDates=null"):
        read("times", invalidDates="fail").collect()


def test_values_depend_on_no_setting_of_the_session(spark: SparkSession, types: dict[str, str]) -> None:
    """Whatever its time zone, its default type of timestamps and its dialect are."""

    def read(zone: str, kind: str, ansi: str) -> list[dict[str, object]]:
        given = {"spark.sql.session.timeZone": zone, "spark.sql.timestampType": kind, "spark.sql.ansi.enabled": ansi}
        before = {name: spark.conf.get(name) for name in given}
        try:
            for name, value in given.items():
                spark.conf.set(name, value)
            of_table = spark.read.format("tidb_binlog").options(**types, table="g_types.times").load()
            cells = of_table.selectExpr(
                "id", "unix_micros(ts) ts", "unix_micros(ts6) ts6", "string(dt6) dt6", "string(d) d", "t6", "_change_type"
            )
            every = spark.read.format("tidb_binlog").options(**types, tables="g_types.*").load().where("op <> 'ddl'")
            instant = "unix_micros(try_variant_get(after, '$.ts', 'timestamp_ltz')) ts"
            local = "string(try_variant_get(after, '$.dt', 'timestamp_ntz')) dt"
            images = every.selectExpr("table", "commit_ts", "seq", "unix_micros(commit_time) at", instant, local, "to_json(key) key")
            return cells.toArrow().to_pylist() + images.toArrow().to_pylist()
        finally:
            for name, value in before.items():
                spark.conf.set(name, value)

    usual = read("UTC", "TIMESTAMP_LTZ", "true")
    assert len(usual) > 40 and any(row.get("ts") for row in usual)
    assert read("America/New_York", "TIMESTAMP_NTZ", "false") == usual


def test_ddls_between_rows_and_each_change_once_over_restarts(spark: SparkSession, tmp_path: Path) -> None:
    """Three writers and 40 DDLs on the same tables: over several lives, one of which dies in its batch, every change comes once, as in one read."""
    case = load(GOLDEN / "online")
    batches: dict[int, list[dict[str, object]]] = {}
    failing = [1]

    def rows(frame: DataFrame) -> list[dict[str, object]]:
        return frame.selectExpr("commit_ts", "seq", "op", "table", "to_json(key) key", "to_json(after) after").toArrow().to_pylist()

    def take(frame: DataFrame, batch_id: int) -> None:
        found = rows(frame)
        assert batches.setdefault(batch_id, found) == found
        if batch_id in failing:
            raise ValueError("the sink broke")

    def live(upto_ts: int) -> None:
        stream = spark.readStream.format("tidb_binlog").options(**options | {"endingCommitTs": str(upto_ts)}).load()
        writer = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).start().awaitTermination(300)

    with recorded(case, tmp_path) as options:
        live(case.start_ts + (case.end_ts - case.start_ts) // 2)
        with pytest.raises(PySparkException, match="the sink broke"):
            live(case.start_ts + (case.end_ts - case.start_ts) * 3 // 4)
        failing.clear()
        for part in (3, 4):
            live(case.start_ts + (case.end_ts - case.start_ts) * part // 4)
        assert len(batches) == 3 and all(batches.values())
        once = rows(spark.read.format("tidb_binlog").options(**options).load())
        assert [row for _, batch in sorted(batches.items()) for row in batch] == once
        places = [(row["commit_ts"], row["op"] != "ddl", row["seq"]) for row in once]
        assert places == sorted(set(places))


def test_only_committed_transactions_are_rows(scene: ChangeScene) -> None:
    committed = scene.write(lambda txn: txn.insert("shop.item", {"id": 1, "name": "a", "n": 1}))
    undone = scene.upstream.begin()
    undone.insert("shop.item", {"id": 2, "name": "undone"})
    undone.prewrite()
    undone.rollback()
    scene.promise()
    waiting = scene.upstream.begin()
    waiting.insert("shop.item", {"id": 3, "name": "waits"})
    waiting.prewrite()
    behind = scene.write(lambda txn: txn.insert("shop.item", {"id": 4, "name": "behind it"}))
    scene.upstream.flush()
    assert [(r["op"], r["commit_ts"]) for r in scene.taken(scene.stream())] == [("insert", committed)]
    late = waiting.commit()
    scene.promise()
    assert [(r["op"], r["commit_ts"]) for r in scene.taken(scene.stream())] == [("insert", ts) for ts in (committed, behind, late)]


def test_a_transaction_that_two_pumps_hold_is_given_once(spark: SparkSession, tmp_path: Path) -> None:
    case = load(GOLDEN / "txn")
    both = tuple(sorted({scheduled for log in schedule(case) for scheduled in log}))
    wanted = [
        (binlog.commit_ts, binlog.ddl_job_id > 0)
        for log in case.pumps
        for binlog in map(binlog_pb2.Binlog.FromString, log)
        if binlog.tp == binlog_pb2.Commit and case.start_ts < binlog.commit_ts <= case.end_ts
    ]
    with recorded(case, tmp_path, [both, both]) as options:
        rows = spark.read.format("tidb_binlog").options(**options, readPartitions="1").load().select("commit_ts", "op", "seq").collect()
        assert len(rows) == len({(r.commit_ts, r.seq) for r in rows})
        assert sorted({(r.commit_ts, r.op == "ddl") for r in rows}) == sorted(wanted)


def test_ddls_tables_and_operations_are_chosen(scene: ChangeScene) -> None:
    scene.upstream.ddl.create_database("other")
    scene.upstream.ddl.create_table("other", Table("item", ITEM.columns, ITEM.primary_key))
    scene.upstream.ddl.add_column("shop.item", Column("size", "int"))
    for table in ("shop.item", "other.item"):
        handle = scene.upstream.begin()
        row = handle.insert(table, {"id": 1, "name": "a"})
        handle.update(table, row, {"n": 2})
        handle.delete(table, row)
        handle.commit()

    def ops(**more: str) -> list[tuple[str, str | None, str]]:
        return [(r["database"], r["table"], r["op"]) for r in rows_of_changes(scene.read(**more))]

    of_item = [("insert"), ("update"), ("delete")]
    whole = ops()
    assert whole[:3] == [("other", None, "ddl"), ("other", "item", "ddl"), ("shop", "item", "ddl")]
    assert whole[3:] == [(db, "item", op) for db in ("shop", "other") for op in of_item]
    assert ops(tables="SHOP.it*") == [("shop", "item", "ddl"), *(("shop", "item", op) for op in of_item)]
    assert ops(tables="other.*, shop.none", ops="ddl, delete") == [*whole[:2], ("other", "item", "delete")]
    images = scene.read(tables="shop.*", ops="update").selectExpr("to_json(key)", "to_json(before)", "to_json(after)", "seq").collect()
    old = '{"id":1,"n":null,"name":"a","size":null}'
    assert [tuple(row) for row in images] == [('{"id":1}', old, old.replace('"n":null', '"n":2'), 1)]


def test_columns_of_one_table_over_its_ddls(scene: ChangeScene) -> None:
    """``fail`` names the DDL and the option with which the same checkpoint goes on; ``ignore`` keeps the columns."""
    scene.write(lambda txn: txn.insert("shop.item", {"id": 1, "name": "a", "n": 1}))
    ddl = scene.upstream.ddl
    ddl.create_table("shop", Table("aside", ITEM.columns, ITEM.primary_key))
    ddl.add_column("shop.item", Column("size", "int", default=5))
    scene.write(lambda txn: txn.update("shop.item", 1, {"size": 7}))
    scene.promise()
    with pytest.raises(PySparkException) as failed:
        scene.taken(scene.stream(table="shop.item"), "fail")
    found = re.search(
        r'DDL job (\d+) at commit_ts (\d+) .* changed shop.item.*ADD COLUMN.*option\("schemaCommitTs", "(\d+)"\)', str(failed.value)
    )
    assert found, str(failed.value)[:2000]
    with pytest.raises(PySparkException, match=f'or end a batch before it with option."endingCommitTs", "{int(found[2]) - 1}"'):
        scene.read(table="shop.item").collect()
    assert scene.read(table="shop.item", endingCommitTs=str(int(found[2]) - 1)).count() == 1
    rows = scene.taken(scene.stream(table="shop.item", schemaCommitTs=found[3]), "fail")
    assert [(r["_change_type"], r["id"], r["size"]) for r in rows] == [
        ("insert", 1, None),
        ("update_preimage", 1, 5),
        ("update_postimage", 1, 7),
    ]
    rows = scene.taken(scene.stream(table="shop.item", schemaEvolution="ignore"), "ignore")
    assert [tuple(r) for r in rows][0] == ("id", "name", "n", "_change_type", "_commit_version", "_commit_timestamp", "_change_seq")
    assert [(r["_change_type"], r["id"], r["n"]) for r in rows] == [
        ("insert", 1, 1),
        ("update_preimage", 1, 1),
        ("update_postimage", 1, 1),
    ]
    scene.write(lambda txn: txn.update("shop.item", 1, {"size": 8}))
    scene.promise()
    with pytest.raises(PySparkException, match=f'changed shop.item.*option."schemaCommitTs", "{found[3]}"'):
        scene.taken(scene.stream(table="shop.item"), "fail")
    ddl.truncate("shop.item")
    scene.promise()
    with pytest.raises(PySparkException, match="changed shop.item.*TRUNCATE"):
        scene.taken(scene.stream(table="shop.item", schemaCommitTs=found[3]), "fail")


def test_a_window_closes_while_the_table_is_idle(spark: SparkSession, scene: ChangeScene, tmp_path: Path) -> None:
    """The watermark goes on by heartbeats, also behind the filter that docs/changes.md names."""
    scene.write(lambda txn: txn.insert("shop.item", {"id": 1, "name": "a", "n": 1}))
    scene.promise()

    def closed(name: str, **more: str) -> DataFrame:
        rows = scene.stream(tables="shop.item", ops="insert", **more).withWatermark("commit_time", "0 seconds")
        kept = rows.where("op <> 'heartbeat' or commit_time is null")
        counts = kept.groupBy(F.window("commit_time", "100 milliseconds"), "table").count()
        writer = counts.writeStream.format("memory").queryName(name).outputMode("append")
        query = writer.option("checkpointLocation", str(tmp_path / name)).start()
        try:
            for _ in range(3):
                reach(query, scene.promise())
                time.sleep(0.1)
            reach(query, scene.promise())
        finally:
            query.stop()
        return spark.table(name)

    def resolved(query: StreamingQuery) -> int:
        assert query.exception() is None, str(query.exception())
        progress = query.lastProgress
        return json.loads(progress["sources"][0]["endOffset"] or "{}").get("resolved_ts", 0) if progress else 0

    def reach(query: StreamingQuery, ts: int) -> None:
        eventually(lambda: resolved(query) >= ts, seconds=WAIT, pause=0.05)

    assert [(r.table, r["count"]) for r in closed("with_heartbeats", heartbeats="true").collect()] == [("item", 1)]
    assert closed("without_heartbeats").count() == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"nonsense": "1"}, "has no option nonsense; it has .*tables"),
        ({"format": "json"}, "option format is 'json': give changes .* or protocol"),
        ({"table": "item"}, "option table is 'item': give"),
        ({"table": "shop.none"}, "there is no table shop.none"),
        ({"table": "shop.itm"}, "there is no table shop.itm .*did you mean shop.item\\?"),
        ({"table": "shop.item", "tables": "a.b"}, "either table .* or tables"),
        ({"ops": "upsert"}, "option ops is 'upsert'"),
        ({"delivery": "raw"}, "changes are read from complete transactions"),
        ({"pumps": ""}, "needs the option pumps"),
        ({"tidbStatus": ""}, "option tidbStatus is not set"),
        ({"startingTimestamp": "2026-11-20"}, "either startingCommitTs or startingTimestamp"),
        ({"schemaEvolution": "merge"}, "option schemaEvolution is 'merge': give fail or ignore"),
        ({"startingCommitTs": "-1"}, "a batch needs a start: give startingTimestamp, or startingCommitTs"),
        (
            {"startingCommitTs": "", "startingTimestamp": "2026-11-20", "endingCommitTs": "", "endingTimestamp": "2026-11-19"},
            "the span ends before it begins: startingTimestamp = 2026-11-20, endingTimestamp = 2026-11-19",
        ),
        ({"startingCommitTs": "", "startingTimestamp": "2999-01-01"}, r"begins: startingTimestamp = 2999-01-01, endingCommitTs = \d+"),
        ({"recorded": "x"}, "option recorded reads files, and no Pump: leave out pumps, tidbStatus, clusterId$"),
    ],
)
def test_errors_say_what_to_do(shop: ChangeScene, options: dict[str, str], words: str) -> None:
    with pytest.raises(PySparkException, match=re.compile(words, re.M)) as refused:
        shop.read(**options).collect()
    said = str(refused.value).splitlines()
    assert len(said) < 12 and re.search(words, said[-2]), "the reason is the last line before Spark's own, and the trace above it is short"


@pytest.mark.parametrize("name", ["", "g_bank.checking"])
def test_a_recorded_case_gives_what_its_pumps_give(spark: SparkSession, tmp_path: Path, name: str) -> None:
    case, table = load(GOLDEN / "bank"), {"table": name} if name else {}

    def rows(**options: str) -> list[dict[str, object]]:
        found = rows_of_changes(spark.read.format("tidb_binlog").options(**options, **table).load())
        return [{key: value for key, value in row.items() if key != "pump"} for row in found]

    with recorded(case, tmp_path) as options:
        wanted = rows(**options)
    assert len(wanted) > 10_000
    assert rows(recorded=str(GOLDEN / "bank")) == wanted
    # a case's span can be cut, not extended
    middle = (case.start_ts + case.end_ts) // 2
    stamp = "_commit_version" if name else "commit_ts"
    cut = rows(recorded=str(GOLDEN / "bank"), startingCommitTs="0", endingCommitTs=str(middle), schemaCommitTs=str(case.end_ts))
    assert cut == [row for row in wanted if row[stamp] <= middle]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"recorded": str(GOLDEN)}, "golden is not a recorded case: it has no case.json"),
        ({"recorded": "/nowhere", "table": "a.b"}, "/nowhere is not a recorded case: it has no case.json"),
        ({"recorded": str(GOLDEN / "bank"), "format": "protocol"}, "a recorded case is read as changes only: remove option format"),
    ],
)
def test_what_is_no_case_is_refused_by_load(spark: SparkSession, options: dict[str, str], words: str) -> None:
    with pytest.raises(PySparkException, match=words):
        spark.read.format("tidb_binlog").options(**options).load()


def test_a_stream_of_a_recorded_case_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    stream = spark.readStream.format("tidb_binlog").option("recorded", str(GOLDEN / "bank")).load()
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start
    with pytest.raises(PySparkException, match="option recorded names a finished recording, which a stream cannot follow: use spark.read"):
        query().awaitTermination(WAIT)


def test_a_registry_of_ours_that_is_named_as_pd_is_known_at_once(shop: ChangeScene) -> None:
    service = shop.options["tidbStatus"]
    for table in ({}, {"table": "shop.item"}):
        with pytest.raises(PySparkException, match=f"is not PD .* named by its URL in spark.pumps: {service}"):
            shop.read(pumps=service.replace("http://", "pd://"), tidbStatus="", **table).collect()


@pytest.mark.parametrize("named", ["pd://nosuch.invalid:2379", "http://nosuch.invalid:8249", "nosuch.invalid:8250,also.invalid:8250"])
def test_a_name_that_no_host_has_is_said_by_load(shop: ChangeScene, named: str) -> None:
    with pytest.raises(
        PySparkException, match=r"option pumps: this machine finds no host of the name nosuch\.invalid.*: correct it"
    ) as refused:
        shop.read(pumps=named, tidbStatus="")
    assert len(str(refused.value).splitlines()) < 10, "the reason is not below a trace"


# It takes five seconds each.
@pytest.mark.parametrize("way", ["read", pytest.param("stream", marks=pytest.mark.slow)])
def test_a_registry_that_listens_nowhere_is_said_by_load(shop: ChangeScene, way: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(PySparkException, match=f"option pumps: no registry listens at 127.0.0.1:{port}: check the port"):
        getattr(shop, way)(pumps=f"http://127.0.0.1:{port}", tidbStatus="")


def test_a_registry_that_is_gone_when_a_stream_starts_is_said_without_a_chain(shop: ChangeScene) -> None:
    registry = ClusterService(Oracle(), 7).start()
    try:
        stream = shop.stream(pumps=registry.url, tidbStatus="", startingCommitTs="-1", pumpPatience="1")
    finally:
        registry.stop()
    with pytest.raises(PySparkException, match="does not answer .*Connection refused") as failed:
        shop.taken(stream, "gone")
    assert str(failed.value).count("Traceback") == 1, str(failed.value)


def test_a_span_by_time(scene: ChangeScene) -> None:
    early = scene.write(lambda txn: txn.insert("shop.item", {"id": 1}))
    time.sleep(0.05)
    between = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    time.sleep(0.05)
    late = scene.write(lambda txn: txn.insert("shop.item", {"id": 2}))

    def found(**more: str) -> list[int]:
        return [row.commit_ts for row in scene.read(ops="insert", **more).collect()]

    assert found() == [early, late]
    assert found(startingCommitTs="", startingTimestamp=between) == [late]
    assert found(endingCommitTs="", endingTimestamp=between) == [early]
