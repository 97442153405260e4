"""Which rows are in a partition: a condition where the bounds tell, none where they do not."""

from typing import Any

import pytest

from pyspark_tidb_binlog.schemas.tableinfo import TableInfo
from pyspark_tidb_binlog.sinks.mysql.ddl.partitions import rows_of
from tests.support.ddl_jobs import INT, VARCHAR, column, table

DATE = {**INT, "Tp": 10, "Flen": 10}
COLUMNS = [column(1, "id", {**INT, "Flag": 4099}), column(2, "d", DATE), column(3, "s", VARCHAR)]
RANGES = [("p0", ["-5"], None), ("p1", ["100"], None), ("p2", ["MAXVALUE"], None)]
DAYS = [("p0", ["'2026-01-01'"], None), ("p1", ["'2027-01-01 00:00:00'"], None)]
LISTS = [("p0", None, [["1"], ["NULL"]]), ("p1", None, [["2"], ["3"]]), ("p2", None, [["DEFAULT"]])]


def parted(kind: int, expr: str, columns: list[str], definitions: list[tuple[str, Any, Any]]) -> TableInfo:
    found = [{"id": 20 + i, "name": {"O": n}, "less_than": lt, "in_values": iv} for i, (n, lt, iv) in enumerate(definitions)]
    names = [{"O": c} for c in columns] or None
    return TableInfo.from_json(table(10, "t", COLUMNS, partition={"type": kind, "expr": expr, "columns": names, "definitions": found}))


@pytest.mark.parametrize(
    ("info", "names", "wanted"),
    [
        (parted(1, "`id`", [], RANGES), ["p0"], "(`id` < -5 OR `id` IS NULL)"),
        (parted(1, "`ID`", [], RANGES), ["P1"], "(`id` >= -5 AND `id` < 100)"),
        (parted(1, "`id`", [], RANGES), ["p0", "p2"], "(`id` < -5 OR `id` IS NULL) OR (`id` >= 100)"),
        (parted(1, "`id`", [], [("p0", ["MAXVALUE"], None)]), ["p0"], "(`id` IS NOT NULL OR `id` IS NULL)"),
        (parted(1, "", ["d"], DAYS), ["p1"], "(`d` >= '2026-01-01' AND `d` < '2027-01-01 00:00:00')"),
        (parted(3, "`id`", [], LISTS), ["p0"], "(`id` IN (1) OR `id` IS NULL)"),
        (parted(3, "`id`", [], LISTS), ["p1"], "(`id` IN (2, 3))"),
        (parted(3, "`id`", [], LISTS), ["p1", "p2"], ""),
        (parted(1, "`id`", [], RANGES), ["p0", "p9"], ""),
        (parted(1, "`id`", [], RANGES), [], ""),
        (parted(1, "to_days(`d`)", [], RANGES), ["p1"], ""),
        (parted(1, "`d`", [], RANGES), ["p1"], ""),
        (parted(1, "", ["s"], [("p0", ["'m'"], None)]), ["p0"], ""),
        (parted(1, "", ["id", "d"], [("p0", ["1", "'2026-01-01'"], None)]), ["p0"], ""),
        (parted(1, "", ["d"], [("p0", ["_UTF8MB4'2026-01-01'"], None), *DAYS[1:]]), ["p1"], ""),
        (parted(2, "`id`", [], [("p0", None, None)]), ["p0"], ""),
    ],
)
def test_the_rows_of_a_partition(info: TableInfo, names: list[str], wanted: str) -> None:
    assert rows_of(info, names) == wanted
