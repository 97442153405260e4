"""What TiDB takes and a target does not: the DDL is executed without it, or in its words, and no later one ends the stream."""

from typing import Any

import pytest

from pyspark_tidb_binlog.schemas.errors import DdlRefused
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import DdlOutcome
from pyspark_tidb_binlog.sinks.mysql.ddl.target_here import column_names
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.session import Session
from tests.support.ddl_jobs import INT, VARCHAR, column, index, steps_of, table, told
from tests.support.ddl_target import apply, apply_all, committed, die, forget, prepared
from tests.support.private_mysql import MYSQLD

pytestmark = pytest.mark.mysql

ID = column(1, "id", {**INT, "Flag": 4099})
PLAIN = table(10, "t", [ID, column(2, "b")])
SHARD, LOWER = "tidb_shard(`b`)", "`b` + 1"
KEY_B = index(9, "kb", ("b", 1))


def over(expression: str, *more: dict[str, Any], name: str = "uk", unique: bool = True) -> dict[str, Any]:
    """The table with an index over an expression, and other indexes."""
    hidden = {**column(3, f"_V$_{name}_0", {**INT, "Tp": 8}), "hidden": True, "generated_expr_string": expression}
    own = index(1, name, (f"_V$_{name}_0", 2), ("b", 1), unique=unique)
    return table(10, "t", [ID, column(2, "b"), hidden], index_info=[own, *more])


def run(session: Session, *ddls: tuple[int, dict[str, Any], str], rows: tuple[str, ...] = ()) -> list[DdlOutcome]:
    """The outcomes of (job type, table behind it, text), the first of which makes the table, which then gets these rows."""
    h = told(*ddls)
    first, made, *others = steps_of(h)
    outcomes = apply_all(session, (first, made), h)[1:]
    committed(session, *rows)
    return outcomes + apply_all(session, others, h)


def indexes(session: Session) -> set[str]:
    rows = session.query("SELECT index_name FROM information_schema.statistics WHERE table_schema = 'd' AND table_name = 't'")
    return {str(name) for (name,) in rows} - {"PRIMARY"}


MADE = (3, PLAIN, "CREATE TABLE t (id INT PRIMARY KEY, b INT)")
ADD_UK, DROP_UK = "ALTER TABLE t ADD UNIQUE INDEX uk((TIDB_SHARD(b)), b)", (8, PLAIN, "ALTER TABLE t DROP INDEX uk")


LEFT_OUT = ("d.t: expression index uk left out",)


@pytest.mark.parametrize("text", [ADD_UK, "CREATE UNIQUE INDEX uk ON t ((TIDB_SHARD(b)), b)"])
@pytest.mark.parametrize("flag", [0, 4, 8, 1 << 14])
def test_an_index_over_an_expression_that_the_target_has_not_is_a_loss(session: Session, text: str, flag: int) -> None:
    """``flag``: the upstream notes in a plain column that an index begins with it, or has it."""
    marked = over(SHARD)
    marked["cols"][1]["type"]["Flag"] = flag
    _, added, dropped = run(session, MADE, (7, marked, text), DROP_UK)
    assert (added.state, added.how, added.losses) == ("done", "nothing", LEFT_OUT)
    assert (dropped.state, dropped.how) == ("done", "nothing")
    forget(session)
    made, dropped = run(session, (3, marked, "CREATE TABLE t (id INT PRIMARY KEY, b INT, UNIQUE INDEX uk((TIDB_SHARD(b)), b))"), DROP_UK)
    assert made.losses == LEFT_OUT and dropped.how == "nothing"


def test_beside_it_the_rest_is_executed(session: Session) -> None:
    _, added, hidden, renamed = run(
        session,
        MADE,
        (61, over(SHARD, KEY_B), f"{ADD_UK}, ADD INDEX kb(b)"),
        (61, over(SHARD, KEY_B), "ALTER TABLE t ALTER INDEX uk INVISIBLE"),
        (61, over(SHARD, index(9, "kc", ("b", 1)), name="ul"), "ALTER TABLE t RENAME INDEX uk TO ul, RENAME INDEX kb TO kc"),
    )
    assert added.losses == LEFT_OUT and hidden.how == "nothing" and renamed.state == "done"
    assert indexes(session) == {"kc"}


def test_one_that_the_target_has_is_dropped(session: Session) -> None:
    text = "ALTER TABLE t ADD INDEX uk((b + 1), b)"
    _, added, dropped = run(session, MADE, (7, over(LOWER, unique=False), text), (8, PLAIN, "ALTER TABLE t DROP INDEX uk"))
    assert dropped.how == ("changes" if session.flavour is Flavour.MYSQL else "nothing")
    assert added.losses == (() if session.flavour is Flavour.MYSQL else LEFT_OUT) and not indexes(session)


