"""The facts about a stream as a line, as JSON and as a summary."""

import json
from dataclasses import replace

import pytest

from pyspark_tidb_binlog.jobs.stream.report import (
    Progress,
    SeenPump,
    as_json,
    held_by,
    plain,
    progress_in,
    pumps_of,
    render_line,
    render_summary,
    unanswered,
)
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.sinks.bootstrap.copy_record import CopyProgress

TS = tso(1_790_000_000_123)
BUSY = Progress(TS, 0.42, 8312.4, 12, 3000, 279_016, 3, "Pump pump-2", held_seconds=4.0)


def test_the_line_names_lag_rate_time_and_what_holds_it_back() -> None:
    assert render_line(BUSY) == (
        "lag 0.4 s | 8,312 rows/s | resolved 2026-09-21 14:13:20.123 | 279,016 rows | 3 DDL | held by Pump pump-2 for 4.0 s"
    )
    assert "held" not in render_line(replace(BUSY, held_seconds=0.0)), "what changes all the time holds nothing"
    assert render_line(replace(BUSY, held_seconds=0.0, stalled="Pump pump-2")).endswith("held by Pump pump-2")
    ddl = replace(BUSY, holding="ddl", held_stage="ddl", doing="a DDL is executed", batch_rows=5, batch_written=3)
    assert render_line(ddl).endswith("held by ddl for 4.0 s: a DDL is executed (5 rows read, 3 written)")


def test_the_line_before_anything_came() -> None:
    assert render_line(Progress()) == "lag - | 0 rows/s | resolved nothing yet | 0 rows"
    first = Progress(holding="apply", held_stage="apply", held_seconds=20.0, doing="rows are written", batch_rows=279_016)
    assert render_line(first).endswith("| 0 rows | rows are written (279,016 rows read, 0 written)")
    assert render_line(replace(first, holding="db1:3306: refused", stalled="db1:3306: refused")).endswith(
        "held by db1:3306: refused for 20.0 s"
    )


def test_a_reason_is_whole_below_the_line_where_it_does_not_fit() -> None:
    held = replace(BUSY, holding="Pump p1 since 2026-11-20 12:00:00.000 (UNAVAILABLE: failed to connect to 10.0.0.1:8250)")
    first, *reason = render_line(held, 60).splitlines()
    assert max(map(len, (first, *reason))) < 60
    assert " ".join([first, *map(str.strip, reason)]) == render_line(held)
    assert render_line(held, 400) == render_line(held)


def test_findings_are_counted_on_the_line_and_named_in_the_summary() -> None:
    found = Progress(findings=1234, newest_findings=("ddl: g.expr_idx: expression index ue left out",))
    assert "1,234 FINDINGS" in render_line(found)
    assert "1,234 findings (Delta table `findings`), the newest:\n  - ddl: g.expr_idx: expression" in render_summary(found, 1.0)


def test_json_holds_every_field_and_the_time_for_people() -> None:
    values = as_json(BUSY)
    assert values["resolved_ts"] == TS
    assert values["resolved_time"] == "2026-09-21 14:13:20.123"
    assert values["holding"] == "Pump pump-2"
    assert values["fakes_sent"] == 0 and as_json(replace(BUSY, fakes_sent=3))["fakes_sent"] == 3
    assert set(values) == {*Progress.__slots__, "resolved_time"}


def test_the_summary() -> None:
    assert render_summary(BUSY, 10.0) == (
        "3,000 transactions, 279,016 row events and 3 DDLs in 12 batches, 10.0 s (27,902 rows/s)\n"
        f"target is at 2026-09-21 14:13:20.123 UTC (TSO {TS})"
    )
    assert "no batch was applied" in render_summary(Progress(), 0.0)


