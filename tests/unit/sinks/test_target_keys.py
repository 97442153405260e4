"""Unique keys of the target beside those of the upstream."""

import pytest

from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.sinks.mysql.structure import TargetColumn, TargetKey, TargetTable
from pyspark_tidb_binlog.sinks.mysql.target_fit import needed_key, own_keys
from tests.support.plan_samples import INT_PK, NOT_NULL, column, index, table, text

ID = column("id", flag=INT_PK)
CLUSTERED = table([ID, column("u"), text("v")], [index("u", ("u", -1))], handle="int")
PREFIX = table([text("a", NOT_NULL), column("b")], [index("PRIMARY", ("a", 10), primary=True)])
NULLABLE = table([column("a"), column("b")], [index("a", ("a", -1)), index("b", ("b", -1))])
PARTITIONED = table([column("id", flag=NOT_NULL), column("a", flag=NOT_NULL)], [index("PRIMARY", ("id", -1), ("a", -1), primary=True)])
CERTAIN = table([column("a"), column("b", flag=NOT_NULL)], [index("a", ("a", -1)), index("b", ("b", -1))])


def there(*keys: tuple[tuple[str, int], ...], engine: str = "InnoDB") -> TargetTable:
    columns = [TargetColumn(n, "int", n == "free", None, False, n == "counts") for n in ("id", "u", "v", "a", "b", "free", "counts", "own")]
    return TargetTable("d", "t", tuple(columns), tuple(TargetKey(f"k{i}", k) for i, k in enumerate(keys)), engine)


def whole(*names: str) -> tuple[tuple[str, int], ...]:
    return tuple((name, -1) for name in names)


@pytest.mark.parametrize(
    ("at", "found", "added"),
    [
        (CLUSTERED, there(whole("ID")), ""),
        (CLUSTERED, there(whole("u")), "PRIMARY KEY (`id`)"),
        (CLUSTERED, there(whole("id", "own")), ""),  # as a partitioned target needs it
        (PARTITIONED, there(whole("id")), ""),
        (CLUSTERED, TargetTable("d", "t", (), (TargetKey("PRIMARY", whole("own")),), "InnoDB"), "UNIQUE KEY (`id`)"),
        (CLUSTERED, there(engine=""), ""),  # a view
        (PREFIX, there(), "PRIMARY KEY (`a`(10))"),
        (PREFIX, there(whole("a")), ""),
        (NULLABLE, there(whole("a")), "UNIQUE KEY (`b`)"),
        (NULLABLE, there(whole("a"), whole("b")), ""),
        (CERTAIN, there(whole("b")), ""),
        (CERTAIN, there(whole("a")), "UNIQUE KEY (`b`)"),
        (table([column("a")]), there(), ""),
    ],
)
def test_the_key_that_is_needed(at: TableAt, found: TargetTable, added: str) -> None:
    assert needed_key(at.info, found, "T") == (f"ALTER TABLE T ADD {added}" if added else "")


@pytest.mark.parametrize(
    ("at", "key", "own"),
    [
        (CLUSTERED, whole("id"), False),
        (CLUSTERED, whole("v", "U"), False),
        (CLUSTERED, whole("v"), True),
        (CLUSTERED, (("id", 3),), True),
        (PREFIX, whole("a"), False),
        (PREFIX, (("a", 12),), False),
        (PREFIX, (("a", 5),), True),
        (CLUSTERED, whole("id", "own"), True),  # a row whose own changes would be there twice
        (PARTITIONED, whole("id"), True),
        (CLUSTERED, whole("counts"), False),
        (CLUSTERED, whole("free"), False),
        (CLUSTERED, whole("own"), True),
        (CLUSTERED, whole(""), True),
    ],
)
def test_a_key_of_the_targets_own(at: TableAt, key: tuple[tuple[str, int], ...], own: bool) -> None:
    assert [k.name for k in own_keys(at.info, there(key))] == (["k0"] if own else [])
