"""Which status ports are asked: those that PD named last, asked for again now and then."""

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.history_place import ASK_EVERY, TidbServers
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable


class Pd:
    """What PD answers, and how often it was asked."""

    def __init__(self) -> None:
        self.ports: tuple[str, ...] | None = ("a:1",)
        self.asked = 0
        self.now = 0.0

    def __call__(self) -> tuple[str, ...]:
        self.asked += 1
        if self.ports is None:
            raise PumpUnavailable("PD is away")
        return self.ports


def test_pd_is_asked_now_and_then() -> None:
    pd = Pd()
    servers = TidbServers(pd, lambda: pd.now)
    assert [servers.urls() for _ in range(3)] == [("http://a:1",)] * 3 and pd.asked == 1
    pd.ports = ("b:2", "c:3")
    assert servers.urls() == ("http://a:1",)
    pd.now += ASK_EVERY
    assert servers.urls() == ("http://b:2", "http://c:3")


@pytest.mark.parametrize("away", [None, ()])
def test_the_known_ones_are_kept_while_pd_or_every_server_is_away(away: tuple[str, ...] | None) -> None:
    pd = Pd()
    servers = TidbServers(pd, lambda: pd.now)
    servers.urls()
    pd.ports, pd.now = away, ASK_EVERY
    assert servers.urls() == ("http://a:1",)


@pytest.mark.parametrize(("away", "why"), [(None, "PD is away"), ((), "names no running TiDB server")])
def test_none_known_is_an_error_each_time(away: tuple[str, ...] | None, why: str) -> None:
    pd = Pd()
    pd.ports = away
    servers = TidbServers(pd, lambda: pd.now)
    for _ in range(2):
        with pytest.raises(PumpUnavailable, match=why):
            servers.urls()
    pd.ports = ("a:1",)
    assert servers.urls() == ("http://a:1",), "asked again at once"
