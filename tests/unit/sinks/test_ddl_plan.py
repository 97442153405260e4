"""What becomes of a DDL, by what the target has and what an earlier attempt has recorded."""

from dataclasses import replace

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.choice import decided
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_plan import DdlPlan, Refused, planned
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import INTENT, REFUSED, RecordedTry
from pyspark_tidb_binlog.sinks.mysql.ddl.row_values import DdlClock
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import subject_of
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect
from pyspark_tidb_binlog.sinks.mysql.ddl.target_here import ObjectSnapshot, SchemaSnapshot, TargetDdl, TargetHere
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.structure import TargetColumn, TargetTable
from pyspark_tidb_binlog.sinks.routing.replicated import Selection
from tests.support.ddl_jobs import INT, column, database, history, job, partitions, steps_of, table

CONFIG = ApplyConfig(drainer="d")
ID = column(1, "id", {**INT, "Flag": 4099})
PLAIN, WIDE = table(10, "a"), table(10, "a", [ID, column(2, "n")])
ADD, RENAME, DROP = job(3, 5, WIDE), job(3, 14, table(10, "b")), job(3, 4, table_id=10, table_name="a")
TRUNCATE, FLASHBACK = job(3, 11, table(11, "a"), table_id=10), job(3, 62)


def ddl_of(h: SchemaHistory, flavour: Flavour = Flavour.MARIADB, *, in_doubt: bool = False) -> TargetDdl:
    """The last DDL of ``h``."""
    step = decided(steps_of(h)[-1], h, Selection.of(CONFIG))
    return TargetDdl(step, subject_of(step, h), Dialect(flavour), h, CONFIG, in_doubt)


def snapshot(*names: str, ids: dict[str, int] | None = None, known: bool = True) -> SchemaSnapshot:
    """A target with these tables among ``a`` and ``b``, each with an id."""
    numbers = {"a": 1, "b": 1} | (ids or {})
    objects = {f"d.{n}": ObjectSnapshot("CREATE TABLE" if n in names else "", {"": numbers[n]} if n in names else {}) for n in ("a", "b")}
    return SchemaSnapshot(objects, known, {"server_uuid": "x"})


def of(
    h: SchemaHistory, now: SchemaSnapshot, before: SchemaSnapshot | None = None, state: str = INTENT, *, in_doubt: bool = False
) -> DdlPlan:
    """The plan of the last DDL where the target has ``now``; ``before``: what an earlier attempt has recorded."""
    ddl = ddl_of(h, in_doubt=in_doubt)
    names = {f"{t.schema}.{t.name}" for t in (*ddl.subject.before, *ddl.subject.after)}
    now = replace(now, objects={n: one for n, one in now.objects.items() if n in names})
    earlier = RecordedTry(state, 30, "x", None, before.to_json(), None, None) if before else None
    return planned(ddl, TargetHere(DdlClock(ddl.subject), now), earlier)


def fate(plan: DdlPlan) -> str:
    return plan.step if isinstance(plan, Refused) else "done" if plan.done else "execute"


@pytest.mark.parametrize(
    ("last", "now", "before", "wanted"),
    [
        (DROP, "a", None, "execute"),
        (DROP, "a", "a", "execute"),
        (DROP, "", "a", "done"),
        (RENAME, "a", None, "execute"),
        (RENAME, "a", "a", "execute"),
        (RENAME, "b", "a", "done"),
        (RENAME, "b", "b", "execute"),  # it was so before the attempt: the old table was missing
        (TRUNCATE, "a", "a", "execute"),
        (FLASHBACK, "", None, "policy"),
    ],
)
def test_after_a_crash_what_is_there_is_done(last: dict[str, object], now: str, before: str | None, wanted: str) -> None:
    plan = of(history(database(1), job(2, 3, PLAIN), last), snapshot(*now), None if before is None else snapshot(*before))
    assert fate(plan) == wanted


@pytest.mark.parametrize(
    ("last", "now", "wanted"),
    [
        (RENAME, "a", "execute"),
        (RENAME, "b", "done"),
        (RENAME, "ab", "safe mode"),
        (RENAME, "", "safe mode"),
        (TRUNCATE, "a", "execute"),
        (DROP, "a", "execute"),
    ],
)
def test_what_another_drainer_may_have_executed_is_asked_where_names_do_not_show_it(last: dict[str, object], now: str, wanted: str) -> None:
    assert fate(of(history(database(1), job(2, 3, PLAIN), last), snapshot(*now), in_doubt=True)) == wanted


