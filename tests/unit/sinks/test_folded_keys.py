"""Keys of the target that take texts for one: a finding where the upstream is known to keep them apart, a warning where that is not known."""

from dataclasses import replace

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.errors import FindingError
from pyspark_tidb_binlog.schemas.tableinfo import ColumnType
from pyspark_tidb_binlog.sinks.engine.batch_report import Written
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, RowsStep
from pyspark_tidb_binlog.sinks.mysql.folded_keys import folded, folded_keys
from pyspark_tidb_binlog.sinks.mysql.structure import TargetColumn, TargetKey, TargetTable
from pyspark_tidb_binlog.sinks.mysql.tables_there import TablesThere
from tests.support.plan_samples import NOT_NULL, TABLE_ID, column, index, table, text

UPSTREAM = table([text("k", NOT_NULL), text("v"), column("n")], [index("PRIMARY", ("k", -1), primary=True)], handle="common")


def there(collation: str, kind: str = "varchar(100)", keyed: str = "K") -> TargetTable:
    columns = [TargetColumn(name, kind, False, None, False, False, collation) for name in ("K", "v")]
    number = TargetColumn("n", "bigint(20)", True, None, False, False)
    return TargetTable("d", "t", (*columns, number), (TargetKey("PRIMARY", ((keyed, -1), ("n", -1))),))


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (there("utf8mb4_general_ci"), ("K (utf8mb4_general_ci)",)),
        (there("utf8mb4_uca1400_nopad_as_cs"), ("K (utf8mb4_uca1400_nopad_as_cs)",)),
        (there("utf8mb4_nopad_bin"), ()),
        (there("utf8mb4_0900_bin"), ()),
        (there("utf8mb4_general_ci", "enum('a')"), ()),
        (there("utf8mb4_general_ci", keyed=""), ()),
        (there("", "varbinary(100)"), ()),
    ],
)
def test_which_columns(found: TargetTable, wanted: tuple[str, ...]) -> None:
    assert folded(UPSTREAM.info, found) == wanted


@pytest.mark.parametrize(
    ("setting", "collation", "wanted"),
    [
        ("false", "utf8mb4_bin", True),
        ("false", "gbk_bin", True),
        ("false", "latin1_bin", True),
        ("false", "utf8mb4_nopad_bin", None),
        ("false", "utf8mb4_0900_bin", None),
        ("false", "binary", None),
        ("auto", "utf8mb4_bin", None),
        ("auto", "utf8mb4_0900_ai_ci", False),
        ("true", "utf8mb4_general_ci", None),
    ],
)
def test_spaces_at_the_end_count_where_the_upstream_compares_bytes(setting: str, collation: str, wanted: bool | None) -> None:
    keys = folded_keys(UPSTREAM.info, there(collation), ApplyConfig(upstream_new_collations=setting))
    assert (keys and keys.known) == wanted


@pytest.mark.parametrize(("kind", "named"), [(ColumnType.STRING, False), (ColumnType.VARCHAR, True)])
def test_a_char_has_no_spaces_at_its_end(kind: int, named: bool) -> None:
    """TiDB keeps none, whatever type the target's column has; case and accents count as ever."""
    info = table([column("k", kind, NOT_NULL, 10, charset="utf8mb4")], [index("PRIMARY", ("k", -1), primary=True)], handle="common").info
    config = ApplyConfig(upstream_new_collations="false")
    assert [bool(folded_keys(info, there("utf8mb4_bin", f"{own}(10)"), config)) for own in ("char", "varchar")] == [named, named]
    assert folded_keys(info, there("utf8mb4_general_ci", "char(10)"), config)


@pytest.mark.parametrize(("setting", "findings", "logged"), [("false", 1, 1), ("auto", 0, 1), ("true", 0, 0)])
def test_it_is_told_once(caplog: pytest.LogCaptureFixture, setting: str, findings: int, logged: int) -> None:
    config = ApplyConfig(upstream_new_collations=setting, on_finding="record")
    tables = TablesThere(config, lambda _: ({("d", "t"): there("utf8mb4_general_ci")}, frozenset()))
    step = RowsStep(1, 9, 1, {TABLE_ID: UPSTREAM}, applied=AppliedJobs(0))
    told = [f.words for _ in range(3) for f in tables.as_they_are(step, None, lambda _: Written()).findings]
    assert len(told) == findings and all("K (utf8mb4_general_ci)" in words and "keeps them apart" in words for words in told)
    said = [r.getMessage() for r in caplog.records if "K (utf8mb4_general_ci)" in r.getMessage()]
    assert len(said) == logged and all("spark.upstream-new-collations" in words for words in said if setting == "auto")


def test_a_stream_that_stops_at_findings_stops() -> None:
    config = ApplyConfig(upstream_new_collations="false", on_finding="stop")
    tables = TablesThere(config, lambda _: ({("d", "t"): there("utf8mb4_general_ci")}, frozenset()))
    with pytest.raises(FindingError, match="keeps them apart"):
        tables.as_they_are(RowsStep(1, 9, 1, {TABLE_ID: UPSTREAM}, applied=AppliedJobs(0)), None, lambda _: Written())
    tables = TablesThere(replace(config, db_type="tidb"), lambda _: ({("d", "t"): there("utf8mb4_general_ci")}, frozenset()))
    assert tables.as_they_are(RowsStep(1, 9, 1, {TABLE_ID: UPSTREAM}, applied=AppliedJobs(0)), None, lambda _: Written()).findings == ()
