"""A Pump whose store has lost a thread ends at once instead of staying online without an answer; the next life has all that it acknowledged."""

import grpc
import pytest

from pyspark_tidb_binlog.jobs.entry.cli import EXIT_DEFECT
from pyspark_tidb_binlog.jobs.lab.pump_process import PumpProcess
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from tests.support.broken_pump import BROKEN
from tests.support.pump_pulls import RAW, Pull
from tests.support.pump_writes import CLUSTER, config_of, fake, send

pytestmark = pytest.mark.grpc
MOST = 200


def test_a_pump_without_its_indexer_ends_and_has_everything_in_its_next_life(tmp_path, monkeypatch):
    config = config_of(tmp_path, 1)
    monkeypatch.setenv(BROKEN, "index:3")
    acknowledged = []
    with PumpProcess(config, "tests.support.broken_pump") as broken:
        with pytest.raises((PumpUnavailable, grpc.RpcError)):
            for number in range(1, MOST):
                send(broken, fake(tso(number)))
                acknowledged.append(tso(number))
        assert 3 <= len(acknowledged) < MOST - 1
        assert broken.wait(30) == EXIT_DEFECT
    with PumpProcess(config) as mended, Pull(mended.address, RAW, cluster=CLUSTER) as pull:
        taken = [binlog_pb2.Binlog.FromString(entity.payload).commit_ts for entity in pull.take(len(acknowledged))]
        assert taken == acknowledged
