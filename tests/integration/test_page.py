"""The page in a real browser: over a stream that moves by hand, and over a running drainer."""

import itertools
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from pyspark_tidb_binlog.binlog_source.cluster.registry import DRAINERS
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import RegistryClient
from pyspark_tidb_binlog.binlog_source.drainer.node import DrainerNode
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.stream import live_page
from pyspark_tidb_binlog.jobs.stream.live_page import LivePage, PageFacts
from pyspark_tidb_binlog.jobs.stream.report import Progress, SeenPump
from pyspark_tidb_binlog.schemas.events import Delivery, tso
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind
from pyspark_tidb_binlog.sinks.engine.batch_report import REFUSED, BatchReport, DdlNote
from pyspark_tidb_binlog.sinks.sink import KeptTable
from tests.support.browser import PHONE, Browser, browser
from tests.support.drainer_nodes import PretendedStream
from tests.support.eventually import eventually
from tests.support.job_scene import LONGEST, Scene, scene_in, streaming
from tests.support.target_rows import run_sql

pytestmark = [pytest.mark.slow, pytest.mark.grpc]
HOSTILE = "<img src=x onerror=window.hits++>"
NAMED_WITHIN = 5.0
"""Seconds from a Pump's death to its name on the page."""


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@dataclass
class Stream:
    """A stream that advances with each look at it."""

    progress: Progress = Progress()
    hangs: float = 0.0
    """Seconds that the next look takes."""
    kind: str = "mysql"
    kept: tuple[KeptTable, ...] = ()

    def __post_init__(self) -> None:
        self.looks = itertools.count(1)
        self.page = LivePage(PageFacts("drainer-1", "db1:3306", self.kind, Delivery.RAW, False), self.read, lambda: self.kept)
        self.node: DrainerNode = PretendedStream(page=self.page.state).node(None)

    def read(self) -> Progress:
        time.sleep(self.hangs)
        looks, ts = next(self.looks), tso(int(time.time() * 1000) - 300)
        self.page.take(BatchReport(looks, ts - 1, ts, 5, 7, 90, 0, 0, 0, tables={"shop.orders": 60, f"shop.{HOSTILE}": 30}))
        pumps = (SeenPump("pump-1", "online", ts, 0.3), SeenPump("pump-2", "online", ts, 0.2))
        given = replace(
            self.progress,
            resolved_ts=ts,
            lag_seconds=self.progress.lag_seconds or 0.3 + looks % 3 / 10,
            row_events=90 * looks,
            transactions=7 * looks,
        )
        return replace(given, batches=looks, pumps=given.pumps or pumps)

    def __enter__(self) -> "Stream":
        self.node.start()
        self.page.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.hangs = 0.0
        self.page.close()
        self.node.stop()

    @property
    def url(self) -> str:
        return f"http://{self.node.address}/"


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many looks in a short test."""
    monkeypatch.setattr(live_page, "LOOK_SECONDS", 0.2)


def test_the_figures_move_and_nothing_else_does(window: Browser, often: None) -> None:
    with Stream() as stream:
        window.open(stream.url)
        assert window.shows("lag", "s behind") and window.shows("tables", "shop.orders")
        before = [window.text(name) for name in ("rows-count", "tables", "clock")]
        eventually(
            lambda: all(window.text(n) != b for n, b in zip(("rows-count", "tables", "clock"), before, strict=True)), what="they move"
        )
        eventually(
            lambda: int(window.run("return document.querySelectorAll('#lags path.line')[0].getAttribute('d').length")) > 8, what="a line"
        )
        for number in range(20):
            stream.page.note_ddl(
                DdlNote(tso(int(time.time() * 1000)), f"ALTER TABLE t ADD COLUMN c{number} INT", "executed", database="shop")
            )
        assert "executedshopALTER TABLE t ADD COLUMN c19 INT" in window.shows("ddls", "ALTER TABLE t ADD COLUMN c19 INT")
        rows = "const box = document.getElementById('ddls'); return [box.clientHeight % box.firstElementChild.offsetHeight, box.scrollHeight > box.clientHeight]"
        assert window.run(rows) == [0, True], "the last row that is seen is not cut"
        assert "began at" in window.text("history") and window.text("notice") == "No alarm is on."
        assert (window.complaints(), window.shifts()) == ([], [])
        asked = window.run("return performance.getEntriesByType('resource').map(one => one.name)")
        assert asked and all(one.startswith(stream.url) for one in asked)


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_has_no_sideways_scroll_whatever_the_names(window: Browser, dark: bool) -> None:
    long = "n" * 300
    pumps = (SeenPump(long, "online", 1, 5.0, f"refused: {long}"),)
    with Stream(Progress(pumps=pumps, holding=f"Pump {long}", held_stage="source", held_pump=long, held_seconds=9.0)) as stream:
        stream.page.take(BatchReport(0, 1, 2, 5, 1, 9, 0, 0, 0, tables={long: 10**9}, findings=(Finding(FindingKind.ROWS, long),)))
        stream.page.note_ddl(DdlNote(tso(1), f"DROP TABLE {long}", "skipped", f"frozen: {long}"))
        window.open(stream.url, PHONE, 900, dark=dark)
        window.shows("pumps", long)
        window.shows("ddls", "frozen")
        assert not window.is_too_wide() and window.complaints() == []
        ground = window.run("return getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, ground[4:-1].split(","))) < 200) is dark


BUSY = Progress(holding="apply", held_stage="apply", doing="rows are written", batch_rows=812_000, batch_written=244_100)
AWAY = SeenPump("pump-1", "online", 1, 2.0, "refused")


@pytest.mark.parametrize(
    ("progress", "pill", "notice", "hold"),
    [
        (replace(BUSY, holding="Pump pump-1 since 2026", held_stage="source"), "pill good", "No alarm is on.", "Nothing holds progress."),
        (Progress(pumps=(AWAY,), findings=1), "pill bad", "Critical alarm: pump-unreachable. Warning: findings.", "Nothing holds"),
        (
            replace(BUSY, lag_seconds=310.0),
            "pill warn",
            "Warning: lag.",
            "Catching up: rows are written (812,000 rows read, 244,100 written).",
        ),
        (replace(BUSY, holding="db1: away", stalled="db1: away"), "pill bad", "Critical alarm: waiting.", "Held by db1: away."),
        (
            replace(BUSY, held_seconds=9.0),
            "pill good",
            "No alarm is on.",
            "Held by apply: rows are written (812,000 rows read, 244,100 written).",
        ),
        (replace(BUSY, state="paused"), "pill warn", "Warning: drainer-paused.", "Nothing holds progress."),
    ],
    ids=["fine", "alarm", "catching up", "target away", "held", "paused"],
)
def test_pill_banner_and_card_agree(window: Browser, progress: Progress, pill: str, notice: str, hold: str) -> None:
    with Stream(progress) as stream:
        window.open(stream.url)
        window.shows("hold", hold)
        window.shows("notice", notice)
        assert window.run("return document.getElementById('state').className") == pill
        assert [name for name in ("alarm", "finding") if window.one(f"#{name}-card").is_displayed()] == (
            ["alarm"] if "No" not in notice else []
        )
        assert all(f"{name}: " in window.text("alarms") for name in re.findall(r"[:,] ([a-z-]+)", notice))


@pytest.mark.parametrize("lasts", [False, True])
def test_a_peak_that_is_over_is_cut_and_named(window: Browser, lasts: bool) -> None:
    """Of an hour with lags of half a second."""
    seconds = iter(range(3_599, 0, -1))
    now, progress = time.time(), Progress()
    ago = 3_600
    page = LivePage(PageFacts("drainer-1", "db1:3306", "mysql", Delivery.RAW, False), lambda: progress, lambda: (), lambda: now - ago)
    for ago in seconds:
        peak = ago < 10 if lasts else 900 < ago < 905
        progress = Progress(tso(1), 170.0 if peak else 0.5, 10 * (3_600 - ago))
        page.look()
    node = PretendedStream(page=page.state).node(None)
    node.start()
    try:
        window.open(f"http://{node.address}/")
        eventually(lambda: window.text("lags"), what="a chart")
        assert ("lag, cut: the peak is 2.8 min at " in window.text("lags")) is not lasts and "Highest lag 2.8 min" in window.text("reading")
        scale = window.run("return document.querySelectorAll('#lags text')[2].textContent")
        assert scale == ("4 min" if lasts else "1 s"), "of what is usual, while the peak is over"
    finally:
        node.stop()


def test_text_from_upstream_stays_text(window: Browser) -> None:
    pumps = (SeenPump(HOSTILE, HOSTILE, 1, 5.0, HOSTILE),)
    stream = Stream(
        Progress(
            pumps=pumps, holding=HOSTILE, held_stage="source", held_pump=HOSTILE, stalled=HOSTILE, held_seconds=9.0, unrecorded=HOSTILE
        ),
        kind="lake",
    )
    stream.kept = (KeptTable(HOSTILE, 5, tso(1), "stale", HOSTILE),)
    with stream:
        ddl = f"CREATE TABLE `{HOSTILE}` (a INT)"
        stream.page.note_ddl(DdlNote(tso(1), ddl, "quarantined", HOSTILE))
        stream.page.take(BatchReport(0, 1, 2, 5, 1, 9, 0, 0, 0, findings=(Finding(FindingKind.DDL, HOSTILE, HOSTILE),)))
        window.open(stream.url)
        for name in ("pumps", "tables", "findings", "kept", "alarms", "hold"):
            window.shows(name, HOSTILE)
        assert ddl in window.shows("ddls", ddl)
        stream.page.ends(HOSTILE)
        window.shows("notice", HOSTILE)
        assert window.run("return [document.images.length, window.hits]") == [0, 0]
        assert window.complaints() == []


def test_the_page_says_when_its_figures_are_old(window: Browser, often: None) -> None:
    with Stream() as stream:
        window.open(stream.url)
        window.shows("notice", "No alarm is on.")
        stream.hangs = 12.0
        window.shows("notice", "Stale: the job has not reported since")
        stream.hangs = 0.0
        window.shows("notice", "No alarm is on.")
        stream.node.stop()
        window.shows("notice", "No answer since")
        assert window.text("lag").endswith("behind"), "the last figures stay"


def test_a_refused_ddl_shows_what_to_do_after_the_stream_has_ended(window: Browser) -> None:
    with Stream() as stream:
        window.open(stream.url)
        window.shows("lag", "behind")
        words = "DDL of job 5 refused: DROP TABLE t: denied. Repair the target, or skip the DDL"
        stream.page.note_ddl(DdlNote(tso(1), "DROP TABLE t", REFUSED, words))
        stream.page.ends(words)
        stream.node.stop()
        window.shows("notice", "Repair the target, or skip the DDL")
        assert "choose one of the ways in errors/ddl" in window.text("ddls")
        assert window.one("#ddls details[open] a").get_attribute("href") == f"{stream.url}docs/errors/ddl"


def test_it_is_used_by_keyboard_and_read_by_a_screen_reader(window: Browser, often: None) -> None:
    with Stream() as stream:
        window.open(stream.url)
        window.shows("lag", "behind")
        eventually(lambda: "Highest lag" in window.text("reading"), what="some seconds")
        window.one("#lags").send_keys("\ue012")  # the left arrow
        assert " rows and " in window.text("reading")
        window.one("#day").send_keys(" ")
        assert window.one("#day").get_attribute("aria-pressed") == "true"
        stops = window.run("return [...document.querySelectorAll('a[href], button, summary, [tabindex=\"0\"]')].map(one => one.tagName)")
        assert {"A", "BUTTON", "svg", "DIV"} <= set(stops)
        unnamed = "return [...document.querySelectorAll('section, svg, [role=region]')].filter(one => !(one.getAttribute('aria-label') || document.getElementById(one.getAttribute('aria-labelledby')))).length"
        assert window.run(unnamed) == 0
        assert window.run("return document.querySelectorAll('th:not([scope=col])').length") == 0
        assert window.run("return ['header', 'main', 'footer', 'h1'].map(tag => document.querySelectorAll(tag).length)") == [1, 1, 1, 1]
        assert window.run("return document.querySelectorAll('[aria-live], [role=status]').length") == 1


@pytest.fixture
def scene(tmp_path: Path, fresh_mariadb: PrivateMariaDB) -> Iterator[Scene]:
    with scene_in(tmp_path, fresh_mariadb, rate=8, ddl_every=40) as scene:
        yield scene


def page_of(scene: Scene) -> str:
    registry = RegistryClient(scene.workload.url)
    try:
        return f"http://{registry.listing(DRAINERS).nodes[0].host}/"
    finally:
        registry.close()


def pump_process(name: str) -> psutil.Process:
    """A Pump of this test's cluster."""
    return next(child for child in psutil.Process().children() if f"--node-id={name}" in child.cmdline())


