"""The canonical text of values, on a real MariaDB: the same for equal values in near types, another one for each other value, and pinned."""

from collections.abc import Iterator

import pytest

from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.sinks.mysql.structure import read_tables
from pyspark_tidb_binlog.sinks.verify.canonical import Form, HashedColumn, canonical, form_of_both, is_large, read_as, sum_sql
from pyspark_tidb_binlog.sinks.verify.repair import Kind
from tests.support.verify_site import VerifySite

pytestmark = pytest.mark.mysql


@pytest.fixture
def site(mariadb: PrivateMariaDB) -> Iterator[VerifySite]:
    made = VerifySite(mariadb, {"parts": 1})
    yield made
    made.close()


VALUES = {
    "TINYINT": "NULL, 0, 1, -128, 127",
    "TINYINT(1)": "NULL, 0, 1, 2",
    "INT": "NULL, 0, -2147483648, 2147483647",
    "INT(8) ZEROFILL": "NULL, 0, 7, 4294967295",
    "BIGINT": "NULL, 0, -9223372036854775808, 9007199254740993, 9007199254740992",
    "BIGINT UNSIGNED": "NULL, 0, 18446744073709551615, 18446744073709551614",
    "YEAR": "NULL, 0, 1901, 2155",
    "BIT(1)": "NULL, b'0', b'1'",
    "BIT(10)": "NULL, b'0', b'1', b'1111111111'",
    "BIT(64)": "NULL, b'0', 0x8000000000000000, 0xFFFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFE",
    "DECIMAL(65,0)": "NULL, 0, 99999999999999999999999999999999999999999999999999999999999999999, 99999999999999999999999999999999999999999999999999999999999999998",
    "DECIMAL(20,5)": "NULL, 0, 0.00001, -0.00001, 123456789012345.67890",
    "FLOAT": "NULL, 0, 0.1, 0.10000001, 1e10, 3.4e38, -1.5",
    "DOUBLE": "NULL, 0, 0.1, 0.10000000000000002, 1e300, 1e15, 123456789012345680, -1.5",
    "DATE": "NULL, '0000-00-00', '2024-00-00', '2024-02-31', '2024-02-29', '9999-12-31'",
    "DATETIME": "NULL, '0000-00-00 00:00:00', '2024-02-31 23:59:59', '2024-02-29 00:00:00'",
    "DATETIME(3)": "NULL, '2024-02-29 00:00:00.001', '2024-02-29 00:00:00.010', '2024-02-29 00:00:00'",
    "DATETIME(6)": "NULL, '2024-02-29 00:00:00.000001', '2024-02-29 00:00:00.000010'",
    "TIMESTAMP": "NULL, '0000-00-00 00:00:00', '1970-01-01 00:00:01', '2038-01-19 03:14:07'",
    "TIMESTAMP(6)": "NULL, '2024-03-31 01:30:00.000001', '2024-03-31 02:30:00.000001'",
    "TIME": "NULL, '00:00:00', '-838:59:59', '838:59:59', '-00:00:01'",
    "TIME(6)": "NULL, '00:00:00.000001', '-00:00:00.000001', '00:00:00'",
    "CHAR(10)": "NULL, '', 'N', 'a', 'A', 'ä', '😀', ',', '''', '\\\\'",
    "VARCHAR(20)": "NULL, '', ' ', 'a', 'a ', 'A', 'ä', 'a\\0', '\\0', 'N', '00', ','",
    "VARCHAR(20) CHARACTER SET latin1": "NULL, '', 'a', 'ä', 'é', '€'",
    "VARCHAR(20) CHARACTER SET gbk": "NULL, '', 'a', '中', '文'",
    "VARCHAR(20) CHARACTER SET utf8mb3": "NULL, '', 'a', '中', 'A '",
    "TEXT": "NULL, '', 'a', 'a ', 'A', 'ä'",
    "LONGTEXT": "NULL, '', 'a', 'a ', REPEAT('x',100000), REPEAT('x',100001)",
    "BINARY(4)": "NULL, '', 'a', 'a ', 'a\\0b', 0xFF",
    "VARBINARY(20)": "NULL, '', 'a', 'a\\0', 'a ', 0x00, 0xFFFE",
    "BLOB": "NULL, '', 'a', 'a\\0', 0xFF, 0x00FF",
    "ENUM('a','A','b ','','ä')": "NULL, 'a', 'A', 'b', '', 'ä'",
    "SET('x','y','ä')": "NULL, '', 'x', 'y', 'x,y', 'x,y,ä'",
}
"""By type: values that differ."""
NEAR = [
    ("INT", "BIGINT"),
    ("INT(8) ZEROFILL", "BIGINT"),
    ("YEAR", "SMALLINT"),
    ("BIT(10)", "SMALLINT"),
    ("DECIMAL(20,5)", "DECIMAL(30,8)"),
    ("TINYINT", "DECIMAL(5,2)"),
    ("FLOAT", "DOUBLE"),
    ("DATE", "DATETIME"),
    ("DATETIME(3)", "DATETIME(6)"),
    ("TIMESTAMP", "DATETIME"),
    ("TIME", "TIME(6)"),
    ("VARCHAR(20)", "TEXT"),
    ("VARCHAR(20)", "VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"),
    ("VARCHAR(20) CHARACTER SET latin1", "VARCHAR(20) CHARACTER SET utf8mb4"),
    ("VARCHAR(20) CHARACTER SET gbk", "VARCHAR(20) CHARACTER SET utf8mb4"),
    ("TEXT", "LONGTEXT"),
    ("BINARY(4)", "VARBINARY(20)"),
    ("ENUM('a','A','b ','','ä')", "ENUM('ä','','b ','A','a')"),
    ("ENUM('a','A','b ','','ä')", "VARCHAR(20)"),
    ("SET('x','y','ä')", "SET('x','y','ä','z')"),
]


