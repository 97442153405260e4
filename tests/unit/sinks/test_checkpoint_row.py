"""The checkpoint's JSON, as the real Drainer writes and reads it."""

import pytest

from pyspark_tidb_binlog.sinks.mysql.checkpoint_row import Checkpoint, SyncPoint


def test_json_is_the_drainers_own() -> None:
    text = '{"consistent":false,"commitTS":470604628714323969,"ts-map":{},"schema-version":48}'
    assert Checkpoint(470604628714323969, False, 48).to_json() == text
    assert Checkpoint.from_json(text) == Checkpoint(470604628714323969, False, 48)


def test_json_of_a_drainer_with_a_secondary() -> None:
    text = '{"consistent":true,"commitTS":7,"ts-map":{"primary-ts":1,"secondary-ts":2},"schema-version":3}'
    assert Checkpoint.from_json(text) == Checkpoint(7, True, 3, SyncPoint(1, 2))
    assert Checkpoint(7, True, 3, SyncPoint(1, 2)).to_json() == text


@pytest.mark.parametrize("text", ["{}", '{"commitTS":0}'])
def test_missing_keys_are_zero(text: str) -> None:
    assert Checkpoint.from_json(text) == Checkpoint(0, False, 0)
