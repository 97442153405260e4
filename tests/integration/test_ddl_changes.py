"""ALTERs that are made change by change, where a server, a person or another Drainer leaves the table between its two definitions. Real SQL."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import pytest

from pyspark_tidb_binlog.conf.model import TableRoute
from pyspark_tidb_binlog.schemas.errors import DdlRefused
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.choice import decided
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlStep
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import DdlOutcome
from pyspark_tidb_binlog.sinks.mysql.ddl.executor import apply_ddl
from pyspark_tidb_binlog.sinks.mysql.ddl.foreseen import WaitingDdls, begun, foreseen
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.routing.replicated import Selection
from tests.support.ddl_jobs import INT, VARCHAR, column, database, foreign_key, history, index, job, partitioned, steps_of, table, told
from tests.support.ddl_target import CONFIG, MARKS, apply, apply_all, committed, die, prepared, shown
from tests.support.leases import held

pytestmark = pytest.mark.mysql

ID = column(1, "id", {**INT, "Flag": 4099 | 512})
BYTES = {**VARCHAR, "Charset": "binary", "Collate": "binary", "Flag": 128}
LONGTEXT = {**VARCHAR, "Tp": 251, "Flen": 4294967295}
JSON = {**BYTES, "Tp": 245, "Flen": 4294967295}
TIMESTAMP, DATETIME = ({**INT, "Tp": tp, "Flen": 19, "Flag": 128} for tp in (7, 12))


INSERTED = "INSERT INTO d.t VALUES (1, 7)"


def of(*columns: dict[str, Any], **more: Any) -> dict[str, Any]:
    return table(10, "t", [ID, *columns], **more)


def number(length: int, flag: int) -> dict[str, Any]:
    return {**INT, "Flen": length, "Flag": flag}


def made(
    session: Session, before: dict[str, Any], create: str, *ddls: tuple[int, dict[str, Any], str], by_hand: Iterable[str] = (), **more: Any
) -> tuple[SchemaHistory, list[DdlStep]]:
    """The history, and the steps after the one that makes the table; ``more``: of the last job."""
    h = told((3, before, create), *ddls, **more)
    first, making, *others = steps_of(h)
    apply_all(session, (first, making), h)
    committed(session, *by_hand)
    return h, others


@pytest.mark.parametrize("point", ["", "after-ddl-intent", "after-ddl", "before-ddl-done"])
@pytest.mark.parametrize("unique", [False, True])
def test_a_key_whose_prefix_became_its_column_stays(session: Session, unique: bool, point: str) -> None:
    """A TiDB makes the key whole where its column becomes shorter, and a server does so by itself."""
    key = index(1, "k", ("c", 1), unique=unique)
    prefixed = {**key, "idx_cols": [{**key["idx_cols"][0], "length": 10}]}
    before = of(column(2, "c", VARCHAR), index_info=[prefixed])
    after = of(column(3, "c", {**VARCHAR, "Flen": 5}), index_info=[{**key, "id": 2}])
    create = f"CREATE TABLE t (id INT PRIMARY KEY, c VARCHAR(20), {'UNIQUE ' * unique}KEY k (c(10)))"
    h, (step,) = made(session, before, create, (12, after, "ALTER TABLE t MODIFY c VARCHAR(5)"))
    die(session, step, h, point)
    assert apply(session, step, h).state == "done"
    assert f"{'UNIQUE ' * unique}KEY `k` (`c`)" in shown(session) and "varchar(5)" in shown(session)


@pytest.mark.parametrize("kind", [12, 61])
@pytest.mark.parametrize(
    "names", ["t.a b", "`d`.`t`.`a` `b`", "t.a t.b", "COLUMN IF EXISTS a b", "a b INT, COMMENT = 'it\\'s', CHANGE a b", "a b /* ' */"]
)
@pytest.mark.parametrize("head", ["", "COMMENT = 'x\\', "])
def test_a_converted_column_that_the_text_names_in_any_way_keeps_its_rows(session: Session, head: str, names: str, kind: int) -> None:
    """TiDB's own text has a backslash as it is."""
    change = (kind, of(column(3, "b", VARCHAR)), f"ALTER TABLE t {head}CHANGE {names} VARCHAR(20)")
    create = "CREATE TABLE t (id INT PRIMARY KEY, a INT)"
    h, (step,) = made(session, of(column(2, "a")), create, change, by_hand=("INSERT INTO d.t VALUES (1, 7)",))
    apply(session, step, h)
    assert session.query("SELECT b FROM d.t") == [("7",)]


