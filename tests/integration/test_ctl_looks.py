"""What ``ctl`` shows of a Drainer, its DDLs and its findings, from real nodes, a real target and a real Delta table."""

import json
import os
import shutil
import sys
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.registry import DRAINERS, NodeState, NodeStatus
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import RegistryClient
from pyspark_tidb_binlog.binlog_source.rpc.calls import Methods
from pyspark_tidb_binlog.binlog_source.rpc.http1 import NOT_FOUND, HttpRequest, HttpResponse, json_answer
from pyspark_tidb_binlog.binlog_source.rpc.rpc_server import RpcServer
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.jobs.check.recorded_findings import recorded_findings
from pyspark_tidb_binlog.jobs.ctl import main
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import ClusterService
from pyspark_tidb_binlog.jobs.stream.report import Progress, SeenPump, as_json
from pyspark_tidb_binlog.schemas.errors import ConfigError, DdlRefused
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind
from pyspark_tidb_binlog.sinks.delta.appended_table import found_at
from pyspark_tidb_binlog.sinks.delta.checkpoint_table import CheckpointRow, DeltaFindings
from pyspark_tidb_binlog.sinks.mysql.session import Session
from tests.support.ddl_jobs import column, database, history, job, steps_of, table
from tests.support.ddl_target import MARKS, apply
from tests.support.drainer_nodes import PretendedStream
from tests.support.eventually import eventually
from tests.support.on_terminal import OnTerminal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.grpc, pytest.mark.mysql, pytest.mark.spark]
AT = tso(1_577_934_245_600)
ROOT = Path(__file__).parents[2]


@pytest.mark.shows("ctl status")
def test_status_names_what_holds_progress_back(service: ClusterService, capsys: pytest.CaptureFixture[str]) -> None:
    stream = PretendedStream(lambda: AT)
    stream.positions = {"p1": AT + 9, "p2": AT}
    stream.progress = as_json(
        Progress(AT, 3.25, 12.0, 4, 5, 6, 7, "Pump p2 since 2020", held_seconds=9.0, findings=1, newest_findings=("rows `d`.`t`",))
    )
    node = stream.node(RegistryClient(service.url), "d1").start()
    try:
        assert main(["status", "-registry", service.url]) == 0
        said = capsys.readouterr().out
        for part in ("Drainer d1 at 127.0.0.1", "2020-01-02 03:04:05.600", "lag 3.2 s", "held back by: Pump p2 since 2020", "rows `d`.`t`"):
            assert part in said
        assert said.index("Pump p2 is read up to") < said.index("Pump p1 is read up to"), "the one behind comes first"
        assert main(["status", "-addr", node.address, "-json"]) == 0
        values = json.loads(capsys.readouterr().out)
        assert values["progress"]["holding"] == "Pump p2 since 2020" and values["status"]["LastTS"] == AT
    finally:
        node.stop()


def test_status_of_nodes_that_do_not_answer(service: ClusterService, registry: RegistryClient, capsys: pytest.CaptureFixture[str]) -> None:
    registry.put_status(DRAINERS, NodeStatus("dead", "127.0.0.1:1", NodeState.ONLINE, AT))
    registry.put_status(DRAINERS, NodeStatus("gone", "127.0.0.1:1", NodeState.OFFLINE, AT))
    assert main(["status", f"-registry={service.url}"]) == 1
    said = capsys.readouterr().out
    assert (
        "Drainer dead at 127.0.0.1:1: no answer, registered as online" in said
        and "does not answer" in said
        and "registered last: 2020-01-02" in said
    )
    assert "gone" not in said
    assert main(["status", "-addr", "127.0.0.1:1"]) == 1
    assert "Drainer 127.0.0.1:1 at 127.0.0.1:1: no answer\n" in (said := capsys.readouterr().out) and "online" not in said
    with pytest.raises(ConfigError, match="'nobody'; it has dead, gone"):
        main(["status", "-node-id", "nobody", f"-registry={service.url}"])


def test_status_after_a_restart(service: ClusterService, capsys: pytest.CaptureFixture[str]) -> None:
    """No Pump has answered yet."""
    stream = PretendedStream(lambda: AT)
    node = stream.node(RegistryClient(service.url), "d1").start()
    try:
        for resolved_ts, says in ((AT, "everything up to 2020-01-02 03:04:05.600"), (0, "nothing is in the target yet")):
            stream.progress = as_json(Progress(resolved_ts))
            assert main(["status", "-registry", service.url]) == 0
            assert says in capsys.readouterr().out
    finally:
        node.stop()


