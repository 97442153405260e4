"""Timestamps that never go back, and the pages of the DDL history."""

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.registry import NodeState, NodeStatus
from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import history_page
from pyspark_tidb_binlog.jobs.lab.registry.oracle import Oracle
from pyspark_tidb_binlog.schemas.errors import ConfigError, ProtocolViolation
from pyspark_tidb_binlog.schemas.events import tso


def test_timestamps_rise_though_the_clock_stands_or_goes_back():
    now = [1000]
    oracle = Oracle(clock_ms=lambda: now[0])
    assert oracle.next() == tso(1000)
    assert oracle.next(10) == tso(1000) + 1
    assert oracle.next() == tso(1000) + 11
    now[0] = 900
    assert oracle.next() == tso(1000) + 12
    now[0] = 1001
    assert oracle.next() == tso(1001)


def test_a_floor_is_respected():
    oracle = Oracle(floor=tso(5000), clock_ms=lambda: 1000)
    assert oracle.next() == tso(5000) + 1


def test_a_new_life_starts_above_the_old_one(tmp_path):
    path = tmp_path / "oracle"
    given = []
    for clock in (1000, 900, 990):
        oracle = Oracle(path, clock_ms=lambda clock=clock: clock)
        given += [oracle.next() for _ in range(3)]
    assert given == sorted(set(given))


def test_a_damaged_mark_is_told(tmp_path):
    (tmp_path / "oracle").write_text("x")
    with pytest.raises(ConfigError, match="oracle"):
        Oracle(tmp_path / "oracle")


JOBS = [{"id": 3}, {"id": 1}, {"id": 7}]


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ({}, [1, 3, 7]),
        ({"limit": ["2"]}, [7, 3]),
        ({"limit": ["9"]}, [7, 3, 1]),
        ({"limit": ["5"], "start_job_id": ["3"]}, [3, 1]),
        ({"limit": ["1"], "start_job_id": ["6"]}, [3]),
    ],
)
def test_history_pages(query, ids):
    assert [job["id"] for job in history_page(JOBS, query)] == ids


@pytest.mark.parametrize("query", [{"start_job_id": ["3"]}, {"limit": ["0"]}, {"limit": ["x"]}, {"limit": ["1"], "start_job_id": ["0"]}])
def test_history_refuses_what_tidb_refuses(query):
    with pytest.raises(Exception, match="limit|start_job_id"):
        history_page(JOBS, query)


REAL_STATUS = (
    '{"nodeId":"pump1","host":"127.0.0.1:8250","state":"online","isAlive":false,"score":0,"label":null,'
    '"maxCommitTS":470604587006951425,"updateTS":470604587124916225}'
)


def test_status_is_a_real_nodes():
    status = NodeStatus("pump1", "127.0.0.1:8250", NodeState.ONLINE, 470604587006951425, 470604587124916225)
    assert status.to_json() == REAL_STATUS
    assert NodeStatus.from_json(REAL_STATUS) == status


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", '{"nodeId":"a","host":"b","state":"dancing"}', '"x"'])
def test_what_is_no_status_is_refused(text):
    with pytest.raises(ProtocolViolation, match="registry"):
        NodeStatus.from_json(text)