CI, BIG = "VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", {**INT, "Tp": 8, "Flen": 20}
LATIN1 = "ALTER TABLE d.t DEFAULT CHARSET latin1, MODIFY c"


@pytest.mark.parametrize("point", ["", "after-ddl"])
@pytest.mark.parametrize(
    ("was", "by_hand", "text", "now", "wanted"),
    [
        # Bytes where the upstream has a text, and the reverse, in a table whose texts are of another charset.
        (VARCHAR, f"{LATIN1} VARBINARY(30)", "MODIFY c VARCHAR(20) COMMENT 'x'", VARCHAR, "`c` varbinary(30) DEFAULT NULL COMMENT 'x'"),
        (VARCHAR, f"{LATIN1} BIGINT", "MODIFY c VARCHAR(20) COMMENT 'x'", VARCHAR, "`c` bigint(20) DEFAULT NULL COMMENT 'x'"),
        (BYTES, f"{LATIN1} {CI}", "MODIFY c VARBINARY(20) COMMENT 'x'", BYTES, CI.replace("VARCHAR", "varchar")),
        # A renamed column is as one that keeps its name: a type that the upstream changes is the upstream's.
        (VARCHAR, f"ALTER TABLE d.t MODIFY c {CI}", "CHANGE c b VARCHAR(20) COMMENT 'x'", VARCHAR, CI.replace("VARCHAR", "varchar")),
        (INT, "ALTER TABLE d.t MODIFY c BIGINT", "CHANGE c b INT COMMENT 'x'", INT, "`b` bigint(20)"),
        (INT, "ALTER TABLE d.t MODIFY c SMALLINT", "CHANGE c b BIGINT COMMENT 'x'", BIG, "`b` bigint(20)"),
        # What a type does not show is made.
        (number(5, 96), INSERTED, "MODIFY c INT(8) UNSIGNED ZEROFILL", number(8, 96), "int(8) unsigned zerofill"),
        ({**number(1, 0), "Tp": 1}, INSERTED, "MODIFY c TINYINT", {**number(4, 0), "Tp": 1}, "tinyint(4)"),
        ({**number(4, 0), "Tp": 1}, INSERTED, "MODIFY c TINYINT(1)", {**number(1, 0), "Tp": 1}, "tinyint(1)"),
        (LONGTEXT, "INSERT INTO d.t VALUES (1, '[1]')", "MODIFY c JSON", JSON, "json_valid"),
    ],
)
def test_a_column_is_the_upstream_s_in_what_the_upstream_changes_and_else_somebody_s(
    session: Session, was: dict[str, Any], by_hand: str, text: str, now: dict[str, Any], wanted: str, point: str
) -> None:
    comment = {"comment": "x"} if "COMMENT" in text else {}
    change = (12, of(column(2, "b" if text.startswith("CHANGE") else "c", now, **comment)), f"ALTER TABLE t {text}")
    h, (step,) = made(session, of(column(2, "c", was)), "CREATE TABLE t (id INT PRIMARY KEY, c ...)", change, by_hand=[by_hand])
    die(session, step, h, point)
    outcome = apply(session, step, h)
    assert wanted in shown(session) and (outcome.how == "changes" or point) and ("COMMENT 'x'" in shown(session)) is bool(comment)


