"""What a person sees: the progress line, JSON lines, the summary, and that the printer keeps its promises."""

import io
import json
import re
import threading
from dataclasses import replace

import pytest

from pyspark_tidb_binlog.jobs.stream.report import Progress, Reporter, held_by, render_json, render_line, render_summary
from pyspark_tidb_binlog.schemas.events import tso

TS = tso(1_790_000_000_123)
BUSY = Progress(TS, 0.42, 8312.4, 12, 3000, 279_016, 3, "Pump pump-2")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_line_names_lag_rate_time_and_what_holds_it_back() -> None:
    assert render_line(BUSY) == ("lag 0.4 s | 8,312 rows/s | resolved 2026-09-21 14:13:20.123 | 279,016 rows | 3 DDL | held by Pump pump-2")


def test_the_line_before_anything_came() -> None:
    assert render_line(Progress()) == "lag - | 0 rows/s | resolved nothing yet | 0 rows"


def test_a_reason_is_whole_below_the_line_where_it_does_not_fit() -> None:
    held = replace(BUSY, holding="Pump p1 since 2026-11-20 12:00:00.000 (UNAVAILABLE: failed to connect to 10.0.0.1:8250)")
    first, *reason = render_line(held, 60).splitlines()
    assert max(map(len, (first, *reason))) < 60
    assert " ".join([first, *map(str.strip, reason)]) == render_line(held)
    assert render_line(held, 400) == render_line(held)


def test_many_lines_are_renewed_in_place() -> None:
    out, progress = Terminal(), iter([replace(BUSY, holding="Pump p1 " + "x" * 200)] * 3 + [BUSY] * 10_000)
    renewed = threading.Event()

    def read() -> Progress:
        now = next(progress)
        if now is BUSY:
            renewed.set()
        return now

    with Reporter(read, out, interval=0.001):
        assert renewed.wait(10)
    rows: list[str] = [""]
    at = 0
    for move in re.split(r"(\n|\r|\x1b\[\d*[A-Z])", out.getvalue()):
        if move == "\n":
            at += 1
            rows += [""] * (at + 1 - len(rows))
        elif move.endswith("A"):
            at -= int(move[2:-1])
        elif move == "\x1b[J":
            rows[at:] = [""]
        elif move != "\r":
            rows[at] += move
    summary = render_summary(BUSY, 0.0).splitlines()
    assert len(rows) == len(summary) + 1 and rows[1].startswith("target is at"), "nothing of what was held is left"


def test_findings_are_counted_on_the_line_and_named_in_the_summary() -> None:
    found = Progress(findings=1234, newest_findings=("ddl: g.expr_idx: expression index ue left out",))
    assert "1,234 FINDINGS" in render_line(found)
    assert "1,234 findings (Delta table `findings`), the newest:\n  - ddl: g.expr_idx: expression" in render_summary(found, 1.0)


def test_json_holds_every_field_and_the_time_for_people() -> None:
    values = json.loads(render_json(BUSY))
    assert values["resolved_ts"] == TS
    assert values["resolved_time"] == "2026-09-21 14:13:20.123"
    assert values["holding"] == "Pump pump-2"
    assert values["fakes_sent"] == 0 and json.loads(render_json(replace(BUSY, fakes_sent=3)))["fakes_sent"] == 3
    assert set(values) == {*Progress.__slots__, "resolved_time"}


def test_the_summary() -> None:
    assert render_summary(BUSY, 10.0) == (
        "3,000 transactions, 279,016 row events and 3 DDLs in 12 batches, 10.0 s (27,902 rows/s)\n"
        f"target is at 2026-09-21 14:13:20.123 UTC (TSO {TS})"
    )
    assert "no batch was applied" in render_summary(Progress(), 0.0)


def test_a_terminal_gets_one_line_renewed_in_place() -> None:
    out, printed = Terminal(), threading.Event()

    def read() -> Progress:
        if out.getvalue():
            printed.set()
        return BUSY

    with Reporter(read, out, interval=0.001) as reporter:
        assert printed.wait(10)
        reporter.say("a note")
    text = out.getvalue()
    assert text.startswith("\r\x1b[Jlag 0.4 s")
    assert "\x1b[Ja note\n" in text
    assert text.endswith(f"(TSO {TS})\n")


def test_anything_else_gets_json_lines() -> None:
    out = io.StringIO()
    with Reporter(lambda: BUSY, out, interval=1000) as reporter:
        reporter.say("a note")
        reporter.finish()
    message, summary = (json.loads(line) for line in out.getvalue().splitlines())
    assert message == {"message": "a note"}
    assert summary["summary"]["row_events"] == 279_016


def test_an_error_ends_the_line_without_a_summary() -> None:
    out = Terminal()
    try:
        with Reporter(lambda: BUSY, out, interval=1000):
            raise KeyError("x")
    except KeyError:
        pass
    assert "transactions" not in out.getvalue()


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
    assert json.loads(render_json(copying))["bootstrap"] == copying.bootstrap and json.loads(render_json(BUSY))["bootstrap"] == ""
