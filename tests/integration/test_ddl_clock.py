"""A DDL whose effect on rows depends on the time zone of the session that gave it, and digits that a MODIFY takes from times."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ApplyError, DdlRefused
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.segments import DdlStep
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import DdlOutcome, ensure_ddl_table
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from tests.support import ddl_target
from tests.support.ddl_jobs import INT, column, partitioned, steps_of, table, told
from tests.support.ddl_target import CONFIG, apply_all, committed, die, forget, prepared
from tests.support.shown_columns import declared

pytestmark = pytest.mark.mysql

ID = column(1, "id", {**INT, "Flag": 4099})
DATETIME, TIMESTAMP = ({**INT, "Tp": tp, "Flen": 19} for tp in (12, 7))
EAST = {"name": "", "offset": 28800}
SHANGHAI = {"name": "Asia/Shanghai", "offset": 0}
NEW_YORK = {"name": "America/New_York", "offset": 0}


def apply(session: Session, step: DdlStep, h: SchemaHistory) -> DdlOutcome:
    try:
        return ddl_target.apply(session, step, h)
    finally:
        assert session.query("SELECT @@SESSION.time_zone, ABS(UNIX_TIMESTAMP() - UNIX_TIMESTAMP(SYSDATE())) < 3600") == [("+00:00", 1)]


def modify(
    session: Session,
    was: tuple[str, dict[str, Any]],
    now: tuple[str, dict[str, Any]],
    location: dict[str, Any] | None,
    *values: str,
    **more: Any,
) -> tuple[SchemaHistory, DdlStep]:
    """A table with these values, and the step that modifies it in a session of that zone."""
    before = (3, table(10, "t", [ID, column(2, "v", was[1])]), f"CREATE TABLE `t` (`id` INT PRIMARY KEY, `v` {was[0]});")
    after = table(10, "t", [ID, column(3, "v", now[1], version=2, **more)])
    meta = {"reorg_meta": {"location": location}} if location else {}
    h = told(before, (12, after, f"ALTER TABLE `t` MODIFY COLUMN `v` {now[0]};"), **meta)
    return h, prepared(session, h, {}, *(f"INSERT INTO d.t VALUES ({number}, '{value}')" for number, value in enumerate(values)))


def values(session: Session) -> list[str | None]:
    rows = [v for (v,) in session.query("SELECT CAST(v AS CHAR) FROM d.t ORDER BY id")]
    session.rollback()
    return rows


def default(session: Session, name: str = "v") -> str:
    """What a row gets. MySQL's ``information_schema`` shows the literal as it was in the zone of its session, until the next ALTER TABLE."""
    return str(session.query(f"SELECT CAST(DEFAULT({name}) AS CHAR) FROM d.t LIMIT 1")[0][0])


TO_DATETIME = (("TIMESTAMP NULL", TIMESTAMP), ("DATETIME", DATETIME))
TO_TIMESTAMP = (("DATETIME", DATETIME), ("TIMESTAMP NULL", TIMESTAMP))


@pytest.mark.parametrize(
    ("location", "hours"),
    [(EAST, 8), (SHANGHAI, 8), (NEW_YORK, -5), ({"name": "Asia/Tokyo", "offset": 0}, 9), ({"name": "", "offset": -12600}, -3.5)],
    ids=lambda p: p["name"] or str(p["offset"]) if isinstance(p, dict) else "",
)
def test_times_are_converted_in_the_zone_of_the_ddl(session: Session, location: dict[str, Any], hours: float) -> None:
    utc = "2026-01-01 12:00:00"
    local = f"2026-01-01 {int(12 + hours):02d}:{30 if hours % 1 else 0:02d}:00"
    h, step = modify(session, *TO_DATETIME, location, utc)
    assert apply(session, step, h).how == "changes"
    assert values(session) == [local]
    forget(session)
    h, step = modify(session, *TO_TIMESTAMP, location, local)
    assert apply(session, step, h).how == "changes"
    assert values(session) == [utc]


SHIFTED = ["1988-06-01 09:00:00", "1988-07-01 09:00:00"]