@pytest.mark.parametrize("words", [["🔥", "💧", "x"], ["x", "💧", "🔥"]])
@pytest.mark.parametrize("point", ["", "after-ddl"])
def test_words_that_a_server_shows_as_question_marks_keep_their_rows(session: Session, point: str, words: list[str]) -> None:
    kind = {**VARCHAR, "Tp": 247}
    before = of(column(2, "e", {**kind, "Elems": ["🔥", "💧", "x"]}))
    change = (12, of(column(2, "e", {**kind, "Elems": words}, comment="new")), "ALTER TABLE t MODIFY e ENUM(...) COMMENT 'new'")
    rows = ("INSERT INTO d.t VALUES (1, '🔥'), (2, '💧'), (3, 'x')",)
    h, (step,) = made(session, before, "CREATE TABLE t (id INT PRIMARY KEY, e ENUM(...))", change, by_hand=rows)
    die(session, step, h, point)
    apply(session, step, h)
    assert session.query("SELECT e, e + 0 FROM d.t ORDER BY id") == [(word, words.index(word) + 1) for word in ("🔥", "💧", "x")]


@pytest.mark.parametrize(
    ("kind", "declared", "default"),
    [({**VARCHAR, "Tp": 248, "Elems": ["a", "b"]}, "SET('a','b')", "b,a"), ({**INT, "Tp": 4, "Flen": 7, "Decimal": 3}, "FLOAT(7,3)", "1.2345")],
)  # fmt: skip
def test_a_default_that_a_row_shows_otherwise_is_no_other_value(
    session: Session, kind: dict[str, Any], declared: str, default: str
) -> None:
    after = of(column(2, "x", kind, default=default, origin_default=default))
    change = (5, after, f"ALTER TABLE t ADD COLUMN x {declared} DEFAULT '{default}'")
    h, (step,) = made(session, of(), "CREATE TABLE t (id INT PRIMARY KEY)", change, by_hand=("INSERT INTO d.t VALUES (1)",))
    die(session, step, h, "after-ddl")
    assert not apply(session, step, h).losses


def test_a_table_with_a_type_that_nobody_knows_is_refused(session: Session) -> None:
    h = told((3, of(column(2, "v", {**INT, "Tp": 225})), "CREATE TABLE t (id INT PRIMARY KEY, v VECTOR(3))"))
    making = prepared(session, h)
    with pytest.raises(DdlRefused, match="Unknown data type|near "):
        apply(session, making, h)


def test_a_sequence_has_its_name_at_the_target(session: Session) -> None:
    config = dataclasses.replace(CONFIG, routes=(TableRoute(db_name="d", tbl_name="s", to_db="d", to_tbl="s_there"),))
    after = of(column(2, "n", default="nextval(`d`.`s`)", default_is_expr=True))
    change = (15, after, "ALTER TABLE t ALTER COLUMN n SET DEFAULT (NEXT VALUE FOR s)")
    by_hand = ("CREATE SEQUENCE d.s_there",)
    h, (step,) = made(session, of(column(2, "n")), "CREATE TABLE t (id INT PRIMARY KEY, n INT)", change, by_hand=by_hand)
    assert apply(session, step, h, config).how == "changes" and "`s_there`" in shown(session)


def test_a_plain_column_is_not_the_generated_one_that_comes(session: Session) -> None:
    """No row would have its value."""
    after = of(column(2, "a"), column(3, "g", INT, generated_expr_string="`a` + 1"))
    change = (5, after, "ALTER TABLE t ADD COLUMN g INT AS (a + 1)")
    by_hand = ("ALTER TABLE d.t ADD COLUMN g INT",)
    h, (step,) = made(session, of(column(2, "a")), "CREATE TABLE t (id INT PRIMARY KEY, a INT)", change, by_hand=by_hand)
    with pytest.raises(DdlRefused, match="Duplicate column"):
        apply(session, step, h)


@pytest.mark.parametrize(
    ("clauses", "parts", "info", "wanted"),
    [
        (
            "ADD CONSTRAINT fk FOREIGN KEY (n) REFERENCES p (id)",
            (7, 9),
            {"index_info": [index(1, "fk", ("n", 1))], "fk_info": [foreign_key("fk", "n", "p", "id")]},
            "CONSTRAINT `fk` FOREIGN KEY (`n`) REFERENCES `p` (`id`)",
        ),
        ("ADD INDEX k (n), AUTO_INCREMENT = 5000", (7, 13), {"index_info": [index(1, "k", ("n", 1))], "auto_inc_id": 5000}, "AUTO_INCREMENT=5000"),
    ],
)  # fmt: skip
def test_a_foreign_key_and_a_counter_are_changes_too(
    session: Session, clauses: str, parts: tuple[int, ...], info: dict[str, Any], wanted: str
) -> None:
    """TiDB makes one job of a foreign key and the index that it needs."""
    change = (61, of(column(2, "n"), **info), f"ALTER TABLE t {clauses}")
    create, by_hand = "CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, n INT)", ["CREATE TABLE d.p (id INT PRIMARY KEY)"]
    sub_jobs = {"sub_jobs": [{"type": part} for part in parts]}
    h, (step,) = made(session, of(column(2, "n")), create, change, by_hand=by_hand, multi_schema_info=sub_jobs)
    for point in ("after-ddl-intent", "after-ddl", "before-ddl-done"):
        die(session, step, h, point)
    assert not apply(session, step, h).losses and shown(session).count(wanted) == 1


