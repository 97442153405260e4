"""A real Drainer's metrics: what its Grafana board and its alert rules ask for is there, with the units that they expect."""

import re

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.registry import NodeState
from pyspark_tidb_binlog.jobs.stream.drainer_metrics import DrainerMetrics
from pyspark_tidb_binlog.schemas.alarms import Verified
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind
from pyspark_tidb_binlog.sinks.engine.batch_report import BatchReport

NOW = 1_700_000_000.0
COMMITTED = tso(int(NOW - 2) * 1000)

BOARD = """
binlog_drainer_checkpoint_tso{instance = "$drainer_instance"}
binlog_drainer_pump_position{instance = "$drainer_instance"}
sum(rate(binlog_drainer_read_binlog_size_count{instance = "$drainer_instance"}[1m])) by (nodeID)
histogram_quantile(0.95, rate(binlog_drainer_binlog_reach_duration_time_bucket{instance = "$drainer_instance"}[1m]))
binlog_drainer_error_count{instance = "$drainer_instance"}
irate(binlog_drainer_event{instance = "$drainer_instance"}[1m])
histogram_quantile(0.99, rate(binlog_drainer_execute_duration_time_bucket{instance = "$drainer_instance"}[1m]))
histogram_quantile(0.99, rate(binlog_drainer_query_duration_time_bucket{instance = "$drainer_instance"}[1m]))
histogram_quantile(0.95, rate(binlog_drainer_read_binlog_size_bucket{instance = "$drainer_instance"}[1m]))
binlog_drainer_ddl_jobs_total{instance = "$drainer_instance"}
binlog_drainer_queue_size{instance = "$drainer_instance"}
(time() - binlog_drainer_checkpoint_tso / 1000) > 3600
histogram_quantile(0.9, rate(binlog_drainer_execute_duration_time_bucket[1m])) > 10
changes(binlog_drainer_checkpoint_tso[1m]) < 1
""".strip().splitlines()
"""The board's and the rules' expressions about a Drainer (metrics/grafana/binlog.json, metrics/alertmanager/binlog.rules.yml)."""

LABELS = {"pump_position": "nodeID", "read_binlog_size_count": "nodeID", "binlog_reach_duration_time_bucket": "nodeID", "event": "type",
          "error_count": "type", "query_duration_time_bucket": "type", "queue_size": "name"}  # fmt: skip
"""What the board's legends and sums name."""


def reported(steps: int, size: int, promise: int) -> dict[str, object]:
    return {
        "promises": {"p1": promise},
        "reached": {"p1": 0.25},
        "received": {"p1": (steps, size)},
        "unread_steps": 3,
        "unread_bytes": 300,
        "pending_bytes": 7,
        "woken": {"p1": 5},
        "unreachable": {"p2": "refused"},
    }


@pytest.fixture
def metrics() -> DrainerMetrics:
    made = DrainerMetrics(lambda: COMMITTED, lambda: NOW)
    findings = (Finding(FindingKind.ROWS, "one"), Finding(FindingKind.ROWS, "two"))
    made.applied(BatchReport(1, 0, COMMITTED, 1, 4, 6, 60, 6, 1, {"read": 100.0, "plan": 0.5, "write": 1.5}, findings))
    made.pumps(reported(2, 200, COMMITTED))
    return made


def values(metrics: DrainerMetrics) -> dict[str, float]:
    lines = (line.rsplit(" ", 1) for line in metrics.text().decode().splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in lines}


@pytest.mark.shows(
    "binlog_drainer_pump_position",
    "binlog_drainer_ddl_jobs_total",
    "binlog_drainer_error_count",
    "binlog_drainer_event",
    "binlog_drainer_checkpoint_tso",
    "binlog_drainer_checkpoint_delay_seconds",
    "binlog_drainer_execute_duration_time",
    "binlog_drainer_query_duration_time",
    "binlog_drainer_binlog_reach_duration_time",
    "binlog_drainer_read_binlog_size",
    "binlog_drainer_queue_size",
    "alert rules and Grafana board",
)
@pytest.mark.parametrize("expression", BOARD)
def test_what_the_board_and_the_rules_ask_for_is_there(metrics: DrainerMetrics, expression: str) -> None:
    (name,) = re.findall(r"binlog_drainer_\w+", expression)
    found = [sample for sample in values(metrics) if sample.partition("{")[0] == name]
    assert found, "the panel would be empty"
    label = LABELS.get(name.removeprefix("binlog_drainer_"))
    assert all(f'{label}="' in sample for sample in found) if label else True


