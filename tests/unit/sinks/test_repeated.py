"""What a DDL's text says of executing it again."""

import pytest

from pyspark_tidb_binlog.sinks.mysql.state_table import State
from pyspark_tidb_binlog.sinks.replay.repeated import is_one, names_after, undoes_itself
from pyspark_tidb_binlog.sinks.replay.replay_record import PlaceKind, ReplayPlace

ONE = (
    "ALTER TABLE `t` ADD COLUMN `a` INT",
    "ALTER TABLE d.t ADD `a` DECIMAL(3,2) DEFAULT '1,2', ALGORITHM=INPLACE, LOCK=NONE",
    "ALTER TABLE t ADD COLUMN (a INT)",
    "ALTER TABLE t ADD INDEX i (a, b)",
    "ALTER TABLE t RENAME TO u",
    "RENAME TABLE t TO u",
    "DROP TABLE a, b",
    "CREATE TABLE t (a INT, b INT)",
)
SEVERAL = {
    "ALTER TABLE `t` ADD COLUMN IF NOT EXISTS `a` INT, DROP COLUMN `b`": "+column a, -column b",
    "ALTER TABLE t ADD COLUMN (a INT, `B` ENUM('x,y'))": "+column a, +column B",
    "ALTER TABLE t ADD UNIQUE KEY u (a), DROP INDEX i, ADD KEY k (b)": "+index u, -index i, +index k",
    "ALTER TABLE t CHANGE a b INT, RENAME INDEX i TO j": "-column a, +column b, -index i, +index j",
    "ALTER TABLE t ADD `unique` INT, ADD c INT": "+column unique, +column c",
    "RENAME TABLE a TO b, d.c TO e": "-table a, +table b, -table d.c, +table e",
    "ALTER TABLE t ADD INDEX (a), ADD INDEX i (b)": "",
    "ALTER TABLE t ADD COLUMN a INT, MODIFY b BIGINT": "",
    "ALTER TABLE t DROP COLUMN a, ADD COLUMN a INT": "",
    "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (a)": "",
    "ALTER TABLE t ADD UNIQUE, ADD": "",
}


@pytest.mark.parametrize("text", ONE)
def test_what_is_all_or_nothing(text: str) -> None:
    assert is_one(text)


@pytest.mark.parametrize(("text", "told"), SEVERAL.items())
def test_names_tell_whether_all_of_it_ran(text: str, told: str) -> None:
    assert not is_one(text)
    assert ", ".join(f"{'+' if n.there else '-'}{n.kind} {n.schema and n.schema + '.'}{n.name}" for n in names_after(text)) == told


@pytest.mark.parametrize(
    ("text", "undone"),
    [
        ("ALTER TABLE `p` EXCHANGE PARTITION `p0` WITH TABLE `x`", True),
        ("RENAME TABLE `a` TO `tmp`, `b` TO `a`, `tmp` TO `b`", True),
        ("ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO a", True),
        ("ALTER TABLE t CHANGE a b INT, CHANGE b c INT", True),
        ("RENAME TABLE d.a TO x.a, e.a TO d.a, x.a TO e.a", True),
        ("RENAME TABLE a TO x.a, e.a TO a, x.a TO e.a", True),
        ("RENAME TABLE a TO e.a", False),
        ("RENAME TABLE d.a TO e.a, d.b TO e.b", False),
        ("RENAME TABLE a TO b, c TO d", False),
        ("ALTER TABLE t CHANGE a a INT, MODIFY b INT", False),
        ("TRUNCATE TABLE t", False),
    ],
)
def test_what_a_second_time_would_undo(text: str, undone: bool) -> None:
    assert undoes_itself(text) is undone


@pytest.mark.parametrize("kind", PlaceKind)
def test_the_place_of_a_replay_is_read_from_its_row(kind: PlaceKind) -> None:
    place = ReplayPlace(7, 1 << 63, kind, (1 << 63) - 1, "0f" * 8, 12, safe=True)
    assert ReplayPlace.read(State((place.row,))) == place