@pytest.mark.parametrize(
    ("location", "there", "wanted"),
    [
        *((location, ["2026-01-01 12:00:00"], ["2026-01-01 12:00:00"]) for location in (None, {"name": "Etc/UTC", "offset": 0}, {"name": "UTC", "offset": 0})),
        (SHANGHAI, ["1988-06-01 00:00:00", "1988-07-01 00:00:00"], SHIFTED),
    ],
    ids=["nothing else is said", "Etc/UTC", "UTC", "summer time in Shanghai"],
)  # fmt: skip
def test_the_values_say_which_offset_a_zone_has(
    session: Session, location: dict[str, Any] | None, there: list[str], wanted: list[str]
) -> None:
    h, step = modify(session, *TO_DATETIME, location, *there)
    apply(session, step, h)
    assert values(session) == wanted


def test_several_offsets_need_a_server_that_knows_the_zone(fresh_mariadb: PrivateMariaDB) -> None:
    there = ["1988-06-01 00:00:00", "2026-01-01 00:00:00"]
    with connect(fresh_mariadb.target(), CONFIG) as session:
        ensure_ddl_table(session, CONFIG)
        h, step = modify(session, *TO_DATETIME, SHANGHAI, *there)
        with pytest.raises(DdlRefused, match=r"time zone 'Asia/Shanghai'.*mysql_tzinfo_to_sql"):
            apply(session, step, h)
        assert values(session) == there
        zone = "/usr/share/zoneinfo/Asia/Shanghai"
        if not Path(zone).exists():
            pytest.skip("no time zones on this machine")
        sql = subprocess.run(["mariadb-tzinfo-to-sql", zone, "Asia/Shanghai"], check=True, capture_output=True, text=True).stdout
        session.execute("USE mysql")
        for statement in (s.strip() for s in sql.split(";\n")):
            if statement.startswith(("INSERT", "SET @time_zone_id")):
                session.execute(statement)
        session.commit()
    with connect(fresh_mariadb.target(), CONFIG) as session:
        assert apply(session, step, h).how == "changes"
        assert values(session) == ["1988-06-01 09:00:00", "2026-01-01 08:00:00"]


def test_a_zone_that_nobody_knows_is_refused(session: Session) -> None:
    h, step = modify(session, *TO_DATETIME, {"name": "Local", "offset": 0}, "2026-01-01 00:00:00")
    with pytest.raises(DdlRefused, match="'Local'"):
        apply(session, step, h)
    assert values(session) == ["2026-01-01 00:00:00"]


@pytest.mark.parametrize("location", [EAST, SHANGHAI])
def test_a_default_that_is_declared_with_it_keeps_its_meaning(session: Session, location: dict[str, Any]) -> None:
    """The text has it in the zone of the session, the info in UTC, and so has the target."""
    text = "TIMESTAMP NULL DEFAULT '2020-01-01 08:00:00'"
    h, step = modify(session, ("DATETIME", DATETIME), (text, TIMESTAMP), location, "2026-01-01 08:00:00", default="2020-01-01 00:00:00")
    own = "ALTER TABLE d.t ADD COLUMN other TIMESTAMP NULL DEFAULT '2021-01-01 00:00:00'", "UPDATE d.t SET other = '2022-01-01 00:00:00'"
    committed(session, *own)
    apply(session, step, h)
    assert default(session) == "2020-01-01 00:00:00"
    assert default(session, "other") == "2021-01-01 00:00:00"
    assert values(session) == ["2026-01-01 00:00:00"]
    assert session.query("SELECT CAST(other AS CHAR) FROM d.t") == [("2022-01-01 00:00:00",)]


def test_nulls_that_are_filled_are_in_utc_too(session: Session) -> None:
    kind = {**TIMESTAMP, "Flag": 1}
    was, now = ("DATETIME NULL", DATETIME), ("TIMESTAMP NOT NULL DEFAULT '2020-01-01 08:00:00'", kind)
    h, step = modify(session, was, now, EAST, "2026-01-01 08:00:00", default="2020-01-01 00:00:00")
    committed(session, "INSERT INTO d.t VALUES (9, NULL)")
    apply(session, step, h)
    assert values(session)[0] == "2026-01-01 00:00:00"
    assert default(session) == "2020-01-01 00:00:00"


def test_a_refused_statement_leaves_the_session_in_utc(session: Session) -> None:
    h, step = modify(session, *TO_DATETIME, EAST, "2026-01-01 12:00:00")
    session.execute("ALTER TABLE d.t ADD KEY (v)")
    session.execute("CREATE TABLE d.child (v TIMESTAMP NULL, FOREIGN KEY (v) REFERENCES d.t (v))")
    with pytest.raises(DdlRefused, match="error (1833|3780)"):
        apply(session, step, h)
    session.execute("DROP TABLE d.child")
    assert apply(session, step, h).how == "changes"
    assert values(session) == ["2026-01-01 20:00:00"]