def holding(window: Browser) -> str:
    """The stage that holds progress; empty: none does."""
    return str(window.run("return document.querySelector('#strip .holds b')?.textContent || ''"))


@pytest.mark.spark
@pytest.mark.mysql
def test_a_running_drainer_under_load_and_over_a_dead_pump(scene: Scene, window: Browser) -> None:
    streaming(scene)
    window.open(page_of(scene))
    window.shows("lag", "s behind", LONGEST)
    before = window.text("rows-count"), window.text("ddls")
    eventually(lambda: window.text("rows-count") != before[0] and window.text("ddls") != before[1], seconds=LONGEST, what="they move")
    window.shows("tables", "demo.", LONGEST)
    window.shows("pumps", "pump-2", LONGEST)
    assert {*window.run("return [...document.querySelectorAll('#ddls summary span:nth-of-type(2)')].map(one => one.textContent)")} <= {
        "demo",
        "demo_archive",
    }
    assert (window.complaints(), window.shifts()) == ([], [])

    with scene.target.connect() as connection, connection.cursor() as cursor:
        cursor.execute("LOCK TABLES demo.account WRITE, demo.counter WRITE, demo.orders WRITE")
        eventually(lambda: holding(window) in ("plan", "apply"), seconds=LONGEST, what="the batch hangs", seen=lambda: holding(window))
        assert "Nothing came into the target since" in window.text("hold")
        at = window.text("clock")
        eventually(lambda: window.text("clock") > at, what="the page goes on")
    eventually(lambda: holding(window) not in ("plan", "apply"), seconds=LONGEST, what="it goes on")

    dead = pump_process("pump-2")
    dead.send_signal(signal.SIGSTOP)
    dead.kill()
    killed_at = time.monotonic()
    window.shows("notice", "pump-unreachable", LONGEST)
    assert "not reachable" in window.text("pumps") and "pump-2" in window.text("alarms")
    took = time.monotonic() - killed_at
    print(f"a killed Pump is named after {took:.1f} s")
    assert took < NAMED_WITHIN, took


@pytest.mark.spark
@pytest.mark.mysql
def test_a_ddl_that_the_target_refuses_shows_its_remedy(scene: Scene, window: Browser) -> None:
    job = streaming(scene)
    window.open(page_of(scene))
    window.shows("lag", "s behind", LONGEST)
    run_sql(scene.target, *(f"CREATE TABLE IF NOT EXISTS demo.scratch_{number} (of_somebody_else INT)" for number in range(150)))
    window.shows("notice", "This Drainer has ended.", LONGEST)
    assert "scratch_" in window.text("notice") and "Drop the table of that name" in window.text("notice"), window.text("notice")
    assert "refused" in window.text("ddls") and "choose one of the ways in errors/ddl" in window.text("ddls")
    assert job.wait() == 1 and window.complaints() == []
