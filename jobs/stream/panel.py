"""The live panel of a stream on a terminal. The only file that imports ``rich``; code without a panel does not import it.

Promises: ``panel_of`` and ``panels_text`` are pure. Text of the facts reaches the terminal without control characters, and never as markup.
"""

import io
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pyspark_tidb_binlog.binlog_source.cluster.registry import NodeState
from pyspark_tidb_binlog.conf.units import duration_in_words
from pyspark_tidb_binlog.jobs.stream.report import Progress, SeenPump, bar, plain
from pyspark_tidb_binlog.schemas.events import as_time

_WIDEST = 120
_SAMPLES = 120
"""How many lags are kept for the sparkline."""
_BARS = "▁▂▃▄▅▆▇█"
_LEAST_BARS, _MOST_BARS, _BESIDE_BARS = 10, 60, 42
"""Of the sparkline, and the columns of its row that are not its own."""
_PUMPS, _FINDINGS = 8, 3
"""How many of them are shown."""


@dataclass(frozen=True, slots=True)
class PanelFacts:
    """Everything that a panel shows."""

    title: str
    progress: Progress
    lags: tuple[float, ...] = ()
    """Lags in seconds, oldest first, one for each look at the stream."""
    trouble: str = ""
    """Why nothing newer is known of the stream; empty = ``progress`` is current."""


class LivePanel:
    """The panel of one stream, which remembers its lags."""

    def __init__(self, title: str) -> None:
        """``title``: whose panel, such as ``demo``."""
        self._title = title
        self._lags: deque[float] = deque(maxlen=_SAMPLES)

    def facts(self, progress: Progress, trouble: str = "") -> PanelFacts:
        """The facts with the newest progress."""
        if progress.resolved_ts and not trouble and not progress.bootstrap:
            self._lags.append(progress.lag_seconds)
        return PanelFacts(self._title, progress, tuple(self._lags), trouble)

    def frame_of(self, progress: Progress) -> Callable[[int, int], str]:
        """What ``InPlace`` draws."""
        facts = self.facts(progress)
        return lambda columns, lines: panels_text([facts], columns, lines, os.environ)


def panels_text(shown: Sequence[PanelFacts], columns: int, lines: int, environ: Mapping[str, str]) -> str:
    """The panels one below the other, for a terminal of this size; what is below its end is left out. ``environ``: ``TERM``, ``NO_COLOR``."""
    # one column less than there are: a full one moves some terminals to the next line
    width = max(20, min(columns - 1, _WIDEST))
    console = Console(
        file=io.StringIO(), force_terminal=True, force_jupyter=False, width=width, legacy_windows=False, _environ=dict(environ)
    )
    with console.capture() as taken:
        console.print(Group(*(panel_of(facts, width) for facts in shown)))
    return "\n".join(taken.get().rstrip("\n").split("\n")[: max(1, lines - 1)])


def panel_of(facts: PanelFacts, width: int) -> RenderableType:
    """The panel of these facts, in so many columns."""
    progress = facts.progress
    rows = Table.grid(padding=(0, 1), expand=True)
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(ratio=1)
    if facts.trouble:
        rows.add_row("no answer", _wrapped(facts.trouble, "red"))
    known = progress != Progress() or not facts.trouble
    for name, value in (_copy_rows(progress) if progress.bootstrap else _stream_rows(facts, width)) if known else ():
        rows.add_row(name, value)
    state = "" if facts.trouble else progress.state
    title = Text.assemble((plain(facts.title), "bold"), " · " if state else "", (plain(state), _state_style(state)))
    return Panel(rows, title=title, title_align="left", border_style="red" if facts.trouble else "yellow" if progress.stalled else "dim")


Rows = list[tuple[str, RenderableType]]