@pytest.mark.parametrize(
    ("reported", "said"),
    [
        ({"held_by": "p1", "resolved": "2026-11-20 12:00:00.000", "unreachable": {}}, "Pump p1 since 2026-11-20 12:00:00.000"),
        ({"held_by": "p1", "resolved": "2026", "unreachable": {"p1": "refused"}}, "Pump p1 since 2026 (refused)"),
        ({"held_by": "p1", "resolved": "2026", "holding": "pending bytes"}, "pending bytes, for Pump p1 since 2026"),
        ({"unreachable": {"p2": "refused"}, "resolved_ts": 262144000}, "Pump p2 (refused) since 1970-01-01 00:00:01.000"),
        ({"unreachable": {"p2": "not reached yet"}, "resolved_ts": 0}, "Pump p2 (not reached yet)"),
        ({"registry": "PD is away", "resolved_ts": 262144000}, "the registry (PD is away) since 1970-01-01 00:00:01.000"),
        ({"unreachable": {}, "resolved_ts": 5}, ""),
    ],
)
def test_who_holds_is_named_with_since_when(reported: dict[str, object], said: str) -> None:
    assert held_by(reported) == said


def test_while_tables_are_copied_the_line_says_how_far_they_are() -> None:
    copying = replace(BUSY, bootstrap="copying [####] 17% | 1 of 4 tables")
    assert render_line(copying) == "copying [####] 17% | 1 of 4 tables" and render_line(copying, 12).split() == copying.bootstrap.split()
    assert as_json(copying)["bootstrap"] == copying.bootstrap and as_json(BUSY)["bootstrap"] == ""


def test_pumps_are_seen_with_their_registered_state_and_what_keeps_them_away() -> None:
    reported = {"promises": {"p2": TS, "p1": TS - tso(1500)}, "states": {"p1": "online", "p9": "offline"}, "unreachable": {"p3": "refused"}}
    assert pumps_of(reported, 1_790_000_001.123) == (
        SeenPump("p1", "online", TS - tso(1500), 2.5),
        SeenPump("p2", "", TS, 1.0),
        SeenPump("p3", trouble="refused"),
    )
    late = pumps_of(reported | {"reached": {"p1": 2.0, "p2": 0.5}}, 1_790_000_099.0)
    assert [pump.lag_seconds for pump in late] == [2.0, 0.5, 0.0], "of the moment that the source reported: the target is late, not they"
    assert pumps_of({"registry": "away", "resolved_ts": 5}, 0.0) == ()
    assert (
        unanswered(reported) == "Pump p3" and unanswered({"registry": "away"}) == "the registry" and unanswered({"unreachable": {}}) == ""
    )


def test_the_json_is_read_back_also_that_of_another_version() -> None:
    whole = replace(
        BUSY,
        pumps=(SeenPump("p1", "online", TS, 0.5),),
        copied=CopyProgress(4, 1, 500, 2000, 100.0),
        newest_findings=("a",),
        stalled="Pump p1",
    )
    said = json.loads(json.dumps(as_json(whole)))
    assert progress_in(said) == whole
    assert progress_in({"row_events": 5, "later": 1, "pumps": [{"name": "p", "later": 2}]}) == Progress(
        row_events=5, pumps=(SeenPump("p"),)
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ordinary `d`.`täble` 表 [red]", "ordinary `d`.`täble` 表 [red]"),
        ("a\x1b[2Jb\x1b]0;title\x07", "a\\x1b[2Jb\\x1b]0;title\\x07"),
        ("one\r\ntwo\tthree", "one  two three"),
        ("\x9b31m \u202eabc\u061c \udcff", "\\x9b31m \\x202eabc\\x61c \\xdcff"),
    ],
)
def test_nothing_that_a_terminal_obeys_is_in_the_line_or_the_summary(text: str, shown: str) -> None:
    assert plain(text) == shown
    assert render_line(replace(BUSY, holding=text)).endswith(f"held by {shown} for 4.0 s")
    assert render_summary(replace(BUSY, findings=1, newest_findings=(text,)), 1.0).splitlines()[-1] == f"  - {shown}"
