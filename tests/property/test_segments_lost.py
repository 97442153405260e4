"""DDLs whose binlogs never came, over every cut into batches and lives: each job once and in its place, a finding for each lost one, and at the end the
tables that the upstream has.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from pyspark_tidb_binlog.schemas.ddl_jobs import Job, JobEffect, On
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlEvent, DdlStep, RowsStep, TableActivity, plan_steps
from tests.support.ddl_jobs import column, database, history, job, partitions, table
from tests.support.golden_case import load_case

ID, A, B, C = (column(i, name) for i, name in enumerate(("id", "a", "b", "c"), 1))
BEGIN, END = tso(50_000), tso(300_000)
MULTI = {"sub_jobs": [{"type": 5, "schema_version": 20}, {"type": 5, "schema_version": 0}]}

Row = tuple[float, int, int]
"""Second, table id, schema version."""


def at(seconds: float) -> int:
    return tso(int(seconds * 1000))


def timed(found: dict[str, Any], seconds: float) -> dict[str, Any]:
    """A job whose binlog commits at ``seconds``: begun before, and ended a moment after."""
    found["binlog"]["FinishedTS"] = at(seconds + 0.2)
    return {**found, "real_start_ts": at(seconds - 0.3)}


BEFORE = [
    database(1),
    database(2, "e", 1001),
    job(3, 3, table(10, "b", [ID])),
    job(4, 3, table(12, "c", [ID])),
    job(5, 3, table(20, "u", [ID])),
    job(6, 3, table(30, "p", [ID], partition=partitions((31, "p0")))),
    job(7, 3, table(40, "x", [ID])),
    job(8, 3, table(50, "f", [ID]), schema_id=1001),
    job(9, 3, table(18, "w", [ID, A])),
]
OTHERS = {
    103.0: job(21, 5, table(20, "u", [ID, A])),
    200.0: job(30, 5, table(20, "u", [ID, A, B])),
}
"""DDLs of another table, the second of them more than a minute later."""


@dataclass(frozen=True)
class Scene:
    """A DDL that may be lost at second 100, with those that follow on its tables, and the rows of its tables."""

    job: dict[str, Any]
    later: dict[float, dict[str, Any]]
    rows: list[Row]
    before: list[Row] = field(default_factory=list)


SCENES = {
    "rename tables": Scene(
        job(20, 47, table(10, "c", [ID]), many=[table(12, "cc", [ID]), table(10, "c", [ID])], query="RENAME TABLE c TO cc, b TO c"),
        {140.0: job(25, 5, table(10, "c", [ID, A]))},
        [(101, 10, 20), (104, 12, 21), (141, 10, 25)],
        [(90, 10, 9), (91, 12, 9)],
    ),
    "truncate": Scene(
        job(20, 11, table(15, "b", [ID]), table_id=10),
        {140.0: job(25, 5, table(15, "b", [ID, A]))},
        [(101, 15, 20), (104, 15, 21), (141, 15, 25)],
        [(90, 10, 9)],
    ),
    "drop table, and again": Scene(
        job(20, 4, None, table_id=10),
        {140.0: job(25, 3, table(16, "b", [ID, B]))},
        [(141, 16, 25)],
        [(90, 10, 9)],
    ),
    "add column": Scene(
        job(20, 5, table(10, "b", [ID, A])),
        {140.0: job(25, 6, table(10, "b", [ID]))},
        [(101, 10, 20), (104, 10, 21), (141, 10, 25)],
        [(90, 10, 9)],
    ),
    "drop column": Scene(
        job(20, 6, table(18, "w", [ID])), {140.0: job(25, 5, table(18, "w", [ID, B]))}, [(101, 18, 20), (141, 18, 25)], [(90, 18, 9)]
    ),
    "create table": Scene(job(20, 3, table(17, "n", [ID])), {140.0: job(25, 14, table(17, "m", [ID]))}, [(101, 17, 20), (141, 17, 25)]),
    "exchange": Scene(
        job(20, 42, table(30, "p", [ID], partition=partitions((40, "p0"))), table_id=40),
        {140.0: job(25, 5, table(31, "x", [ID, A]))},
        [(101, 30, 20), (104, 31, 21), (141, 31, 25)],
        [(90, 30, 9), (91, 40, 9)],
    ),
    "multi-schema change": Scene(
        job(20, 61, table(10, "b", [ID, A, B]), multi_schema_info=MULTI),
        {140.0: job(25, 5, table(10, "b", [ID, A, B, C]))},
        [(99.5, 10, 20), (104, 10, 21), (141, 10, 25)],
        [(90, 10, 9)],
    ),
    "rename out of a database that is dropped": Scene(
        job(20, 14, table(50, "f", [ID])),
        {
            140.0: job(25, 2, None, schema_id=1001, schema_name="e"),
            145.0: database(26, "e", 1002),
            147.0: job(27, 3, table(60, "x", [ID]), schema_id=1002),
        },
        [(148, 60, 27), (149, 50, 27)],
        [(90, 50, 9)],
    ),
    "drop database": Scene(job(20, 2, None, schema_id=1001, schema_name="e"), {140.0: database(25, "e", 1002)}, [], [(90, 50, 9)]),
}
OTHER_ROWS: list[Row] = [(95, 20, 9), (102, 20, 20), (104, 20, 21), (150, 20, 25), (210, 20, 30)]


@dataclass
class Target:
    """Tables by name: their columns and rows."""

    tables: dict[tuple[str, str], tuple[list[str], set[float]]] = field(default_factory=dict)

    def execute(self, job: Job, before: AppliedJobs, h: SchemaHistory) -> None:
        ids = h.tables_of_job(job)
        old = {i: t for i in ids if (t := before.table(i, h)) is not None}
        new = {i: t for i in ids if (t := h.table_at(i, job.version)) is not None}
        effect = job.kind.effect
        taken = {i: self.tables.pop((t.schema, t.name))[1] for i, t in old.items()}
        if effect is JobEffect.EMPTIES:
            taken = {i: set() for i in new}
        elif effect is JobEffect.EXCHANGES:
            (parent,) = (i for i in old if i in new)
            (plain,), (moved,) = set(old) - {parent}, set(new) - {parent}
            taken = {parent: taken[plain], moved: taken[parent]}
        elif effect is JobEffect.DROPS and job.kind.on is On.DATABASE:
            assert not [name for name in self.tables if name[0] == job.schema_name], "a table of the database is left"
        for i, t in new.items():
            assert (t.schema, t.name) not in self.tables, f"{t.name} is there already"
            self.tables[t.schema, t.name] = [c.name for c in t.info.columns], taken.get(i, set())

    def write(self, step: RowsStep, rows: Iterable[Row]) -> None:
        for second, table_id, version in rows:
            if table_id not in step.gone:
                there, table_ = self.tables[step.tables[table_id].schema, step.tables[table_id].name], step.tables[table_id]
                assert there[0] == [c.name for c in table_.info.columns], "the rows have the columns of the target"
                assert version >= table_.version or table_.can_append_default(version)
                there[1].add(second)


class Stream:
    """Applies a scene in batches. ``lost``: the jobs whose binlogs do not come."""

    def __init__(self, scene: Scene, others: Sequence[float], lost: set[int], rows: list[Row], restarts: str, late: int) -> None:
        ddls = {100.0: scene.job, **scene.later, **{ts: OTHERS[ts] for ts in others}}
        self.jobs = [timed(made, ts) for ts, made in ddls.items()]
        self.h = history(*BEFORE, *self.jobs)
        self.binlogs = {made["id"]: at(ts) for ts, made in ddls.items() if made["id"] not in lost}
        self.rows, self.lost, self.restarts, self.late = sorted(rows), lost, restarts, late
        self.applied, self.at = AppliedJobs(9, since=BEGIN), BEGIN
        self.target, self.done, self.found, self.unsure = Target(), [], [], set[int]()
        self.known, self.known_ts = history(*BEFORE), BEGIN
        for made in self.known.ordered:
            self.target.execute(made, AppliedJobs(int(made.version) - 1), self.known)

    def batch(self, upto: int) -> None:
        here = [r for r in self.rows if self.at < at(r[0]) <= upto]
        events = [DdlEvent(ts, i, "x;", 5) for i, ts in self.binlogs.items() if self.at < ts <= upto]
        newest = max((version for _, _, version in here), default=0)
        if upto - self.known_ts > at(self.late) or {e.job_id for e in events} - self.known.jobs.keys():
            self.known_ts = upto
        coming = {e.job_id for e in events}
        seen = [j for j in self.h.ordered if not self.late or j.finished_ts <= self.known_ts or j.id in coming or j.version <= newest]
        self.known = self.known.merged(seen)
        touches = [TableActivity(t, v, at(ts), 1, at(ts)) for ts, t, v in here]
        for step in plan_steps((self.at, upto), events, touches, self.known, self.applied, self.known_ts):
            if isinstance(step, DdlStep):
                self.target.execute(step.job, step.before, self.known)
                self.done.append(step.job.id)
                self.found += [step.job.id] if step.lost else []
                self.unsure |= {step.job.id} if step.early and not step.lost else set()
            else:
                self.target.write(step, (r for r in here if step.after_ts < at(r[0]) <= step.upto_ts))
                self.found += [made.id for made in step.lost]
            self.applied = step.applied
        self.at = upto
        if self.restarts == "server":
            asked = {j.id for j in self.h.behind(self.applied.version, upto, BEGIN)}
            early = {i for i in self.done if i in asked or self.h.jobs[i].version > self.applied.version}
            self.applied = AppliedJobs(self.applied.version, frozenset(early), since=BEGIN).at(upto, self.h)
        elif self.restarts == "files":
            self.applied = AppliedJobs(self.applied.version, self.applied.early, since=BEGIN)

    def check(self) -> None:
        assert sorted(self.done) == sorted(made["id"] for made in self.jobs), "each job once"
        # What was executed for a row before it was known to be lost is forgotten by a new life.
        missing = self.lost - set(self.found)
        assert sorted(self.found) == sorted(self.lost - missing) and (not missing or (self.restarts and missing <= self.unsure))
        assert self.target.tables == self.upstream().tables

    def upstream(self) -> Target:
        """Everything in its order."""
        target = Target()
        events: list[tuple[float, int, Any]] = [(made.finished_ts, 0, made) for made in self.h.ordered if made.id > 9]
        for made in history(*BEFORE).ordered:
            target.execute(made, AppliedJobs(int(made.version) - 1), self.h)
        done = 9
        for _, _, event in sorted([*events, *((at(r[0]), 1, r) for r in self.rows)], key=lambda e: e[:2]):
            if isinstance(event, Job):
                target.execute(event, AppliedJobs(done), self.h)
                done = int(event.version)
                continue
            second, table_id, version = event
            there = self.h.table_at(table_id, max(version, done))
            if there is None:
                continue
            name = there.schema, there.name
            if name in target.tables:
                target.tables[name][1].add(second)
        return target


def cuts(points: Iterable[float], most: int) -> Iterator[tuple[float, ...]]:
    for count in range(most + 1):
        yield from itertools.combinations(sorted(set(points)), count)


@pytest.mark.parametrize(
    ("late", "restarts"),
    [(0, ""), (0, "server"), (0, "files"), (30, ""), (30, "server"), (30, "files"), (120, "")],
    ids=lambda value: f"history read after {value} s" if isinstance(value, int) else value or "one life",
)
@pytest.mark.parametrize("name", SCENES)
def test_every_cut(name: str, late: int, restarts: str) -> None:
    whole = SCENES[name]
    points = [99.9, 100.1, 101, 103, 120, 140, 161, 202]
    every = [*whole.rows, *OTHER_ROWS]
    alone = replace(whole, later={}, rows=[r for r in whole.rows if r[2] < 25])
    for scene, others, lost, rows, most in [
        (alone, (), {20}, [], 1),
        (alone, OTHERS, {20}, alone.rows, 1),
        (alone, OTHERS, {20}, OTHER_ROWS, 2),
        (whole, OTHERS, {20}, OTHER_ROWS, 2),
        (whole, OTHERS, {20}, every, 2),
        (whole, OTHERS, {20, *(made["id"] for made in whole.later.values())}, every, 1),
        (whole, OTHERS, {20, 21}, every, 1),
        (whole, OTHERS, set(), every, 1),
    ]:
        for cut in cuts(points, most):
            stream = Stream(scene, tuple(others), set(lost), scene.before + rows, restarts, late)
            for upto in (*cut, 300):
                stream.batch(at(upto))
            stream.check()


def test_the_history_is_away_until_a_restart() -> None:
    """The minute passes unseen."""
    stream = Stream(SCENES["truncate"], (), {20, 25}, [], "server", 0)
    whole, stream.h = stream.h, stream.known
    for upto in (110, 140, 190, 230):
        stream.batch(at(upto))
    stream.h = whole
    stream.applied = AppliedJobs(stream.applied.version, since=BEGIN).at(stream.at, whole)
    stream.batch(at(231))
    assert stream.done == stream.found == [20, 25]


@pytest.mark.parametrize("lost", [False, True])
def test_a_long_batch_remembers_a_minute(lost: bool) -> None:
    """A step's state is kept and copied with each step."""
    jobs = {100.0 + i: job(20 + i, 3, table(100 + i, f"t{i}", [ID])) for i in range(500)}
    h = history(*BEFORE, *(timed(made, ts) for ts, made in jobs.items()))
    events = [] if lost else [DdlEvent(at(ts), made["id"], "x;", 5) for ts, made in jobs.items()]
    steps = plan_steps((BEGIN, at(700)), events, (), h, AppliedJobs(9, since=BEGIN))
    assert [step.job.id for step in steps if isinstance(step, DdlStep)] == list(range(20, 520))
    assert max(len(step.applied.early) for step in steps) <= 62 and steps[-1].applied == AppliedJobs(519)


@pytest.mark.parametrize("case", ["ddl", "online", "reports"])
def test_nothing_of_a_recorded_stream_is_lost(case: str) -> None:
    """The binlogs of a real TiDB, cut before and behind each DDL: the steps are those of one batch, over restarts."""
    found = load_case(case)
    begin, end = found.info["start_ts"], found.info["end_ts"]
    jobs = [j for d in found.ddls if (j := found.history.job(d.job_id))]
    first = AppliedJobs(min(int(j.version) for j in jobs) - 1, since=begin)

    def steps(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        applied, done = first, []
        for span in spans:
            for step in plan_steps(span, found.ddls, (), found.history, applied):
                applied = step.applied
                if isinstance(step, DdlStep):
                    assert not step.lost and not step.early
                    done.append((step.job.id, step.commit_ts))
            applied = AppliedJobs(applied.version, applied.early, since=begin)
        return done

    bounds = sorted({begin, end, *(d.commit_ts - 1 for d in found.ddls), *(d.commit_ts for d in found.ddls)})
    assert steps(itertools.pairwise(bounds)) == steps([(begin, end)])
