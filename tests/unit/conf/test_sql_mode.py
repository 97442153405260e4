"""Which sql_modes are refused, and that settings refuse them."""

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.conf.sql_mode import for_all, for_rows, refusals


@pytest.mark.shows("syncer.sql-mode")
@pytest.mark.parametrize(
    "mode",
    ["NO_BACKSLASH_ESCAPES", "ansi_quotes", "STRICT_TRANS_TABLES, Ansi", "ORACLE", "DB2", "MSSQL", "MAXDB", "POSTGRESQL"]
    + ["EMPTY_STRING_IS_NULL", "PAD_CHAR_TO_FULL_LENGTH", "REAL_AS_FLOAT"],
)
def test_a_mode_that_changes_what_literals_mean_is_refused_before_anything_runs(mode: str) -> None:
    with pytest.raises(ValueError, match=r"syncer\.sql-mode must not contain \w+"):
        ApplyConfig(sql_mode=mode)


@pytest.mark.parametrize("mode", ["", ApplyConfig().sql_mode, "TRADITIONAL", "STRICT_TRANS_TABLES,NO_ZERO_DATE", "PIPES_AS_CONCAT"])
def test_other_modes_are_taken(mode: str) -> None:
    assert refusals(mode) == ()
    assert ApplyConfig(sql_mode=mode).sql_mode == mode


def test_rows_are_written_without_the_modes_by_which_values_are_refused() -> None:
    assert for_rows("STRICT_TRANS_TABLES,NO_AUTO_VALUE_ON_ZERO,NO_ZERO_DATE") == "NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES"
    assert for_rows("") == "ALLOW_INVALID_DATES"
    assert for_rows(ApplyConfig().sql_mode) == ApplyConfig().sql_mode


def test_ddls_keep_strictness_but_no_mode_that_changes_dates_of_the_rows_they_copy() -> None:
    assert (
        for_all("STRICT_TRANS_TABLES,NO_AUTO_VALUE_ON_ZERO,NO_ZERO_DATE") == "STRICT_TRANS_TABLES,NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES"
    )
    traditional = "STRICT_TRANS_TABLES,STRICT_ALL_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,TRADITIONAL"
    assert for_all(traditional) == "STRICT_TRANS_TABLES,STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,ALLOW_INVALID_DATES"
    assert for_all(ApplyConfig().sql_mode) == ApplyConfig().sql_mode