def test_one_stays_when_a_derived_statement_renames_its_plain_column(session: Session) -> None:
    """Also if the same job hides it, which no statement need say: rows stay as unique as they were."""
    hidden = {**column(3, "_V$_uk_0", {**INT, "Tp": 8}), "hidden": True, "generated_expr_string": "`id` + 1"}

    def info(name: str, *, invisible: bool) -> dict[str, Any]:
        own = {**index(1, "uk", ("_V$_uk_0", 2), (name, 1), unique=True), "is_invisible": invisible}
        return table(10, "t", [ID, column(2, name), hidden], index_info=[own])

    made, renamed = run(
        session,
        (3, info("b", invisible=False), "CREATE TABLE t (id INT PRIMARY KEY, b INT, UNIQUE INDEX uk((id + 1), b))"),
        (61, info("z", invisible=True), "ALTER TABLE t CHANGE COLUMN b z INT NONSENSE"),
    )
    assert made.losses == (() if session.flavour is Flavour.MYSQL else LEFT_OUT)
    assert (renamed.how, renamed.losses) == ("changes", ()) and column_names(session, "d", "t") == ("id", "z")
    assert indexes(session) == ({"uk"} if session.flavour is Flavour.MYSQL else set())


@pytest.mark.skipif(not MYSQLD, reason="only a MySQL has indexes over expressions")
def test_an_index_that_rows_are_in_the_way_of_is_no_loss_and_a_missing_table_is_none(session: Session) -> None:
    """It is made once the rows are as upstream."""
    text = "ALTER TABLE t ADD UNIQUE INDEX uk((b + 1), b)"
    with pytest.raises(DdlRefused, match="Duplicate entry"):
        run(session, MADE, (7, over(LOWER), text), rows=("INSERT INTO d.t VALUES (1, 1), (2, 1)",))
    forget(session)
    h = told((3, over(SHARD), "CREATE TABLE t (id INT PRIMARY KEY, b INT, UNIQUE INDEX uk((TIDB_SHARD(b)), b))"), DROP_UK)
    dropping = prepared(session, h, {}, "DROP TABLE d.t")
    with pytest.raises(DdlRefused, match="doesn't exist"):
        apply(session, dropping, h)


def test_a_drop_that_was_executed_before_a_crash_is_done(session: Session) -> None:
    h = told(MADE, (7, over(LOWER, unique=False), "ALTER TABLE t ADD INDEX uk((b + 1), b)"), DROP_UK)
    drop = prepared(session, h)
    die(session, drop, h, "after-ddl")
    assert apply(session, drop, h).state == "done" and not indexes(session)


def test_a_plain_index_of_somebody_with_the_name_of_one_that_was_left_out_stays(session: Session) -> None:
    without = table(10, "t", [ID, column(2, "b")], index_info=[KEY_B])
    h = told(MADE, (7, over(SHARD), ADD_UK), (61, without, "ALTER TABLE t DROP INDEX uk, ADD INDEX kb(b)"))
    last = prepared(session, h, {}, "CREATE UNIQUE INDEX uk ON d.t (b)")
    assert apply(session, last, h).state == "done" and indexes(session) == {"uk", "kb"}


def test_a_double_counts_up_only_where_the_target_lets_it(session: Session) -> None:
    double = {**INT, "Tp": 5, "Flen": 22, "Decimal": -1, "Flag": 4099 | 512}
    key = index(1, "PRIMARY", ("id", 0), unique=True, primary=True)

    def info(*more: dict[str, Any], kind: dict[str, Any] = double) -> dict[str, Any]:
        return table(10, "t", [column(1, "id", kind), *more], pk_is_handle=False, index_info=[key])

    other = {**double, "Tp": 4, "Flen": 12}
    made, added, changed = run(
        session,
        (3, info(), "CREATE TABLE t (id DOUBLE AUTO_INCREMENT PRIMARY KEY)"),
        (5, info(column(2, "b")), "ALTER TABLE t ADD COLUMN b INT"),
        (12, info(column(2, "b"), kind=other), "ALTER TABLE t MODIFY COLUMN id FLOAT AUTO_INCREMENT"),
    )
    loss = ("d.t: column id: AUTO_INCREMENT left out",)
    assert made.losses == (loss if made.how == "derived" else ()) and added.losses == ()
    assert changed.state == "done" and column_names(session, "d", "t") == ("id", "b")
    assert changed.losses[:1] in ((), loss) if changed.how == "changes" else changed.losses == ()


