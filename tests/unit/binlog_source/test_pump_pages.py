"""Who a Pump says that it is."""

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.pump_pages import named_in


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ("invalide nodeID p1, this pump's nodeID is p3", "p3"),
        ("invalid nodeID p1, this pump's nodeID is a:1", "a:1"),
        ("this pump's state is paused, apply who failed!", "p1"),
        ("invalide action who", "p1"),
        ("invalid action who", "p1"),
        ("invalide nodeID p1, this pump's nodeID is p3, this pump's nodeID is p1", "p3, this pump's nodeID is p1"),
        ("404 page not found", ""),
        ("", ""),
    ],
)
def test_a_pumps_answer_names_it(message: str, named: str) -> None:
    assert named_in(message, "p1") == named
