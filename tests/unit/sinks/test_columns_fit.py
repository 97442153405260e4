"""Whether a DDL on columns ran before a crash, by the names that the target's table has."""

import pytest

from pyspark_tidb_binlog.schemas.tableinfo import TableInfo
from pyspark_tidb_binlog.sinks.mysql.ddl.wanted import columns_fit
from tests.support.plan_samples import column, table


def info(names: str) -> TableInfo:
    return table([column(name) for name in names]).info


@pytest.mark.parametrize(
    ("there", "old", "new", "moved", "fits"),
    [
        ("ab", "ab", "abc", {}, False),
        ("abc", "ab", "abc", {}, True),
        ("axb", "ab", "abc", {}, False),
        ("axbc", "ab", "abc", {}, True),
        ("acb", "ab", "abc", {}, True),
        ("abx", "ab", "a", {}, False),
        ("ax", "ab", "a", {}, True),
        ("axb", "ab", "ac", {"c": "b"}, False),
        ("axc", "ab", "ac", {"c": "b"}, True),
        ("abx", "ab", "ba", {}, False),
        ("bxa", "ab", "ba", {}, True),
        ("acb", "abc", "bcz", {"z": "a"}, False),
        ("czb", "abc", "bcz", {"z": "a"}, True),
        ("cab", "abc", "bca", {}, False),
        ("zb", "ab", "bq", None, False),
        ("cbq", "abc", "bcq", None, True),
        ("abx", "ab", "ba", {"a": "b", "b": "a"}, False),
        ("bax", "ab", "ba", {"a": "b", "b": "a"}, True),
    ],
    ids=[
        "not added", "added", "not added beside one of its own", "added beside one of its own", "added at another place", "not dropped", "dropped",
        "not renamed", "renamed", "not moved", "moved",
        "not renamed and moved", "renamed and moved in another order", "not moved in another order", "not what a rename may be", "what a rename may be",
        "names not swapped", "names swapped",
    ],
)  # fmt: skip
def test_names_that_are_there(there: str, old: str, new: str, moved: dict[str, str] | None, fits: bool) -> None:
    """``moved``: by the new name, the old one of columns that are renamed; None if that is ambiguous."""
    was = {c.name: c for c in info(old).columns}
    pairs = None if moved is None else {name: was[moved.get(name, name)] for name in new if moved.get(name, name) in was}
    assert columns_fit(list(there), info(old), info(new), pairs) is fits
