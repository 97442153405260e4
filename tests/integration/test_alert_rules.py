"""The alert rules of ``deploy/`` in Prometheus' own ``promtool``: they are valid, and each fires for its series and not for a healthy one."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from pyspark_tidb_binlog.schemas.alarms import ALARMS
from tests.support.monitoring_files import RULES, alert_name

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PROMTOOL = shutil.which("promtool")
NOW_MS = "1.7e12"
ONLINE = {'binlog_drainer_spark_state{instance="d",state="online"}': "1x20", 'binlog_drainer_spark_batches_total{instance="d"}': "1x20"}
SERIES = {
    "drainer-silent": (
        {'binlog_drainer_spark_lag_seconds{instance="d"}': "1x5 stale"},
        {'binlog_drainer_spark_lag_seconds{instance="d"}': "1x20"},
    ),
    "drainer-paused": (
        {'binlog_drainer_spark_state{instance="d",state="paused"}': "1x20"},
        {'binlog_drainer_spark_state{instance="d",state="paused"}': "0x20"},
    ),
    "lag": ({'binlog_drainer_spark_lag_seconds{instance="d"}': "61x20"}, {'binlog_drainer_spark_lag_seconds{instance="d"}': "59x20"}),
    "no-progress": (
        ONLINE | {'binlog_drainer_checkpoint_tso{instance="d"}': "5x20"},
        ONLINE | {'binlog_drainer_checkpoint_tso{instance="d"}': "5+1x20"},
    ),
    "tidb-without-binlog": (
        {'binlog_drainer_spark_tidb_without_binlog{instance="d",server="a:4000"}': "1x20"},
        {'binlog_drainer_spark_tidb_without_binlog{instance="d",server="a:4000"}': "1x5 stale"},
    ),
    "pump-unreachable": (
        {'binlog_drainer_spark_pump_unreachable{instance="d",nodeID="p"}': "1x20"},
        {'binlog_drainer_spark_pump_unreachable{instance="d",nodeID="p"}': "_x20"},
    ),
    "pump-behind": (
        {'binlog_drainer_pump_position{instance="d",nodeID="p"}': "0x20"},
        {
            'binlog_drainer_pump_position{instance="d",nodeID="p"}': "0+60000x20",
            'binlog_drainer_pump_position{instance="paused",nodeID="p"}': "0x20",
            'binlog_drainer_spark_state{instance="paused",state="paused"}': "1x20",
        },
    ),
    "gc-near": (
        {'binlog_drainer_checkpoint_tso{instance="d"}': f"{NOW_MS}x20", 'binlog_pump_storage_gc_ts{instance="p"}': "1699999999000x20"},
        {'binlog_drainer_checkpoint_tso{instance="d"}': f"{NOW_MS}x20", 'binlog_pump_storage_gc_ts{instance="p"}': "0x20"},
    ),
    "pump-disk-low": tuple(
        {
            'binlog_pump_storage_storage_size_bytes{instance="p",type="available"}': f"{free}x20",
            'binlog_pump_storage_storage_size_bytes{instance="p",type="capacity"}': "100x20",
        }
        for free in (9, 11)
    ),
    "findings": (
        {'binlog_drainer_spark_findings_total{instance="d",kind="rows"}': "2x20"},
        {'binlog_drainer_spark_findings_total{instance="d",kind="rows"}': "0x20"},
    ),
    "differs": (
        {'binlog_drainer_spark_verified_differing_tables{instance="d"}': "2x20"},
        {'binlog_drainer_spark_verified_differing_tables{instance="d"}': "0x20"},
    ),
}
"""By alarm: series in which it fires, and others."""


def run(*arguments: str) -> str:
    if PROMTOOL is None:
        pytest.skip("no promtool: apt-get install prometheus")
    found = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def test_the_rules_are_valid() -> None:
    assert f"SUCCESS: {len(SERIES)} rules found" in run("check", "rules", str(ROOT / "deploy" / RULES))


def test_each_rule_fires_for_its_series_alone(tmp_path: Path) -> None:
    assert list(SERIES) == [alarm.name for alarm in ALARMS if alarm.rule is not None]
    for alarm in ALARMS:
        for fires, series in zip((True, False), SERIES.get(alarm.name, ()), strict=False):
            # The labels of an alert are those of the series: they are not what is tested.
            expr = f'count(ALERTS{{alertname="{alert_name(alarm)}",alertstate="firing"}}) or vector(0)'
            case = {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [{"expr": expr, "eval_time": "10m", "exp_samples": [{"labels": "{}", "value": int(fires)}]}],
            }
            file = tmp_path / f"{alarm.name}-{fires}.yml"
            file.write_text(json.dumps({"rule_files": [str(ROOT / "deploy" / RULES)], "evaluation_interval": "1m", "tests": [case]}))
            run("test", "rules", str(file))
