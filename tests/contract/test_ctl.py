"""``ctl`` over either registry: binlogctl's commands on real nodes, its flags, and what a refusal is."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.registry import DRAINERS, PUMPS, NodeState, NodeStatus, Registry
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import open_registry
from pyspark_tidb_binlog.binlog_source.drainer import node as node_module
from pyspark_tidb_binlog.binlog_source.drainer.node import DrainerNode
from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.conf.model import PumpConfig
from pyspark_tidb_binlog.jobs.ctl import main
from pyspark_tidb_binlog.jobs.stream.report import Progress, as_json
from pyspark_tidb_binlog.schemas.errors import ConfigError, PumpUnavailable, ReplicationError
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.sinks.translate.local_record import LocalProgress, LocalRecord
from tests.support.certificates import table_of
from tests.support.drainer_nodes import PretendedStream
from tests.support.eventually import eventually
from tests.support.registry_sites import PdSite, Site

pytestmark = pytest.mark.grpc


@pytest.fixture
def where(site: Site) -> list[str]:
    """The flags that name the registry, and our certificate if it asks for one."""
    tls = [f"-ssl-ca={site.tls.ca}", "-ssl-cert", site.tls.cert, "-ssl-key", site.tls.key] if site.tls else []
    if site.url.startswith("pd://"):
        return ["-pd-urls", site.url.removeprefix("pd://"), *tls]
    return [f"--registry={site.url}", *tls]


@pytest.fixture
def stream() -> PretendedStream:
    return PretendedStream(lambda: 470604628714323969)


@pytest.fixture
def drainer(site: Site, stream: PretendedStream, monkeypatch: pytest.MonkeyPatch) -> Iterator[DrainerNode]:
    monkeypatch.setattr(node_module, "HEARTBEAT", 0.02)
    made = stream.node(open_registry(site.url, site.tls), "host-1:8249", tls=site.tls).start()
    yield made
    made.stop()


@pytest.fixture
def pump(site: Site, tmp_path: Path) -> Iterator[PumpServer]:
    scheme = "https" if site.tls else "http"
    pd = ",".join(f"{scheme}://{address}" for address in site.url.removeprefix("pd://").split(","))
    config = PumpConfig(
        "p1",
        "127.0.0.1:0",
        data_dir=str(tmp_path / "p1"),
        pd_urls=pd if "pd:" in site.url else "",
        registry="" if "pd:" in site.url else site.url,
        heartbeat_interval=0.02,
        stop_write_at_available_space="",
        security=table_of(site.tls),
    )
    made = PumpServer(config).start()
    yield made
    made.stop()


def state(registry: Registry, kind: str) -> NodeState:
    return registry.listing(kind).nodes[0].state


@pytest.mark.shows("ctl pumps")
def test_nodes_are_listed_as_binlogctl_lists_them(registry: Registry, where: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    at = tso(1_577_934_245_600)  # 2020-01-02 03:04:05.6
    registry.put_status(PUMPS, NodeStatus("gone", "10.0.0.1:8250", NodeState.OFFLINE, 5, at))
    registry.put_status(PUMPS, NodeStatus("p1", "10.0.0.2:8250", NodeState.PAUSED, 6, at))
    registry.put_status(DRAINERS, NodeStatus("d1", "10.0.0.3:8249", NodeState.ONLINE, 7, at))
    assert main(where) == main(["-cmd", "pumps", *where]) == 0, "pumps is the default"
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[0].partition("] [INFO]")[2] == lines[1].partition("] [INFO]")[2]
    node = "{NodeID: p1, Addr: 10.0.0.2:8250, State: paused, MaxCommitTS: 6, UpdateTime: 2020-01-02 03:04:05.6 +0000 UTC}"
    assert lines[0].endswith(f'["query node"] [type=pump] [node="{node}"]') and re.match(r"\[\d{4}/\d\d/\d\d ", lines[0])
    assert main(["pumps", "-show-offline-nodes", *where]) == main(["drainers", *where]) == 0
    assert re.findall(r"NodeID: (\w+)", capsys.readouterr().out) == ["gone", "p1", "d1"]


def test_an_entry_that_cannot_be_read_is_listed_too(pd_site: PdSite, capsys: pytest.CaptureFixture[str]) -> None:
    """It holds every stream."""
    pd_site.etcd.gateway("kv/put", key=b"/tidb-binlog/v1/pumps/p9", value=b"{")
    assert main(["pumps", "-pd-urls", pd_site.url.removeprefix("pd://")]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert "[ERROR]" in line and "is not readable" in line and '[type=pump] [node="{NodeID: p9}"]' in line


def test_who_sets_a_pump_offline_is_told_what_that_means(registry: Registry, where: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for kind, command, told in ((PUMPS, "update-pump", 1), (DRAINERS, "update-drainer", 0)):
        registry.put_status(kind, NodeStatus("n", "10.0.0.1:1", NodeState.PAUSED))
        for expected in (told, 0):
            assert main([command, "-node-id", "n", "-state", "offline", *where]) == 0
            assert capsys.readouterr().err.count("Pump n was paused and did not leave through offline-pump") == expected


@pytest.mark.shows("ctl update-pump")
@pytest.mark.parametrize(("command", "kind"), [("update-pump", PUMPS), ("update-drainer", DRAINERS)])
def test_a_state_is_written_into_the_registry(registry: Registry, where: list[str], command: str, kind: str) -> None:
    before = NodeStatus("n", "10.0.0.1:1", NodeState.ONLINE, 5, 6, 7, {"zone": "a"})
    registry.put_status(kind, before)
    for wanted in NodeState:
        assert main(["-cmd", command, "-node-id", "n", f"-state={wanted}", *where]) == 0
        (after,) = registry.listing(kind).nodes
        assert after == NodeStatus("n", "10.0.0.1:1", wanted, 5, 6, 7, {"zone": "a"}), "and nothing else"
    with pytest.raises(ConfigError, match="state 'asleep' is illegal"):
        main([command, "-node-id", "n", "-state", "asleep", *where])
    with pytest.raises(ConfigError, match="'m'; it has n"):
        main([command, "-node-id", "m", "-state", "paused", *where])
    with pytest.raises(ConfigError, match="-node-id"):
        main([command, "-state", "paused", *where])


@pytest.mark.shows("ctl pause-drainer", "drainer gotcha 11")
def test_a_drainer_is_paused_resumed_and_taken_offline(
    registry: Registry, drainer: DrainerNode, stream: PretendedStream, where: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    which = ["-node-id", "host-1:8249", *where]
    with pytest.raises(ReplicationError, match="refuses: this pump's state is online, apply resume failed!"):
        main(["resume-drainer", *which])
    stream.resting = True
    assert main(["pause-drainer", *which]) == 0
    assert capsys.readouterr().out == "apply action pause success!\n"
    eventually(lambda: state(registry, DRAINERS) is NodeState.PAUSED)
    assert main(["resume-drainer", *which]) == 0
    eventually(lambda: state(registry, DRAINERS) is NodeState.ONLINE)
    assert main(["offline-drainer", *which]) == 0
    eventually(lambda: "end" in stream.asked)
    drainer.stop()
    assert state(registry, DRAINERS) is NodeState.OFFLINE
    registry.put_status(DRAINERS, NodeStatus("gone", "127.0.0.1:1", NodeState.PAUSED))
    with pytest.raises(PumpUnavailable, match="does not answer .* update-drainer -node-id gone -state offline"):
        main(["offline-drainer", "-node-id", "gone", *where])


def test_the_settings_name_registry_and_drainer(
    site: Site, drainer: DrainerNode, stream: PretendedStream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the settings list the Pumps, so that no registry says where the Drainer is."""
    tls = f'[security]\nssl-ca = "{site.tls.ca}"\nssl-cert = "{site.tls.cert}"\nssl-key = "{site.tls.key}"\n' if site.tls else ""
    stream.resting, stream.progress = True, as_json(Progress())
    for number, pumps in enumerate((site.url, "127.0.0.1:1")):
        file = tmp_path / f"{number}.toml"
        at = "127.0.0.1:1" if number == 0 else drainer.address
        file.write_text(f'node-id = "host-1:8249"\naddr = "{at}"\n{tls}[spark]\npumps = "{pumps}"\n')
        assert main(["status", "-config", str(file)]) == 0
        assert main(["reload-tables", "-config", str(file), "-tables", "shop.item"]) == 0
        assert main(["pause-drainer", "-config", str(file)]) == main(["resume-drainer", "-config", str(file)]) == 0
        assert f"Drainer host-1:8249 at {drainer.address}: " in capsys.readouterr().out


