"""What is sent to a TiDB, which no test here runs against: the texts are pinned. And which columns have a common form."""

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.sinks.bootstrap.key_ranges import KeyRange
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.structure import TargetColumn, TargetKey, TargetTable
from pyspark_tidb_binlog.sinks.routing.replicated import Selection
from pyspark_tidb_binlog.sinks.verify.canonical import Form, HashedColumn, canonical, equals, form_of_both, is_large, literal_of
from pyspark_tidb_binlog.sinks.verify.definition import Standard
from pyspark_tidb_binlog.sinks.verify.repair import Row, alike_sql
from pyspark_tidb_binlog.sinks.verify.table_pair import Intent, TablePair, pair_of


def column(kind: str, name: str = "v", collation: str = "", *, nullable: bool = True) -> TargetColumn:
    return TargetColumn(name, kind, nullable, None, False, False, collation)


HASHED = [
    ("int", "", "v"),
    ("int(8) unsigned zerofill", "", "v + 0"),
    ("year", "", "v + 0"),
    ("bit(64)", "", "CAST(v AS UNSIGNED)"),
    ("decimal(20,5)", "", "v"),
    ("datetime(3)", "", "CAST(v AS CHAR)"),
    ("time", "", "CAST(v AS CHAR)"),
    ("varchar(20)", "utf8mb4_bin", "HEX(v)"),
    ("char(20)", "ascii_bin", "HEX(v)"),
    ("varchar(20)", "latin1_bin", "HEX(v)"),
    ("varchar(20)", "gbk_chinese_ci", "HEX(CONVERT(v USING utf8mb4))"),
    ("text", "utf8mb4_bin", "SHA1(v)"),
    ("enum('a','b')", "utf8mb4_bin", "HEX(v)"),
    ("varbinary(20)", "", "HEX(v)"),
    ("longblob", "", "SHA1(v)"),
]


@pytest.mark.parametrize(("kind", "collation", "text"), HASHED)
def test_what_a_tidb_hashes(kind: str, collation: str, text: str) -> None:
    found = column(kind, collation=collation)
    form = form_of_both(found, found)
    assert form is not None
    hashed = HashedColumn(found, form, is_large(found))
    assert hashed.sql(Flavour.TIDB).replace("`", "") == f"IF(v IS NULL, 'N', {text})"


FORMS = [
    ("int", "bigint unsigned", Form.WHOLE),
    ("bit(1)", "tinyint(1)", Form.WHOLE),
    ("decimal(10,2)", "decimal(12,2)", Form.DECIMAL),
    ("decimal(10,2)", "decimal(12,4)", Form.NUMBER),
    ("decimal(10,0)", "int", Form.NUMBER),
    ("float", "double", Form.FLOAT),
    ("datetime", "timestamp", Form.MOMENT),
    ("datetime(3)", "datetime(6)", Form.TIME),
    ("date", "datetime", Form.TIME),
    ("varchar(20)", "longtext", Form.TEXT),
    ("set('a')", "char(1)", Form.TEXT),
    ("binary(2)", "blob", Form.BYTES),
    ("json", "longtext", Form.DOCUMENT),
    ("json", "json", Form.DOCUMENT),
    ("int", "varchar(20)", None),
    ("varchar(20)", "varbinary(20)", None),
    ("date", "time", None),
    ("vector", "vector", None),
    ("float", "decimal(10,2)", None),
]


@pytest.mark.parametrize(("one", "other", "form"), FORMS)
def test_forms(one: str, other: str, form: Form | None) -> None:
    assert form_of_both(column(one), column(other)) is form
    assert form_of_both(column(other), column(one)) is form


CANONICAL = [
    (Form.DOCUMENT, b'{"b": [1.0, 2e0, null], "a": "\\u00e4"}', b'{"a":"\xc3\xa4","b":[1,2,null]}', True),
    (Form.DOCUMENT, b"1.5", b"1.50", True),
    (Form.DOCUMENT, b'"\\ud800"', b' "\\uD800"', True),
    (Form.DOCUMENT, b"no document", b"no document ", False),
    (Form.DOCUMENT, b"18446744073709551615", b"18446744073709551614", False),
    (Form.DOCUMENT, b'"1"', b"1", False),
    (Form.DOCUMENT, b"[1, 2]", b"[2, 1]", False),
    (Form.DOCUMENT, b"true", b"1", False),
    (Form.FLOAT, b"1e15", b"1000000000000000", True),
    (Form.FLOAT, b"-0", b"0", True),
    (Form.FLOAT, b"0.1", b"0.10000000000000002", False),
    (Form.NUMBER, b"1.50", b"1.5", True),
    (Form.NUMBER, b"100", b"100.00", True),
    (Form.NUMBER, b"-0.00", b"0", True),
    (Form.NUMBER, b"1" * 64, b"1" * 63 + b"2", False),
    (Form.TIME, b"2024-01-01 00:00:00.000", b"2024-01-01", True),
    (Form.TIME, b"10:00:00.120", b"10:00:00.12", True),
    (Form.TIME, b"10:00:00", b"10:00:00.1", False),
    (Form.TEXT, b"a", b"A", False),
]


