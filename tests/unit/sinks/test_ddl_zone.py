"""Zones as offsets, literals moved into them, and boundaries that are numbers already."""

from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from pyspark_tidb_binlog.schemas.ddl_jobs import Job, Location
from pyspark_tidb_binlog.sinks.mysql.ddl.row_values import certain, conversions, fixed, moved, time_zone
from pyspark_tidb_binlog.sinks.mysql.ddl.sql_kinds import rewrite
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import Subject, subject_of
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from tests.support.ddl_jobs import INT, column, database, history, job, partitioned, steps_of, table
from tests.support.golden_case import load_case

TIMESTAMP = {**INT, "Tp": 7, "Flen": 19}


P0, P1 = (21, "p0", "5"), (22, "p1", "9")


def subject(**more: Any) -> Subject:
    """A DATETIME that becomes a TIMESTAMP."""
    before = table(10, "t", [column(1, "id"), column(2, "v", {**INT, "Tp": 12})])
    after = table(10, "t", [column(1, "id"), column(3, "v", {**TIMESTAMP, "Decimal": more.pop("digits", 0)}, **{"version": 2, **more})])
    h = history(database(1), job(2, 3, before), job(3, 12, after))
    return subject_of(steps_of(h)[2], h)


@pytest.mark.parametrize(
    ("location", "sql"),
    [
        (Location("", 28800), "+08:00"),
        (Location("", -12600), "-03:30"),
        (Location("Asia/Tokyo", 0), "+09:00"),
        (Location("America/New_York", 0), None),
    ],
)
def test_a_zone_as_one_offset(location: Location, sql: str | None) -> None:
    tz = time_zone(location)
    assert tz is not None
    zone = fixed(tz)
    assert (zone.sql if zone else None) == sql


def test_a_zone_as_one_offset_for_a_while() -> None:
    tz = ZoneInfo("America/New_York")
    winter, summer = fixed(tz, datetime(2026, 1, 1), datetime(2026, 2, 1)), fixed(tz, datetime(2026, 6, 1), datetime(2026, 7, 1))
    assert winter and summer and (winter.sql, summer.sql) == ("-05:00", "-04:00")
    assert fixed(tz, datetime(2026, 1, 1), datetime(2026, 7, 1)) is None
    assert fixed(tz, datetime(2026, 3, 7, 12), datetime(2026, 3, 7, 13)) is None
    assert summer.tz.utcoffset(None) == timedelta(hours=-4)


@pytest.mark.parametrize("name", ["", "UTC", "Etc/UTC"])
def test_utc_is_no_zone(name: str) -> None:
    assert time_zone(Location(name, 0)) is None


@pytest.mark.parametrize("name", ["Local", "No/Such", "../etc/passwd"])
def test_a_zone_that_is_not_known(name: str) -> None:
    with pytest.raises(KeyError):
        time_zone(Location(name, 0))


@pytest.mark.parametrize(
    ("default", "digits", "there"),
    [
        ("2020-01-01 00:00:00", 0, "2020-01-01 08:00:00"),
        ("2020-01-01 00:00:00.5", 3, "2020-01-01 08:00:00.500"),
        ("0000-00-00 00:00:00", 0, "0000-00-00 00:00:00"),
        ("CURRENT_TIMESTAMP", 0, "CURRENT_TIMESTAMP"),
        (None, 0, None),
    ],
)
def test_literals_move_with_the_zone(default: str | None, digits: int, there: str | None) -> None:
    found = moved(subject(default=default, origin_default=default, digits=digits), ZoneInfo("Asia/Shanghai"))
    made = found.after[0].info.columns[1]
    assert (made.default, made.origin_default) == (there, there)


def test_a_default_of_an_older_tidb_is_not_in_utc() -> None:
    found = moved(subject(default="2020-01-01 00:00:00", version=0), ZoneInfo("Asia/Shanghai"))
    assert found.after[0].info.columns[1].default == "2020-01-01 00:00:00"


def test_an_hour_that_the_zone_has_twice_is_not_certain() -> None:
    new_york = ZoneInfo("America/New_York")
    assert not certain(subject(default="2026-11-01 05:30:00"), new_york)
    assert certain(subject(default="2026-11-01 04:30:00"), new_york)


def test_only_a_timestamp_on_one_side_depends_on_the_zone() -> None:
    assert [was.name for _, was in conversions(subject())] == ["v"]
    same = table(10, "t", [column(1, "id"), column(2, "v", TIMESTAMP)])
    h = history(database(1), job(2, 3, same), job(3, 12, same))
    assert conversions(subject_of(steps_of(h)[2], h)) == ()


def test_a_job_says_its_zone() -> None:
    jobs = load_case("ddl").history.ordered
    assert {j.location for j in jobs} == {None, Location("Etc/UTC", 0)} or {j.location for j in jobs} == {None, Location("UTC", 0)}
    assert Job.from_json(job(2, 12, table(10, "t"), reorg_meta={"location": {"name": "", "offset": 3600}})).location == Location("", 3600)
    assert Job.from_json(job(2, 12, table(10, "t"), reorg_meta={"location": None})).location is None


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("(PARTITION `p0` VALUES LESS THAN (UNIX_TIMESTAMP('x')), PARTITION p1 VALUES LESS THAN (MAXVALUE))", True),
        ("(PARTITION p0 VALUES IN (UNIX_TIMESTAMP(_UTF8MB4'x'), -6))", True),
        ("(PARTITION p0 VALUES LESS THAN (TO_DAYS('2020-01-01') + 1) COMMENT = 'UNIX_TIMESTAMP(1)')", False),
    ],
)
def test_a_boundary_of_another_zone_is_the_infos_number(text: str, reads: bool) -> None:
    """At a TiDB such a DDL is made of the infos."""
    before, after = (table(10, "t", [column(1, "id")], partition=partitioned(1, *parts, expr="`id`")) for parts in ([P0], [P0, P1]))
    h = history(database(1), job(2, 3, before), job(3, 19, after))
    query = f"ALTER TABLE t ADD PARTITION {text}"
    found = rewrite(subject_of(steps_of(h, {3: query})[2], h), Dialect(Flavour.TIDB), restored=True).sql
    assert found == ("ALTER TABLE `d`.`t` ADD PARTITION (PARTITION `p1` VALUES LESS THAN (9))" if reads else query)
