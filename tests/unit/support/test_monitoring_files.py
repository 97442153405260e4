"""``deploy/``: what ``make monitoring`` makes is what is there, asks for metrics that are there, and has each; the Containerfile's instructions."""

import json
import re
from pathlib import Path

import pytest

from pyspark_tidb_binlog.jobs.stream.drainer_metrics import DrainerMetrics
from pyspark_tidb_binlog.schemas.alarms import ALARMS
from tests.support.asked_metrics import asked_metrics, served_metrics
from tests.support.monitoring_files import BOARD, RULES, alert_name, files, of_drainer, of_pump

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", [BOARD, RULES])
def test_the_file_is_as_made(name: str) -> None:
    assert (ROOT / "deploy" / name).read_text() == files()[name], "run make monitoring"


def test_every_metric_has_a_panel_and_no_panel_asks_for_another() -> None:
    known = {one.name for one in (*of_drainer(), *of_pump())}
    assert len(known) > 30
    assert {re.sub("_bucket$", "", name) for name in asked_metrics()} == known


def test_a_name_that_no_page_has_is_noticed() -> None:
    assert "binlog_drainer_checkpoint_tso" not in asked_metrics() - served_metrics(DrainerMetrics(lambda: 0).text().decode())
    assert "binlog_pump_storage_gc_ts" in asked_metrics() - served_metrics(DrainerMetrics(lambda: 0).text().decode())


def test_panels_do_not_overlap() -> None:
    places = [panel["gridPos"] for panel in json.loads(files()[BOARD])["panels"]]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(cells) == len(set(cells)) and all(p["x"] + p["w"] <= 24 for p in places)


def test_a_rule_for_each_alarm_that_metrics_can_say() -> None:
    assert re.findall(r"alert: (\w+)", files()[RULES]) == [alert_name(alarm) for alarm in ALARMS if alarm.rule is not None]


def test_the_containerfile() -> None:
    """What it must say; `make lint` has hadolint judge how. No container runtime is asked for."""
    text = (ROOT / "deploy" / "Containerfile").read_text()
    joined = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.M))
    instructions = [line.split(None, 1) for line in joined.splitlines() if line.strip()]
    names = [name for name, _ in instructions]
    assert set(names) <= {"FROM", "RUN", "USER", "WORKDIR", "ENV", "VOLUME", "EXPOSE", "ENTRYPOINT", "CMD"}
    said = {name: value for name, value in instructions}
    assert re.fullmatch(r"docker\.io/library/python:3\.11-slim-\w+", said["FROM"]) and said["USER"] == "10001"
    assert names.index("USER") > max(place for place, name in enumerate(names) if name == "RUN"), "nothing is installed by that user"
    assert json.loads(said["ENTRYPOINT"]) == ["tidb-binlog"]
    runs = " && ".join(value for name, value in instructions if name == "RUN")
    for part in ("--no-install-recommends openjdk-17-jre-headless", "rm -rf /var/lib/apt/lists/*", "--no-cache-dir", "useradd --uid 10001"):
        assert part in runs
