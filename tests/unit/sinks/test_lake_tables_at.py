"""A lake's tables at a moment, read without Spark: while logs are shortened, and when a mirror has gone."""

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError
from pyspark_tidb_binlog.sinks.lake import lake_table, upkeep
from pyspark_tidb_binlog.sinks.lake.lake_sink import LakeSink
from pyspark_tidb_binlog.sinks.lake.tables_at import TablesAt
from tests.support.ddl_jobs import column, job, table
from tests.support.eventually import eventually
from tests.support.lake_scene import KEY, LakeScene, followed_ts

ID = column(1, "id", KEY)
LOG, ITEM = table(10, "log", [ID]), table(11, "item", [ID])


def test_a_log_that_is_shortened_while_it_is_opened_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader has the hint of a checkpoint, sleeps, and the checkpoint is gone."""
    scene = LakeScene.of(LOG)
    scene.row(30, 10, 2, None, {"id": 7})
    scene.run(tmp_path, 35)
    aside = dict[Path, bytes]()
    for log in tmp_path.glob("**/_delta_log"):
        found = DeltaTable(str(log.parent))
        found.create_checkpoint()
        for path in (*log.glob("*.json"), *log.glob("*.checkpoint.parquet")):
            if path.name[:20] < f"{found.version():020}" or path.suffix == ".parquet":
                aside[path] = path.read_bytes()
                path.unlink()

    def opened_late(uri: str, **options: Any) -> DeltaTable:
        try:
            return DeltaTable(uri, **options)
        except DeltaError as error:
            assert "checkpoint" in str(error)
            for path in [path for path in aside if str(path).startswith(uri)]:
                path.write_bytes(aside.pop(path))
            raise

    with monkeypatch.context() as patch:
        patch.setattr(lake_table, "_OPENS", 1)
        with pytest.raises(ApplyError, match="cannot be read: .*checkpoint"):
            TablesAt.newest(tmp_path)
    monkeypatch.setattr(lake_table, "DeltaTable", opened_late)
    assert TablesAt.newest(tmp_path).rows("d.log").read_all().to_pylist() == [{"id": 7}]
    assert not aside


@pytest.mark.parametrize("started_again", [False, True])
def test_a_table_that_is_recovered_after_its_mirror_has_gone_is_loaded_anew(
    started_again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"YOUNG_HOURS": 0, "PASS_SECONDS": 0.0}.items():
        monkeypatch.setattr(upkeep, name, value)
    scene = LakeScene.of(LOG, ITEM)
    scene.row(30, 10, 3, None, {"id": 7})
    scene.ddl(40, job(4, 4, None, table_id=10, query="drop table log"))
    for ts in (35, 45, 46, 47):
        scene.row(ts, 11, 4 if ts > 40 else 3, None, {"id": ts})
    scene.ddl(50, job(5, 25, LOG, query="recover table log"))
    scene.row(52, 11, 5, None, {"id": 52})

    def live() -> LakeSink:
        return scene.sink(tmp_path, retention=0.0)

    sink = live()
    scene.follow(sink, 35, 45, 46, 47)
    eventually(lambda: not list(tmp_path.glob("tables/10-*")), what="the mirror of the dropped table")
    if started_again:
        sink.close()
        sink = live()
    scene.play(sink, 55)
    eventually(lambda: followed_ts(sink) == sink.commit_ts)
    sink.close()
    lake = TablesAt.newest(tmp_path)
    with pytest.raises(ConfigError, match="d.log is not loaded yet"):
        lake.rows("d.log")
    assert [row["table"] for row in lake.versions().to_pylist()] == ["item", None]