def safely(session: Session, step: DdlStep, h: SchemaHistory) -> DdlOutcome:
    step = decided(step, h, Selection.of(CONFIG))
    return apply_ddl(session, step, h, CONFIG, held(session, schema=MARKS), lambda _: None, in_doubt=True)


@pytest.mark.parametrize("executed", [0, 1, 2])
@pytest.mark.parametrize("more", [(), (column(4, "c"),)])
def test_a_column_that_another_drainer_gave_the_name_of_a_dropped_one_stays(
    session: Session, more: tuple[dict[str, Any], ...], executed: int
) -> None:
    drop = f"ALTER TABLE t DROP COLUMN x{', ADD COLUMN c INT' * len(more)}"
    rename = "ALTER TABLE t CHANGE y x INT"
    ddls = (61, of(column(3, "y"), *more), drop), (12, of(column(3, "x"), *more), rename)
    create = "CREATE TABLE t (id INT PRIMARY KEY, x INT, y INT)"
    by_hand = ("INSERT INTO d.t VALUES (1, 2, 3)", "USE d", *(drop, rename)[:executed])
    h, steps = made(session, of(column(2, "x"), column(3, "y")), create, *ddls, by_hand=by_hand)
    for step in steps:
        safely(session, step, h)
    assert session.query("SELECT x FROM d.t") == [(3,)] and "`y`" not in shown(session)


@pytest.mark.parametrize(
    ("columns", "ddls"),
    [
        (("a INT", "z INT"), ("CHANGE a b INT", "CHANGE b c INT", "CHANGE z a INT")),
        (("a INT", "z VARCHAR(20)"), ("MODIFY a BIGINT", "DROP a", "CHANGE z a VARCHAR(20)")),
        (("a INT", "z VARCHAR(20)"), ("MODIFY a INT FIRST", "DROP a", "CHANGE z a VARCHAR(20)")),
    ],
)
@pytest.mark.parametrize("executed", [0, 1, 2, 3])
def test_a_column_that_another_drainer_gave_a_former_name_is_left_alone(
    session: Session, columns: tuple[str, ...], ddls: tuple[str, ...], executed: int
) -> None:
    kinds = {"INT": INT, "BIGINT": {**INT, "Tp": 8, "Flen": 20}, "VARCHAR(20)": VARCHAR}
    now = {number: tuple(text.split()) for number, text in enumerate(columns, 2)}
    order, jobs, infos = [1, *now], [], []
    for ddl in ddls:
        verb, old, *rest = ddl.split()
        number = next(n for n, (name, _) in now.items() if name == old)
        if verb == "DROP":
            order.remove(number)
        else:
            now[number] = (rest[0] if verb == "CHANGE" else old, rest[-1] if rest[-1] != "FIRST" else now[number][1])
            order = [number, *(n for n in order if n != number)] if rest[-1] == "FIRST" else order
        infos = [ID if n == 1 else column(n, now[n][0], kinds[now[n][1]]) for n in order]
        jobs.append((6 if verb == "DROP" else 12, table(10, "t", infos), f"ALTER TABLE t {ddl}"))
    create = f"CREATE TABLE t (id INT PRIMARY KEY, {', '.join(columns)})"
    by_hand = ("INSERT INTO d.t VALUES (1, 2, '007')", "USE d", *(text for _, _, text in jobs[:executed]))
    before = of(*(column(n, name, kinds[kind]) for n, (name, kind) in enumerate(map(str.split, columns), 2)))
    h, steps = made(session, before, create, *jobs, by_hand=by_hand)
    for step in steps:
        safely(session, step, h)
    row = dict(
        zip([c["name"]["O"] for c in infos], session.query(f"SELECT {', '.join(c['name']['O'] for c in infos)} FROM d.t")[0], strict=True)
    )
    assert row == {"id": 1, "a": int("007") if columns[1] == "z INT" else "007", **({"c": 2} if columns[1] == "z INT" else {})}