@pytest.mark.shows("binlog_drainer_pump_position", "binlog_drainer_checkpoint_tso")
def test_units_are_a_real_ones(metrics: DrainerMetrics) -> None:
    found = values(metrics)
    assert found["binlog_drainer_checkpoint_tso"] == (NOW - 2) * 1000, "physical milliseconds"
    assert found['binlog_drainer_pump_position{nodeID="p1"}'] == (NOW - 2) * 1000
    assert found["binlog_drainer_execute_duration_time_sum"] == 2.0, "without the time in which it waited for binlogs"
    assert found['binlog_drainer_query_duration_time_sum{type="exec"}'] == 1.5
    assert found["binlog_drainer_checkpoint_delay_seconds_sum"] == 2.0
    assert found['binlog_drainer_event{type="Row"}'] == 6 and found['binlog_drainer_event{type="savepoint"}'] == 1
    assert found["binlog_drainer_ddl_jobs_total"] == 1
    bounds = [re.search(r'le="([^"]+)"', n)[1] for n in found if n.startswith("binlog_drainer_execute_duration_time_bucket")]  # type: ignore[index]
    assert (bounds[0], len(bounds)) == ("5e-05", 19)
    bounds = [n for n in found if n.startswith("binlog_drainer_checkpoint_delay_seconds_bucket")]
    assert len(bounds) == 23 and 'le="0.001"' in bounds[0]


def test_a_report_counts_once(metrics: DrainerMetrics) -> None:
    for _ in range(2):
        metrics.pumps(reported(2, 200, COMMITTED))
    metrics.pumps(reported(5, 260, COMMITTED + 1))
    found = values(metrics)
    assert found['binlog_drainer_read_binlog_size_count{nodeID="p1"}'] == 5
    assert found['binlog_drainer_read_binlog_size_sum{nodeID="p1"}'] == 260
    assert found['binlog_drainer_binlog_reach_duration_time_count{nodeID="p1"}'] == 2, "one for each promise"
    metrics.pumps(reported(1, 10, COMMITTED + 2))
    assert values(metrics)['binlog_drainer_read_binlog_size_sum{nodeID="p1"}'] == 270, "a source that was started anew"


@pytest.mark.shows("binlog_drainer_spark_")
def test_ours_stand_beside_them(metrics: DrainerMetrics) -> None:
    metrics.state = NodeState.PAUSED
    found = values(metrics)
    assert found["binlog_drainer_spark_lag_seconds"] == 2.0
    assert [name for name, value in found.items() if name.startswith("binlog_drainer_spark_state") and value] == [
        'binlog_drainer_spark_state{state="paused"}'
    ]
    assert found['binlog_drainer_spark_stage_seconds_total{stage="read"}'] == 100.0
    assert found['binlog_drainer_spark_findings_total{kind="rows"}'] == 2
    assert found['binlog_drainer_spark_pump_unreachable{nodeID="p2"}'] == 1
    assert found["process_open_fds"] > 0


def test_what_verify_has_found_is_text_that_prometheus_reads(metrics: DrainerMetrics) -> None:
    assert "verified" not in "".join(line for line in metrics.text().decode().splitlines() if not line.startswith("#"))
    metrics.verified = Verified(9, 7, ("d.a", "d.b"), NOW - 60)
    lines = metrics.text().decode().splitlines()
    for name, value in (("differing_rows", "7.0"), ("differing_tables", "2.0"), ("age_seconds", "60.0")):
        assert f"binlog_drainer_spark_verified_{name} {value}" in lines


def test_before_anything_happened_the_board_still_lists_the_drainer() -> None:
    found = values(DrainerMetrics(lambda: 0))
    assert found["binlog_drainer_ddl_jobs_total"] == 0, "the board's variable drainer_instance comes from it"
    assert found["binlog_drainer_spark_lag_seconds"] == 0
