"""What is known to be wrong in the real Drainer, and right in ours: which tests show it, and those that no other file has.

``SHOWN_BY`` is held against the tests that there are, and against ``docs/parity.md``, by ``tests/test_parity.py``.
"""

from collections.abc import Iterator

import pytest

from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.session import Session
from tests.support.ddl_jobs import INT, column, database, history, job, steps_of, table
from tests.support.ddl_target import apply, ddl_session, losses

pytestmark = pytest.mark.mysql

_GOLDEN = "tests/integration/test_ddl_golden.py::"
_DIFFERS = "tests/integration/test_target_differs.py::"
_ROWS = "tests/integration/test_row_sink.py::"
SHOWN_BY: dict[str, tuple[str, ...]] = {
    "a row is lost when a key changes only in case": (
        "tests/unit/sinks/test_plan.py::test_a_key_that_changes_only_in_case_is_deleted",
        "tests/integration/test_rehearse_golden.py::test_sorted",
    ),
    "RENAME TABLES with several pairs": (
        _GOLDEN + "test_swaps_exchanges_and_truncations_move_rows_once",
        "tests/unit/schemas/test_history.py::test_a_three_way_swap_leaves_the_last_names",
    ),
    "EXCHANGE PARTITION": (
        _GOLDEN + "test_swaps_exchanges_and_truncations_move_rows_once",
        "tests/unit/schemas/test_history.py::test_exchange_partition_swaps_the_ids",
    ),
    "death on an expression index or placement DDL": (
        "tests/integration/test_known_wrong.py::test_an_expression_index_and_placement_end_nothing",
        _GOLDEN + "test_what_the_target_cannot_hold_is_named",
    ),
    "death on a table that the target lacks": (
        _ROWS + "test_a_table_that_the_target_lacks_is_a_finding",
        _DIFFERS + "test_a_table_that_the_target_lacks_is_a_finding_and_the_stream_goes_on",
    ),
    "death on ENUM 0 under the target's strict mode": (
        _ROWS + "test_an_enum_of_zero_is_no_finding",
        _DIFFERS + "test_an_enum_0_gets_through_a_strict_sql_mode_which_ddls_obey",
        "tests/integration/test_findings.py::test_harmless_warnings_are_none",
    ),
    "the checkpoint stands still when everything is filtered": (
        "tests/integration/test_filters.py::test_the_checkpoint_moves_when_everything_is_filtered",
    ),
    "FLOAT in the condition of keyless rows": (
        "tests/integration/test_plan_mariadb.py::test_a_keyless_row_is_found_exactly",
        "tests/integration/test_plan_mariadb.py::test_no_keyless_row_is_taken_for_another",
    ),
    "memory after one huge transaction": ("tests/torture/test_huge.py::test_a_gigabyte_in_one_transaction",),
    "two Drainers pick one mark id": ("tests/integration/test_marks.py::test_two_drainers_never_wait_for_each_others_marks",),
    "after a crash amid a DDL's rows it meets its own replay": (
        "tests/integration/test_kill_points.py::test_the_job_dies_and_nothing_differs",
        "tests/integration/test_online_rows.py::test_every_cut",
    ),
}
"""Test ids; none: being built."""


@pytest.fixture
def session(mariadb: PrivateMariaDB) -> Iterator[Session]:
    with ddl_session(mariadb.target()) as session:
        yield session


def test_an_expression_index_and_placement_end_nothing(session: Session) -> None:
    """The real one stops at error 1064 and never starts again (ddl.md 6, VERIFIED-LIVE)."""
    columns = [column(1, "id", {**INT, "Flag": 4099}), column(2, "b")]
    after = table(10, "t", [*columns, column(3, "c")])
    h = history(
        database(1),
        job(2, 51, schema_name="pp", query="create placement policy pp followers=2"),
        job(3, 3, table(10, "t", columns)),
        job(4, 7, table(10, "t", columns)),
        job(5, 56, table(10, "t", columns)),
        job(6, 5, after),
    )
    texts = {
        2: "CREATE PLACEMENT POLICY `pp` FOLLOWERS = 2;",
        3: "CREATE TABLE `t` (`id` INT PRIMARY KEY,`b` INT) /*T![placement] PLACEMENT POLICY=`pp` */;",
        4: "ALTER TABLE `t` ADD UNIQUE `ue`((`b`+1));",
        5: "ALTER TABLE `t` /*T![placement] PLACEMENT POLICY=`pp` */;",
        6: "ALTER TABLE `t` ADD COLUMN `c` INT;",
    }
    assert [apply(session, step, h).state for step in steps_of(h, texts)] == ["done"] * 4
    assert [
        name
        for (name,) in session.query(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = 'd' ORDER BY ordinal_position"
        )
    ] == [
        "id",
        "b",
        "c",
    ]
    there = session.query("SELECT index_name FROM information_schema.statistics WHERE table_schema = 'd' AND index_name = 'ue'")
    assert any("ue" in text for text in losses(session)) is (there == []) is (session.flavour is Flavour.MARIADB), losses(session)
