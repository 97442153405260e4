"""The demo as a user starts it: it ends well with every table equal, says so, and does not when one differs."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.jobs import lake as lake_command
from pyspark_tidb_binlog.jobs.demo import main
from pyspark_tidb_binlog.jobs.lab.emulator.workload import WorkloadConfig
from pyspark_tidb_binlog.jobs.lab.small_cluster import PUMPS, upstream
from pyspark_tidb_binlog.lake import Lake
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.sinks.mysql.session import connect
from tests.support.eventually import eventually
from tests.support.on_terminal import OnTerminal
from tests.support.workload_copy import compared, difference

PROJECT = Path(__file__).parents[2]


FORMS = ({"message"}, {"summary"}, {"resolved_ts", "lag_seconds", "rows_per_second", "batches", "holding", "state", "resolved_time"})
"""The lines of a console that is no terminal, by keys that they have at least."""


def environ_of(tmp_path):
    return {**os.environ, "TIDB_BINLOG_LOG": str(tmp_path / "demo.log"), "TERM": "xterm-256color"}


def started(tmp_path, *options):
    command = [str(PROJECT / "spark-submit.sh"), "demo", *options]
    here = tmp_path / "here"
    here.mkdir()
    return subprocess.run(command, capture_output=True, text=True, env=environ_of(tmp_path), cwd=here, check=False, timeout=600)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.mysql
@pytest.mark.grpc
@pytest.mark.slow
def test_the_demo_ends_well_for_a_program(tmp_path):
    done = started(tmp_path, "--seconds", "4", "--rate", "60", "--delivery", "sorted", "--progress=json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "delivery sorted" in done.stdout and "every table is equal" in done.stdout
    assert done.stderr == ""
    strange = [line for line in done.stdout.splitlines() if not any(form <= json.loads(line).keys() for form in FORMS)]
    assert strange == [], "the console has our own lines only"
    assert list((tmp_path / "here").iterdir()) == [], "nothing is left behind"


@pytest.mark.spark
@pytest.mark.mysql
@pytest.mark.grpc
def test_the_demo_ends_well_on_a_terminal(tmp_path):
    command = [str(PROJECT / "spark-submit.sh"), "demo", "--seconds", "2", "--rate", "60"]
    with OnTerminal(command, environ_of(tmp_path), tmp_path) as demo:
        eventually(lambda: "now the workload writes" in demo.output, seconds=400, seen=lambda: demo.output, pause=0.05)
        demo.resize(70)
        eventually(lambda: "last DDL" in demo.output.rpartition("\x1b[2J")[2], seconds=400, seen=lambda: demo.output, pause=0.05)
        assert demo.wait(600) == 0, demo.output
    drawn = " ".join(re.sub(r"\x1b\[[\d;]*m", "", demo.output).split())
    for words in ("demo · online", "lag", "rows/s", "held by", "pump-1 online 0.", "s behind", "CREATE TABLE", "findings none"):
        assert words in drawn, words
    shown = "".join(demo.screen)
    assert re.match(
        r"workload -> 2 Pumps -> Spark, delivery raw -> 127.0.0.1:\d+; starting with the tables"
        r"the target has the tables; now the workload writes for 2 sthe workload has stopped; waiting until the target has everything"
        r"[\d,]+ transactions, [\d,]+ row events and \d+ DDLs in \d+ batches",
        shown,
    ), "nothing of the panel is left, and nothing strange stands between"
    assert re.search(r"[1-9]\d* tables, [\d,]+ rows: [\d,]+ equal, 0 differing; 0 tables not comparedlag from commit to visible: ", shown)
    assert "and the Drainer applied as many; every table is equal" in shown
    assert "where to look next" in shown


@pytest.mark.spark
@pytest.mark.grpc
def test_the_demo_leaves_a_lake_that_equals_its_upstream(spark, request, capsys):
    assert main(["--target", "lake", "--seconds", "3", "--rate", "60"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^(1\d|9) tables, [\d,]+ rows: [\d,]+ equal, 0 differing; 0 tables not compared$", printed, re.M)
    assert "lag from commit to visible in the ledger" in printed and "and the Drainer applied as many; every table is equal" in printed
    (lake,) = re.findall(r"the lake stays in (\S+); rm -r removes it", printed)
    request.addfinalizer(lambda: shutil.rmtree(lake))
    (show,) = re.findall(r"rows of one table: .* lake (show .*)$", printed, re.M)
    assert lake_command.main(show.split()) == 0
    assert "|status|" in capsys.readouterr().out
    counts = dict(re.findall(r"^(demo\.\w+): (\d+) rows at .*: equal$", printed, re.M))
    assert Lake(spark, lake).table("demo.orders").count() == int(counts["demo.orders"]) > 0


def test_nonsense_is_refused_before_anything_starts():
    for argv, why in ((["--seconds", "0"], "--seconds 0: it must be above 0"), (["--target", "lake", "--to", "mysql://h"], "one target")):
        with pytest.raises(ConfigError, match=why):
            main(argv)


@pytest.mark.mysql
@pytest.mark.grpc
def test_the_comparison_sees_what_differs(mariadb, tmp_path):
    with upstream(tmp_path, WorkloadConfig()) as workload:
        workload.open(PUMPS)
        assert {outcome.difference for outcome in compared(workload, mariadb.target())} == {"is not in the target"}
        with connect(mariadb.target(), ApplyConfig()) as session:
            session.execute("CREATE DATABASE demo")
            session.execute("CREATE TABLE demo.word (word VARCHAR(60) PRIMARY KEY, weight DOUBLE, day DATE)")
            session.execute("CREATE TABLE demo.event (kind INT)")
            session.execute("CREATE TABLE demo.more (n INT)")
            session.execute("INSERT INTO demo.word VALUES ('a', 1, NULL)")
            session.commit()
        found = {outcome.name: outcome.difference for outcome in compared(workload, mariadb.target())}
    assert found["demo.word"] == "1 rows only in the target, e.g. ('a', '1', None)"
    assert found["demo.event"] == "has the columns kind in the target instead of kind, text"
    assert found["demo.more"] == "is not in the upstream"


def test_rows_are_compared_as_often_as_they_occur():
    assert difference([("1",), ("1",), ("2",)], [("2",), ("1",), ("1",)]) == ""
    assert difference([("1",), ("1",)], [("1",), (None,)]) == (
        "1 rows missing in the target, e.g. ('1',); 1 rows only in the target, e.g. (None,)"
    )


def test_it_imports_without_spark():
    program = "import sys; import pyspark_tidb_binlog.jobs.lab.emulator.workload_process; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=PROJECT, check=False).returncode == 0
