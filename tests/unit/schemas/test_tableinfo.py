"""Table infos from the JSON of real jobs, and the keys found in them."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType, ForeignKey, ReferentialAction, SequenceInfo, TableInfo, TtlInfo

GOLDEN = Path(__file__).parents[2] / "golden"


def newest(case: str, name: str) -> TableInfo:
    jobs = json.loads(gzip.decompress((GOLDEN / case / "ddl_history.json.gz").read_bytes()))
    found = [t for j in jobs if (t := (j.get("binlog") or {}).get("TableInfo")) and t["name"]["O"] == name]
    return TableInfo.from_json(found[-1])


def names(columns: tuple[ColumnInfo, ...]) -> list[str]:
    return [c.name for c in columns]


@pytest.mark.parametrize(
    ("name", "handle", "unique"),
    [
        ("int_pk", ["a"], [["a"], ["b"]]),
        ("no_pk", [], []),
        ("uniq_only", [], [["a"], ["b", "c"]]),
        ("uniq_null", [], [["a"]]),
        ("comp_clustered", ["a", "b"], [["a", "b"]]),
        ("comp_nonclustered", [], [["a", "b"]]),
        ("str_clustered", ["k"], [["k"]]),
        ("prefix_key", ["a"], [["a"], ["b"]]),
    ],
)
def test_keys_of_real_tables(name: str, handle: list[str], unique: list[list[str]]) -> None:
    info = newest("keys", name)
    assert names(info.handle_columns()) == handle
    assert [names(k) for k in info.unique_keys()] == unique


def test_generated_columns_are_public_but_no_target_columns() -> None:
    info = newest("types", "gen")
    assert names(info.public_columns()) == ["id", "a", "b", "v", "s", "j", "jx"]
    assert names(info.target_columns()) == ["id", "a", "b", "j"]
    assert names(info.unique_keys()[0]) == ["id"]


def test_expression_indexes_make_no_key() -> None:
    assert [names(k) for k in newest("beyond_mysql", "expr_idx").unique_keys()] == [["a"]]


def test_column_facts() -> None:
    columns = {c.name: c for c in newest("types", "ints").columns}
    assert columns["bu"].unsigned and not columns["b"].unsigned
    assert columns["id"].not_null and not columns["t"].not_null
    assert columns["b64"].tp == ColumnType.BIT
    assert newest("types", "enums").columns[1].elems == ("", "a", "b", "中", "d")
    assert newest("types", "strs").columns[3].is_binary


def test_words_have_numbers() -> None:
    columns = {c.name: c for c in newest("types", "enums").columns}
    assert columns["e"].number_of("中") == 4
    assert columns["e"].number_of("B") == 3
    assert columns["s"].number_of("r,X") == 0b10001
    assert columns["s"].number_of("") == 0
    with pytest.raises(ValueError, match="not a member of column e"):
        columns["e"].number_of("zz")


@pytest.mark.parametrize("broken", [{}, {"id": 5}, {"id": 5, "name": None}, [], {"id": 5, "name": {"O": "t"}, "cols": [{"id": 1}]}])
def test_json_that_is_no_table_is_refused(broken: Any) -> None:
    with pytest.raises(Corruption, match="table info of table id"):
        TableInfo.from_json(broken)


def test_what_only_some_tables_have() -> None:
    (key,) = newest("beyond_mysql", "fk_child").foreign_keys
    assert key == ForeignKey("fk_1", ("pid",), "g_beyond", "fk_parent", ("id",), ReferentialAction.CASCADE, ReferentialAction.UNSAID)
    hashed = newest("ddl", "ph")
    assert (hashed.partition_num, hashed.partition_enabled, newest("beyond_mysql", "ttl").partition_enabled) == (4, True, False)
    assert newest("beyond_mysql", "ttl").ttl == TtlInfo("created", "1", 5, False, "1h")
    assert newest("beyond_mysql", "sq").sequence == SequenceInfo(10, 2, 1, (1 << 63) - 2, 1000, False)
    assert (newest("beyond_mysql", "auto_r").auto_random_bits, newest("beyond_mysql", "shard").shard_row_id_bits) == (5, 4)
    assert {index.type for index in newest("types", "gen").indexes} == {1}