def waiting(h: SchemaHistory) -> WaitingDdls:
    return WaitingDdls(25, h, AppliedJobs(2))


def test_a_default_that_was_only_begun_is_not_called_done(session: Session) -> None:
    change = (15, of(column(2, "a", default="6")), "ALTER TABLE t ALTER COLUMN a SET DEFAULT 6")
    h, (step,) = made(session, of(column(2, "a")), "CREATE TABLE t (id INT PRIMARY KEY, a INT)", change)
    die(session, step, h, "after-ddl-intent")
    assert not list(begun(session, waiting(h), CONFIG, 1))
    die(session, step, h, "after-ddl")
    ((_, remark),) = begun(session, waiting(h), CONFIG, 1)
    assert "it is not executed again" in str(remark)


def test_a_zone_that_nobody_knows_is_foreseen(session: Session) -> None:
    change = (12, of(column(3, "a", DATETIME)), "ALTER TABLE t MODIFY a DATETIME")
    zone = {"location": {"name": "Mars/Olympus", "offset": 0}}
    create = "CREATE TABLE t (id INT PRIMARY KEY, a TIMESTAMP NULL)"
    h, (step,) = made(session, of(column(2, "a", TIMESTAMP)), create, change, reorg_meta=zone)
    (remark,) = foreseen(session, waiting(h), CONFIG, {("d", "t")}, {"d"})
    assert "the time zone 'Mars/Olympus'" in str(remark)
    with pytest.raises(DdlRefused, match="time zone 'Mars/Olympus'"):
        apply(session, step, h)


@pytest.mark.parametrize(
    ("own", "how"),
    [
        ((), "changes"),
        (("ADD COLUMN mine INT FIRST",), "changes"),
        (("ADD COLUMN a INT",), "changes"),
        (("ADD KEY k (m)",), "changes"),
        (("DROP COLUMN z",), "changes"),
        (("ADD COLUMN b INT",), "changes"),
        (("DROP COLUMN n",), "changes"),
        (("ADD COLUMN a INT, ADD COLUMN b INT, ADD KEY k (m), DROP COLUMN z",), "nothing"),
    ],
)
@pytest.mark.parametrize("point", ["", "after-ddl-intent", "after-ddl", "before-ddl-done"])
def test_what_the_table_has_is_not_made_again(session: Session, own: tuple[str, ...], how: str, point: str) -> None:
    """Whether a person or an earlier call has made it."""
    kept, gone = (column(2, "n"), column(3, "m")), column(4, "z")
    before = of(*kept, gone, index_info=[index(1, "y", ("m", 2))])
    after = of(
        column(2, "n"), column(5, "a"), column(3, "m"), column(6, "b"), index_info=[index(1, "y", ("m", 3)), index(2, "k", ("m", 3))]
    )
    change = (61, after, "ALTER TABLE t ADD COLUMN a INT AFTER n, ADD COLUMN b INT, DROP COLUMN z, ADD INDEX k (m)")
    create = "CREATE TABLE t (id INT PRIMARY KEY, n INT, m INT, z INT, KEY y (m))"
    by_hand = ("INSERT INTO d.t VALUES (1, 2, 3, 4)", *(f"ALTER TABLE d.t {sql}" for sql in own))
    h, (step,) = made(session, before, create, change, by_hand=by_hand)
    die(session, step, h, point)
    if not point:
        assert apply(session, step, h).how == how
    outcome = apply(session, step, h)
    assert outcome.state == "done" and not outcome.losses
    assert not session.query("SELECT tries FROM ddl_marks.spark_ddl WHERE job_id = 3 AND tries IS NOT NULL")
    text = shown(session)
    assert "KEY `k` (`m`)" in text and "`z`" not in text
    wanted = [c for c in "id n a m b".split() if c != "n" or "DROP COLUMN n" not in str(own)]
    found = [
        c for (c,) in session.query("SELECT column_name FROM information_schema.columns WHERE table_schema = 'd' ORDER BY ordinal_position")
    ]
    assert [c for c in found if c != "mine"] == wanted or "ADD COLUMN" in str(own)
    assert session.query("SELECT a, m, b FROM d.t") == [(None, 3, None)]


