"""The forms of ``--progress``: what goes out, when, and that nothing tears what is redrawn."""

import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.pictures import screen_of
from pyspark_tidb_binlog.jobs.entry.signals import StopRequest
from pyspark_tidb_binlog.jobs.stream import reporter
from pyspark_tidb_binlog.jobs.stream.report import Progress, SeenPump, render_line, render_summary
from pyspark_tidb_binlog.jobs.stream.reporter import EVERY_SECONDS, InPlace, Lines, ProgressForm, Reporter, form_of
from pyspark_tidb_binlog.schemas.events import tso

TS = tso(1_790_000_000_123)
BUSY = Progress(TS, 0.42, 8312.4, 12, 3000, 279_016, 3, "Pump pump-2")
ROOT = Path(__file__).parents[3]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.shows("--progress")
@pytest.mark.parametrize(
    ("asked", "out", "term", "panel", "form"),
    [
        ("auto", Terminal(), "xterm", True, ProgressForm.PANEL),
        ("auto", Terminal(), "xterm", False, ProgressForm.LINE),
        ("auto", Terminal(), "dumb", True, ProgressForm.LINES),
        ("auto", Terminal(), "", True, ProgressForm.LINES),
        ("auto", io.StringIO(), "xterm", True, ProgressForm.LINES),
        ("line", Terminal(), "xterm", True, ProgressForm.LINE),
        ("line", io.StringIO(), "xterm", True, ProgressForm.LINES),
        ("json", Terminal(), "xterm", True, ProgressForm.JSON),
        ("none", Terminal(), "xterm", True, ProgressForm.NONE),
    ],
)
def test_the_form(asked: str, out: io.StringIO, term: str, panel: bool, form: ProgressForm) -> None:
    assert form_of(asked, out, {"TERM": term}, panel=panel) is form


@pytest.mark.parametrize(("as_json", "rows"), [(False, 0), (False, 50), (True, 0)])
def test_a_stream_writes_a_line_every_30_seconds(as_json: bool, rows: int) -> None:
    """Its timestamps and what it waits for change all the time, as those of a stream that reads nothing but fakes, or ``rows`` a second."""
    out, now = io.StringIO(), [0.0]
    lines = Lines(out, in_json=as_json, clock=lambda: now[0])
    for second in range(86_400):
        now[0] = float(second)
        pumps = (SeenPump("p1", "online", TS + second, 0.2), SeenPump("p2", "online", TS + second, 0.3))
        lines.show(
            replace(
                BUSY,
                resolved_ts=TS + second,
                lag_seconds=second % 3,
                batches=1 + second,
                row_events=rows * second,
                ddls=rows * second,
                holding=("read", f"Pump p1 since {second}")[second % 2],
                pumps=pumps,
            )
        )
    assert len(out.getvalue().splitlines()) == 86_400 / EVERY_SECONDS == 2880


@pytest.mark.parametrize(
    "changed",
    [
        {"findings": 1},
        {"batches": 0, "doing": "binlogs are read"},
        {"state": "paused"},
        {"stalled": "the registry"},
        {"bootstrap": "copying"},
        {"unrecorded": "disk full"},
        {"pumps": (SeenPump("p1", "paused"), SeenPump("p2", "online"))},
        {"pumps": (SeenPump("p1", "online", trouble="refused"), SeenPump("p2", "online"))},
        {"pumps": (SeenPump("p1", "online"),)},
    ],
    ids=str,
)
def test_a_change_goes_out_at_once(changed: dict[str, object]) -> None:
    out = io.StringIO()
    lines = Lines(out, clock=lambda: 5.0)
    before = replace(BUSY, pumps=(SeenPump("p1", "online"), SeenPump("p2", "online")))
    for progress in (before, before, replace(before, **changed), replace(before, **changed)):
        lines.show(progress)
    assert len(out.getvalue().splitlines()) == 2


def test_json_goes_out_when_rows_have_come() -> None:
    out = io.StringIO()
    lines = Lines(out, in_json=True, clock=lambda: 5.0)
    for progress in (BUSY, BUSY, replace(BUSY, row_events=279_017)):
        lines.show(progress)
    assert len(out.getvalue().splitlines()) == 2


def test_the_json_form_is_one_object_a_line() -> None:
    """A DDL that is no UTF-8 is a line, too."""
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, "utf-8")
    Lines(out, in_json=True).show(replace(BUSY, last_ddl="-- 表 \udcff"))
    assert json.loads(raw.getvalue())["last_ddl"] == "-- 表 \udcff" and "表".encode() in raw.getvalue()
    out = io.StringIO()
    with Reporter(lambda: BUSY, out, ProgressForm.JSON, interval=1000) as reporter:
        reporter.say("a note\nof two lines")
        reporter.finish()
        reporter.conclude("equal")
    message, summary, outcome = (json.loads(line) for line in out.getvalue().splitlines())
    assert (message, outcome) == ({"message": "a note\nof two lines"}, {"message": "equal"})
    assert summary["summary"]["row_events"] == 279_016


