"""The live panel: the same facts at any width, and nothing in them that a terminal obeys."""

import io
import re
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from pyspark_tidb_binlog.jobs.stream.panel import LivePanel, PanelFacts, panel_of, panels_text, sparkline
from pyspark_tidb_binlog.jobs.stream.report import Progress, SeenPump
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.sinks.bootstrap.copy_record import CopyProgress

TS = tso(1_790_000_000_123)
PUMPS = (SeenPump("pump-1", "online", TS, 0.3), SeenPump("pump-2", "paused", trouble="UNAVAILABLE: refused"))
BUSY = Progress(
    TS,
    0.42,
    8312.4,
    12,
    3000,
    279_016,
    3,
    "Pump pump-2",
    findings=4,
    newest_findings=("rows `d`.`t`",),
    pumps=PUMPS,
    last_ddl="CREATE TABLE t (a INT)",
    held_seconds=4.0,
)
WIDTHS = (60, 80, 120)
HOSTILE = "`[red]x[/red]`\x1b[31m\x1b]0;title\x07\r\nb\x9b2J\u202e[/] :smile: \udcff"
SHOWN = r"`[red]x[/red]`\x1b[31m\x1b]0;title\x07  b\x9b2J\x202e[/] :smile: \xdcff"


def recorded(facts: PanelFacts, width: int) -> str:
    """The panel as a console of this width records it."""
    console = Console(file=io.StringIO(), record=True, width=width, color_system=None, legacy_windows=False)
    console.print(panel_of(facts, width))
    return console.export_text()


def words_of(page: str) -> str:
    """Its words without the frame, however they are wrapped."""
    return " ".join(" ".join(line.strip("│╭╮╰╯─ ") for line in page.splitlines()).split())


@pytest.mark.parametrize("width", WIDTHS)
def test_a_stream(width: int) -> None:
    page = recorded(PanelFacts("demo", BUSY, tuple(float(n) for n in range(200))), width)
    assert {cell_len(line) for line in page.splitlines()} == {width}
    words = words_of(page)
    for part in (
        "demo · online",
        "lag 0.4 s",
        "█ highest 3.3 min",
        "rows/s 8,312 since the start: 279,016 rows, 3,000 transactions, 3 DDLs",
        "target at 2026-09-21 14:13:20.123 UTC",
        "held by Pump pump-2 for 4.0 s",
        "Pumps pump-1 online 0.3 s behind pump-2 paused not reachable: UNAVAILABLE: refused",
        "last DDL CREATE TABLE t (a INT)",
        "findings 4, the newest: rows `d`.`t`",
    ):
        assert part in words, (part, words)


@pytest.mark.parametrize("width", WIDTHS)
def test_hostile_text_is_shown_as_it_is_spelled(width: int) -> None:
    pumps = (SeenPump(HOSTILE, HOSTILE, 1, 1.0), SeenPump("q", HOSTILE, trouble=HOSTILE))
    bad = replace(BUSY, holding=HOSTILE, state=HOSTILE, newest_findings=(HOSTILE,), last_ddl=HOSTILE, unrecorded=HOSTILE, pumps=pumps)
    for progress in (bad, replace(bad, bootstrap=HOSTILE)):
        facts = PanelFacts(HOSTILE, progress, (1.0, 2.0), HOSTILE)
        page = recorded(facts, width)
        assert {cell_len(line) for line in page.splitlines()} == {width}
        assert re.sub(r"[\n\x20-\x7e·│╭╮╰╯─▁-█…]", "", page) == "", "printable characters and the frame's"
        drawn = panels_text([facts], width, 100, {"TERM": "xterm-256color"})
        assert set(re.findall(r"\x1b[^m]*.", drawn)) <= set(re.findall(r"\x1b\[[\d;]*m", drawn)), "colours only"
        drawn.encode()
    assert SHOWN.replace("  ", " ") in words_of(recorded(PanelFacts("demo", bad), 120))


def test_the_first_load() -> None:
    loading = Progress(bootstrap="copying", copied=CopyProgress(12, 3, 500, 2000, 100.0))
    words = words_of(recorded(PanelFacts("drainer d", loading), 80))
    assert (
        "tables 3 of 12 ██████░" in words
        and "25% rows 500 rows of about 2,000, 100 rows/s, about 15 s left" in words
        and "lag" not in words
    )
    assert "looking at the tables" in words_of(recorded(PanelFacts("d", Progress(bootstrap="looking at the tables")), 80))


def test_before_anything_came_and_without_an_answer() -> None:
    words = words_of(recorded(PanelFacts("demo", Progress()), 80))
    assert "lag - rows/s 0" in words and "target nothing applied yet held by nothing Pumps none has answered yet last DDL none" in words
    first = Progress(doing="rows are written", batch_rows=5_000, batch_written=70)
    assert "start rows are written (5,000 rows read, 70 written) Pumps" in words_of(recorded(PanelFacts("demo", first), 80))
    away = words_of(recorded(PanelFacts("Drainer d", Progress(), (), "it does not answer"), 80))
    assert away == "Drainer d no answer it does not answer"


def test_of_many_pumps_those_behind_are_shown() -> None:
    many = tuple(SeenPump(f"p{n:02}", "online", TS - n, 0.1) for n in range(20))
    words = words_of(recorded(PanelFacts("demo", replace(BUSY, pumps=many)), 80))
    assert re.findall(r"\bp\d\d", words) == [f"p{n}" for n in range(12, 20)] and "and 12 more" in words


def test_a_terminal_gets_what_fits_into_it() -> None:
    facts = PanelFacts("demo", BUSY, (0.1, 0.2))
    drawn = panels_text([facts, facts], 80, 10, {"TERM": "xterm", "NO_COLOR": "1"})
    assert len(drawn.split("\n")) == 9 and {cell_len(re.sub(r"\x1b\[[\d;]*m", "", line)) for line in drawn.split("\n")} == {79}
    assert not re.search(r"\x1b\[(?:\d+;)*[34]\d", drawn), "no colour"
    assert re.search(r"\x1b\[(?:\d+;)*[34]\d", panels_text([facts], 80, 10, {"TERM": "xterm-256color"}))
    assert panels_text([facts], 5, 1, {"TERM": "xterm"}).count("\n") == 0
    assert panels_text([], 80, 24, {"TERM": "xterm"}) == ""


def test_lags_are_kept_while_they_are_known() -> None:
    panel = LivePanel("demo")
    panel.facts(Progress())
    panel.facts(replace(BUSY, bootstrap="copying"))
    panel.facts(BUSY, "away")
    assert panel.facts(BUSY).lags == (0.42,)
    for _ in range(1000):
        panel.facts(BUSY)
    assert len(panel.facts(BUSY).lags) == 120


def test_the_sparkline() -> None:
    assert sparkline([0.0, 1.0, 4.0, 8.0]) == "▁▂▅█" and sparkline([0.0, 0.0]) == "▁▁"
