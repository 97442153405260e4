"""What the page shows of a stream, as JSON: where progress is held, hostile names, and no values that settings hide."""

import json
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from pyspark_tidb_binlog.jobs.stream.live_page import LivePage, PageFacts, seen_ddl, seen_finding, state_of
from pyspark_tidb_binlog.jobs.stream.page_history import PageHistory
from pyspark_tidb_binlog.jobs.stream.report import Progress, SeenPump
from pyspark_tidb_binlog.schemas.events import Delivery, tso
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind
from pyspark_tidb_binlog.sinks.engine.batch_report import REFUSED, BatchReport, DdlNote
from pyspark_tidb_binlog.sinks.sink import KeptTable

NOW = 1_790_000_000.0
TS = tso(1_789_999_999_700)
HOSTILE = "shop.<img src=x onerror=alert(1)>"
SECRET = "ALTER TABLE t ADD COLUMN c VARCHAR(20) DEFAULT 'pass''word' COMMENT 'x'"
FACTS = PageFacts("drainer-1", "db1:3306", "mysql", Delivery.RAW, False)
AT_WORK = Progress(TS, 0.3, 812.0, 12, 3_000, 279_016, 3, pumps=(SeenPump("pump-1", "online", TS, 0.3),))


def shown(progress: Progress, facts: PageFacts = FACTS, **more: Any) -> dict[str, Any]:
    state = state_of(facts, progress, PageHistory(NOW), more.get("seen", ((), ())), more.get("kept", ()), NOW)
    found: dict[str, Any] = json.loads(json.dumps(state, ensure_ascii=True))
    return found


def test_the_figures_of_now() -> None:
    state = shown(AT_WORK)
    assert (state["version"], state["lag_seconds"], state["target"]) == (1, 0.3, {"name": "db1:3306", "kind": "mysql"})
    assert state["checkpoint"] == {"ts": str(TS), "ms": 1_789_999_999_700}, "a browser's numbers have 53 bits"
    assert state["counts"]["row_events"] == 279_016 and state["pumps"][0]["lag_seconds"] == 0.3
    assert state["alarms"] == [] and shown(Progress())["lag_seconds"] is None


@pytest.mark.parametrize(
    ("held", "delivery", "stage", "ddl"),
    [
        ({"held_stage": "source", "held_pump": "pump-2"}, Delivery.RAW, "source", False),
        ({"held_stage": "pair", "held_pump": "pump-2"}, Delivery.RAW, "pair", False),
        ({"held_stage": "read"}, Delivery.RAW, "pair", False),
        ({"held_stage": "read"}, Delivery.SORTED, "source", False),
        ({"held_stage": "read", "held_pump": "pump-2"}, Delivery.RAW, "source", False),
        ({"held_stage": "history"}, Delivery.RAW, "plan", False),
        ({"held_stage": "apply"}, Delivery.RAW, "apply", False),
        ({"held_stage": "ddl"}, Delivery.RAW, "apply", True),
        ({}, Delivery.RAW, "", False),
    ],
)
def test_the_stage_that_holds_progress(held: dict[str, str], delivery: Delivery, stage: str, ddl: bool) -> None:
    hold = shown(replace(AT_WORK, **held), replace(FACTS, delivery=delivery))["hold"]  # type: ignore[arg-type]
    assert (hold["stage"], hold["ddl"], hold["pump"]) == (stage, ddl, held.get("held_pump", ""))


def test_the_page_names_a_holder_and_a_step_of_the_start() -> None:
    applying = replace(AT_WORK, holding="apply", held_stage="apply", doing="rows are written", batch_rows=5, batch_written=3)
    hold = shown(applying)["hold"]
    assert (hold["words"], hold["doing"], hold["starting"]) == ("", "rows are written (5 rows read, 3 written)", False)
    assert shown(replace(applying, batches=0))["hold"]["starting"]
    hold = shown(replace(applying, held_seconds=7.0))["hold"]
    assert (hold["words"], hold["since"]) == ("apply", NOW - 7)


def test_an_alarm_says_what_to_do() -> None:
    away = replace(AT_WORK, pumps=(SeenPump("pump-1", "online", TS, 0.3, "refused"),), lag_seconds=3_600.0)
    alarms = {alarm["name"]: alarm for alarm in shown(away)["alarms"]}
    assert set(alarms) == {"pump-unreachable", "lag"}
    assert "pump-1" in alarms["pump-unreachable"]["what"] and alarms["pump-unreachable"]["todo"] and alarms["lag"]["page"]


@pytest.mark.parametrize(
    ("state", "stage", "behind"),
    [
        ("online", "", True),
        ("online", "source", True),
        ("online", "apply", False),
        ("paused", "source", False),
        ("closing", "source", False),
    ],
)
def test_a_pump_that_nobody_asks_is_not_behind(state: str, stage: str, behind: bool) -> None:
    waits = replace(AT_WORK, state=state, held_stage=stage, pumps=(SeenPump("pump-1", "online", TS, 90.0),))
    assert ("pump-behind" in [alarm["name"] for alarm in shown(waits)["alarms"]]) is behind