@pytest.mark.shows("ctl status")
def test_status_of_a_real_drainer(capsys: pytest.CaptureFixture[str]) -> None:
    """It has no page of ours."""

    def answer(request: HttpRequest) -> HttpResponse:
        real = {"PumpPos": {"p1": AT}, "Synced": False, "LastTS": AT, "TsMap": ""}
        return json_answer(real) if request.path == "/status" else NOT_FOUND

    server = RpcServer("real").bind("127.0.0.1:0").serve(Methods(http=answer))
    try:
        assert main(["status", "-addr", f"127.0.0.1:{server.port}"]) == 0
    finally:
        server.stop(0)
    assert "a real Drainer" in (said := capsys.readouterr().out) and "Pump p1 is read up to 2020-01-02" in said


@pytest.mark.parametrize("said", [b"null", b"[1]", b"<html>"])
def test_status_of_what_is_no_drainer(capsys: pytest.CaptureFixture[str], said: bytes) -> None:
    """Another program has taken the port."""
    server = RpcServer("other").bind("127.0.0.1:0").serve(Methods(http=lambda request: HttpResponse(HTTPStatus.OK, said)))
    try:
        assert main(["status", "-addr", f"127.0.0.1:{server.port}"]) == 1
    finally:
        server.stop(0)
    assert f"the program at 127.0.0.1:{server.port} is not a Drainer (" in capsys.readouterr().out


@pytest.fixture
def settings(mariadb: PrivateMariaDB, tmp_path: Path) -> Path:
    to = mariadb.target()
    file = tmp_path / "drainer.toml"
    file.write_text(
        f'[spark]\ndelta-dir = "{tmp_path / "delta"}"\nsocket = "{to.socket}"\n'
        f'[syncer.to]\nuser = "{to.user}"\npassword = "{to.password}"\n[syncer.to.checkpoint]\nschema = "{MARKS}"\n'
    )
    return file


