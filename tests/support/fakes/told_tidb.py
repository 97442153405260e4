"""Stands for TiDB's SQL port: answers what it is told to, and keeps what it was asked."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from pyspark_tidb_binlog.conf.model import TargetConfig
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import SnapshotSource
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.password import ShippedTarget
from pyspark_tidb_binlog.sinks.mysql.row_packets import Columns


class Told:
    """A session that answers what it is told to, and keeps what it was asked."""

    def __init__(self, answers: Mapping[str, Any], flavour: Flavour) -> None:
        self.flavour = flavour
        self.version = f"8.0-{flavour}"
        self.asked: list[str] = []
        self._answers = answers

    def __enter__(self) -> "Told":
        return self

    def __exit__(self, *_: object) -> None:
        self.asked.append("closed")

    def execute(self, sql: str) -> int:
        self.asked.append(sql)
        self._answer(sql)
        return 0

    def query(self, sql: str, args: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        self.asked.append(sql)
        return list(self._answer(sql))

    def begin(self) -> None:
        self.asked.append("BEGIN")

    def opened(self) -> None:
        pass

    def close(self) -> None:
        self.asked.append("closed")

    def rollback(self) -> None:
        self.asked.append("ROLLBACK")

    @contextmanager
    def stream(self, sql: str) -> Iterator[list[Columns]]:
        self.asked.append(sql)
        rows = list(self._answer(sql))
        yield [[pa.array(column, pa.binary()) for column in zip(*rows, strict=True)]] if rows else []

    def _answer(self, sql: str) -> Any:
        found = next((answer for part, answer in self._answers.items() if part in sql), [])
        if isinstance(found, Exception):
            raise found
        return found


class ToldTidb(SnapshotSource):
    """A TiDB that is nothing but its answers, by a part of the statement."""

    def __init__(self, answers: Mapping[str, Any] | None = None, flavour: Flavour = Flavour.TIDB) -> None:
        super().__init__(ShippedTarget(TargetConfig(host="tidb", port=4000), b"", None))  # type: ignore[arg-type]
        self.told = Told(answers or {}, flavour)

    def _connect(self) -> Any:
        return self.told
