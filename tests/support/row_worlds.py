"""Tables and random histories of them for tests of row operations, and what must come out."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pyspark_tidb_binlog.jobs.lab.emulator.row_encoder import encode_delete, encode_insert, encode_update
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, RowsStep
from tests.support.plan_samples import INT_PK, NOT_NULL, VERSION, column, index, named, table, text

Row = tuple[Any, ...]


@dataclass
class RowWorld:
    """One upstream table: its rows by TiDB's row id, and which columns are unique."""

    at: TableAt
    create: str
    unique: tuple[tuple[int, ...], ...]
    """Column numbers of each unique key."""
    values: tuple[Sequence[Any], ...]
    """What each column may hold; those of the last one are counted up."""
    rows: dict[int, Row] = field(default_factory=dict)
    born: int = 0

    def fold(self, row: Row, key: tuple[int, ...]) -> tuple[Any, ...] | None:
        """A key's value as a collation without case compares it; None with a NULL."""
        cells = tuple(row[i] for i in key)
        return None if None in cells else tuple(c.casefold().rstrip(" ") if isinstance(c, str) else c for c in cells)

    def taken(self, row: Row, rowid: int | None) -> bool:
        others = [r for i, r in self.rows.items() if i != rowid]
        return any((mine := self.fold(row, key)) is not None and any(self.fold(r, key) == mine for r in others) for key in self.unique)

    def draw(self, rng: random.Random) -> Row:
        self.born += 1
        return (*(rng.choice(list(v)) for v in self.values), self.born)

    def change(self, rng: random.Random) -> tuple[Op, int, Row | None, Row | None] | None:
        """A random change that is valid now; None if there was none in a few tries."""
        for _ in range(10):
            op = rng.choice([Op.INSERT, Op.UPDATE, Op.UPDATE, Op.DELETE])
            row = self.draw(rng)
            if op is Op.INSERT and not self.taken(row, None):
                rowid = self.rowid(row, rng)
                self.rows[rowid] = row
                return op, rowid, None, row
            if op is not Op.INSERT and self.rows:
                rowid = rng.choice(list(self.rows))
                old = self.rows[rowid]
                if op is Op.DELETE:
                    del self.rows[rowid]
                    return op, rowid, old, None
                if self.at.info.pk_is_handle or self.at.info.is_common_handle:
                    row = (old[0], *row[1:])  # an update never changes a clustered key: it is a delete and an insert
                elif rng.random() < 0.5:
                    row = (*old[:-1], row[-1])
                if not self.taken(row, rowid):
                    self.rows[rowid] = row
                    return op, rowid, old, row
        return None

    def rowid(self, row: Row, rng: random.Random) -> int:
        return int(row[0]) if self.at.info.pk_is_handle else 10_000 + self.born

    def event(self, change: tuple[Op, int, Row | None, Row | None]) -> bytes:
        op, rowid, old, new = change
        info = self.at.info
        if op is Op.INSERT and new is not None:
            return encode_insert(info, named(self.at, new), rowid)
        if op is Op.DELETE and old is not None:
            return encode_delete(info, named(self.at, old), rowid)
        assert old is not None and new is not None
        return encode_update(info, named(self.at, old), named(self.at, new), rowid)


def clustered(name: str, table_id: int, ids: int = 12) -> RowWorld:
    at = _named(table([column("id", flag=INT_PK), text("u"), column("n")], [index("u", ("u", -1))], handle="int", name=name), table_id)
    words = [None, "a", "A", "b", "B ", "c", "d", "漢"]
    return RowWorld(
        at, f"CREATE TABLE {name} (id bigint PRIMARY KEY, u varchar(10), n bigint, UNIQUE (u))", ((0,), (1,)), (range(ids), words)
    )


def two_keys(name: str, table_id: int) -> RowWorld:
    at = _named(
        table([column("u", flag=NOT_NULL), column("v"), column("n")], [index("u", ("u", -1)), index("v", ("v", -1))], name=name), table_id
    )
    create = f"CREATE TABLE {name} (u bigint NOT NULL, v bigint, n bigint, UNIQUE (u), UNIQUE (v))"
    return RowWorld(at, create, ((0,), (1,)), (range(8), [None, *range(8)]))


def keyless(name: str, table_id: int) -> RowWorld:
    at = _named(table([column("a"), text("b"), column("n")], name=name), table_id)
    return RowWorld(at, f"CREATE TABLE {name} (a bigint, b varchar(10), n bigint)", (), ([1, 2, None], ["a", "A", None]))


def half_keyed(name: str, table_id: int) -> RowWorld:
    at = _named(table([column("u"), text("b"), column("n")], [index("u", ("u", -1))], name=name), table_id)
    return RowWorld(
        at, f"CREATE TABLE {name} (u bigint, b varchar(10), n bigint, UNIQUE (u))", ((0,),), ([None, None, 1, 2, 3], ["a", "A", None])
    )


def _named(at: TableAt, table_id: int) -> TableAt:
    from dataclasses import replace

    return replace(at, table_id=table_id)


@dataclass
class RowHistory:
    """Random transactions over several tables."""

    worlds: tuple[RowWorld, ...]
    rng: random.Random
    ts: int = 1000

    def batch(self, transactions: int, most: int = 6) -> pa.Table:
        """The events of the next transactions."""
        found = []
        for _ in range(transactions):
            self.ts += self.rng.randint(1, 5)
            seq = 0
            for _ in range(self.rng.randint(1, most)):
                world = self.rng.choice(self.worlds)
                change = world.change(self.rng)
                if change is not None:
                    row = world.event(change)
                    common = {"commit_ts": self.ts, "seq": seq, "op": int(change[0]), "table_id": world.at.table_id}
                    found.append({**common, "schema_version": VERSION, "row": row})
                    seq += 1
        return pa.Table.from_pylist(found, schema=ROW_EVENT)

    def step(self, after_ts: int, rows: pa.Table, upto_ts: int | None = None) -> RowsStep:
        tables = {w.at.table_id: w.at for w in self.worlds}
        return RowsStep(after_ts, upto_ts or self.ts, rows.num_rows, tables, applied=AppliedJobs(int(VERSION)))

    def expected(self) -> dict[str, list[str]]:
        """The rows of each table now, as text, sorted."""
        return {w.at.name: sorted(map(repr, w.rows.values())) for w in self.worlds}
