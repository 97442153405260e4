"""Recovery from the relay log of a crashed real Drainer: its own messages of the golden cases, its checkpoint row, no table of ours at the target."""

import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, RelayConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.binlogfile import BinlogWriter
from pyspark_tidb_binlog.sinks.relay.relay_log import RelayStream
from pyspark_tidb_binlog.sinks.replay.file_replay import Replayed
from pyspark_tidb_binlog.sinks.replay.relay_replay import RelayReplay
from pyspark_tidb_binlog.sinks.translate.binlog_format import commit_ts_of
from pyspark_tidb_binlog.sinks.translate.column_values import ReadBack
from tests.support.golden_case import GOLDEN, compared
from tests.support.golden_messages import from_drainer
from tests.support.target_rows import run_sql

pytestmark = pytest.mark.mysql

CLUSTER = 7


class Crashed:
    """A target to which a real Drainer has written up to some commit_ts, and its relay log."""

    def __init__(self, server: PrivateMariaDB, case: str, name: str, log_dir: Path) -> None:
        self.server = server
        self.info = json.loads((GOLDEN / case / "case.json").read_text())
        self.messages = from_drainer(case, name)
        self.log_dir = log_dir
        writer = BinlogWriter(log_dir, 4000)
        writer.append(self.messages)
        # Started again after a crash, it appends what it reads again.
        writer.append(self.messages[-5:-2])
        writer.sync()
        writer.close()
        (log_dir / "binlog-0000000000000000-20181010101010").touch()
        self.checkpoint(self.info["start_ts"])

    def query(self, sql: str) -> tuple[tuple[object, ...], ...]:
        return tuple(run_sql(self.server, sql))

    def checkpoint(self, commit_ts: int) -> None:
        """As a real Drainer leaves it (drainer.md 6)."""
        self.query("CREATE DATABASE IF NOT EXISTS tidb_binlog")
        self.query("CREATE TABLE IF NOT EXISTS tidb_binlog.checkpoint(clusterID bigint unsigned primary key, checkPoint MEDIUMTEXT)")
        value = f'{{"consistent":false,"commitTS":{commit_ts},"ts-map":{{}},"schema-version":48}}'
        self.query(f"REPLACE INTO tidb_binlog.checkpoint VALUES ({CLUSTER}, '{value}')")

    def recover(self, zone: datetime.tzinfo = datetime.UTC) -> Replayed:
        apply = ApplyConfig(lease_timeout=5.0, on_finding="stop", log_row_data=True)
        config = DrainerConfig(target=self.server.target(), apply=apply, relay=RelayConfig(str(self.log_dir)))
        sink = RelayReplay(config, 0, RelayStream(CLUSTER, ""), ReadBack(zone), lambda seconds: None)
        try:
            found = sink.start()
            assert (found.consistent, found.unfinished) == (False, None)
            return sink.replay(found)
        finally:
            sink.close()

    def drop(self) -> None:
        for name in (*self.info["databases"], "tidb_binlog"):
            self.query(f"DROP DATABASE IF EXISTS `{name}`")


@pytest.fixture
def crashed(mariadb: PrivateMariaDB, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Crashed]:
    case, name = request.param
    run_sql(mariadb, "DROP DATABASE IF EXISTS tidb_binlog")
    found = Crashed(mariadb, case, name, tmp_path / "relay")
    yield found
    found.drop()


@pytest.mark.shows("relay log")
@pytest.mark.parametrize("crashed", [("types", "drainer.slave"), ("keys", "drainer.slave"), ("txn", "drainer.slave")], indirect=True)
def test_everything_from_the_checkpoint_on(crashed: Crashed, request: pytest.FixtureRequest) -> None:
    """DDLs and rows; then once more from the middle, over what is there already."""
    case = request.node.callspec.params["crashed"][0]
    last_ts = max(map(commit_ts_of, crashed.messages))
    done = crashed.recover()
    assert done.commit_ts == last_ts and done.ddls > 0 and not done.findings
    assert compared(GOLDEN / case, crashed.server.target()) == ""
    wanted = f'{{"consistent":true,"commitTS":{last_ts},"ts-map":{{}},"schema-version":0}}'
    assert crashed.query("SELECT checkPoint FROM tidb_binlog.checkpoint") == ((wanted,),)
    ddls = [place for place, m in enumerate(crashed.messages) if m[:2] == b"\x08\x01"]
    crashed.checkpoint(commit_ts_of(crashed.messages[ddls[-1]]))
    again = crashed.recover()
    assert again.commit_ts == last_ts
    found = compared(GOLDEN / case, crashed.server.target())
    differing = {".".join(line.split(" | ")[:2]) for line in found.splitlines() if " | " in line}
    assert differing <= again.keyless, found


@pytest.mark.slow
@pytest.mark.parametrize("crashed", [("types", "drainer-shanghai.slave")], indirect=True)
def test_timestamps_of_a_process_elsewhere(crashed: Crashed) -> None:
    crashed.recover(ZoneInfo("Asia/Shanghai"))
    assert compared(GOLDEN / "types", crashed.server.target()) == ""
