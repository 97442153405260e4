"""What ``ctl status`` says of a Drainer."""

from pyspark_tidb_binlog.binlog_source.cluster.registry import NodeStatus
from pyspark_tidb_binlog.jobs.check.node_report import NodeReport
from pyspark_tidb_binlog.jobs.stream.report import Progress, SeenPump, as_json
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.sinks.bootstrap.copy_record import CopyProgress

NODE = NodeStatus("drainer-1", "10.0.0.1:8249")


def test_while_tables_are_copied() -> None:
    words = CopyProgress(4, 1, 500, 2000, 100.0).words()
    assert NodeReport(NODE, as_json(Progress(bootstrap=words)), {"LastTS": 0}, "").text() == (
        f"Drainer drainer-1 at 10.0.0.1:8249: online\n  the stream has not begun: {words}"
    )
    assert "1 of 4 tables | 500 rows of about 2,000 | 100 rows/s | about 15 s left" in words


def test_a_stream() -> None:
    text = NodeReport(NODE, as_json(Progress(lag_seconds=2, row_events=7)), {"LastTS": 0, "PumpPos": {"pump-1": 1}}, "").text()
    assert "lag 2.0 s" in text and "not begun" not in text
    healthy = as_json(Progress(row_events=7, holding="Pump pump-1"))
    assert "held back by: nothing" in NodeReport(NODE, healthy, {"LastTS": 0}, "").text()


def test_nothing_that_a_terminal_obeys_is_shown() -> None:
    hostile = Progress(holding="a\x1b[2J\nb", held_seconds=9.0, findings=1, newest_findings=("c\x07",))
    text = NodeReport(NODE, as_json(hostile), {"LastTS": 0}, "").text()
    assert "held back by: a\\x1b[2J b" in text and "- c\\x07" in text


def test_what_is_seen_of_a_stream() -> None:
    ours = Progress(tso(1_000), 2.0, row_events=7, pumps=(SeenPump("p1", "paused", 5, 1.0),))
    assert NodeReport(NODE, as_json(ours), {"PumpPos": {"p1": 1}}, "").seen(9.0) == ours
    older = {"row_events": 7}
    assert NodeReport(NODE, older, {"PumpPos": {"p1": tso(1_000)}}, "").seen(3.0) == Progress(
        row_events=7, pumps=(SeenPump("p1", "", tso(1_000), 2.0),)
    )
    real = NodeReport(NODE, {}, {"LastTS": tso(1_000), "PumpPos": {"p1": tso(2_000)}}, "").seen(3.0)
    assert (real.lag_seconds, real.state, real.pumps) == (
        2.0,
        "online",
        (SeenPump("p1", "", tso(2_000), 1.0),),
    ) and "a real Drainer" in real.held
    assert NodeReport(NODE, {}, {}, "away").seen(3.0) == Progress()