def _copy_rows(progress: Progress) -> Rows:
    """While tables are copied, the stream has not begun."""
    copied = progress.copied
    if copied is None:
        return [("tables", _wrapped(progress.bootstrap))]
    return [
        ("tables", Text(f"{copied.tables_done:,} of {copied.tables:,}  {bar(copied.share)}  {copied.share:.0%}")),
        ("rows", Text(", ".join(copied.row_words))),
    ]


def _stream_rows(facts: PanelFacts, width: int) -> Rows:
    progress = facts.progress
    counts = f"{progress.row_events:,} rows, {progress.transactions:,} transactions, {progress.ddls:,} DDLs"
    rows: Rows = [
        ("lag", _lag(facts, max(_LEAST_BARS, min(_MOST_BARS, width - _BESIDE_BARS)))),
        ("rows/s", Text(f"{progress.rows_per_second:,.0f}   since the start: {counts}")),
        ("target", Text(f"at {as_time(progress.resolved_ts)} UTC" if progress.resolved_ts else "nothing applied yet")),
        _standing(progress),
        ("Pumps", Group(*_pump_lines(progress.pumps))),
        ("last DDL", _cut(progress.last_ddl or "none since the start")),
    ]
    if progress.unrecorded:
        rows.append(("Delta", _wrapped(progress.unrecorded, "red")))
    rows.append(("findings", Group(*_finding_lines(progress))))
    return rows


def _standing(progress: Progress) -> tuple[str, RenderableType]:
    """Until the first batch is applied, the step of the start."""
    if progress.starting:
        return "start", _wrapped(progress.at_work)
    return "held by", _wrapped(progress.held or "nothing", "yellow" if progress.stalled else "")


def _lag(facts: PanelFacts, bars: int) -> Text:
    if not facts.progress.resolved_ts:
        return Text("-")
    now = f"{duration_in_words(facts.progress.lag_seconds):<9}"
    lags = facts.lags[-bars:]
    return (
        Text(now) if len(lags) < 2 else Text.assemble(now, (sparkline(lags), "cyan"), (f"  highest {duration_in_words(max(lags))}", "dim"))
    )


def sparkline(values: Sequence[float]) -> str:
    """A bar for each value; the highest is that of the largest value."""
    most = max(values)
    return "".join(_BARS[min(len(_BARS) - 1, int(value / most * len(_BARS)))] if most > 0 else _BARS[0] for value in values)


def _pump_lines(pumps: Sequence[SeenPump]) -> list[Text]:
    """If they are many, those in trouble and those that are furthest behind."""
    if not pumps:
        return [Text("none has answered yet")]
    chosen = sorted(pumps, key=lambda pump: (not pump.trouble, pump.read_upto, pump.name))[:_PUMPS]
    lines = []
    for pump in sorted(chosen, key=lambda pump: pump.name):
        state = (plain(pump.state), _state_style(pump.state))
        if pump.trouble:
            lines.append(Text.assemble(plain(pump.name), " ", state, (f" not reachable: {plain(pump.trouble)}", "red"), overflow="fold"))
        else:
            read = f" {duration_in_words(pump.lag_seconds)} behind" if pump.read_upto else " nothing read yet"
            lines.append(Text.assemble(plain(pump.name), " ", state, read, overflow="fold"))
    if len(pumps) > _PUMPS:
        lines.append(Text(f"and {len(pumps) - _PUMPS:,} more", "dim"))
    return lines


def _finding_lines(progress: Progress) -> list[Text]:
    if not progress.findings:
        return [Text("none")]
    head = Text(f"{progress.findings:,}, the newest:", "red")
    return [head, *(_cut(words) for words in reversed(progress.newest_findings[-_FINDINGS:]))]


def _state_style(state: str) -> str:
    return "green" if state == NodeState.ONLINE else "yellow"


def _wrapped(text: str, style: str = "") -> Text:
    return Text(plain(text), style, overflow="fold")


def _cut(text: str) -> Text:
    """One line."""
    return Text(plain(text), overflow="ellipsis", no_wrap=True)
