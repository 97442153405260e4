"""A MODIFY that the target refuses, or that a crash left open: not taken for done until the target has what is wanted."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.errors import DdlRefused
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.segments import DdlStep
from pyspark_tidb_binlog.sinks.mysql.session import Session
from tests.support.ddl_jobs import INT, VARCHAR, column, steps_of, table, told
from tests.support.ddl_target import CONFIG, apply, apply_all, die, prepared, shown
from tests.support.private_mysql import NO_PAD_BIN

pytestmark = pytest.mark.mysql

ID = column(1, "id", {**INT, "Flag": 4099})
JSON = {**INT, "Tp": 245, "Flen": 4294967295}
TINYTEXT, TEXT, MEDIUMTEXT, LONGTEXT = (
    {**VARCHAR, "Tp": tp, "Flen": size} for tp, size in ((249, 255), (252, 65535), (250, 16777215), (251, 4294967295))
)
BLOB, LONGBLOB = ({**kind, "Charset": "binary", "Collate": "binary"} for kind in (TEXT, LONGTEXT))
DECIMAL = {**INT, "Tp": 246, "Flen": 10, "Decimal": 2}
BIGINT = {**INT, "Tp": 8, "Flen": 20}


def modify(
    session: Session, there: str, text: str, was: dict[str, Any], now: dict[str, Any], config: ApplyConfig = CONFIG
) -> tuple[SchemaHistory, DdlStep]:
    """The table as the target has it, and the step that modifies it; ``default`` in a kind is the column's."""
    before, after = (table(10, "t", [ID, column(2, "v", k, default=k.get("default"))]) for k in (was, now))
    create = f"CREATE TABLE `t` (`id` INT PRIMARY KEY, `v` {there});"
    h = told((3, before, create), (12, after, f"ALTER TABLE `t` MODIFY COLUMN `v` {text};"))
    # a server makes a TINYTEXT of it, as an earlier release of this program has let it
    by_hand = [f"ALTER TABLE d.t MODIFY v {there}"] if there == "TEXT(50)" else []
    return h, prepared(session, h, {}, *by_hand, config=config)


CHANGES = [
    ("TEXT", "LONGTEXT", TEXT, LONGTEXT),
    ("TEXT", "MEDIUMTEXT", TEXT, MEDIUMTEXT),
    ("TINYTEXT", "TEXT", TINYTEXT, TEXT),
    ("TEXT(50)", "TEXT", {**TEXT, "Flen": 50}, TEXT),
    ("LONGTEXT", "TEXT", LONGTEXT, TEXT),
    ("BLOB", "LONGBLOB", BLOB, LONGBLOB),
    ("JSON", "LONGTEXT", JSON, LONGTEXT),
    ("DECIMAL(10,2)", "DECIMAL(12,2)", DECIMAL, {**DECIMAL, "Flen": 12}),
    ("DECIMAL(10,2)", "DECIMAL(10,4)", DECIMAL, {**DECIMAL, "Decimal": 4}),
    ("INT", "BIGINT", INT, BIGINT),
    ("INT", "INT UNSIGNED", INT, {**INT, "Flag": 32}),
    ("VARCHAR(300)", "VARCHAR(20)", {**VARCHAR, "Flen": 300}, VARCHAR),
    ("TEXT", "VARCHAR(20)", TEXT, VARCHAR),
    ("TEXT CHARACTER SET utf8", "TEXT", {**TEXT, "Charset": "utf8", "Collate": "utf8_bin"}, TEXT),
    ("TINYINT(1)", "TINYINT(4) DEFAULT 5", {**INT, "Tp": 1, "Flen": 1}, {**INT, "Tp": 1, "Flen": 4, "default": "5"}),
]