@pytest.mark.parametrize("point", ["after-ddl-intent", "after-ddl", "before-ddl-done"])
def test_a_crash_converts_once(session: Session, point: str) -> None:
    h, step = modify(session, *TO_DATETIME, SHANGHAI, "2026-01-01 12:00:00")
    die(session, step, h, point)
    apply(session, step, h)
    assert values(session) == ["2026-01-01 20:00:00"]


TS = {**TIMESTAMP, "Flag": 1}


def clock_partitions(*pairs: tuple[int, str, str]) -> dict[str, Any]:
    return partitioned(1, *pairs, expr="unix_timestamp(`ts`)")


def boundaries(session: Session) -> list[str]:
    sql = "SELECT partition_description FROM information_schema.partitions WHERE table_schema = 'd' ORDER BY partition_ordinal_position"
    return [str(d) for (d,) in session.query(sql)]


def test_boundaries_are_the_numbers_that_tidb_made_of_them(session: Session) -> None:
    """The job of a CREATE TABLE does not say its zone: 2020 begins in Shanghai."""
    columns = [column(1, "id"), column(2, "ts", TS)]
    parts = (101, "p0", "1577808000"), (102, "p1", "1609430400"), (103, "p2", "MAXVALUE")
    infos = [table(10, "t", columns, pk_is_handle=False, partition=clock_partitions(*parts[:number])) for number in (1, 2, 3)]
    p0, p1 = (f"(PARTITION `p{n}` VALUES LESS THAN (UNIX_TIMESTAMP(_UTF8MB4'202{n}-01-01 00:00:00')))" for n in (0, 1))
    h = told(
        (3, infos[0], f"CREATE TABLE `t` (`id` INT,`ts` TIMESTAMP NOT NULL) PARTITION BY RANGE (UNIX_TIMESTAMP(`ts`)) {p0};"),
        (19, infos[1], f"ALTER TABLE `t` ADD PARTITION {p1};"),
        (19, infos[2], "ALTER TABLE `t` ADD PARTITION (PARTITION `p2` VALUES LESS THAN (MAXVALUE));"),
    )
    assert {outcome.how for outcome in apply_all(session, steps_of(h), h)} <= {"text", "nothing"}
    assert boundaries(session) == ["1577808000", "1609430400", "MAXVALUE"]


@pytest.mark.parametrize(("location", "boundary"), [(EAST, "1577808000"), (None, "1577836800")])
def test_a_boundary_that_the_info_has_as_text_is_read_in_the_zone(session: Session, location: dict[str, Any] | None, boundary: str) -> None:
    columns = [column(1, "id"), column(2, "ts", TS)]
    text = "UNIX_TIMESTAMP('2020-01-01 00:00:00')"
    info = table(10, "t", columns, pk_is_handle=False, partition=clock_partitions((101, "p0", text)))
    create = f"CREATE TABLE `t` (`id` INT,`ts` TIMESTAMP NOT NULL) PARTITION BY RANGE (UNIX_TIMESTAMP(`ts`)) (PARTITION `p0` VALUES LESS THAN ({text}));"
    h = told((3, info, create), **({"reorg_meta": {"location": location}} if location else {}))
    apply_all(session, steps_of(h), h)
    assert boundaries(session) == [boundary]


def test_digits_that_a_modify_takes_are_rounded(session: Session) -> None:
    was = ("DATETIME(6)", {**DATETIME, "Flen": 26, "Decimal": 6})
    h, step = modify(session, was, ("DATETIME", DATETIME), None, "2026-01-01 12:00:00.600000", "2026-12-31 23:59:59.499999")
    apply(session, step, h)
    assert values(session) == ["2026-01-01 12:00:01", "2026-12-31 23:59:59"]


@pytest.mark.parametrize(
    ("now", "value", "upstream", "same"),
    [
        (("DATE", {**INT, "Tp": 10, "Flen": 10}), "2026-01-01 23:59:59.600", "2026-01-01", Flavour.MARIADB),
        (("BIGINT", {**INT, "Tp": 8, "Flen": 20}), "2026-01-01 10:00:00.600", "20260101100001", Flavour.MYSQL),
    ],
    ids=["date", "number"],
)
def test_what_a_server_makes_of_fractions_otherwise_than_tidb_is_told(
    session: Session, now: tuple[str, dict[str, Any]], value: str, upstream: str, same: Flavour
) -> None:
    h, step = modify(session, ("DATETIME(3)", {**DATETIME, "Flen": 23, "Decimal": 3}), now, None, value)
    named = apply(session, step, h).losses
    as_upstream = values(session) == [upstream]
    assert len(named) == (not as_upstream) and as_upstream is (session.flavour is same)


