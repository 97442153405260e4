"""Keys of the target that take more texts for one than the upstream: a finding where the upstream is known to keep them apart, a warning where that is not known."""

from dataclasses import replace

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.errors import FindingError
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnType
from pyspark_tidb_binlog.sinks.engine.batch_report import Written
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, RowsStep
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.folded_keys import BLANKS, LETTERS, folded_keys, taken_for_one
from pyspark_tidb_binlog.sinks.mysql.structure import TargetColumn, TargetKey, TargetTable
from pyspark_tidb_binlog.sinks.mysql.tables_there import TablesThere, concerned_by
from tests.support.plan_samples import NOT_NULL, TABLE_ID, column, index, table, text


def upstream(collate: str) -> TableAt:
    key = replace(text("k", NOT_NULL), collate=collate)
    return table([key, text("v"), column("n")], [index("PRIMARY", ("k", -1), primary=True)], handle="common")


UPSTREAM = upstream("utf8mb4_bin")
GENERAL = upstream("utf8mb4_general_ci")
HERE = Dialect(Flavour.MARIADB)
TIDB_HAS = ["utf8mb4_bin", "utf8mb4_general_ci", "utf8mb4_unicode_ci", "utf8mb4_0900_ai_ci", "utf8mb4_0900_bin", "latin1_bin", "ascii_bin"]
TIDB_HAS += ["utf8_bin", "utf8_general_ci", "utf8_unicode_ci", "gbk_bin", "gbk_chinese_ci", "binary"]


def there(collation: str, kind: str = "varchar(100)", keyed: str = "K") -> TargetTable:
    columns = [TargetColumn(name, kind, False, None, False, False, collation) for name in ("K", "v")]
    number = TargetColumn("n", "bigint(20)", True, None, False, False)
    return TargetTable("d", "t", (*columns, number), (TargetKey("PRIMARY", ((keyed, -1), ("n", -1))),))


BOTH, LETTER, BLANK, NONE = {LETTERS, BLANKS}, {LETTERS}, {BLANKS}, set[str]()


@pytest.mark.parametrize(
    ("there", "upstream", "wanted"),
    [
        ("utf8mb4_general_ci", "utf8mb4_bin", LETTER),
        ("utf8mb4_bin", "utf8mb4_general_ci", NONE),
        ("utf8mb4_general_ci", "utf8mb4_general_ci", NONE),
        ("utf8mb3_general_ci", "utf8_general_ci", NONE),
        ("utf8mb4_unicode_ci", "utf8mb4_general_ci", LETTER),
        ("utf8mb4_unicode_520_ci", "utf8mb4_unicode_ci", LETTER),
        ("utf8mb4_general_nopad_ci", "utf8mb4_general_ci", NONE),
        ("utf8mb4_uca1400_ai_ci", "utf8mb4_bin", LETTER),
        ("utf8mb4_uca1400_ai_ci", "utf8mb4_0900_ai_ci", BLANK),
        ("utf8mb4_uca1400_nopad_ai_ci", "utf8mb4_0900_ai_ci", NONE),
        ("utf8mb4_uca1400_nopad_as_cs", "utf8mb4_0900_ai_ci", NONE),
        ("utf8mb4_0900_as_ci", "utf8mb4_0900_as_cs", LETTER),
        ("utf8mb4_de_pb_0900_ai_ci", "utf8mb4_0900_ai_ci", LETTER),
        ("utf8mb4_0900_as_cs", "utf8mb4_bin", LETTER),
        ("utf8mb4_0900_ai_ci", "binary", LETTER),
        ("utf8mb4_general_ci", "binary", BOTH),
        ("utf8mb4_bin", "binary", BLANK),
        ("latin1_bin", "binary", BLANK),
        ("gbk_bin", "gbk_bin", NONE),
        ("gbk_chinese_ci", "gbk_bin", LETTER),
        ("latin1_swedish_ci", "latin1_bin", LETTER),
        ("latin1_bin", "utf8mb4_bin", NONE),
        ("utf8mb4_bin", "utf8mb4_0900_bin", BLANK),
        ("utf8mb4_0900_bin", "binary", NONE),
        ("utf8mb4_nopad_bin", "binary", NONE),
        ("binary", "utf8mb4_bin", NONE),
    ],
)
def test_what_a_collation_takes_for_one(there: str, upstream: str, wanted: set[str]) -> None:
    assert taken_for_one(there, upstream) == wanted