@pytest.mark.parametrize(("one", "other"), [*((kind, kind) for kind in VALUES), *NEAR])
@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "keyless"])
def test_each_value_is_itself_in_a_near_type_and_no_other_value(site: VerifySite, one: str, other: str, keyed: bool) -> None:
    values = [value.strip() for value in VALUES[one].replace("','", "'\0'").replace(", ", "\1").split("\1")]
    values = [value.replace("\0", ",") for value in values]
    key = ", PRIMARY KEY (n)" if keyed else ""
    site.sql(f"CREATE TABLE up.t (n INT NOT NULL, v {one}{key})", f"CREATE TABLE down.t (n INT NOT NULL, v {other}{key})")
    for number, value in enumerate(values):
        site.sql(f"INSERT INTO up.t VALUES ({number}, {value})")
    count = len(values)
    site.sql("INSERT INTO down.t SELECT n, v FROM up.t")
    same = site.table()
    # TiDB's latin1 holds any UTF-8, so a latin1 of the target holds less.
    assert (same.tally.rows, same.tally.differing, same.differs) == (count, 0, "latin1" in other)
    # Every value meets every other one: the target holds them some places further.
    for step in range(1, count):
        site.sql("TRUNCATE TABLE down.t", f"INSERT INTO down.t SELECT (n + {step}) MOD {count}, v FROM up.t")
        found = site.table()
        assert found.tally.differing == count * (1 if keyed else 2)
        if keyed:
            assert {difference.kind for difference in found.tally.listed} == {Kind.CHANGED}
    site.repaired(found)
    assert site.table().tally.differing == 0


