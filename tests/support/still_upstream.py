"""Tables of a MariaDB that nobody writes to, copied as those of a TiDB at one snapshot: for what depends on the tables and not on the time."""

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.emulator.schema import Column, Table, table_json
from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, TargetConfig
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.events import SchemaVersion
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.tableinfo import TableInfo
from pyspark_tidb_binlog.sinks.bootstrap.bootstrap import Bootstrap, Copied
from pyspark_tidb_binlog.sinks.bootstrap.copy_record import CopyHead, CopyKind, CopyState
from pyspark_tidb_binlog.sinks.bootstrap.key_ranges import Handle, Key
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import ROWID, SnapshotSource
from pyspark_tidb_binlog.sinks.mysql.lease import LeaseHolder
from pyspark_tidb_binlog.sinks.mysql.lease_guard import LeaseGuard
from pyspark_tidb_binlog.sinks.mysql.password import ShippedTarget
from pyspark_tidb_binlog.sinks.mysql.retry_policy import FEW
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect

TS = 449000000000000001


class StillServer(SnapshotSource):
    """Reads a server that nobody writes to. A boundary is every ``range_rows``-th key."""

    range_rows = 3

    def _stand_at(self, session: Session, ts: int) -> None:
        session.execute("SET SESSION autocommit = 1")

    def table_ids(self, session: Session) -> dict[tuple[str, str], int]:
        """Not told."""
        return {}

    def columns(self, session: Session, table: TableAt) -> tuple[tuple[str, str], ...] | None:
        """TiDB's has no such column to show."""
        found = super().columns(session, table)
        return found and tuple(column for column in found if column[0] != ROWID)

    def create_text(self, session: Session, table: TableAt) -> str:
        """Without what stands for ``_tidb_rowid``."""
        shown = super().create_text(session, table)
        return re.sub(r"`_tidb_rowid` [^,]*,|,\s*KEY `_tidb_rowid` \(`_tidb_rowid`\)", "", shown).replace(",\n  \n)", "\n)")

    def _boundaries(self, session: Session, table: TableAt, handle: Handle, partition: str) -> list[Key]:
        source = f"{quote_name(table.schema)}.{quote_name(table.name)}" + (f" PARTITION ({quote_name(partition)})" if partition else "")
        asked, order = ", ".join(handle.expressions), ", ".join(handle.names)
        return self._keys(session, f"SELECT {asked} FROM {source} ORDER BY {order}", handle)[:: self.range_rows]


@dataclass(frozen=True)
class StillTable:
    """A table of the upstream."""

    described: Table
    schema: str = "still"
    also: str = ""
    """What SQL has beside the described columns."""
    options: str = ""
    partitions: tuple[str, ...] = ()
    generated: Mapping[str, str] = ()  # type: ignore[assignment]
    """By the column's name, its expression."""

    def sql(self) -> str:
        """What makes it on MariaDB; ``_tidb_rowid`` is invisible, where it is the handle."""
        made = dict(self.generated)
        parts = [
            f"{column.text()} AS ({made[column.name]}) VIRTUAL" if column.name in made else column.text()
            for column in self.described.columns
        ]
        if self.described.primary_key:
            parts.append(f"PRIMARY KEY ({', '.join(map(quote_name, self.described.primary_key))})")
        if not self.described.primary_key or not self.described.clustered:
            parts.append("_tidb_rowid BIGINT NOT NULL INVISIBLE AUTO_INCREMENT, KEY (_tidb_rowid)")
        parts += [self.also] if self.also else []
        return f"CREATE TABLE {quote_name(self.schema)}.{quote_name(self.described.name)} ({', '.join(parts)}) {self.options}"

    def at(self, number: int) -> TableAt:
        """As the history describes it."""
        info = table_json(self.described, number)
        made = dict(self.generated)
        for column in info["cols"]:
            if column["name"]["O"] in made:
                column["generated_expr_string"] = made[column["name"]["O"]]
        if self.partitions:
            definitions = [{"id": number * 100 + i, "name": {"O": name, "L": name.lower()}} for i, name in enumerate(self.partitions)]
            expr = quote_name(self.described.primary_key[0])
            info["partition"] = {"type": 2, "enable": True, "expr": expr, "definitions": definitions, "num": len(definitions)}
        return TableAt(number, self.schema, self.described.name, TableInfo.from_json(info), SchemaVersion(1), (), False)


def other_at(number: int, schema: str, name: str, kind: str) -> TableAt:
    """A ``view`` or ``sequence`` as the history describes it."""
    info = table_json(Table(name, (Column("id", "bigint"),)), number) | {kind: {}}
    return TableAt(number, schema, name, TableInfo.from_json(info), SchemaVersion(1), (), False)


@contextmanager
def copying(spark: SparkSession, config: DrainerConfig, upstream: SnapshotSource, *, removes: bool = False) -> Iterator[Bootstrap]:
    """A copy under a lease of its own; ``config`` has a cluster id. ``removes``: what an earlier one has copied."""
    apply, cluster_id = config.apply, config.source.cluster_id
    guard = LeaseGuard(
        lambda: connect(config.target, apply), cluster_id, apply.checkpoint_schema, LeaseHolder("still"), apply.lease_timeout, FEW
    )
    try:
        yield Bootstrap(spark, config, guard.take(), upstream, SchemaHistory(), 1, threading.Event(), removes=removes)
    finally:
        guard.close()


def copied(
    spark: SparkSession,
    config: DrainerConfig,
    source: TargetConfig,
    tables: Sequence[TableAt],
    others: Sequence[TableAt] = (),
    *,
    again: bool = False,
) -> Copied:
    """A first load of ``tables`` and ``others``; ``again``: in the place of an earlier one."""
    reader = StillServer(ShippedTarget.of(source, spark.sparkContext.broadcast))
    with copying(spark, config, reader, removes=again) as copy:
        return copy.run(CopyHead(CopyKind.FIRST, TS, CopyState.PLANNED), tables, others)


def texts(server: TargetConfig, sql: str) -> list[tuple[Any, ...]]:
    """The rows that a query gives, as the server's bytes, sorted."""
    with connect(server, ApplyConfig()) as session, session.stream(sql) as blocks:
        found = [row for block in blocks for row in zip(*(column.to_pylist() for column in block), strict=True)]
    return sorted(found, key=repr)