@pytest.mark.parametrize("own", [Flavour.MARIADB, Flavour.MYSQL])
@pytest.mark.parametrize("setting", ["true", "false", "auto"])
@pytest.mark.parametrize("collate", TIDB_HAS)
def test_no_key_of_a_table_that_ours_makes_is_named(collate: str, setting: str, own: Flavour) -> None:
    dialect = Dialect(own, nopad=setting != "true", binary=setting == "false")
    made = dialect.charset(collate.partition("_")[0], collate).collate
    found = folded_keys(upstream(collate).info, there(made), ApplyConfig(upstream_new_collations=setting), dialect)
    assert found is None or not found.known and not collate.endswith("bin")


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (there("utf8mb4_general_ci"), "K (utf8mb4_general_ci there, utf8mb4_bin upstream)"),
        (there("utf8mb4_uca1400_nopad_as_cs"), "K (utf8mb4_uca1400_nopad_as_cs there, utf8mb4_bin upstream)"),
        (there("utf8mb4_nopad_bin"), ""),
        (there("utf8mb4_general_ci", "enum('a')"), ""),
        (there("utf8mb4_general_ci", keyed=""), ""),
        (there("utf8mb4_general_ci", keyed="n"), ""),
        (there("", "varbinary(100)"), ""),
    ],
)
def test_which_columns(found: TargetTable, wanted: str) -> None:
    keys = folded_keys(UPSTREAM.info, found, ApplyConfig(upstream_new_collations="true"), HERE)
    assert wanted in keys.what and keys.keys == ("PRIMARY",) if keys else not wanted


@pytest.mark.parametrize(
    ("setting", "collation", "at", "wanted"),
    [
        ("true", "utf8mb4_general_ci", UPSTREAM, True),
        ("true", "utf8mb4_general_ci", GENERAL, None),
        ("true", "utf8mb4_bin", UPSTREAM, None),
        ("false", "utf8mb4_general_ci", GENERAL, True),
        ("false", "utf8mb4_bin", UPSTREAM, True),
        ("false", "utf8mb4_nopad_bin", UPSTREAM, None),
        ("auto", "utf8mb4_bin", UPSTREAM, None),
        ("auto", "utf8mb4_general_ci", UPSTREAM, True),
        ("auto", "utf8mb4_general_ci", GENERAL, False),
    ],
)
def test_what_is_known_of_the_upstream(setting: str, collation: str, at: TableAt, wanted: bool | None) -> None:
    keys = folded_keys(at.info, there(collation), ApplyConfig(upstream_new_collations=setting), HERE)
    assert (keys and keys.known) == wanted


def test_what_to_do() -> None:
    own, old = Dialect(Flavour.MARIADB, nopad=False), ApplyConfig(upstream_new_collations="false")
    mended = folded_keys(UPSTREAM.info, there("utf8mb4_general_ci"), ApplyConfig(upstream_new_collations="true"), own)
    assert mended and mended.todo == (
        "execute ALTER TABLE `d`.`t` MODIFY `k` VARCHAR(100) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, and copy the table again with --bootstrap if rows may be lost"
    )
    wider = folded_keys(UPSTREAM.info, there("utf8mb4_general_ci", "varchar(200)"), ApplyConfig(upstream_new_collations="true"), own)
    assert wider and "MODIFY `k` VARCHAR(200) CHARACTER SET" in wider.todo, "longer values of the target are not cut"
    hopeless = folded_keys(UPSTREAM.info, there("utf8mb4_bin"), old, own)  # a MySQL before 8.0.17
    assert hopeless and hopeless.todo.startswith("this server has no collation")