def test_rows_keep_every_digit(session: Session) -> None:
    last = "9999-12-31 23:59:59.999999"
    modify(session, ("DATETIME(6)", {**DATETIME, "Decimal": 6}), ("DATETIME", DATETIME), None, last)
    assert values(session) == [last]
    assert session.query("SELECT COUNT(*) FROM d.t WHERE v <=> '9999-12-31 23:59:59.999999'") == [(1,)]


def test_a_zone_that_the_server_has_no_offset_for_is_refused(session: Session) -> None:
    h, step = modify(session, *TO_DATETIME, {"name": "", "offset": 14 * 3600}, "2026-01-01 12:00:00")
    try:
        apply(session, step, h)
    except (DdlRefused, ApplyError):
        assert values(session) == ["2026-01-01 12:00:00"]
    else:
        assert values(session) == ["2026-01-02 02:00:00"]


def test_a_column_that_is_added_with_it_is_filled_in_utc(session: Session) -> None:
    """Its origin default and its declared one are both TIMESTAMP literals, and the second is declared by a statement of its own."""
    added = column(4, "w", TIMESTAMP, version=2, default="CURRENT_TIMESTAMP", origin_default="2021-01-01 00:00:00")
    fixed = column(5, "x", TIMESTAMP, version=2, default="2022-01-01 00:00:00", origin_default="2022-01-01 00:00:00")
    before = (3, table(10, "t", [ID, column(2, "v", TIMESTAMP)]), "CREATE TABLE `t` (`id` INT PRIMARY KEY, `v` TIMESTAMP NULL);")
    text = "ALTER TABLE `t` MODIFY COLUMN `v` DATETIME, ADD COLUMN `w` TIMESTAMP NULL DEFAULT CURRENT_TIMESTAMP, ADD COLUMN `x` TIMESTAMP NULL DEFAULT '2022-01-01 08:00:00';"
    h = told(before, (61, table(10, "t", [ID, column(3, "v", DATETIME), added, fixed]), text), reorg_meta={"location": EAST})
    step = prepared(session, h, {}, "INSERT INTO d.t VALUES (1, '2026-01-01 12:00:00')")
    assert apply(session, step, h).how == "changes"
    row = session.query("SELECT CAST(v AS CHAR), CAST(w AS CHAR), CAST(x AS CHAR) FROM d.t")
    assert row == [("2026-01-01 20:00:00", "2021-01-01 00:00:00", "2022-01-01 00:00:00")]
    assert (declared(session, "w")[0], default(session, "x")) == ("current_timestamp()", "2022-01-01 00:00:00")


def test_a_time_that_gets_a_day_is_refused(session: Session) -> None:
    """The day is that on which the upstream converted it, not the one on which the stream executes the DDL."""
    h, step = modify(session, ("TIME", {**INT, "Tp": 11, "Flen": 10, "Flag": 128}), TO_TIMESTAMP[0], None, "10:00:00")
    with pytest.raises(DdlRefused, match="Convert it by hand after SET timestamp"):
        apply(session, step, h)
    assert values(session) == ["10:00:00"]


@pytest.mark.parametrize("point", ["after-ddl-intent", "after-ddl"])
def test_a_column_that_has_its_new_name_already_is_converted(session: Session, point: str) -> None:
    """After a crash, the target may have no column of the old name whose times say which offset the zone had."""
    made = (3, table(10, "t", [ID, column(2, "u", TIMESTAMP)]), "CREATE TABLE `t` (`id` INT PRIMARY KEY, `u` TIMESTAMP NULL);")
    changed = (12, table(10, "t", [ID, column(3, "v", DATETIME)]), "ALTER TABLE `t` CHANGE COLUMN `u` `v` DATETIME")
    h = told(made, changed, reorg_meta={"location": SHANGHAI})
    change = prepared(session, h, {}, "INSERT INTO d.t VALUES (1, '2026-01-01 00:00:00')")
    die(session, change, h, point)
    assert apply(session, change, h).how == ("found" if point == "after-ddl" else "changes")
    assert values(session) == ["2026-01-01 08:00:00"]
