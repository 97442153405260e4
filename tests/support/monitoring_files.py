"""``make monitoring`` (``python -m tests.support.monitoring_files``): the Grafana dashboard and Prometheus' alert rules in ``deploy/``, made from the metrics and from the table of alarms.

The metrics' own table is what ``GET /metrics`` of a Drainer and of a Pump begins with: names, kinds and help. So the board has a panel for each, and
no panel for anything else.

Promises: ``files`` is pure, and the same in every run.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark_tidb_binlog.binlog_source.pump.metrics import PumpMetrics, StoreFigures
from pyspark_tidb_binlog.binlog_source.pump.storage.chaser import ChaserCounts
from pyspark_tidb_binlog.conf.entry import HOME
from pyspark_tidb_binlog.jobs.stream.drainer_metrics import DrainerMetrics
from pyspark_tidb_binlog.schemas.alarms import ALARMS, Alarm, Rule

BOARD, RULES = "grafana-dashboard.json", "prometheus-alerts.yml"
ALERT = "TidbBinlog"
"""What the name of every alert begins with."""
_FAMILY = re.compile(r"^# HELP (?P<name>\S+) (?P<help>.*)\n# TYPE \S+ (?P<kind>\w+)$", re.MULTILINE)
_SHOWN = ("binlog_", "process_resident_memory_bytes")
"""Python's own metrics are not shown, but for the memory."""
_OURS = "binlog_drainer_spark_"
_A_TIME = "physical milliseconds."
_WIDTH, _HEIGHT, _BESIDE = 8, 7, 3
"""Of a panel, in Grafana's units, and how many are in a row."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One metric."""

    name: str
    help: str
    kind: str
    """``gauge``, ``histogram``, or ``untyped``: a counter."""


def main() -> int:
    """Write the files."""
    for name, text in files().items():
        (HOME / "deploy" / name).write_text(text)
    return 0


def files() -> dict[str, str]:
    """The text of each file, by its name in ``deploy/``."""
    return {BOARD: json.dumps(_board(), indent=1) + "\n", RULES: "\n".join(_rules()) + "\n"}


def measured(page: str) -> list[Measured]:
    """The metrics of ``/metrics``; our own first."""
    found = [Measured(match["name"], match["help"], match["kind"]) for match in _FAMILY.finditer(page)]
    return sorted((one for one in found if one.name.startswith(_SHOWN)), key=lambda one: not one.name.startswith(_OURS))


def of_drainer() -> list[Measured]:
    """Every metric of a Drainer."""
    return measured(DrainerMetrics(lambda: 0).text().decode())


def of_pump() -> list[Measured]:
    """Every metric of a Pump."""
    metrics = PumpMetrics()
    metrics.watch(lambda: StoreFigures(0, 0, 0, 0, 0, 0, 0, 0, ChaserCounts(), 0.0))
    return measured(metrics.text().decode())