@pytest.mark.parametrize(
    ("inner", "here", "folded", "wanted"),
    [
        ("n", (("n", -1),), ("n", "K"), ()),
        ("n", (("n", -1),), ("K", "n"), ()),
        ("n", (("n", -1),), ("K",), ("u",)),
        ("n", (("n", -1), ("v", -1)), ("n", "K"), ("PRIMARY", "u")),
        ("k", (("K", -1),), ("n", "K"), ("PRIMARY", "u")),
        ("w", (("w", -1),), ("w", "K"), ()),
        ("w", (("w", -1),), ("w(3)", "K"), ("u",)),
        ("null", (("null", -1),), ("null", "K"), ("u",)),
    ],
)
def test_a_key_around_one_that_tells_rows_apart(
    inner: str, here: tuple[tuple[str, int], ...], folded: tuple[str, ...], wanted: tuple[str, ...]
) -> None:
    """No two rows meet in PRIMARY KEY (n) and UNIQUE (n, k), whatever k takes for one."""
    key = replace(text("k", NOT_NULL), collate="utf8mb4_bin")
    word = replace(text("w", NOT_NULL), collate="utf8mb4_bin")
    columns = [key, replace(word, name="v"), column("n", flag=NOT_NULL), word, column("null")]
    at = table(columns, [index("i", (inner, -1)), index("u", ("n", -1), ("k", -1))])
    parts = tuple((name.removesuffix("(3)"), 3 if name.endswith("(3)") else -1) for name in folded)
    made = there("utf8mb4_general_ci")
    more = (TargetColumn("w", "varchar(100)", False, None, False, False, "utf8mb4_bin"), replace(made.columns[2], name="null"))
    made = replace(made, columns=(*made.columns, *more), unique_keys=(TargetKey("PRIMARY", here), TargetKey("u", parts)))
    keys = folded_keys(at.info, made, ApplyConfig(upstream_new_collations="true"), HERE)
    assert (keys.keys if keys else ()) == wanted


@pytest.mark.parametrize(("kind", "named"), [(ColumnType.STRING, False), (ColumnType.VARCHAR, True)])
def test_a_char_has_no_spaces_at_its_end(kind: int, named: bool) -> None:
    """TiDB keeps none, whatever type the target's column has; case and accents count as ever."""
    info = table([column("k", kind, NOT_NULL, 10, charset="utf8mb4")], [index("PRIMARY", ("k", -1), primary=True)], handle="common").info
    config = ApplyConfig(upstream_new_collations="false")
    assert [bool(folded_keys(info, there("utf8mb4_bin", f"{own}(10)"), config, HERE)) for own in ("char", "varchar")] == [named, named]
    assert folded_keys(info, there("utf8mb4_general_ci", "char(10)"), config, HERE)


@pytest.mark.parametrize(
    ("setting", "at", "findings", "logged"), [("true", UPSTREAM, 1, 1), ("auto", GENERAL, 0, 1), ("true", GENERAL, 0, 0)]
)
def test_it_is_told_once(caplog: pytest.LogCaptureFixture, setting: str, at: TableAt, findings: int, logged: int) -> None:
    config = ApplyConfig(upstream_new_collations=setting, on_finding="record")
    tables, step = tables_and_step(config, at)
    told = [f.words for _ in range(3) for f in tables.settled(tables.fit(step, concerned_by(step, None), KNOWN), Written()).findings]
    assert len(told) == findings and all("K (utf8mb4_general_ci" in words and "ALTER TABLE" in words for words in told)
    said = [r.getMessage() for r in caplog.records if "K (utf8mb4_general_ci" in r.getMessage()]
    assert len(said) == logged and all("spark.upstream-new-collations" in words for words in said if setting == "auto")


def test_a_stream_that_stops_at_findings_stops() -> None:
    config = ApplyConfig(upstream_new_collations="false", on_finding="stop")
    tables, step = tables_and_step(config, UPSTREAM)
    with pytest.raises(FindingError, match=r"K \(utf8mb4_general_ci there, bytes upstream\)"):
        tables.fit(step, concerned_by(step, None), KNOWN)
    tables, step = tables_and_step(replace(config, db_type="tidb"), UPSTREAM)
    assert tables.fit(step, concerned_by(step, None), KNOWN).findings == ()


def tables_and_step(config: ApplyConfig, at: TableAt) -> tuple[TablesThere, RowsStep]:
    tables = TablesThere(config)
    return tables, RowsStep(1, 9, 1, {TABLE_ID: at}, applied=AppliedJobs(0))


KNOWN = {("d", "t"): there("utf8mb4_general_ci")}
