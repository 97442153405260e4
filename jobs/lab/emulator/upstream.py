"""The embedded upstream: a small transactional table store that writes TiDB's binlogs to its Pumps, over real gRPC.

    upstream = Upstream(PumpClient.fixed(["127.0.0.1:8250", "127.0.0.1:8251"], cluster_id=7))
    upstream.ddl.create_database("shop")
    upstream.ddl.create_table("shop", Table("item", (Column("id", "bigint"), Column("name", "varchar(20)")), ("id",)))
    txn = upstream.begin(); txn.insert("shop.item", {"id": 1, "name": "a"}); txn.commit()

Promises: deterministic except for timestamps; safe for many threads (one thread per transaction). A change locks its row: a second transaction that
changes the row gets ``WriteConflict`` at once. Unique keys other than the handle are not checked.
"""

from pathlib import Path
from types import TracebackType
from typing import Any

from pyspark_tidb_binlog.binlog_source.pump_client.client import PumpClient
from pyspark_tidb_binlog.jobs.lab.emulator import schema
from pyspark_tidb_binlog.jobs.lab.emulator.ddl import DdlRunner
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Json
from pyspark_tidb_binlog.jobs.lab.emulator.tablestore import Handle
from pyspark_tidb_binlog.jobs.lab.emulator.txn import Txn
from pyspark_tidb_binlog.jobs.lab.emulator.upstream_state import UpstreamState
from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import ClusterService
from pyspark_tidb_binlog.jobs.lab.registry.oracle import Oracle

_IN_MEMORY = (1 << 62) | 10_000
"""The id of TiDB's INFORMATION_SCHEMA."""


class Upstream(UpstreamState):
    """One cluster with binlog enabled."""

    def __init__(self, client: PumpClient, *, oracle: Oracle | None = None) -> None:
        """Takes ownership of ``client``: ``close`` closes it."""
        super().__init__(client, oracle)
        self.ddl = DdlRunner(self)

    @property
    def schema_version(self) -> int:
        """The newest schema version."""
        return self.store.version

    def begin(self, schema_version: int | None = None) -> Txn:
        """Begin a transaction of a session at ``schema_version`` (default: the newest)."""
        return Txn(self, self.oracle.next(), schema_version or self.store.version)

    def rows(self, table: str) -> dict[Handle, dict[str, Any]]:
        """The current content of ``db.table``: handle -> column name -> value, public columns only."""
        with self.lock:
            live = self.store.table(table)
            columns = live.at(self.store.version).public_columns()
            complete = ((handle, live.completed(row)) for handle, row in live.rows.items())
            return {handle: {c.name: row[c.id] for c in columns} for handle, row in complete}

    def tables(self) -> tuple[str, ...]:
        """Every table, as ``db.table``."""
        with self.lock:
            return tuple(sorted(f"{table.db}.{table.name}" for table in self.store.tables.values()))

    def jobs(self) -> list[dict[str, Any]]:
        """The jobs that ``/ddl/history`` shows now."""
        with self.lock:
            return self.history.visible()

    def schema(self, database: str | None) -> list[Json] | None:
        """What ``/schema`` shows (every database, those in memory too), or ``/schema/{database}`` (its tables, None if there is no such)."""
        with self.lock:
            ids = self.store.databases
            if database is None:
                return [schema.database_json(name, i) for name, i in (*ids.items(), ("INFORMATION_SCHEMA", _IN_MEMORY))]
            if database.lower() == "information_schema":
                return []
            infos = [table.info for table in self.store.tables.values() if table.db == database]
            return infos if database in ids else None

    def table(self, table_id: int) -> Json | None:
        """What ``/db-table/{table_id}`` shows; None if there is no such table."""
        with self.lock:
            live = next((table for table in self.store.tables.values() if table.id == table_id), None)
            if live is None:
                return None
            database = schema.database_json(live.db, self.store.databases[live.db])
            return {"db_info": database, "table_info": live.info, "schema_version": self.store.version}

    def serve(self, addr: str = "127.0.0.1:0", data_dir: Path | None = None) -> ClusterService:
        """Registry, oracle, history and MVCC look-ups of this cluster over HTTP, started."""
        service = ClusterService(
            self.oracle,
            self.cluster_id,
            addr=addr,
            data_dir=data_dir,
            history=self.jobs,
            mvcc=self.mvcc.look_up,
            schema=self.schema,
            table=self.table,
            gc_safe_point=lambda: self.mvcc.safe_point,
        )
        service.tell_server()
        return service.start()

    def flush(self, timeout: float = 30.0) -> None:
        """Wait until every Commit and Rollback is written; ``timeout`` in seconds."""
        self.pumps.flush(timeout)

    def close(self) -> None:
        """Stop writing; outcomes that are not written yet are lost."""
        self.pumps.close()

    def __enter__(self) -> "Upstream":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