@pytest.mark.shows("ctl reload-tables")
def test_a_drainer_is_asked_to_load_tables_again(
    drainer: DrainerNode, stream: PretendedStream, where: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for which in (["-node-id", "host-1:8249", *where], where):
        assert main(["reload-tables", "-tables", "shop.`a/b`,shop.*", *which]) == 0
        assert (
            capsys.readouterr().out
            == "shop.`a/b`,shop.* will be read again from the upstream, at the next moment of the lake: if this Drainer dies before `lake tables` shows it, ask again\n"
        )
    assert stream.asked == ["reload shop.`a/b`,shop.*"] * 2
    with pytest.raises(ReplicationError, match="refuses: no table mart.item"):
        main(["reload-tables", "-tables", "mart.item", *where])
    with pytest.raises(ConfigError, match="name the tables: -tables"):
        main(["reload-tables", *where])


@pytest.mark.shows("ctl pause-pump", "ctl -ssl-ca")
@pytest.mark.parametrize(("command", "last"), [("pause-pump", NodeState.PAUSED), ("offline-pump", NodeState.OFFLINE)])
def test_a_pump_is_paused_and_taken_offline(registry: Registry, pump: PumpServer, where: list[str], command: str, last: NodeState) -> None:
    assert main(["-cmd", command, "-node-id", "p1", *where]) == 0
    assert pump.ended.wait(20)
    assert state(registry, PUMPS) is last
    with pytest.raises(PumpUnavailable, match="does not answer"):
        main([command, "-node-id", "p1", *where])


@pytest.mark.shows("ctl generate_meta")
def test_a_savepoint_with_a_fresh_timestamp(registry: Registry, where: list[str], tmp_path: Path) -> None:
    before = registry.tso()
    assert main(["-cmd", "generate_meta", "-data-dir", str(tmp_path / "a"), *where]) == 0
    (line,) = (tmp_path / "a" / "savepoint").read_text().splitlines()
    assert before < int(line.removeprefix("commitTS = ")) < registry.tso()
    assert main(["generate_meta", "-data-dir", str(tmp_path / "b"), "-time-zone", "Asia/Shanghai", *where]) == 0
    first, utc, local = (tmp_path / "b" / "savepoint").read_text().splitlines()
    assert first.startswith("commitTS = ") and utc.endswith("+00:00") and local.endswith("+08:00") and utc[0] == local[0] == "#"
    with pytest.raises(ConfigError, match="no time zone 'Nowhere'"):
        main(["generate_meta", "-data-dir", str(tmp_path), "-time-zone", "Nowhere", *where])
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["savepoint", "savepoint.lock"]


@pytest.mark.shows("ctl generate_meta")
def test_no_savepoint_is_written_beside_a_drainer_that_writes_there(where: list[str], tmp_path: Path) -> None:
    """Both would write through one temporary file, so that half of one could become the savepoint."""
    directory = tmp_path / "data"
    record = LocalRecord(directory, 7)
    record.open()
    record.save(LocalProgress(5, 1, frozenset(), None))
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(ConfigError, match=f"another Drainer records its progress in {directory}.*Stop that Drainer first"):
        main(["generate_meta", "-data-dir", str(directory), *where])
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    record.close()
    assert main(["generate_meta", "-data-dir", str(directory), *where]) == 0
    (directory / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write .*/file/savepoint: "):
        main(["generate_meta", "-data-dir", str(directory / "file"), *where])


@pytest.mark.shows("ctl an unknown command")
def test_a_command_that_is_none(where: list[str]) -> None:
    with pytest.raises(ConfigError, match="no command 'jump'; did you mean pumps"):
        main(["-cmd", "jump", *where])