def test_values_of_ddls_are_hidden_unless_rows_may_be_shown() -> None:
    words = f"refused: {SECRET!r}: Unknown thing 'x' near pass'word"
    hidden = seen_ddl(DdlNote(TS, SECRET, REFUSED, words), NOW, False)
    assert hidden.text == "ALTER TABLE t ADD COLUMN c VARCHAR(20) DEFAULT '…' COMMENT '…'"
    assert "pass" not in hidden.words and hidden.words.startswith("refused: ") and "errors/ddl" in hidden.remedy
    assert seen_ddl(DdlNote(TS, SECRET, REFUSED, words), NOW, True).text == SECRET
    frozen = Finding(FindingKind.DDL, f"t: DDL skipped, so the table is frozen: {SECRET}", commit_ts=TS)
    skipped = [DdlNote(TS, SECRET, "skipped"), DdlNote(TS, "DROP TABLE u", "executed")]
    assert "pass" not in seen_finding(frozen, NOW, skipped, False).words
    assert "pass''word" in seen_finding(frozen, NOW, skipped, True).words
    scene = Scene()
    for ddl in (*skipped, *(DdlNote(TS + n, "DROP TABLE u", "executed") for n in range(1, 100))):
        scene.page.note_ddl(ddl)
    scene.page.take(report({}, frozen))
    scene.second()
    assert "frozen: ALTER" in str(scene.page.state()) and "pass" not in str(scene.page.state()), "of a batch with many DDLs, too"


@pytest.mark.parametrize("show", [True, False])
def test_of_a_long_ddl_the_reason_is_shown(show: bool) -> None:
    parts = ", ".join(f"PARTITION p{n} VALUES LESS THAN ({7_000_000 + n})" for n in range(2_000))
    sql = f"CREATE TABLE t (a INT) PARTITION BY RANGE (a) ({parts})"
    begun = time.process_time()
    seen = seen_ddl(DdlNote(TS, sql, REFUSED, f"DDL refused: {sql!r}: error 1064 near 7000999. Repair the target"), NOW, show)
    assert time.process_time() - begun < 3, "one pass over the text, whatever the number of values"
    assert seen.words.endswith(f"…': error 1064 near {'7000999' if show else '…'}. Repair the target") and len(seen.text) == 500


def test_a_ddl_that_was_executed_asks_for_nothing_and_a_skipped_one_does() -> None:
    assert seen_ddl(DdlNote(TS, "DROP TABLE t", "executed", database="shop"), NOW, False).database == "shop"
    fates = {fate: seen_ddl(DdlNote(TS, "DROP TABLE t", fate), NOW, False).remedy for fate in ("executed", "filtered", "quarantined")}
    assert not fates["executed"] and not fates["filtered"] and "frozen" in fates["quarantined"]


def test_a_lakes_tables_come_with_those_that_do_not_follow_first() -> None:
    kept = (
        KeptTable("d.small", 10, TS, "mirrored"),
        KeptTable("d.big", 10**9, TS, "mirrored"),
        KeptTable("d.odd", None, 0, "stale", "why: x"),
    )
    state = shown(AT_WORK, kept=kept)
    assert [table["name"] for table in state["kept"]] == ["d.odd", "d.big", "d.small"] and state["kept_tables"] == 3
    assert state["kept"][0]["bytes"] is None and state["kept"][1]["ms"] == 1_789_999_999_700


class Scene:
    """A page over a stream that moves by hand."""

    def __init__(self) -> None:
        self.now, self.progress, self.hangs = NOW, AT_WORK, threading.Event()
        self.hangs.set()
        self.page = LivePage(FACTS, self.read, lambda: (), lambda: self.now)

    def read(self) -> Progress:
        assert self.hangs.wait(30)
        return self.progress

    def second(self) -> None:
        self.now += 1
        self.page.look()


def report(tables: dict[str, int], *findings: Finding) -> BatchReport:
    return BatchReport(1, TS, TS + 1, 5, 1, sum(tables.values()), 0, 0, 0, findings=findings, tables=tables)


def test_a_hostile_name_is_a_string() -> None:
    scene = Scene()
    scene.page.take(report({HOSTILE: 5}))
    scene.second()
    assert scene.page.state()["tables"] == [{"name": HOSTILE, "recent": 5, "hour": 5}]


def test_only_what_is_new_is_given_again() -> None:
    scene = Scene()
    for _ in range(5):
        scene.second()
    first = scene.page.state()
    assert [sample.at for sample in first["seconds"]] == [1_790_000_000 + n for n in range(1, 6)]
    scene.second()
    assert [sample.at for sample in scene.page.state(first["seconds"][-1].at)["seconds"]] == [1_790_000_006]


def test_the_page_answers_while_the_job_hangs_and_says_since_when() -> None:
    scene = Scene()
    scene.second()
    scene.hangs.clear()
    looking = threading.Thread(target=scene.second)
    looking.start()
    try:
        while scene.now < NOW + 2:
            time.sleep(0.001)
        scene.now = NOW + 60
        begun = time.monotonic()
        state = scene.page.state()
        assert time.monotonic() - begun < 1 and (state["seen"], state["now"]) == (NOW + 1, NOW + 60)
    finally:
        scene.hangs.set()
        looking.join(30)


def test_an_open_page_reads_why_the_stream_ended() -> None:
    scene = Scene()
    scene.second()
    scene.page.state()
    scene.page.note_ddl(DdlNote(TS, SECRET, REFUSED, f"refused: {SECRET}. Repair the target."))
    ending = threading.Thread(target=scene.page.ends, args=["another text"])
    ending.start()
    while not (last := scene.page.state())["ended"]:
        time.sleep(0.001)
    ending.join(30)
    assert last["ended"].endswith("Repair the target.") and "pass" not in last["ended"]
    assert [ddl["fate"] for ddl in last["ddls"]] == [REFUSED]


def test_an_end_that_nobody_watches_waits_for_nobody() -> None:
    scene = Scene()
    scene.second()
    begun = time.monotonic()
    scene.page.ends("the target is gone")
    assert time.monotonic() - begun < 1 and scene.page.state()["ended"] == "the target is gone"
