"""What ``ctl status`` says of a Drainer."""

from pyspark_tidb_binlog.binlog_source.cluster.registry import NodeStatus
from pyspark_tidb_binlog.jobs.check.node_report import NodeReport
from pyspark_tidb_binlog.jobs.stream.report import Progress, as_json
from pyspark_tidb_binlog.sinks.bootstrap.copy_progress import CopyProgress

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
