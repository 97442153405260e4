"""Which Pumps a stream goes on without, and what is said of the others."""

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.discovery import OfflinePump
from pyspark_tidb_binlog.binlog_source.source.departed import DepartedPumps, Membership
from pyspark_tidb_binlog.binlog_source.source.offset import BinlogOffset, PumpMark
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import Position
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.schemas.errors import ConfigError, PumpUnavailable
from pyspark_tidb_binlog.schemas.events import Delivery

REGISTRY, LIST = "pd://pd:2379", "a:1,b:1"
BOTH = {"a:1": "a:1", "b:1": "b:1"}


def at(*pumps: str, **more: object) -> BinlogOffset:
    return BinlogOffset(Delivery.RAW, 50, 5, {pump: PumpMark(Position(0, 9)) for pump in pumps}, **more)  # type: ignore[arg-type]


def departed(pumps: str = REGISTRY, *, now: list[float] | None = None, **more: object) -> DepartedPumps:
    clock = now or [0.0]
    return DepartedPumps(SourceConfig(pumps, **more), 60.0, lambda: clock[0])  # type: ignore[arg-type]


def test_all_that_are_listed_are_read() -> None:
    assert departed().membership(at("a:1"), BOTH, {}, {}) == Membership(BOTH)
    assert departed().membership(at(), BOTH, {}, {}) == Membership(BOTH), "a new stream"


def test_one_that_is_offline_with_nothing_unread_has_left() -> None:
    assert departed().membership(at("a:1", "b:1"), {"a:1": "a:1"}, {"b:1": OfflinePump("b:1", 50)}, {}) == Membership({"a:1": "a:1"})


@pytest.mark.parametrize("upto_ts", [40, 80])
def test_one_that_was_set_offline_is_waited_for_whatever_its_last_heartbeat_says(upto_ts: int) -> None:
    forced, now, listed = {"b:1": OfflinePump("b:1", upto_ts, left=False)}, [0.0], {"a:1": "a:1"}
    members, without = departed(now=now), departed(now=now, gone_pumps="b:1")
    for each in (members, without):
        assert each.membership(at("a:1", "b:1"), listed, forced, SILENT) == Membership(BOTH)
    now[0] = 60.0
    with pytest.raises(PumpUnavailable, match=r"Pump b:1 is registered as offline .* it did not leave by itself.*gone-pumps"):
        members.membership(at("a:1", "b:1"), listed, forced, SILENT)
    assert without.membership(at("a:1", "b:1"), listed, forced, SILENT) == Membership(listed, {"b:1": 80 if upto_ts == 80 else 0})
    assert departed().membership(at("a:1"), listed, forced, {}) == Membership(listed), "a stream that does not read it any more"


def test_one_that_a_registry_does_not_list_is_waited_for() -> None:
    with pytest.raises(PumpUnavailable, match=r"Pump b:1 is not in the registry pd://pd:2379 any more.*start it.*spark\.gone-pumps"):
        departed().membership(at("a:1", "b:1"), {"a:1": "a:1"}, {}, {})


def test_one_that_a_list_does_not_name_ends_the_stream() -> None:
    with pytest.raises(ConfigError, match=r"Pump b:1 is not among the Pumps that the settings list.*name it again.*spark\.gone-pumps"):
        departed(LIST).membership(at("a:1", "b:1"), {"a:1": "a:1"}, {}, {})


@pytest.mark.shows("spark.gone-pumps")
@pytest.mark.parametrize("pumps", [REGISTRY, LIST])
def test_one_that_is_gone_for_ever_is_left_out_and_told(pumps: str, caplog: pytest.LogCaptureFixture) -> None:
    members = departed(pumps, gone_pumps="c:1, b:1")
    for _ in range(2):
        found = members.membership(at("a:1", "b:1"), {"a:1": "a:1"}, {}, {})
    assert found == Membership({"a:1": "a:1"}, {"b:1": 0}) and caplog.text.count("Pump b:1 is gone") == 1
    assert found.noted(BinlogOffset(Delivery.RAW, 70, 5, {})) == {"b:1": 70}
    assert departed(pumps, gone_pumps="b:1").membership(at("a:1", "b:1"), BOTH, {}, {}) == Membership(BOTH), "it is back"


def test_a_registry_that_takes_the_place_of_a_list_has_the_same_pumps_under_other_names() -> None:
    """A list names them by their addresses."""
    listed = {"pump-a": "a:1", "pump-b": "b:1"}
    assert departed().membership(at("a:1", "b:1"), listed, {}, {}) == Membership(listed)


OFFLINE, SILENT = {"b:1": OfflinePump("b:1", 80)}, {"b:1": "connection refused"}


def test_one_that_is_offline_with_more_than_was_read_is_waited_for_and_then_refused() -> None:
    now = [0.0]
    members = departed(now=now)
    assert members.membership(at("a:1", "b:1"), BOTH, OFFLINE, SILENT) == Membership(BOTH)
    now[0] = 59.0
    assert members.membership(at("a:1", "b:1"), BOTH, OFFLINE, {}) == Membership(BOTH), "it answers"
    now[0] = 61.0
    assert members.membership(at("a:1", "b:1"), BOTH, OFFLINE, SILENT) == Membership(BOTH)
    now[0] = 121.0
    with pytest.raises(PumpUnavailable, match=r"offline and does not answer \(connection refused\).*gone-pumps.*fail-on-data-loss = false"):
        members.membership(at("a:1", "b:1"), BOTH, OFFLINE, SILENT)


def test_one_whose_address_another_has_does_not_answer_whoever_answers_there() -> None:
    taken = {"b": OfflinePump("b:1", 80, successor="c")}
    with pytest.raises(PumpUnavailable, match=r"Pump b is registered as offline .*Pump c now answers at its address b:1.*gone-pumps"):
        departed().membership(at("a"), {"a": "a:1", "b": "b:1", "c": "b:1"}, taken, {})
    found = departed(gone_pumps="b").membership(at("a"), {"a": "a:1", "b": "b:1", "c": "b:1"}, taken, {})
    assert found == Membership({"a": "a:1", "c": "b:1"}, {"b": 80})


@pytest.mark.parametrize("given", [{"fail_on_data_loss": False}, {"gone_pumps": "b:1"}])
def test_or_left_out_if_that_was_allowed(given: dict[str, object]) -> None:
    now = [0.0]
    members = departed(now=now, **given)
    members.membership(at("a:1", "b:1"), BOTH, OFFLINE, SILENT)
    now[0] = 60.0
    without = Membership({"a:1": "a:1"}, {"b:1": 80})
    assert members.membership(at("a:1", "b:1"), BOTH, OFFLINE, SILENT) == without
    assert members.membership(at("a:1", "b:1"), BOTH, OFFLINE, {}) == without, "nobody asks it any more"
    assert departed(**given).membership(at("a:1", left={"b:1": 80}), BOTH, OFFLINE, {}) == without, "nor does a later life"
    assert members.membership(at("a:1", left={"b:1": 80}), BOTH, {}, {}) == Membership(BOTH), "it is in service again"
