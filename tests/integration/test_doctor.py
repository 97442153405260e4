"""``ctl doctor`` with a real registry, Pump, target and node of a Drainer: all is well, and each of them gone."""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.registry import PUMPS, NodeState, NodeStatus
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import RegistryClient
from pyspark_tidb_binlog.binlog_source.drainer.node import DrainerNode
from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.jobs import ctl
from pyspark_tidb_binlog.jobs.check import doctor
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import ClusterService
from pyspark_tidb_binlog.jobs.stream.report import Progress, as_json
from pyspark_tidb_binlog.schemas.alarms import Verified
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.verify.table_comparison import Tally
from pyspark_tidb_binlog.sinks.verify.verification import VerifiedTable
from pyspark_tidb_binlog.sinks.verify.verification_table import VerificationTable
from tests.support.ddl_jobs import database, job, table
from tests.support.ddl_target import MARKS, ddl_session
from tests.support.drainer_nodes import PretendedStream
from tests.support.eventually import eventually
from tests.support.pump_writes import CLUSTER, config_of

pytestmark = [pytest.mark.mysql, pytest.mark.grpc]
CHECKS = ["Drainer", "lag", "Pumps", "DDL history", "target", "rights", "GC distance", "disk", "versions", "findings", "verified"]


class Site:
    """Everything that a doctor asks, and its settings."""

    def __init__(self, place: Path, service: ClusterService, to: PrivateMariaDB, capsys: pytest.CaptureFixture[str]) -> None:
        self.stream = PretendedStream()
        self.now(findings=0)
        self.service = service
        self.node: DrainerNode = self.stream.node(RegistryClient(service.url)).start()
        self.settings = {
            "node-id": "drainer",
            "data-dir": str(place),
            "spark.pumps": service.url,
            "spark.tidb-status": str(place / "history.json"),
            "spark.socket": str(to.socket),
            "syncer.to.user": to.target().user,
            "syncer.to.password": to.target().password,
            "syncer.to.checkpoint.schema": MARKS,
        }
        (place / "history.json").write_text(json.dumps([database(1), job(2, 3, table(10, "t"))]))
        self._file = place / "drainer.toml"
        self._capsys = capsys

    def now(self, **more: object) -> None:
        """What the stream says."""
        at = tso(time.time_ns() // 1_000_000)
        self.stream.progress = as_json(Progress(**({"resolved_ts": at, "lag_seconds": 0.25} | more)))  # type: ignore[arg-type]

    def doctor(self, *arguments: str, **changed: str) -> tuple[int, dict[str, list[str]]]:
        """The exit code, and the lines of each check: mark and words."""
        given = self.settings | {name.replace("__", ".").replace("_", "-"): value for name, value in changed.items()}
        self._file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in given.items()))
        code = ctl.main(["doctor", f"-config={self._file}", *arguments])
        found: dict[str, list[str]] = {}
        for line in self._capsys.readouterr().out.splitlines():
            found.setdefault(line[10:22].strip(), []).append(f"{line[:10].strip()}: {line[23:]}")
        assert list(found) == CHECKS
        return code, found


@pytest.fixture
def site(tmp_path: Path, service: ClusterService, mariadb: PrivateMariaDB, capsys: pytest.CaptureFixture[str]) -> Iterator[Site]:
    pump = PumpServer(config_of(tmp_path, 1, cluster_id=CLUSTER, registry=service.url, heartbeat_interval=0.05)).start()
    with ddl_session(mariadb.target()) as session:
        session.execute("CREATE DATABASE d")
        made = Site(tmp_path, service, mariadb, capsys)
        eventually(lambda: bool(service.nodes.listing(PUMPS).nodes))
        yield made
        made.node.stop()
        pump.stop()


def not_well(found: dict[str, list[str]]) -> set[str]:
    never = "-: no table yet: "
    return {
        check
        for check, said in found.items()
        if not all(one.startswith("ok: ") or (check, one[: len(never)]) == ("verified", never) for one in said)
    }


@pytest.mark.shows("ctl doctor")
def test_all_is_well(site: Site) -> None:
    code, found = site.doctor()
    assert (code, not_well(found), {len(said) for said in found.values()}) == (0, set(), {1}), [found[name] for name in not_well(found)]
    assert found["Pumps"] == ["ok: 1: pump-1 online"] and found["lag"] == ["ok: 0.2 s behind; held back by nothing"]
    assert "Java" in found["versions"][0] and "MariaDB" in found["versions"][0] and "2 jobs" in found["DDL history"][0]


