"""Where a stream goes on, for every combination of what the target, Spark and Delta know."""

import json

import pytest

from pyspark_tidb_binlog.binlog_source.source.offset import BinlogOffset, PumpMark
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import Position
from pyspark_tidb_binlog.conf.model import DrainerConfig, SourceConfig, TargetConfig
from pyspark_tidb_binlog.jobs.stream.resume import NothingApplied, ResumeState, check_no_gap, check_spark, committed_ts, first_ts
from pyspark_tidb_binlog.jobs.stream.targets import words_for
from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError
from pyspark_tidb_binlog.schemas.events import Delivery

TARGET = words_for(DrainerConfig(source=SourceConfig(cluster_id=7), target=TargetConfig(host="db", port=3306)))
PLACES = ResumeState(TARGET, 7, "var/spark", "var/delta", -1)
FROM_SETTINGS = ResumeState(TARGET, 7, "var/spark", "var/delta", 0)


@pytest.mark.parametrize("kept_for", [None, "this"])
def test_the_row_counts_with_no_checkpoint_or_this_targets(kept_for: str | None) -> None:
    assert check_spark(PLACES, kept_for, "this", 100) is None


def test_another_targets_checkpoint_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"belongs to another target than db:3306.*delete the directory var/spark.*own row, 100 "):
        check_spark(PLACES, "other", "this", 100)


@pytest.mark.parametrize("kept_for", ["this", "other"])
def test_a_checkpoint_without_the_targets_row_is_for_a_person_to_decide(kept_for: str) -> None:
    """Also of the very target: Spark's place is not what the target holds."""
    wanted = r"no checkpoint of cluster 7.*\(1\).*delete var/spark and set initial-commit-ts.*\(2\).*INSERT INTO tidb_binlog.checkpoint VALUES \(7, "
    with pytest.raises(ConfigError, match=wanted):
        check_spark(FROM_SETTINGS, kept_for, "this", None)


def test_nothing_is_known() -> None:
    check_spark(PLACES, None, "this", None)
    assert first_ts(PLACES, None, None) == -1
    assert first_ts(FROM_SETTINGS, None, None) == 0


def test_deltas_rows_of_this_target_count() -> None:
    assert first_ts(PLACES, 50, 90) == 50


def test_deltas_rows_of_others_never_count() -> None:
    assert first_ts(FROM_SETTINGS, None, 90) == 0
    with pytest.raises(ConfigError, match=r"var/delta, up to 90 .* of another target.*\(1\).*set initial-commit-ts.*\(2\)") as caught:
        first_ts(PLACES, None, 90)
    assert "delete var/spark" not in str(caught.value)


OFFSET = BinlogOffset(Delivery.SORTED, 50, 10, {"a": PumpMark(Position(0, 50))})


@pytest.mark.parametrize(
    ("commits", "last_line", "expected"),
    [
        (["0", "9", "10", ".10.crc"], json.dumps(OFFSET.to_json()), 50),
        ([], json.dumps(OFFSET.to_json()), 0),
        (["3"], "-", 0),
        (["3"], json.dumps(OFFSET.to_json() | {"version": 99}), 0),
    ],
)
def test_spark_tells_how_far_it_holds_batches_for_done(commits: list[str], last_line: str, expected: int) -> None:
    asked = []

    def offset_of(name: str) -> str:
        asked.append(name)
        return f"v1\n{{}}\n{last_line}"

    assert committed_ts(commits, offset_of) == expected
    assert asked == ([max((name for name in commits if name.isdigit()), key=int)] if commits else [])


def test_a_target_that_lacks_what_spark_holds_for_done_is_refused_at_once() -> None:
    check_no_gap(PLACES, 50, 50)
    check_no_gap(PLACES, 0, 50)
    with pytest.raises(ApplyError, match="would be lost.* delete Spark's checkpoint directory var/spark"):
        check_no_gap(PLACES, 51, 50)


def test_what_is_noted_holds_for_one_record_of_one_target() -> None:
    noted = NothingApplied("t", 50, 60)
    assert NothingApplied.from_json(noted.to_json()) == noted
    assert noted.covers("t", 50, 60)
    assert noted.covers("t", 50, 51)
    assert not noted.covers("t", 50, 61), "more than was noted"
    assert not noted.covers("t", 49, 60), "restored, or set back"
    assert not noted.covers("t", 51, 60), "saved since"
    assert not noted.covers("u", 50, 60), "another target"
    assert not noted.covers("t", 50, 50), "nothing to explain"


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}", '{"version": 2, "target": "t", "recorded_ts": 1, "upto_ts": 2}', "7"])
def test_a_note_that_is_not_whole_is_none(text: str | None) -> None:
    assert NothingApplied.from_json(text) is None
