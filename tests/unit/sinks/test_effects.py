"""The counts and warnings of a server against what a statement had to do."""

from dataclasses import replace

import pytest

from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind, in_words
from pyspark_tidb_binlog.schemas.tableinfo import ColumnType
from pyspark_tidb_binlog.sinks.engine.causality import keys_of
from pyspark_tidb_binlog.sinks.engine.row_ops import operations_of
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.effects import StatementResult, Warned, judge, touched
from pyspark_tidb_binlog.sinks.mysql.plan import PlanLimits
from pyspark_tidb_binlog.sinks.mysql.rows.op_plan import OpPlan
from pyspark_tidb_binlog.sinks.mysql.statements import Statement
from tests.support.plan_samples import INT_PK, TABLE_ID, Events, column, plan_rows, table

AT = table([column("id", flag=INT_PK), column("e", ColumnType.ENUM, charset="utf8mb4")], handle="int")


def statement(events: Events) -> Statement:
    plan = plan_rows(events.table(), {TABLE_ID: AT}, PlanLimits())
    (found,) = (*plan.deletes, *plan.writes)
    return found


ADDS = statement(Events(AT).insert(1, 1).insert(2, 1).insert(3, 1))
CHANGES = statement(Events(AT).update((1, 1), (1, 2)).update((2, 1), (2, 2)).update((3, 1), (3, 2)))
CHANGES_ONE = statement(Events(AT).update((1, 1), (1, 2)))
REMOVES = statement(Events(AT).delete(1, 1).delete(2, 1))
ZEROS = statement(Events(AT).insert(1, 0).insert(2, 1).insert(3, 0))


def an_update() -> Statement:
    batch = operations_of(Events(AT).update((1, 1), (1, 2)).table(), {TABLE_ID: AT})
    (found,) = OpPlan(batch, keys_of(batch), PlanLimits(), Flavour.MARIADB, safe=False).statements([0])
    return found


UPDATES = an_update()


def info(records: int, duplicates: int, warnings: int = 0) -> str:
    return f"Records: {records}  Duplicates: {duplicates}  Warnings: {warnings}"


@pytest.mark.parametrize(
    ("of", "answer", "found"),
    [
        (ADDS, StatementResult(3, info(3, 0)), 3),
        (REMOVES, StatementResult(2), 2),
        (REMOVES, StatementResult(1), 1),
        (CHANGES, StatementResult(6, info(3, 3)), 3),
        (CHANGES, StatementResult(0, info(3, 0)), 3),  # all three are the same
        (CHANGES, StatementResult(2, info(3, 1)), 3),  # one changed, two the same
        (CHANGES, StatementResult(5, info(3, 2)), 2),  # one was missing
        (CHANGES, StatementResult(3, info(3, 1)), 2),  # one changed, one the same, one missing
        (CHANGES, StatementResult(3, info(3, 0)), 0),
        (CHANGES, StatementResult(5, "0Datensätze: 3  Duplikate: 2  Warnungen: 0"), 2),
        (CHANGES, StatementResult(5), 2),  # no info: an odd count still tells
        (UPDATES, StatementResult(1, "Rows matched: 1  Changed: 1  Warnings: 0"), 1),
        (UPDATES, StatementResult(0, "Rows matched: 1  Changed: 0  Warnings: 0"), 1),
        (UPDATES, StatementResult(0, "Rows matched: 0  Changed: 0  Warnings: 0"), 0),
        (CHANGES_ONE, StatementResult(2), 1),
        (CHANGES_ONE, StatementResult(0), 1),
        (CHANGES_ONE, StatementResult(1), 0),
    ],
)
def test_rows_touched(of: Statement, answer: StatementResult, found: int) -> None:
    assert touched(of, answer) == found
    assert [(f.kind, f.wanted, f.found) for f in judge(of, answer)] == ([] if found == of.rows else [(FindingKind.ROWS, of.rows, found)])


@pytest.mark.parametrize("errno", [1264, 1265, 1366, 1406, 1292, 1048, 9999])
def test_a_warning_nobody_knows_to_be_harmless_is_a_finding(errno: int) -> None:
    (found,) = judge(ADDS, StatementResult(3, info(3, 0, 1), 1, (Warned(errno, "something about column 'e' at row 1"),)))
    assert (found.kind, found.table, found.commit_ts, found.key) == (FindingKind.VALUE, "`d`.`t`", 1003, "id=1 and 2 more")
    assert found.words == f"warning {errno}: something about column 'e' at row 1"


@pytest.mark.parametrize("errno", [1287, 1592, 1681, 6414])
def test_warnings_about_the_statement_are_harmless(errno: int) -> None:
    assert judge(ADDS, StatementResult(3, info(3, 0, 1), 1, (Warned(errno, "x"),))) == ()


def test_one_warning_for_each_zero_of_an_enum_is_harmless_and_one_more_is_not() -> None:
    cut = [Warned(1265, f"Data truncated for column 'e' at row {n}") for n in (1, 2, 3)]
    assert judge(ZEROS, StatementResult(3, info(3, 0, 2), 2, (cut[0], cut[2]))) == ()
    (found,) = judge(ZEROS, StatementResult(3, info(3, 0, 3), 3, tuple(cut)))
    assert found.words.startswith("3 warnings, warning 1265: Data truncated for column 'e'")


def test_warnings_that_the_server_does_not_show_are_not_taken_for_harmless() -> None:
    (found,) = judge(ADDS, StatementResult(3, info(3, 0, 70), 70, (Warned(1592, "x"),)))
    assert found.words == "69 warnings, the server has kept no text of any warning (max_error_count)"


def test_warnings_of_the_syntax_that_the_server_does_not_show_are_harmless() -> None:
    of, kept = replace(CHANGES, deprecated=3), (Warned(1287, "'VALUES function' is deprecated"),)
    assert judge(of, StatementResult(6, info(3, 3, 3), 3, kept)) == ()
    (found,) = judge(of, StatementResult(6, info(3, 3, 4), 4, kept))
    assert found.words == "the server has kept no text of any warning (max_error_count)"
    assert len(judge(of, StatementResult(6, info(3, 3, 3), 3))) == 1, "of which it is not known what they are"


def test_a_finding_for_people_holds_no_row_data() -> None:
    found = Finding(
        FindingKind.VALUE, "2 warnings, warning 1366: Incorrect string value: 'secret' for column 'v' at row 1", "`d`.`t`", 0, "id='secret'"
    )
    assert "secret" in in_words(found, show_row_data=True)
    assert in_words(found, show_row_data=False) == (
        "value `d`.`t`, key …: 2 warnings, warning 1366: Incorrect string value: '…' for column 'v' at row 1"
    )


@pytest.mark.parametrize(
    ("of", "answer", "words"),
    [
        (REMOVES, StatementResult(0), "2 of the rows that the binlogs delete were not in the target"),
        (REMOVES, StatementResult(5), "3 more rows were affected than the binlogs change"),
        (CHANGES, StatementResult(5, info(3, 2)), "1 of the rows that the binlogs update were not in the target and were inserted"),
        (ADDS, StatementResult(2, info(3, 0)), "a row that the binlogs insert was not inserted"),
    ],
)
def test_what_is_said_of_rows(of: Statement, answer: StatementResult, words: str) -> None:
    (found,) = judge(of, answer)
    assert (found.kind, found.words) == (FindingKind.ROWS, words)
