"""Which metrics the dashboard and the alert rules of ``deploy/`` ask for, and which ones pages of ``/metrics`` have."""

import json
import re
from collections.abc import Iterator

from pyspark_tidb_binlog.schemas.alarms import ALARMS
from tests.support.monitoring_files import BOARD, files

WORDS = frozenset(
    "time changes last_over_time rate sum min max histogram_quantile label_values unless and by on ignoring ALERTS instance".split()
)
"""What PromQL and Grafana know, and Prometheus' own metric of the alerts."""
_NO_NAMES = re.compile(r'\{[^}]*\}|\[[^\]]*\]|\b(?:by|on|ignoring) ?\([^)]*\)|"[^"]*"')


def asked_metrics() -> set[str]:
    """Every name in a query."""
    return {name for query in queries() for name in re.findall(r"[a-zA-Z_:][\w:]*", _NO_NAMES.sub(" ", query))} - WORDS


def queries() -> Iterator[str]:
    """Every query, of panels, variables and rules."""
    board = json.loads(files()[BOARD])
    yield from (target["expr"] for panel in board["panels"] for target in panel.get("targets", ()))
    yield from (variable["definition"] for variable in board["templating"]["list"] if "definition" in variable)
    yield from (alarm.rule.expr for alarm in ALARMS if alarm.rule is not None)


def served_metrics(*pages: str) -> set[str]:
    """Every name that a query may ask for."""
    kinds = [line.split()[2:] for page in pages for line in page.splitlines() if line.startswith("# TYPE ")]
    return {name + suffix for name, kind in kinds for suffix in (("_bucket", "_sum", "_count") if kind == "histogram" else ("",))}
