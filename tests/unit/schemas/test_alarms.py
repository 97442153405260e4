"""The table of alarms: each is on for its fact, says its numbers and what to do, and is off when all is well."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from pyspark_tidb_binlog.schemas.alarms import ALARMS, Check, Disk, Facts, PumpFacts, Verified, by_check, raised
from pyspark_tidb_binlog.schemas.remarks import hinders

ROOT = Path(__file__).parents[3]
PUMP = PumpFacts("p1", "online", "", 0.4, 7 * 86_400.0, Disk("the disk of Pump p1", 60, 100))
WELL = Facts(
    drainer="",
    state="online",
    lag_seconds=0.3,
    still_seconds=0.1,
    waiting="",
    unrecorded="",
    silent=(),
    registry="",
    pumps=(PUMP,),
    history="",
    target="",
    lease="",
    rights=(),
    versions=(),
    disks=(Disk("the disk of data-dir /d", 10, 20),),
    findings=0,
    verified=Verified(2, 0, (), 1.0),
)
LOW = Disk("the disk of data-dir /d", 5_000_000_000, 100_000_000_000)


def pump(**changed: object) -> Facts:
    return replace(WELL, pumps=(PUMP, replace(PUMP, name="p2", **changed)))  # type: ignore[arg-type]


ON = {
    "drainer-silent": (replace(WELL, drainer="no answer at h:1"), "no answer at h:1"),
    "drainer-other": (replace(WELL, other="at h:1 answers Drainer 'a'"), "at h:1 answers Drainer 'a'"),
    "drainer-paused": (replace(WELL, state="paused"), "the Drainer is paused: it applies nothing"),
    "unrecorded": (replace(WELL, unrecorded="the disk is full"), "the disk is full"),
    "waiting": (replace(WELL, waiting="target db1"), "the stream waits for target db1"),
    "lag": (replace(WELL, lag_seconds=90.0, holding="Pump p1"), "the target is 90.0 s behind, held back by Pump p1"),
    "no-progress": (replace(WELL, still_seconds=240.0, holding="ddl"), "nothing was applied for 4.0 min, held back by ddl"),
    "tidb-without-binlog": (
        replace(WELL, silent=("TiDB server a:4000 writes no binlog (Off)", "b")),
        "TiDB server a:4000 writes no binlog (Off); b",
    ),
    "registry-silent": (replace(WELL, registry="PD a:1 does not answer"), "PD a:1 does not answer"),
    "pump-unreachable": (pump(trouble="refused"), "Pump p2 cannot be reached: refused"),
    "pump-not-online": (pump(state="paused"), "Pump p2 is paused: it takes no more binlogs"),
    "pump-behind": (pump(lag_seconds=61.0), "Pump p2 is read up to 61.0 s ago"),
    "history-silent": (replace(WELL, history="no status port answers"), "no status port answers"),
    "target-silent": (replace(WELL, target="cannot connect"), "cannot connect"),
    "lease-held": (replace(WELL, lease="drainer 'x' on h"), "the lease is held by drainer 'x' on h"),
    "rights-missing": (replace(WELL, rights=(hinders("account a", "lacks DROP", "GRANT DROP"),)), "account a lacks DROP: GRANT DROP"),
    "gc-near": (pump(gc_seconds=1800.0), "Pump p2 has collected up to 30.0 min before the stream's position"),
    "disk-low": (replace(WELL, disks=(LOW,)), "the disk of data-dir /d has 5.0 GB free (5%)"),
    "pump-disk-low": (pump(disk=replace(LOW, where="the disk of Pump p2")), "the disk of Pump p2 has 5.0 GB free (5%)"),
    "version-unsupported": (replace(WELL, versions=("needs Java 17",)), "needs Java 17"),
    "findings": (replace(WELL, findings=2, newest_finding="rows `d`.`t`"), "2 findings, the newest: rows `d`.`t`"),
    "differs": (
        replace(WELL, verified=Verified(9, 7, ("d.a", "d.b", "d.c", "d.e"), 1.0)),
        "d.a, d.b, d.c and 1 more differ from the upstream (7 rows)",
    ),
}
"""By alarm: facts in which it is on, and it alone, and what it says."""


def test_every_alarm_has_its_case() -> None:
    assert [alarm.name for alarm in ALARMS] == list(ON)


@pytest.mark.parametrize("name", ON)
def test_an_alarm_is_on_for_its_fact_alone(name: str) -> None:
    facts, said = ON[name]
    (one,) = raised(facts)
    assert (one.alarm.name, one.what) == (name, said)
    assert one.words.startswith(f"{said}; {one.alarm.todo} (docs/") and "\n" not in one.words
    assert one.to_dict() == {
        "name": name,
        "severity": one.alarm.severity.value,
        "what": said,
        "todo": one.alarm.todo,
        "page": one.alarm.page,
    }


def test_when_all_is_well_and_when_nothing_is_known() -> None:
    assert [(known, alarms) for _, known, alarms in by_check(WELL)] == [(True, ())] * len(Check)
    assert [(known, alarms) for _, known, alarms in by_check(Facts())] == [(False, ())] * len(Check)


@pytest.mark.parametrize(
    "facts",
    [
        replace(WELL, lag_seconds=59.9, still_seconds=119.0),
        replace(WELL, still_seconds=9_999.0, copying="1 of 4 tables"),
        pump(gc_seconds=math.inf),
        pump(state="offline"),
        pump(gc_seconds=None, disk=None, state="", lag_seconds=None),
    ],
)
def test_what_is_no_alarm(facts: Facts) -> None:
    assert raised(facts) == ()


def test_a_paused_drainer_is_not_said_to_stand_still() -> None:
    assert [one.alarm.name for one in raised(replace(WELL, state="paused", still_seconds=9_999.0))] == ["drainer-paused"]


def test_a_pump_that_is_away_is_one_alarm() -> None:
    away = replace(pump(trouble="Pump p2 at h:1 is away", lag_seconds=99.0), waiting="Pump p2")
    assert [(one.alarm.name, one.what) for one in raised(away)] == [("pump-unreachable", "Pump p2 at h:1 is away")]


def test_the_documents_are_there() -> None:
    assert [alarm.page for alarm in ALARMS if not (ROOT / "docs" / f"{alarm.page}.md").is_file()] == []


def test_of_a_drainer_that_does_not_answer_no_lag_is_known() -> None:
    away = Facts(drainer="no answer", pumps=(replace(PUMP, trouble="refused"),))
    assert [known for check, known, _ in by_check(away) if check is Check.LAG] == [False]