PINNED = [
    ("INT(8) ZEROFILL", "7", Form.WHOLE, "7", "7"),
    ("YEAR", "0", Form.WHOLE, "0", "0"),
    ("BIT(64)", "0xFFFFFFFFFFFFFFFF", Form.WHOLE, "18446744073709551615", "18446744073709551615"),
    ("DECIMAL(20,5)", "1.5", Form.DECIMAL, "1.50000", "1.50000"),
    ("FLOAT", "0.1", Form.FLOAT, None, "0.10000000149011612"),
    ("DOUBLE", "1e15", Form.FLOAT, None, "1000000000000000.0"),
    ("DATE", "'0000-00-00'", Form.MOMENT, "0000-00-00", "0000-00-00"),
    ("DATETIME(3)", "'2024-02-31 01:02:03.4'", Form.MOMENT, "2024-02-31 01:02:03.400", "2024-02-31 01:02:03.400"),
    ("TIME(2)", "'-100:00:00.05'", Form.MOMENT, "-100:00:00.05", "-100:00:00.05"),
    ("CHAR(4)", "'a '", Form.TEXT, "61", "a"),
    ("VARCHAR(4)", "'a '", Form.TEXT, "6120", "a "),
    ("VARCHAR(4) CHARACTER SET latin1", "'ä'", Form.TEXT, "C3A4", "ä"),
    ("VARCHAR(4) CHARACTER SET gbk", "'中'", Form.TEXT, "E4B8AD", "中"),
    ("TEXT", "'a'", Form.TEXT, "86f7e437faa5a7fce15d1ddcb9eaeaea377667b8", "a"),
    ("BINARY(2)", "'a'", Form.BYTES, "6100", "a\0"),
    ("BLOB", "''", Form.BYTES, "da39a3ee5e6b4b0d3255bfef95601890afd80709", ""),
    ("ENUM('ä','b')", "1", Form.TEXT, "C3A4", "ä"),
    ("SET('x','y')", "3", Form.TEXT, "782C79", "x,y"),
]


@pytest.mark.parametrize(("kind", "value", "form", "hashed", "text"), PINNED, ids=[kind for kind, *_ in PINNED])
def test_texts_are_pinned(site: VerifySite, kind: str, value: str, form: Form, hashed: str | None, text: str) -> None:
    site.sql(f"CREATE TABLE up.t (v {kind})", f"INSERT INTO up.t VALUES ({value}), (NULL)")
    (column,) = read_tables(site.session, [("up", "t")])[("up", "t")].columns
    assert form_of_both(column, column) is form
    with site.session.stream(f"SELECT {read_as(column)} FROM up.t WHERE v IS NOT NULL") as blocks:
        ((read,),) = [cell.to_pylist() for block in blocks for cell in block]
    assert canonical(form, read) == text.encode()
    if hashed is not None:
        sql = HashedColumn(column, form, is_large(column)).sql(site.session.flavour)
        assert site.session.query(f"SELECT CONCAT({sql}) FROM up.t ORDER BY v IS NULL") == [(hashed,), ("N",)]


def test_a_row_that_the_server_cannot_hash_is_compared_here(site: VerifySite) -> None:
    site.both(
        "CREATE TABLE {}.t (n INT PRIMARY KEY, v0 VARCHAR(15000))",
        "INSERT INTO {}.t VALUES (1, REPEAT('x', 15000))",
    )
    site.sql("UPDATE down.t SET v0 = CONCAT(REPEAT('x', 14999), 'y')")
    site.sql("SET GLOBAL max_allowed_packet = 16384")
    try:
        found = site.table()
    finally:
        site.sql("SET GLOBAL max_allowed_packet = 67108864")
    assert [(d.kind, list(d.columns)) for d in found.tally.listed] == [(Kind.CHANGED, [1])]


def test_the_sum_loses_no_bit(site: VerifySite) -> None:
    """Over many rows: a sum of DOUBLEs would be equal."""
    site.both("CREATE TABLE {}.t (n INT PRIMARY KEY, v INT)", "INSERT INTO {}.t SELECT seq, seq FROM seq_1_to_20000")
    columns = read_tables(site.session, [("up", "t")])[("up", "t")].columns
    sums = sum_sql([HashedColumn(c, Form.WHOLE, large=False) for c in columns], site.session.flavour)

    def total() -> tuple[int, ...]:
        return tuple(map(int, site.session.query(f"SELECT {sums} FROM up.t")[0]))

    before = total()
    site.sql("UPDATE up.t SET v = v + 1 WHERE n = 777")
    assert before[0] == total()[0] and 0 < abs(before[1] - total()[1]) < 2**64