@pytest.mark.parametrize(("form", "one", "other", "equal"), CANONICAL)
def test_what_is_compared_here(form: Form, one: bytes, other: bytes, equal: bool) -> None:
    assert (canonical(form, one) == canonical(form, other)) is equal
    assert canonical(form, None) is None


def test_literals_and_exact_conditions() -> None:
    assert literal_of(Form.TEXT, b"it's") == "'it''s'" and literal_of(Form.TEXT, b"a\\\n") == "_utf8mb4 x'615C0A'"
    assert literal_of(Form.BYTES, b"\0\xff") == "x'00FF'"
    assert literal_of(Form.WHOLE, None) == "NULL"
    text = column("varchar(20)", collation="utf8mb4_bin")
    assert equals(text, Form.TEXT, "'a'", Flavour.TIDB) == "CAST(CONVERT(`v` USING utf8mb4) AS BINARY) <=> 'a'"
    assert equals(column("json"), Form.DOCUMENT, "'1'", Flavour.TIDB) == "`v` <=> CAST('1' AS JSON)"
    assert equals(column("float"), Form.FLOAT, "0.1", Flavour.MARIADB) == "`v` * 1e0 <=> 0.1"


def table(schema: str, *columns: TargetColumn, key: tuple[str, ...] = ()) -> TargetTable:
    return TargetTable(schema, "t", columns, (TargetKey("PRIMARY", tuple((name, -1) for name in key)),) if key else ())


def intent() -> Intent:
    return Intent({}, Standard(ApplyConfig(), Dialect(Flavour.MARIADB), Flavour.TIDB), Selection.of(ApplyConfig()))


def test_what_is_sent_for_a_range() -> None:
    columns = column("bigint(20)", "a", nullable=False), column("varchar(9)", "b", "utf8mb4_bin", nullable=False), column("datetime", "c")
    pair = pair_of(
        table("up", *columns, key=("a", "b")),
        table("down", *columns, key=("a", "b")),
        intent(),
    )
    assert isinstance(pair, TablePair) and pair.key == (0, 1)
    within = KeyRange("", (b"1", b"'x'"), (b"5", b"'y'"))
    where = "WHERE (`a` > 1 AND `a` < 5) OR (`a` = 1 AND `b` >= 'x') OR (`a` = 5 AND `b` < 'y')"
    total = "COUNT(*), SUM(CAST(CONV(LEFT(SHA1(CONCAT(`a`, ',', HEX(`b`), ',', IF(`c` IS NULL, 'N', CAST(`c` AS CHAR)))), 16), 16, 10) AS UNSIGNED) + 1000000000000000000000000000000)"
    assert pair.upstream.sums_sql(within).decode() == f"SELECT {total} FROM `up`.`t` {where}"
    assert pair.target.rows_sql(within).decode() == f"SELECT `a`, `b`, `c` FROM `down`.`t` {where}"
    assert pair.upstream.boundary_sql(within, 7).decode() == f"SELECT `a`, `b` FROM `up`.`t` {where} ORDER BY `a`, `b` LIMIT 1 OFFSET 7"


def test_what_is_sent_to_find_rows_without_a_key() -> None:
    """Columns that a server cannot compare, or whose literals are large, are left out: more rows are found, and compared here."""
    columns = (
        column("varchar(9)", "a", "latin1_bin"),
        column("json", "b"),
        column("longblob", "c"),
        column("int", "d"),
        column("double", "e"),
    )
    rows: list[Row] = [(b"x", b"1", b"y", b"2", b"0.1"), (b"x", b"3", b"z", b"2", b"1"), (None, None, None, None, None)]
    pair = pair_of(table("up", *columns), table("down", *columns), intent())
    assert isinstance(pair, TablePair)
    text = "CAST(CONVERT(`a` USING utf8mb4) AS BINARY) <=>"
    where = f"WHERE ({text} 'x' AND `d` <=> 2) OR ({text} NULL AND `d` <=> NULL)"
    assert alike_sql(pair, pair.upstream, rows, Flavour.TIDB).decode() == f"SELECT `a`, `b`, `c`, `d`, `e` * 1e0 FROM `up`.`t` {where}"
    documents = pair_of(table("up", columns[1]), table("down", columns[1]), intent())
    assert isinstance(documents, TablePair)
    assert alike_sql(documents, documents.target, [(b"1",)], Flavour.MARIADB).decode() == "SELECT `b` FROM `down`.`t` WHERE TRUE"


@pytest.mark.parametrize(
    ("kind", "nullable", "there"),
    [
        ("int", True, ("a",)),
        ("enum('a')", False, ("a",)),
        ("double", False, ("a",)),
        ("bit(3)", False, ("a",)),
        ("int", False, ("b",)),
        ("text", False, ("a",)),
    ],
    ids=["nullable", "enum", "double", "bit", "no such key at the target", "text"],
)
def test_keys_whose_ranges_are_not_read(kind: str, nullable: bool, there: tuple[str, ...]) -> None:
    columns = column(kind, "a", nullable=nullable), column("int", "b", nullable=False)
    pair = pair_of(
        table("up", *columns, key=("a",)),
        table("down", *columns, key=there),
        intent(),
    )
    assert isinstance(pair, TablePair) and pair.key == ()