@pytest.mark.shows("ctl ddl")
def test_ddls_that_were_not_executed_as_written(session: Session, settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ddl", "-config", str(settings)]) == 0
    assert capsys.readouterr().out == "every DDL was executed as TiDB wrote it\n"
    h = history(
        database(1),
        job(2, 3, table(10, "t")),
        job(3, 3, table(11, "u", [column(1, "id"), column(2, "v")])),
        job(4, 4, table_id=10, table_name="t"),
        job(5, 25, table(10, "t")),
    )
    texts = {2: "CREATE TABLE `t` (`id` INT PRIMARY KEY);", 3: "GARBLED;", 4: "DROP TABLE `t`;", 5: "RECOVER TABLE `t`;"}
    with pytest.raises(DdlRefused):
        for step in steps_of(h, texts):
            apply(session, step, h)
    assert main(["-cmd", "ddl", "-config", str(settings)]) == 0
    said = capsys.readouterr().out
    assert "refused: job 5" in said and "TiDB:     RECOVER TABLE `t`;" in said and "refused:  " in said
    assert not any(f"job {number}" in said for number in (2, 3, 4)), "nothing to know of these: 3 was made as the table is"


@pytest.mark.shows("syncer.to.checkpoint.schema")
def test_a_target_without_our_tables_has_no_ddls(session: Session, settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session.execute(f"DROP DATABASE {MARKS}")
    assert main(["ddl", "-config", str(settings)]) == 0
    assert "every DDL" in capsys.readouterr().out


def batch(number: int) -> CheckpointRow:
    finding = Finding(FindingKind.ROWS, f"number {number}", "`d`.`t`", tso(1_577_934_245_600 + number), "id='secret'", 1, 0)
    return CheckpointRow(number, 0, AT + number, findings=(finding,))


@pytest.mark.shows("ctl findings")
def test_findings_without_a_jvm_are_those_that_spark_reads(
    spark: "SparkSession", settings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["findings", "-config", str(settings)]) == 1
    assert f"there is no Delta table {tmp_path / 'delta-findings'} and no {tmp_path / 'delta'};" in capsys.readouterr().out
    (tmp_path / "delta").mkdir()
    assert main(["findings", "-config", str(settings)]) == 0
    assert capsys.readouterr().out == "no findings\n"
    path = str(tmp_path / "delta-findings")
    delta = DeltaFindings(path, "app", 3600.0)

    def append(number: int) -> None:
        delta.append(delta.lacking([batch(number)]))

    append(0)
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.checkpointInterval' = '2')")
    for number in range(1, 3):
        append(number)
    spark.sql(f"OPTIMIZE delta.`{path}`").collect()
    append(3)
    assert list((tmp_path / "delta-findings" / "_delta_log").glob("*.checkpoint.parquet")), "the log has a checkpoint"
    plain = [row["batch_id"] for row in found_at(path, "SELECT batch_id FROM t")]
    with_spark = [row.batch_id for row in spark.read.format("delta").load(path).select("batch_id").collect()]
    assert sorted(plain) == sorted(with_spark) == list(range(4)), "compacted files count once"
    assert main(["findings", "-limit", "2", "-config", str(settings)]) == 0
    first, *lines, last = capsys.readouterr().out.splitlines()
    assert first == "4 findings, the newest 2:" and [line[-8:] for line in lines] == ["number 2", "number 3"]
    assert last.startswith("whether they differ now: ") and last.endswith(" verify -config FILE --tables d.t")
    assert "secret" not in "".join(lines), "log-row-data is off"


def test_a_table_is_read_as_it_is_or_refused(spark: "SparkSession", tmp_path: Path) -> None:
    config = DrainerConfig(delta_dir=str(tmp_path / "delta"))
    table = spark.range(3).selectExpr(
        "id AS kind", "id AS `table`", "id AS commit_ts", "id AS key", "id AS wanted", "id AS found", "id AS words", "id AS recorded_at"
    )
    table.coalesce(1).write.format("delta").option("delta.enableDeletionVectors", "true").save(config.findings_dir)
    spark.sql(f"DELETE FROM delta.`{config.findings_dir}` WHERE kind = 1")
    assert spark.sql(f"SELECT * FROM delta.`{config.findings_dir}`").count() == 2
    assert sorted(row["kind"] for row in recorded_findings(config)) == [0, 2]
    shutil.rmtree(f"{config.findings_dir}/_delta_log")
    (Path(config.findings_dir) / "_delta_log").mkdir()
    (Path(config.findings_dir) / "_delta_log" / f"{0:020}.json").write_text('{"protocol": {"minReaderVersion": 9, "minWriterVersion": 9}}')
    with pytest.raises(ConfigError, match="Read it with Spark"):
        recorded_findings(config)


@pytest.mark.shows("ctl status")
def test_status_is_watched_on_a_terminal_until_ctrl_c(service: ClusterService, registry: RegistryClient, tmp_path: Path) -> None:
    stream = PretendedStream(lambda: AT)
    stream.positions = {"p1": AT}
    known = Progress(
        AT,
        3.25,
        12.0,
        4,
        5,
        6,
        7,
        "Pump p2 since 2020",
        held_seconds=9.0,
        last_ddl="CREATE TABLE `[red]` (a INT)",
        pumps=(SeenPump("p2", "paused", AT, 9.0),),
    )
    stream.progress = as_json(known)
    node = stream.node(RegistryClient(service.url), "d1").start()
    environ = {**os.environ, "TIDB_BINLOG_LOG": str(tmp_path / "ctl.log"), "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "pyspark_tidb_binlog.jobs.launch", "ctl", "status", "--watch", f"--registry={service.url}"]
    try:
        with OnTerminal(command, environ, ROOT, columns=80) as watch:

            def shows(*words: str) -> None:
                eventually(lambda: all(word in "\n".join(watch.screen) for word in words), what=str(words), seen=lambda: watch.screen)

            shows(
                "Drainer d1 at 127.0.0.1:",
                "· online",
                "lag      3.2 s",
                "held by  Pump p2 since 2020",
                "p2 paused 9.0 s behind",
                "CREATE TABLE `[red]` (a INT)",
            )
            stream.progress = {"holding": "apply", "held_seconds": 5, "later": 1, "resolved_ts": AT}
            shows("held by  apply for 5.0 s", " behind")
            node.stop()
            registry.put_status(DRAINERS, NodeStatus("d1", "127.0.0.1:1", NodeState.ONLINE, AT))
            shows("no answer", "does not answer")
            watch.interrupt()
            assert watch.wait(60) == 0 and watch.screen[-1].startswith("╰")
            assert watch.output.endswith("╯\x1b[0m\r\n"), "the last panel stays"
    finally:
        node.stop()