@pytest.mark.shows("ctl doctor")
def test_what_verify_has_found(site: Site, tmp_path: Path) -> None:
    record = VerificationTable(str(tmp_path / "delta-verification"), 3600.0, Flavour.MARIADB, "all tables")
    record.begin(afresh=True)
    record.note_table(VerifiedTable("d.a", 7, (), Tally(rows=10)), [])
    record.flush()
    _, found = site.doctor(spark__delta_dir=str(tmp_path / "delta"))
    assert found["verified"][0].startswith("ok: 1 tables are equal, the oldest comparison ")
    site.now(verified=Verified(2, 3, ("d.b",), time.time()))
    assert site.doctor(spark__delta_dir=str(tmp_path / "delta"))[1]["verified"][0].startswith("ok: "), (
        "the table is newer than what the Drainer has seen"
    )
    code, found = site.doctor(spark__delta_dir=str(tmp_path / "elsewhere"))
    assert code == 1 and found["verified"][0].startswith("critical: d.b differ from the upstream (3 rows); "), "only the Drainer reads it"


@pytest.mark.shows("ctl doctor")
def test_a_pump_that_is_gone_and_a_finding(site: Site, registry: RegistryClient) -> None:
    site.now(findings=1, newest_findings=("rows `d`.`t`: a row was missing",))
    registry.put_status(PUMPS, NodeStatus("dead", "127.0.0.1:1"))
    code, found = site.doctor()
    assert (code, not_well(found)) == (1, {"Pumps", "findings"}), [found[name] for name in not_well(found)]
    (pumps,) = found["Pumps"]
    assert pumps.startswith("critical: ") and "dead" in pumps and "127.0.0.1:1" in pumps and "start this Pump" in pumps
    assert found["findings"][0].startswith("warning: 1 findings, the newest: rows `d`.`t`: a row was missing; ")