class PlayedTidb:
    """A MariaDB's session that says it is a TiDB, and takes the statements that both know."""

    flavour, version = Flavour.TIDB, "8.0.11-TiDB-v7.1.0"

    def __init__(self, session: Session) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


@pytest.mark.parametrize("point", ["", "after-ddl-intent", "after-ddl", "before-ddl-done"])
@pytest.mark.parametrize(
    ("own", "wanted"),
    [("", "text"), ("ALTER TABLE d.t ADD COLUMN c INT", "changes"), ("ALTER TABLE d.t ADD COLUMN mine INT FIRST", "text")],
)
def test_a_tidb_is_given_the_text_unless_it_has_a_part_of_it(session: Session, own: str, wanted: str, point: str) -> None:
    """What is left is made by itself: a comment is made again, and a column that is there is not added."""
    after = of(column(2, "a", INT, comment="x"), column(3, "c"), index_info=[index(1, "k", ("c", 2))])
    change = (61, after, "ALTER TABLE t ADD COLUMN c INT, ADD INDEX k (c), MODIFY a INT COMMENT 'x' /*T![attr] */")
    create = "CREATE TABLE t (id INT PRIMARY KEY, a INT)"
    by_hand = ("INSERT INTO d.t VALUES (1, 2)", *filter(None, [own]))
    parts = {"sub_jobs": [{"type": part} for part in (5, 7, 12)]}
    h, (step,) = made(session, of(column(2, "a")), create, change, by_hand=by_hand, multi_schema_info=parts)
    target: Any = PlayedTidb(session)
    die(target, step, h, point)
    if point:
        assert not list(begun(target, waiting(h), CONFIG, 1))
    assert apply(target, step, h).how == (wanted if point in ("", "after-ddl-intent") else "changes")
    assert "KEY `k` (`c`)" in shown(session) and shown(session).count("COMMENT 'x'") == 1
    assert session.query("SELECT id, a, c FROM d.t") == [(1, 2, None)]


@pytest.mark.parametrize("point", ["", "after-ddl"])
def test_a_tidb_that_refuses_the_text_is_given_the_changes(session: Session, point: str) -> None:
    change = (6, of(column(3, "b")), "ALTER TABLE t DROP COLUMN a, SOMETHING NEW")
    create = "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)"
    h, (step,) = made(session, of(column(2, "a"), column(3, "b")), create, change)
    target: Any = PlayedTidb(session)
    die(target, step, h, point)
    assert apply(target, step, h).how == ("found" if point else "changes")
    assert "`a`" not in shown(session)


@pytest.mark.parametrize("point", ["", "after-ddl-intent", "after-ddl", "before-ddl-done"])
def test_a_table_whose_stored_column_the_server_cannot_compute(session: Session, point: str) -> None:
    stored = column(2, "g", INT, generated_expr_string="length(`a`)", generated_stored=True)
    more = {"index_info": [index(1, "g", ("g", 1))], "partition": partitioned(1, (21, "p0", "9"), expr="`id`")}
    info = of(stored, column(3, "a", {**VARCHAR, "Tp": 254}), **more)
    h = told((3, info, "CREATE TABLE t (id INT PRIMARY KEY, g INT AS (LENGTH(a)) STORED, a CHAR(20), KEY g (g))"))
    step = prepared(session, h)
    die(session, step, h, point)
    outcome, text = apply(session, step, h), shown(session)
    assert "`g` int(11) DEFAULT NULL" in text and "KEY `g` (`g`)" in text and "PARTITION `p0`" in text and "GENERATED" not in text
    assert "d.t: column g is not computed by the target" in outcome.losses[0]


