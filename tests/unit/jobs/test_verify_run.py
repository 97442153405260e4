"""What a verification prints."""

import io
import json

import pytest

from pyspark_tidb_binlog.jobs.check.verify_run import JsonView, TextView, progress_line, total_of
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.verify.definition import NotCompared
from pyspark_tidb_binlog.sinks.verify.table_comparison import Tally
from pyspark_tidb_binlog.sinks.verify.verification import RoundDone, VerifiedTable

HALF = RoundDone("d.t\x1b", 7, Tally(rows=500))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("about", "line"),
    [
        (1000, "d.t\\x1b ████████████░░░░░░░░░░░░  50% of about 1,000 rows; 100 rows/s, 5.0 s left; table 3 of 9"),
        (400, "d.t\\x1b ███████████████████████░  99% of about 400 rows; 100 rows/s; table 3 of 9"),
        (0, "d.t\\x1b ░░░░░░░░░░░░░░░░░░░░░░░░   0% of about 0 rows; 100 rows/s; table 3 of 9"),
    ],
)
def test_the_bar(about: int, line: str) -> None:
    assert progress_line(HALF, about, 2, 9, 100.0) == line


def test_what_differs_is_in_the_line() -> None:
    assert "rows, 3 DIFFER; " in progress_line(RoundDone("d.t", 7, Tally(rows=5, unlisted=3)), 10, 0, 1, 1.0)


def test_a_terminal_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    view = TextView(Flavour.MARIADB, {"d.t\x1b": 1000}, terminal)
    view.round(HALF)
    assert "50% of about 1,000 rows" in terminal.getvalue()
    view.table(
        VerifiedTable(
            "d.t",
            7,
            (NotCompared("c: the target lacks it", False, "ALTER x"), NotCompared("k is z", True, compared=True)),
            Tally(rows=9, unlisted=2),
        ),
        ["why"],
    )
    view.end(total_of([VerifiedTable("d.t", 7, (), Tally(rows=9, unlisted=2)), VerifiedTable("d.u", 7)]))
    assert capsys.readouterr().out.splitlines() == [
        "d.t: NOT AS IT SHOULD BE: not compared: c: the target lacks it",
        "  ALTER x;",
        "d.t: k is z",
        "d.t: 9 rows at 7 (1970-01-01 00:00:00.000): 0 to 2 rows DIFFER",
        "  why",
        "  not listed: 2 rows that differ, or are among such rows",
        "1 tables, 9 rows: 7 equal, 2 differing; 1 tables not compared",
    ]
    assert terminal.getvalue().endswith("\x1b[J"), "the bar is gone"


def test_no_terminal_gets_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    TextView(Flavour.MARIADB, {}, out).round(HALF)
    assert not out.getvalue() and not capsys.readouterr().out


def test_json_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    left_out = NotCompared("c: the target lacks it", False, "ALTER x"), NotCompared("k is z", True, compared=True)
    JsonView(Flavour.MARIADB).table(VerifiedTable("d.t", 7, left_out, Tally(rows=9, unlisted=2)), ["why"])
    shown = json.loads(capsys.readouterr().out)
    assert shown["explained"] == ["why"]
    assert shown["not_compared"] == [{"why": "c: the target lacks it", "by_intent": False, "sql": "ALTER x"}]
    assert shown["structure"] == [{"why": "k is z", "by_intent": True, "sql": ""}]
