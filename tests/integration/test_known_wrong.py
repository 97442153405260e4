"""What is wrong in the real Drainer and right here, where no other file shows it: rows ``known wrong: …`` of ``docs/parity.md``."""

import pytest

from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.session import Session
from tests.support.ddl_jobs import INT, column, database, history, index, job, steps_of, table
from tests.support.ddl_target import apply, losses

pytestmark = pytest.mark.mysql


@pytest.mark.shows("known wrong: expression index")
def test_an_expression_index_and_placement_end_nothing(session: Session) -> None:
    """The real one stops at error 1064 and never starts again (ddl.md 6, VERIFIED-LIVE)."""
    columns = [column(1, "id", {**INT, "Flag": 4099}), column(2, "b")]
    hidden = column(4, "_V$_ue_0", hidden=True, generated_expr_string="`b` + 1")
    indexed = table(10, "t", [*columns, hidden], index_info=[index(1, "ue", ("_V$_ue_0", 2), unique=True)])
    after = table(10, "t", [*columns, column(3, "c"), hidden], index_info=[index(1, "ue", ("_V$_ue_0", 3), unique=True)])
    h = history(
        database(1),
        job(2, 51, schema_name="pp", query="create placement policy pp followers=2"),
        job(3, 3, table(10, "t", columns)),
        job(4, 7, indexed),
        job(5, 56, indexed),
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