@pytest.mark.parametrize("collations", ["auto", "true"])
@pytest.mark.parametrize(("there", "text", "was", "now"), CHANGES, ids=[f"{a} to {b}" for a, b, *_ in CHANGES])
def test_a_refused_change_is_not_done(
    session: Session, there: str, text: str, was: dict[str, Any], now: dict[str, Any], collations: str
) -> None:
    """Nor where collations keep their names."""
    config = dataclasses.replace(CONFIG, upstream_new_collations=collations)
    h, step = modify(session, there, text, was, now, config)
    before = shown(session)
    with refusing(session), pytest.raises(DdlRefused):
        apply(session, step, h, config)
    assert shown(session) == before
    die(session, step, h, "after-ddl", config)
    assert shown(session) != before
    assert apply(session, step, h, config).how == "found"


@contextlib.contextmanager
def refusing(session: Session) -> Iterator[None]:
    """The server takes no statement on ``d.t``, whatever it says."""
    real = session.execute

    def execute(sql: bytes | str, args: Any = None) -> int:
        text = sql if isinstance(sql, str) else sql.decode()
        return real(text.replace("ALTER TABLE", "ALTER TABLE nowhere.x, ") if text.startswith("ALTER TABLE") else sql, args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "execute", execute)
        yield


@pytest.mark.parametrize("bigger", ["MEDIUMTEXT", "LONGTEXT"])
def test_what_a_person_has_made_is_found_and_so_is_more(session: Session, bigger: str) -> None:
    h, step = modify(session, "TEXT", "MEDIUMTEXT", TEXT, MEDIUMTEXT)
    session.execute(f"ALTER TABLE d.t MODIFY v {bigger} CHARACTER SET utf8mb4 COLLATE {NO_PAD_BIN}")
    with refusing(session):
        assert apply(session, step, h).how == "nothing"


@pytest.mark.parametrize("there", ["TINYINT", "BIGINT"])
def test_a_column_that_stands_there_is_not_passed_over(session: Session, there: str) -> None:
    wide = (5, table(10, "t", [ID, column(2, "v", BIGINT)]), "ALTER TABLE `t` ADD COLUMN IF NOT EXISTS `v` BIGINT;")
    h = told((3, table(10, "t", [ID]), "CREATE TABLE `t` (`id` INT PRIMARY KEY);"), wide)
    step = prepared(session, h, {}, f"ALTER TABLE d.t ADD COLUMN v {there}")
    if there == "BIGINT":
        assert apply(session, step, h).how == "nothing"
    else:
        with pytest.raises(DdlRefused, match="Duplicate column"):
            apply(session, step, h)


def test_what_a_person_has_widened_stays_so(session: Session) -> None:
    """A change of something else gives the column neither its former type nor its former collation, and a default alone does not rebuild the table."""
    short, key = {**VARCHAR, "Flen": 9}, column(3, "k", INT)
    said = {**key, "comment": "said", "type": {**INT, "Flag": 1}}
    h = told(
        (3, table(10, "t", [ID, column(2, "v", short), key]), "CREATE TABLE `t` (`id` INT PRIMARY KEY, `v` VARCHAR(9), `k` INT);"),
        (12, table(10, "t", [ID, column(2, "w", short), key]), "ALTER TABLE `t` CHANGE COLUMN `v` `w` VARCHAR(9);"),
        (12, table(10, "t", [ID, column(2, "w", short), said]), "ALTER TABLE `t` MODIFY COLUMN `k` INT NOT NULL COMMENT 'said';"),
        (15, table(10, "t", [ID, column(2, "w", short, default="x"), said]), "ALTER TABLE `t` ALTER COLUMN `w` SET DEFAULT 'x';"),
    )
    steps = steps_of(h)
    apply_all(session, steps[:2], h)
    session.execute("ALTER TABLE d.t MODIFY v VARCHAR(30) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci, MODIFY k BIGINT")
    assert [apply(session, step, h).how for step in steps[2:]] == ["changes"] * 3
    found = shown(session)
    assert "`w` varchar(30) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci DEFAULT 'x'" in found or "`w` varchar(30) COLLATE" in found
    assert "`k` bigint(20) NOT NULL COMMENT 'said'" in found or "`k` bigint NOT NULL COMMENT 'said'" in found
    assert session.query("SELECT executed FROM ddl_marks.spark_ddl WHERE job_id = 5") == [
        ("ALTER TABLE `d`.`t` ALTER COLUMN `w` SET DEFAULT 'x'",)
    ]