def test_a_counter_that_is_renamed_is_not_modified_again(session: Session) -> None:
    after = table(10, "t", [column(1, "key", {**INT, "Flag": 4099 | 512})])
    h, (step,) = made(session, of(), "x", (12, after, "ALTER TABLE t CHANGE id `key` INT AUTO_INCREMENT"))
    die(session, step, h, "after-ddl")
    outcome = apply(session, step, h)
    assert outcome.how == "found" and "`key` int(11) NOT NULL AUTO_INCREMENT" in shown(session)


@pytest.mark.mariadb
@pytest.mark.parametrize("point", ["after-ddl-intent", "after-ddl", "before-ddl-done"])
def test_a_default_partition_is_dropped_once(session: Session, point: str) -> None:
    """A MariaDB shows it without VALUES."""
    parts = [(21, "p0", ["1"]), (22, "p1", ["DEFAULT"])]
    whole, left = (
        table(10, "t", [column(2, "n")], pk_is_handle=False, partition=partitioned(3, *p, expr="`n`")) for p in (parts, parts[:1])
    )
    h, (step,) = made(session, whole, "x", (20, left, "ALTER TABLE t DROP PARTITION p1"), by_hand=("INSERT INTO d.t VALUES (1), (7)",))
    die(session, step, h, point)
    apply(session, step, h)
    assert session.query("SELECT n FROM d.t") == [(1,)] and "p1" not in shown(session)


@pytest.mark.parametrize("point", ["after-ddl", "before-ddl-done"])
def test_what_a_table_was_made_without_is_named_after_a_death(session: Session, point: str) -> None:
    parts = partitioned(3, (21, "p0", ["1"]), (22, "p1", ["2"], ["DEFAULT"]), expr="`n`")
    bare = table(10, "t", [column(2, "n")], pk_is_handle=False, partition=parts)
    child = table(12, "c", [ID, column(3, "s", VARCHAR)], fk_info=[foreign_key("fk", "s", "p", "id")])
    h = history(database(1), job(2, 3, table(11, "p")), job(3, 3, bare), job(4, 3, child))
    found = []
    for step in steps_of(h):
        if step.job.id > 2:
            die(session, step, h, point)
        found += apply(session, step, h).losses
    assert [" ".join(loss.split()[:6]) for loss in found] == ["d.t: left out: ALTER TABLE `d`.`t`", "d.c: left out: ALTER TABLE `d`.`c`"]


def test_a_table_of_which_a_server_refuses_more_than_one_thing(session: Session) -> None:
    """A foreign key over another type, and a STORED column that cannot be computed, or be the primary key; what is left out is named."""
    stored = column(2, "g", {**INT, "Flag": 3}, generated_expr_string="`n` + 1", generated_stored=True)
    key, refers = index(1, "PRIMARY", ("g", 1), unique=True, primary=True), foreign_key("fk", "s", "p", "id")
    info = table(10, "t", [column(1, "n"), stored, column(3, "s", VARCHAR)], pk_is_handle=False, index_info=[key], fk_info=[refers])
    h = history(database(1), job(2, 3, table(11, "p")), job(3, 3, info))
    *_, outcome = [apply(session, step, h) for step in steps_of(h)]
    computed, foreign = outcome.losses
    assert (
        "left out: ALTER TABLE `d`.`t` ADD CONSTRAINT `fk`" in foreign
        and "column g is not computed" in computed
        and "PRIMARY KEY (`g`)" in shown(session)
    )


def test_a_foreign_key_may_refer_to_a_key_that_is_not_unique(session: Session) -> None:
    """As in TiDB; a MySQL server of 8.4 and later takes it only from a session that says so."""
    columns = [ID, column(2, "n")]
    parent, child = table(11, "p", columns, index_info=[index(1, "k", ("n", 1))]), table(10, "t", columns)
    keyed = table(10, "t", columns, fk_info=[foreign_key("fk", "n", "p", "n")])
    h = history(database(1), job(2, 3, parent), job(3, 3, child), job(4, 9, keyed))
    assert [apply(session, step, h).how for step in steps_of(h)] == ["text", "text", "text", "changes"]
    assert "REFERENCES `p` (`n`)" in shown(session)