def test_one_that_a_person_has_dropped_is_gone(session: Session) -> None:
    """A plain one, too; the rest of the statement is executed."""
    wide = [ID, column(2, "b"), column(4, "c")]
    h = told(
        MADE,
        (61, over(LOWER, KEY_B, unique=False), "ALTER TABLE t ADD INDEX uk((b + 1), b), ADD INDEX kb(b)"),
        (61, table(10, "t", wide, index_info=[KEY_B]), "ALTER TABLE t DROP INDEX uk, ADD COLUMN c INT"),
        (8, table(10, "t", wide), "ALTER TABLE t DROP INDEX kb"),
    )
    *before, added, dropped = steps_of(h)
    apply_all(session, before, h)
    if session.flavour is Flavour.MYSQL:
        session.execute("ALTER TABLE d.t DROP INDEX uk")
    assert apply(session, added, h).how == "changes" and column_names(session, "d", "t") == ("id", "b", "c")
    session.execute("ALTER TABLE d.t DROP INDEX kb")
    assert apply(session, dropped, h).state == "done" and not indexes(session)


CAST = "CREATE TABLE t (id INT PRIMARY KEY, c VARCHAR(100), UNIQUE INDEX uk((CAST(c AS CHAR(20)))))"


@pytest.mark.parametrize("text", [CAST, "ALTER TABLE t ADD UNIQUE INDEX uk((CAST(c AS CHAR(20))))"])
def test_texts_of_an_expression_compare_as_upstream(session: Session, text: str) -> None:
    """Not as in the session that makes the index, where 'a' and 'A' may be one."""
    texts = [ID, column(2, "c", VARCHAR | {"Flen": 100})]
    hidden = {**column(3, "_V$_uk_0", VARCHAR), "hidden": True, "generated_expr_string": "cast(`c` as char(20))"}
    keyed = table(10, "t", [*texts, hidden], index_info=[index(1, "uk", ("_V$_uk_0", 2), unique=True)])
    plain = (3, table(10, "t", texts), "CREATE TABLE t (id INT PRIMARY KEY, c VARCHAR(100))")
    before = session.query("SELECT @@collation_connection")
    run(session, *((3, keyed, text),) if text is CAST else (plain, (7, keyed, text)))
    assert session.query("SELECT @@collation_connection") == before
    assert indexes(session) == ({"uk"} if session.flavour is Flavour.MYSQL else set())
    session.execute("INSERT INTO d.t VALUES (1, 'a'), (2, 'A'), (3, 'a '), (4, 'á')")


@pytest.mark.mariadb
@pytest.mark.parametrize("added", [False, True])
def test_texts_in_a_generated_column_compare_as_upstream(session: Session, added: bool) -> None:
    """A MariaDB stores the collation of the session that makes the column."""
    first = [ID, column(2, "n", VARCHAR | {"Flen": 100})]
    small = {**column(3, "small", INT), "generated_expr_string": "cast(`n` as char) = _utf8mb4'a'"}
    text = "small INT AS (CAST(n AS CHAR) = 'a')"
    made = table(10, "t", [*first, small])
    if added:
        plain = (3, table(10, "t", first), "CREATE TABLE t (id INT PRIMARY KEY, n VARCHAR(100))")
        run(session, plain, (5, made, f"ALTER TABLE t ADD COLUMN {text}"))
    else:
        run(session, (3, made, f"CREATE TABLE t (id INT PRIMARY KEY, n VARCHAR(100), {text})"))
    session.execute("ALTER TABLE d.t MODIFY n VARBINARY(100)")
    session.execute("INSERT INTO d.t (id, n) VALUES (1, 'a'), (2, 'A')")
    assert session.query("SELECT small FROM d.t ORDER BY id") == [(1,), (0,)]


@pytest.mark.skipif(not MYSQLD, reason="only a MySQL has indexes over expressions")
@pytest.mark.parametrize("drops", [False, True])
def test_half_of_a_ddl_that_a_person_has_executed_is_not_all_of_it(session: Session, drops: bool) -> None:
    """It died before it was executed; the column was added by hand, the expression index was not."""
    keyed, more = over(LOWER), table(10, "t", [ID, column(2, "b"), column(4, "c")])
    wider = {**keyed, "cols": [*keyed["cols"], {**column(4, "c"), "offset": 3}]}
    key = "UNIQUE INDEX uk((b + 1), b)"
    before, change, after = (keyed, "DROP INDEX uk", more) if drops else (PLAIN, f"ADD {key}", wider)
    create = f"CREATE TABLE t (id INT PRIMARY KEY, b INT{', ' + key if drops else ''})"
    h = told((3, before, create), (61, after, f"ALTER TABLE t {change}, ADD COLUMN c INT"))
    changed = prepared(session, h)
    die(session, changed, h, "after-ddl-intent")
    session.execute("ALTER TABLE d.t ADD COLUMN c INT")
    with pytest.raises(DdlRefused, match="Duplicate column name 'c'.* Repair the target"):
        apply(session, changed, h)
    session.execute(f"ALTER TABLE d.t {change}")
    assert apply(session, changed, h).state == "done"
    assert indexes(session) == (set() if drops else {"uk"})