@pytest.mark.parametrize(
    ("ids", "known", "state", "wanted"),
    [
        ({"a": 1, "b": 2}, True, INTENT, "execute"),
        ({"a": 2, "b": 1}, True, INTENT, "done"),
        ({"a": 3, "b": 2}, True, INTENT, "not as this DDL changes it"),
        ({"a": 1, "b": 2}, False, INTENT, "Grant PROCESS"),
        ({"a": 1, "b": 2}, False, REFUSED, "execute"),
    ],
)
def test_tables_that_change_places_are_told_apart_by_their_ids(ids: dict[str, int], known: bool, state: str, wanted: str) -> None:
    many = [table(10, "x"), table(11, "a"), table(10, "b")]
    query = "RENAME TABLE `a` TO `x`, `b` TO `a`, `x` TO `b`"
    h = history(database(1), job(2, 3, PLAIN), job(3, 3, table(11, "b")), job(4, 47, table(10, "b"), many=many, query=query))
    now, before = snapshot("a", "b", ids=ids, known=known), snapshot("a", "b", ids={"a": 1, "b": 2})
    if wanted in ("execute", "done"):
        assert fate(of(h, now, before, state)) == wanted
    else:
        with pytest.raises(ApplyError, match=wanted):
            of(h, now, before, state)


@pytest.mark.parametrize(("names", "in_doubt", "wanted"), [("id", False, "execute"), ("id n", False, "done"), ("", True, "done")])
def test_an_alter_is_done_where_its_changes_are_there(names: str, in_doubt: bool, wanted: str) -> None:
    """Or where a later DDL, which another Drainer has executed, has taken its table away."""
    ddl = ddl_of(history(database(1), job(2, 3, PLAIN), ADD), in_doubt=in_doubt)
    columns = tuple(TargetColumn(n, "int(11)", True, None, False, False) for n in names.split())
    there = TargetTable("d", "a", columns, (), collation="utf8mb4_nopad_bin") if names else None
    assert fate(planned(ddl, TargetHere(DdlClock(ddl.subject), table=there))) == wanted


@pytest.mark.parametrize("flavour", [Flavour.MARIADB, Flavour.TIDB])
def test_a_table_that_a_person_has_restored_is_there(flavour: Flavour) -> None:
    h = history(database(1), job(2, 3, PLAIN), job(3, 4, table_id=10, table_name="a"), job(4, 25, PLAIN))
    ddl, gone, there = (
        ddl_of(h, flavour),
        snapshot(),
        TargetTable("d", "a", (TargetColumn("id", "int(11)", False, None, False, False),), ()),
    )
    plan = planned(ddl, TargetHere(DdlClock(ddl.subject), gone))
    assert isinstance(plan, Refused) and ("by hand" in plan.why) is (flavour is Flavour.TIDB)
    refused = RecordedTry(REFUSED, 30, "x", None, gone.to_json(), '[{"words": "x"}]', None)
    assert fate(planned(ddl, TargetHere(DdlClock(ddl.subject), snapshot("a"), after={("d", "a"): there}), refused)) == "done"
    assert fate(planned(ddl, TargetHere(DdlClock(ddl.subject), gone), refused)) == "policy"


def test_a_zone_that_nobody_knows_hinders_it() -> None:
    ddl = ddl_of(history(database(1), job(2, 3, PLAIN), ADD))
    assert planned(ddl, TargetHere(DdlClock(ddl.subject, why_not="no zone"))) == Refused("time zone", "no zone")


def test_partitions_of_other_rows_are_left_to_the_policy() -> None:
    divided = [table(10, "a", partition=partitions(*parts)) for parts in (((21, "p0"), (22, "p1")), ((22, "p1"),))]
    ddl = ddl_of(history(database(1), job(2, 3, divided[0]), job(3, 20, divided[1])))
    there = TargetTable("d", "a", (), (), partitions={"p0": "50", "p1": "200"}, partition_method="RANGE")
    plan = planned(ddl, TargetHere(DdlClock(ddl.subject), snapshot("a"), there))
    assert isinstance(plan, Refused) and plan.step == "partition" and "DROP PARTITION `p0`" in plan.sql
