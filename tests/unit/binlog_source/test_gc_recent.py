"""When a real Pump need not be asked what it has collected."""

import pytest

from pyspark_tidb_binlog.binlog_source.source import gc_bound
from pyspark_tidb_binlog.binlog_source.source.gc_bound import RECENT_MS, is_recent
from pyspark_tidb_binlog.schemas.events import tso

DAY, NOW = 86_400_000, 1_800_000_000_000


@pytest.mark.parametrize(
    ("clock_ms", "newest_ms", "recent"),
    [
        (NOW, 0, True),
        (NOW, NOW, True),
        (NOW + RECENT_MS - 1, NOW + RECENT_MS - 1, True),
        (NOW + RECENT_MS, NOW, False),
        (NOW - 10 * DAY, NOW, False),
        (NOW, NOW + 9 * DAY, False),
        (NOW, NOW + RECENT_MS, False),
    ],
)
def test_the_clock_and_the_upstream_have_to_agree(monkeypatch: pytest.MonkeyPatch, clock_ms: int, newest_ms: int, recent: bool) -> None:
    """The last but one: a machine that was suspended for nine days, and has not set its clock yet."""
    monkeypatch.setattr(gc_bound.time, "time_ns", lambda: clock_ms * 1_000_000)
    assert is_recent(tso(NOW), tso(newest_ms)) is recent
