"""Which version of a mirror holds at a moment, how far tables are known, and what is said of a table that cannot be read."""

from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.sinks.lake.moments import Moment, Published, TablePlace, readable

T = tso(1_763_640_000_000)


def place(number: int, after: int, table: str = "orders", table_id: int = 7, state: str = "mirrored", **more: Any) -> dict[str, Any]:
    own = {"path": f"tables/{table_id}", "version": number, "upto_ts": T + after, "why": None} | more
    return asdict(TablePlace(table_id, "shop", table, schema_version=9, state=state, resolved_ts=T + after, number=number, **own))


ROWS = [
    place(1, 10),
    place(2, 10, "item", 8),
    place(3, 20),
    place(4, 20, "Renamed"),
    place(5, 30, "item", 8, "stale", upto_ts=T + 10, why="KEY partitions"),
    place(6, 35, "item", 8, "stale", upto_ts=T + 10, why="KEY partitions"),
    place(7, 40, "Renamed", state="dropped"),
    place(8, 50, "renamed", 9),
]


def published(followed: int = 50, jobs: tuple[int, ...] = ()) -> Published:
    return Published(pa.Table.from_pylist(ROWS[::-1]), Moment(1, T + followed, jobs, 8))


@pytest.mark.parametrize(
    ("after", "names"),
    [
        (9, []),
        (10, ["shop.item", "shop.orders"]),
        (20, ["shop.Renamed", "shop.item"]),
        (45, ["shop.item"]),
        (60, ["shop.item", "shop.renamed"]),
    ],
)
def test_the_tables_of_a_moment(after: int, names: list[str]) -> None:
    assert [str(table) for table in readable(published().at(T + after))] == names


def test_the_last_row_of_a_moment_holds() -> None:
    assert published().table_at("shop.renamed", T + 20).version == 4
    assert published().table_at("SHOP.renamed", T + 55).version == 8, "another table of that name hides the dropped one"


@pytest.mark.parametrize(
    ("name", "after", "words"),
    [
        ("shop.item", 36, r"shop.item was set aside at 2025-11-20 12:00:00.000 \(\d+30\): KEY partitions; lake.at\(\d+29\)"),
        ("shop.renamed", 45, r'was dropped at .*; lake.at\(\d+\).table\("shop.Renamed"\) is the table just before'),
        ("shop.orders", 25, r"there is no table shop.orders at .*; lake.tables\(\)"),
        ("shop.order", 15, "did you mean shop.orders"),
        ("shop.renamed", 15, "the lake has it from .* on"),
        ("orders", 15, "the table is 'orders': give one as db.table"),
    ],
)
def test_a_table_that_cannot_be_read_says_why(name: str, after: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace(r"\d+30", str(T + 30)).replace(r"\d+29", str(T + 29))):
        published().table_at(name, T + after)


def test_tables_are_known_up_to_a_ddl_that_no_mirror_has_followed() -> None:
    assert published().newest_moment(T + 90, []) == T + 90
    assert published().newest_moment(T + 90, [(T + 70, 5), (T + 80, 6)]) == T + 69
    assert published(50, (4,)).newest_moment(T + 90, [(T + 50, 4)]) == T + 90
    assert published(50, (4,)).newest_moment(T + 90, [(T + 50, 4), (T + 50, 5)]) == T + 49, "an early DDL has the place of a transaction"
    assert published().newest_moment(T + 90, [(T + 40, 3)]) == T + 90


def test_a_version_that_holds_is_complete_up_to_what_mirrors_have_followed() -> None:
    newest = published(80)
    assert newest.complete_ts(newest.table_at("shop.renamed", T + 85), T + 85) == T + 80
    assert newest.complete_ts(newest.table_at("shop.renamed", T + 60), T + 60) == T + 50
