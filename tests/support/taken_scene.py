"""A lake whose DDLs take rows without row changes: EXCHANGE and DROP PARTITION, and TRUNCATE twice."""

from pathlib import Path
from typing import Any

from tests.support.ddl_jobs import column, job, partitions, table
from tests.support.lake_scene import KEY, LakeScene

ID, PRICE = column(1, "id", KEY), column(3, "price")


def taken_rows(lake: Path) -> None:
    """Rows go with a partition that a table has exchanged with another one before, and with two TRUNCATEs."""

    def parent(*parts: tuple[int, str]) -> dict[str, Any]:
        return table(20, "parent", [ID, PRICE], partition=partitions(*parts))

    def price(key: int, price: int) -> dict[str, int]:
        return {"id": key, "price": price}

    scene = LakeScene.of(table(10, "plain", [ID, PRICE]), parent((21, "p0"), (22, "p1")), table(30, "log", [ID]))
    for key in (1, 2, 150):
        scene.row(30, 20, 3, None, price(key, 10))
    for key in (5, 6, 7):
        scene.row(30, 10, 2, None, price(key, 10))
    for key in (7, 8):
        scene.row(30, 30, 4, None, {"id": key})
    scene.row(40, 20, 3, price(1, 10), price(1, 11))
    scene.row(40, 20, 3, price(150, 10), price(150, 11))
    scene.row(40, 20, 3, None, price(3, 10))
    scene.row(41, 10, 3, price(5, 10), price(5, 11))
    scene.row(41, 10, 3, price(7, 10), None)
    scene.row(42, 30, 4, None, {"id": 9})
    scene.ddl(
        50, job(5, 42, parent((10, "p0"), (22, "p1")), table_id=10, query="alter table parent exchange partition p0 with table plain")
    )
    scene.row(60, 20, 5, price(6, 10), price(6, 12))
    scene.row(60, 21, 5, price(1, 11), None)
    scene.row(60, 21, 5, None, price(5, 13))
    scene.ddl(62, job(6, 11, table(31, "log", [ID]), table_id=30, query="truncate table log"))
    scene.row(64, 31, 6, None, {"id": 7})
    scene.ddl(70, job(7, 20, parent((22, "p1")), query="alter table parent drop partition p0"))
    scene.ddl(72, job(8, 11, table(32, "log", [ID]), table_id=31, query="truncate table log"))
    scene.row(80, 32, 8, None, {"id": 8})
    scene.row(81, 20, 7, None, price(151, 13))
    scene.moments(lake, 10, 22, 30, 42, 50, 64, 70, 81, 95)
