"""An orphan Prewrite whose outcome the upstream has forgotten: Pump and Drainer wait and say so, and a person settles it."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from binlog_source import resolver
from binlog_source.pairing import Orphan, Settle
from binlog_source.pump.server import EmbeddedPump
from binlog_source.resolver import outcomes_of
from binlog_source.upstream.mvcc import Mvcc
from binlog_source.upstream.oracle import Oracle
from binlog_source.upstream.service import UpstreamService
from conf.model import PairConfig, PumpConfig, SourceConfig
from jobs.pump import main
from schemas.errors import ConfigError
from schemas.events import tso
from tests.faults.store_model import prewrite

pytestmark = pytest.mark.grpc

CLUSTER = 7
START = tso(time.time_ns() // 1_000_000 - 3_600_000)
COMMITTED_AT = START + 1000


@pytest.fixture
def mvcc() -> Mvcc:
    """What the upstream knows: START committed, was overwritten, and is collected."""
    made = Mvcc()
    made.commit(b"k", START, COMMITTED_AT)
    made.commit(b"k", START + 2000, START + 3000)
    made.collect(START + 5000)
    return made


@pytest.fixture
def upstream(mvcc: Mvcc, tmp_path: Path) -> Iterator[UpstreamService]:
    oracle = Oracle(tmp_path / "oracle")
    service = UpstreamService(oracle, CLUSTER, mvcc=mvcc.look_up, gc_safe_point=lambda: mvcc.safe_point).start()
    yield service
    service.stop()


@pytest.fixture
def pump(upstream: UpstreamService, tmp_path: Path) -> Iterator[EmbeddedPump]:
    config = PumpConfig(
        node_id="p1", addr="127.0.0.1:0", data_dir=str(tmp_path / "pump"), registry=upstream.url, orphan_timeout=1.0, fake_binlog_interval=0
    )
    made = EmbeddedPump(config).start()
    made.service.store.write([prewrite(START)])
    yield made
    made.stop()


def waits(pump: EmbeddedPump) -> bool:
    return bool(pump.service.store.orphans(1 << 62))


def test_the_pump_waits_says_so_and_takes_a_persons_word(
    pump: EmbeddedPump, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://{pump.address}"
    with caplog.at_level(logging.ERROR):
        deadline = time.monotonic() + 20
        while "cannot be known any more" not in caplog.text:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert f"./spark-submit.sh pump settle {url} {START} commit COMMIT_TS" in caplog.text
    assert waits(pump), "a committed transaction is never turned into a Rollback"
    with pytest.raises(ConfigError, match="refuses: start_ts .* cannot have committed"):
        main(["settle", url, str(START), "commit", str(START - 1)])
    with pytest.raises(ConfigError, match="no Prewrite of start_ts 5 waits"):
        main(["settle", url, "5", "rollback"])
    assert main(["settle", url, str(START), "commit", str(COMMITTED_AT)]) == 0
    assert f"is committed at {COMMITTED_AT}" in capsys.readouterr().out
    assert pump.service.store.catch_up().sorted_promise == COMMITTED_AT and not waits(pump)


def test_a_pump_that_is_stopped_takes_it_too(pump: EmbeddedPump, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pump.stop()
    assert main(["settle", str(tmp_path / "pump"), str(START), "rollback"]) == 0
    assert "is rolled back" in capsys.readouterr().out
    pump.start()
    assert not waits(pump)


def test_a_real_pump_takes_it_as_a_binlog(pump: EmbeddedPump) -> None:
    assert main(["settle", f"http://{pump.address}", str(START), "commit", str(COMMITTED_AT), "--cluster-id", str(CLUSTER)]) == 0
    assert pump.service.store.catch_up().sorted_promise == COMMITTED_AT


def test_the_drainer_decides_alike(
    upstream: UpstreamService, mvcc: Mvcc, pump: EmbeddedPump, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolver, "_told_at", {})
    config = PairConfig(resolver=upstream.url, orphan_timeout=1.0)
    orphan = Orphan("p1", START, prewrite(START).payload, 3_600_000)
    for source in (SourceConfig(pumps=upstream.url), SourceConfig(pumps=pump.address, cluster_id=CLUSTER)):
        assert outcomes_of([orphan], config, source) == ()
    assert caplog.text.count(f"pump settle http://{pump.address} {START} commit") == 1, "said once in a while"
    fresh = Orphan("p1", START + 6000, prewrite(START + 6000).payload, 3_600_000)
    mvcc.commit(b"other", 1, 2)
    assert outcomes_of([fresh], config, SourceConfig(pumps=upstream.url)) == (Settle("p1", START + 6000, 0),)