def test_lines_without_a_terminal_are_text() -> None:
    out = io.StringIO()
    lines = Lines(out)
    lines.say("a note\x1b[2J\nof two lines")
    lines.show(BUSY)
    lines.end(BUSY, 10.0)
    assert out.getvalue() == f"a note\\x1b[2J\nof two lines\n{render_line(BUSY)}\n{render_summary(BUSY, 10.0)}\n"


def test_none_prints_only_what_the_job_is_run_for() -> None:
    out = io.StringIO()
    with Reporter(lambda: BUSY, out, ProgressForm.NONE, interval=0.001) as reporter:
        reporter.say("a note")
        reporter.conclude("3 tables equal")
    assert out.getvalue() == "3 tables equal\n"


def redrawn(form: ProgressForm, act: Callable[[Reporter], None], first: Progress = BUSY, then: Progress = BUSY) -> list[str]:
    """What a terminal shows in the end of a reporter that has drawn ``first`` and then ``then`` several times."""
    out, drawn, progress = Terminal(), threading.Event(), iter([first] * 3 + [then] * 10_000)

    def read() -> Progress:
        now = next(progress)
        if now is then and "\x1b" in out.getvalue():
            drawn.set()
        return now

    with Reporter(read, out, form, "demo", interval=0.001) as reporter:
        assert drawn.wait(10)
        act(reporter)
    return screen_of(out.getvalue(), 200)


@pytest.mark.parametrize("form", [ProgressForm.LINE, ProgressForm.PANEL])
def test_nothing_of_what_was_redrawn_is_left(form: ProgressForm) -> None:
    long = replace(BUSY, holding="Pump p1 " + "x" * 200, findings=1, newest_findings=("rows d.t",))
    first, *rest = redrawn(form, lambda reporter: reporter.say("a note\nof two lines"), long, BUSY)
    assert (first, rest[0]) == ("a note", "of two lines")
    assert len(rest) == 3 and rest[1].startswith("3,000 transactions") and rest[2].startswith("target is at")


def test_what_others_print_to_the_terminal_stays_above(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(sys, "stdout", plain := io.StringIO())

    def act(reporter: Reporter) -> None:
        print("a warning", file=sys.stderr)
        print("to a file")
        sys.stderr.write("half a line")

    shown = redrawn(ProgressForm.PANEL, act)
    assert shown[:2] == ["a warning", "half a line"] and plain.getvalue() == "to a file\n"


def test_a_closed_pipe_asks_the_job_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    request = StopRequest()
    monkeypatch.setattr(reporter, "REQUEST", request)
    read, write = os.pipe()
    os.close(read)
    with pytest.raises(BrokenPipeError), os.fdopen(write, "w") as out, Reporter(lambda: BUSY, out, interval=0.01):
        assert request.asked.wait(60)


def test_an_error_ends_the_line_without_a_summary() -> None:
    out = Terminal()
    try:
        with Reporter(lambda: BUSY, out, ProgressForm.LINE, interval=1000):
            raise KeyError("x")
    except KeyError:
        pass
    assert "transactions" not in out.getvalue()


def test_another_width_has_everything_printed_anew() -> None:
    out, width = Terminal(), [40]
    place = InPlace(out, lambda: os.terminal_size((width[0], 24)))
    place.say("a note")
    place.show(lambda columns, lines: "x" * (columns - 1) + "\nend")
    width[0] = 20
    place.say("another")
    place.show(lambda columns, lines: "y" * (columns - 1) + "\nend")
    place.keep()
    assert screen_of(out.getvalue(), 20) == ["a note", "another", "y" * 19, "end"]


def test_nothing_is_left_below_a_ctrl_c() -> None:
    """The terminal writes it where the cursor is, and goes to the next line where no columns are left."""
    out = Terminal()
    place = InPlace(out, lambda: os.terminal_size((20, 24)))
    place.show(lambda columns, lines: "\n".join(["-" * (columns - 1)] * 3))
    wraps = len(out.getvalue().rpartition("\n")[2]) + len("^C") > 20
    out.write("^C\n" if wraps else "^C")
    place.clear()
    assert screen_of(out.getvalue(), 20) == [""]


def test_no_library_is_imported_before_there_is_a_panel() -> None:
    program = "import sys; from pyspark_tidb_binlog.jobs import ctl, pump; import pyspark_tidb_binlog.jobs.stream.reporter; sys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
