"""A span in parts whose target is changed by hand while the executors write it: planned anew in the same life, and every row is there once."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.mysql.tables_there import TablesThere
from tests.support.emulated_stream import EmulatedStream

pytestmark = [pytest.mark.spark, pytest.mark.mysql]

TABLE = Table("t", (Column("id", "bigint"), Column("v", "int"), Column("w", "int")), ("id",))
MARKS = "changed_marks"


@pytest.mark.parametrize("sync_mode", [1, 2])
def test_a_column_that_goes_while_the_parts_are_written(
    spark: SparkSession, mariadb: PrivateMariaDB, monkeypatch: pytest.MonkeyPatch, sync_mode: int
) -> None:
    """Where a column may be missing, the rows go on without it; where not, the error says what to do, and a start goes on once that is done."""
    apply = ApplyConfig(checkpoint_schema=MARKS, on_finding="stop", atomic_rows=1, parts=2, sync_mode=sync_mode)
    config = DrainerConfig(target=mariadb.target(), apply=apply)
    read, asked = TablesThere.fit, list[Any]()
    with mariadb.connect() as connection, connection.cursor() as cursor, EmulatedStream(spark, config) as stream:
        for name in ("d", MARKS):
            cursor.execute(f"DROP DATABASE IF EXISTS {name}")
        stream.create("d", TABLE)
        stream.change(lambda txn: [txn.insert("d.t", {"id": i, "v": i, "w": i}) for i in range(40)])
        stream.apply()

        def fit(self: TablesThere, *given: Any, **more: Any) -> Any:
            if asked:
                return read(self, *given, **more)
            asked.append(given)
            found = read(self, *given, **more)
            cursor.execute("ALTER TABLE d.t DROP COLUMN w")
            return found

        stream.change(lambda txn: [txn.insert("d.t", {"id": 100 + i, "v": i, "w": i}) for i in range(3000)])
        with monkeypatch.context() as patch:
            patch.setattr(TablesThere, "fit", fit)
            if sync_mode == 2:
                stream.apply()
            else:
                with pytest.raises(
                    ApplyError,
                    match="`d`.`t`, commit_ts .* it has no column w, .*Add it there as it is upstream, or set syncer.to.sync-mode = 2",
                ):
                    stream.apply()
        if sync_mode == 1:
            stream.restart()
            cursor.execute("ALTER TABLE d.t ADD COLUMN w INT")
            stream.apply()
        cursor.execute("SELECT id, v FROM d.t ORDER BY id")
        assert list(cursor.fetchall()) == [(i, i) for i in range(40)] + [(100 + i, i) for i in range(3000)]
        cursor.execute(f"SELECT COUNT(*) FROM {MARKS}.spark_state WHERE name <> 'ours'")
        assert cursor.fetchall() == ((0,),)
        for name in ("d", MARKS):
            cursor.execute(f"DROP DATABASE {name}")
