"""The ledger as a stream, which is stopped and started over what upkeep does meanwhile."""

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pyspark_tidb_binlog.lake import Lake
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.sinks.lake import lake_table, upkeep
from pyspark_tidb_binlog.sinks.lake.ledger import LakeState, Ledger
from tests.support.ddl_jobs import column, database, job, table
from tests.support.eventually import eventually
from tests.support.lake_scene import KEY, LakeScene

pytestmark = [pytest.mark.spark]
DAY = tso(86_400_000)
TIMES = [(1000 - days) * DAY for days in (40, 39, 38, 37, 36, 35, 34, 33, 9, 8, 1)]
"""Of changes. The first eight are older than the thirty days that are kept."""
LATER = [TIMES[-1] + number for number in (5, 6, 7)]


def arrived(changes: DataFrame, target: Path, checkpoint: str = "checkpoint") -> list[int]:
    """What the target has after a run of the stream."""
    there = (
        changes.select("commit_ts").where("op <> 'ddl'").writeStream.format("delta").option("checkpointLocation", f"{target}-{checkpoint}")
    )
    there.trigger(availableNow=True).start(str(target)).awaitTermination()
    return sorted(row["commit_ts"] for row in changes.sparkSession.read.format("delta").load(str(target)).collect())


def test_a_stopped_stream_goes_on_over_compaction_and_removal_of_old_days(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"MOST_OPEN": 4, "LOOK_EVERY": 1}.items():
        monkeypatch.setattr(upkeep, name, value)
    place, target = tmp_path / "lake", tmp_path / "target"
    scene = LakeScene(TIMES[0] - 10)
    scene.ddl(TIMES[0] - 2, database(1))
    scene.ddl(TIMES[0] - 1, job(2, 3, table(10, "item", [column(1, "id", KEY)])))
    for key, ts in enumerate([*TIMES, *LATER]):
        scene.row(ts, 10, 2, None, {"id": key})
    sink = scene.sink(place, days=30)
    scene.follow(sink, *TIMES[:3])
    lake = Lake(spark, place)
    assert arrived(lake.stream(), target) == TIMES[:3]
    scene.follow(sink, *TIMES[3:8])
    eventually(lambda: list(place.glob("changes/parts/*")), what="a compaction")
    assert arrived(lake.stream(TIMES[2]), target) == TIMES[:8]
    scene.follow(sink, *TIMES[8:])

    def shortened() -> bool:
        sink._upkeep._wake.set()
        return (Ledger(str(place)).load() or LakeState("", 1)).begin_ts == TIMES[-1] - 30 * DAY

    eventually(shortened)
    sink.close()
    lake.refresh()
    for after in (0, TIMES[7] - 100 * DAY):
        with pytest.raises(ConfigError, match=rf"keeps row changes after .* \({lake.begin_ts}\) only, so some since {after} are missing"):
            lake.stream(after)
    # The Delta source goes on from its checkpoint, whatever has been removed since.
    assert arrived(spark.readStream.format("delta").load(f"{place}/changes"), target) == TIMES
    assert arrived(lake.stream(lake.begin_ts), tmp_path / "fresh") == TIMES[8:]
    # Without the versions of the log that it has not read, a checkpoint is of no use any more.
    scene.run(place, *LATER)
    monkeypatch.setattr(lake_table, "LOG_SECONDS", 0.0)
    monkeypatch.setattr(lake_table, "LOG_VERSIONS", 1)
    (ledger := Ledger(str(place))).load()
    ledger.shorten_log()
    with pytest.raises(StreamingQueryException):
        arrived(lake.stream(TIMES[-1]), target)
    assert arrived(lake.stream(TIMES[-1]), target, "another") == [*TIMES, *LATER]