def test_an_address_that_another_pump_has_taken(site: Site, registry: RegistryClient) -> None:
    """Nobody has read the last binlogs of the one that is gone: the stream stops at it, so the doctor says so."""
    (pump,) = site.service.nodes.listing(PUMPS).nodes
    at = tso(time.time_ns() // 1_000_000)
    registry.put_status(PUMPS, NodeStatus("gone", pump.host, NodeState.OFFLINE, at + tso(3_600_000), at))
    code, found = site.doctor()
    assert (code, not_well(found)) == (1, {"Pumps"}), [found[name] for name in not_well(found)]
    assert f"Pump pump-1 now answers at its address {pump.host}" in found["Pumps"][0] and "spark.gone-pumps" in found["Pumps"][0]


@pytest.mark.parametrize("status", ["On", "Skipping"])
def test_a_tidb_that_writes_no_binlogs(site: Site, tmp_path: Path, status: str) -> None:
    """A doctor asks it, also where the Drainer does not say so yet; what the Drainer says has since when."""
    site.service.history = lambda: json.loads((tmp_path / "history.json").read_text())
    site.service.tell_server(status)
    code, found = site.doctor(spark__tidb_status=site.service.url)
    if status == "On":
        assert (code, not_well(found)) == (0, set()), found
        return
    assert (code, not_well(found)) == (1, {"Pumps"}), found
    assert found["Pumps"][0].startswith("critical: TiDB server 127.0.0.1:4000 writes no binlog (Skipping); end it: GET /binlog/recover")
    site.now(silent=("TiDB server 127.0.0.1:4000 writes no binlog (Skipping) since noon",))
    for settings in ({"spark__tidb_status": site.service.url}, {}):
        assert site.doctor(**settings)[1]["Pumps"][0].startswith(
            "critical: TiDB server 127.0.0.1:4000 writes no binlog (Skipping) since noon; "
        )


def test_the_target_is_gone(site: Site, tmp_path: Path) -> None:
    code, found = site.doctor(spark__socket=str(tmp_path / "none"))
    assert (code, not_well(found)) == (1, {"target", "rights"}), [found[name] for name in not_well(found)]
    assert "cannot connect to the target" in found["target"][0] and "start the server" in found["target"][0]
    assert found["rights"] == ["unknown: the target does not answer"]


def test_an_account_that_lacks_rights(site: Site, mariadb: PrivateMariaDB) -> None:
    with ddl_session(mariadb.target()) as session:
        session.execute("DROP USER IF EXISTS 'poor'@'%'")
        session.execute("CREATE USER 'poor'@'%' IDENTIFIED BY 'p'")
        session.execute("GRANT SELECT ON *.* TO 'poor'@'%'")
        code, found = site.doctor(syncer__to__user="poor", syncer__to__password="p")
        session.execute("DROP USER 'poor'@'%'")
    assert (code, not_well(found)) == (1, {"rights"}), [found[name] for name in not_well(found)]
    assert f"lacks INSERT, UPDATE, DELETE, CREATE on {MARKS}.*" in found["rights"][0] and "GRANT INSERT" in found["rights"][0]


def test_the_registry_is_gone_and_the_drainer_is_not(site: Site) -> None:
    code, found = site.doctor(f"-addr={site.node.address}", spark__pumps="http://127.0.0.1:1")
    assert code == 1 and {"Pumps", "GC distance"} <= not_well(found) <= {"Pumps", "GC distance", "rights"}, [
        found[name] for name in not_well(found)
    ]
    assert found["Drainer"][0].startswith("ok: ") and "correct pd-urls or spark.pumps" in found["Pumps"][0]


def test_a_registry_that_accepts_and_never_answers_hides_no_drainer(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_SECONDS", 4.0)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        code, found = site.doctor(addr=site.node.address, spark__pumps=f"http://127.0.0.1:{deaf.getsockname()[1]}")
    assert (code, found["Drainer"]) == (1, [f"ok: Drainer drainer at {site.node.address}: online"]), [
        found[name] for name in not_well(found)
    ]
    assert found["Pumps"][0].startswith("critical: no answer within 4 s; start PD, the registry"), [found[name] for name in not_well(found)]


@pytest.mark.parametrize("other", [{"drainer": "theirs"}, {"drainer": "drainer", "target": {"name": "db9:3306"}}])
def test_another_streams_drainer_has_its_address(site: Site, other: dict[str, object]) -> None:
    site.stream.page = lambda after: {"drainer": "drainer", "target": {"name": site.settings["spark.socket"]}}
    assert site.doctor()[0] == 0
    site.stream.page = lambda after: other
    code, found = site.doctor()
    assert code == 1 and "Drainer" in not_well(found), [found[name] for name in not_well(found)]
    (line,) = found["Drainer"]
    assert (
        f"at {site.node.address} answers Drainer {other['drainer']!r}" in line and "name the settings that this Drainer runs with" in line
    )
    assert "start the Drainer" not in line, "it runs"


def test_a_pump_is_no_drainer(site: Site) -> None:
    pump = site.service.nodes.listing(PUMPS).nodes[0].host
    code, found = site.doctor(f"-addr={pump}", spark__pumps=pump)
    assert code == 1 and f"the program at {pump} is not a Drainer" in found["Drainer"][0], [found[name] for name in not_well(found)]


def test_the_drainer_is_gone(site: Site) -> None:
    site.node.stop()
    code, found = site.doctor()
    assert code == 1 and {"Drainer", "findings"} <= not_well(found), [found[name] for name in not_well(found)]
    assert "does not answer" in found["Drainer"][0] and "start the Drainer" in found["Drainer"][0]
    assert "no Drainer has written here" in found["findings"][0]


def test_somebody_who_accepts_and_never_answers_is_a_line(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        begun = time.monotonic()
        code, found = site.doctor(f"-addr=127.0.0.1:{deaf.getsockname()[1]}")
        assert time.monotonic() - begun < 9.0, "the node's own limit is 10 s"
    assert code == 1 and found["Drainer"][0].startswith("critical: no answer within 1 s; "), [found[name] for name in not_well(found)]


def test_a_target_without_an_account(site: Site) -> None:
    code, found = site.doctor(syncer__db_type="file")
    assert (code, not_well(found)) == (0, {"target", "rights"}), [found[name] for name in not_well(found)]
    assert (found["target"], found["rights"]) == (["-: file is not asked"], ["-: not of file"])


def test_a_drainer_whose_place_nobody_knows(site: Site) -> None:
    code, found = site.doctor(spark__pumps="http://127.0.0.1:1", addr="127.0.0.1:0")
    assert code == 1 and found["Drainer"] == [
        "unknown: the registry does not say where the Drainer is, and addr has no port: name it with -addr HOST:PORT"
    ]
