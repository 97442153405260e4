"""Where a stream goes on, for every combination of what the target, Spark and Delta know."""

import pytest

from jobs.resume import DeltaPlace, Places, check_spark, first_ts
from schemas.errors import ConfigError

PLACES = Places("db:3306", 7, "tidb_binlog", "var/spark", "var/delta", -1)
FROM_SETTINGS = Places("db:3306", 7, "tidb_binlog", "var/spark", "var/delta", 0)


@pytest.mark.parametrize("kept_for", [None, "", "this"])
def test_the_row_counts_with_no_checkpoint_or_this_targets(kept_for: str | None) -> None:
    assert check_spark(PLACES, kept_for, "this", 100) is None


def test_another_targets_checkpoint_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"kept for another target than db:3306.*delete the directory var/spark.*own row, 100 "):
        check_spark(PLACES, "other", "this", 100)


@pytest.mark.parametrize("kept_for", ["", "this", "other"])
def test_a_checkpoint_without_the_targets_row_is_for_a_person_to_decide(kept_for: str) -> None:
    """Also of the very target: Spark's place is not what the target holds."""
    wanted = r"no checkpoint of cluster 7.*\(1\).*delete var/spark and set source.starting-commit-ts.*\(2\).*INSERT INTO tidb_binlog.checkpoint VALUES \(7, "
    with pytest.raises(ConfigError, match=wanted):
        check_spark(FROM_SETTINGS, kept_for, "this", None)


def test_nothing_is_known() -> None:
    check_spark(PLACES, None, "this", None)
    assert first_ts(PLACES, DeltaPlace()) == -1
    assert first_ts(FROM_SETTINGS, DeltaPlace()) == 0


def test_deltas_rows_of_this_target_count() -> None:
    assert first_ts(PLACES, DeltaPlace(of_target=50, of_others=90)) == 50


def test_deltas_rows_of_others_never_count() -> None:
    assert first_ts(FROM_SETTINGS, DeltaPlace(of_others=90)) == 0
    with pytest.raises(
        ConfigError, match=r"var/delta, up to 90 .* of another target.*\(1\).*set source.starting-commit-ts.*\(2\)"
    ) as caught:
        first_ts(PLACES, DeltaPlace(of_others=90))
    assert "delete var/spark" not in str(caught.value)