def _board() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y = 0
    for title, drawn in (
        ("Alarms", [_alarms()]),
        ("Drainer", [_panel(one, "drainer") for one in of_drainer()]),
        ("Pumps", [_panel(one, "pump") for one in of_pump()]),
    ):
        panels.append({"type": "row", "title": title, "collapsed": False, "gridPos": {"h": 1, "w": 24, "x": 0, "y": y}, "panels": []})
        y += 1
        for place, panel in enumerate(drawn):
            at = {"h": _HEIGHT, "w": _WIDTH, "x": _WIDTH * (place % _BESIDE), "y": y + _HEIGHT * (place // _BESIDE)}
            panels.append({"gridPos": at} | panel)
        y += _HEIGHT * (1 + (len(drawn) - 1) // _BESIDE)
    return {
        "uid": "tidb-binlog-spark",
        "title": "TiDB Binlog replication on Spark",
        "description": "Made by `make monitoring` from the metrics of this release.",
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "tags": ["tidb-binlog"],
        "templating": {
            "list": [
                {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                _variable("drainer", "Drainer", "binlog_drainer_checkpoint_tso"),
                _variable("pump", "Pump", "binlog_pump_storage_max_commit_ts"),
            ]
        },
        "panels": [{"id": number} | panel for number, panel in enumerate(panels, 1)],
    }


def _variable(name: str, label: str, metric: str) -> dict[str, Any]:
    query = f"label_values({metric}, instance)"
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }


_SOURCE = {"type": "prometheus", "uid": "${source}"}


def _alarms() -> dict[str, Any]:
    """The alerts that Prometheus fires."""
    return {
        "type": "table",
        "title": "Alarms that are on",
        "description": f"The rules are deploy/{RULES}.",
        "datasource": _SOURCE,
        "targets": [{"refId": "A", "expr": f'ALERTS{{alertname=~"{ALERT}.*",alertstate="firing"}}', "instant": True, "format": "table"}],
        "gridPos": {"h": _HEIGHT, "w": 24, "x": 0, "y": 1},
    }


def _panel(one: Measured, variable: str) -> dict[str, Any]:
    targets = [
        {"refId": chr(65 + number), "expr": expr, "legendFormat": legend} for number, (expr, legend) in enumerate(_queries(one, variable))
    ]
    return {
        "type": "timeseries",
        "title": one.name.removeprefix(_OURS).removeprefix("binlog_"),
        "description": f"{one.help} {one.name}",
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": _unit(one), "min": 0}, "overrides": []},
        "targets": targets,
    }


def _queries(one: Measured, variable: str) -> Iterator[tuple[str, str]]:
    """What a panel asks, and its legend."""
    chosen = f'{{instance=~"${variable}"}}'
    if one.kind == "histogram":
        for share in (0.5, 0.99):
            rate = f"rate({one.name}_bucket{chosen}[$__rate_interval])"
            yield f"histogram_quantile({share}, sum by (instance, le) ({rate}))", f"{{{{instance}}}} p{share * 100:.0f}"
    elif one.help.endswith(_A_TIME):
        yield f"time() - ({one.name}{chosen} > 0) / 1000", "__auto"
    else:
        yield (f"{one.name}{chosen}" if one.kind == "gauge" else f"rate({one.name}{chosen}[$__rate_interval])"), "__auto"


def _unit(one: Measured) -> str:
    if one.name.endswith(("_seconds", "_time")) or one.help.endswith(_A_TIME):
        return "s"
    return "bytes" if one.name.endswith(("_bytes", "binlog_size")) else "short"


def _rules() -> Iterator[str]:
    yield "# Made by `make monitoring` from schemas/alarms.py. What is not here, ctl doctor sees: rights, versions, the target, the disks of a Drainer."
    yield "# One Prometheus for several clusters: give their series the label tidb_cluster."
    yield "groups:"
    yield "  - name: tidb-binlog-spark"
    yield "    rules:"
    for alarm in ALARMS:
        if alarm.rule is not None:
            yield from _rule(alarm, alarm.rule)


def _rule(alarm: Alarm, rule: Rule) -> Iterator[str]:
    """A string of JSON is one of YAML."""
    notes: Mapping[str, str] = {"summary": rule.says, "description": alarm.todo, "runbook": f"docs/{alarm.page}.md"}
    yield f"      - alert: {alert_name(alarm)}"
    yield f"        expr: {json.dumps(rule.expr)}"
    yield f"        for: {rule.wait}"
    yield f"        labels: {{severity: {alarm.severity.value}}}"
    yield "        annotations:"
    yield from (f"          {name}: {json.dumps(text)}" for name, text in notes.items())


def alert_name(alarm: Alarm) -> str:
    """The name of an alarm's alert: ``gc-near`` is ``TidbBinlogGcNear``."""
    return ALERT + "".join(part.capitalize() for part in alarm.name.split("-"))


if __name__ == "__main__":
    raise SystemExit(main())
