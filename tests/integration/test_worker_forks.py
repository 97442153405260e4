"""Spark's Python processes as forks of the job: they are what an interpreter would have been, and nothing of the job's."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.support.eventually import eventually

ROOT = Path(__file__).parents[2]
WORKER = ROOT / "jobs" / "spark" / "worker-python"


def job(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """A job that runs ``code`` with ``forks`` at work, in a ``with`` block whose end it tells."""
    script = directory / "job.py"
    script.write_text(
        textwrap.dedent(
            """
            import contextlib, os, subprocess, sys, time
            from pyspark_tidb_binlog.jobs.spark.worker_forks import WorkerForks

            def run(*arguments, **options):
                return subprocess.run([os.environ["PYSPARK_PYTHON"], *arguments], capture_output=True, text=True, **options)

            @contextlib.contextmanager
            def told():
                try:
                    yield
                finally:
                    with open("ended", "a") as file:
                        file.write("ended\\n")

            with contextlib.closing(WorkerForks()) as forks, told():
                forks.fork()
            """
        )
        + textwrap.indent(textwrap.dedent(code), "    ")
    )
    done = subprocess.run(
        [sys.executable, str(script)], cwd=directory, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert (directory / "ended").read_text() == "ended\n", "only the job itself has left its block"
    return done


LOOKS = {
    "an interpreter": """
        environ = os.environ | {"GIVEN": "ü", "PYTHONPATH": os.getcwd()}
        done = run("-m", "mine", "one", cwd="below", env=environ, input="hello")
        print(done.stdout, done.returncode, done.stderr)
        done = run("-c", "import sys; sys.exit('why')")
        print(done.returncode, run("-c", "raise ValueError(5)").stderr.splitlines()[-1], run("--version").stdout)
        """,
    "imported and held": """
        mine = open("of-the-job", "w")
        print(run("-c", "import os, sys; print('pyspark.worker' in sys.modules, sorted(os.listdir('/proc/self/fd')))").stdout)
        """,
    "garbage": """
        print(run("-c", "import gc; print(gc.get_freeze_count() > 10_000, len(gc.get_objects()) < 10_000)").stdout)
        """,
    "closed": """
        print(run("-c", "import os; os.close(2); raise ValueError").returncode, flush=True)
        print(run("-c", "print(6)").stdout)
        """,
    "broken": """
        print(run("-c", "import os; r, w = os.pipe(); os.close(r); os.dup2(w, 2); raise ValueError").returncode, flush=True)
        print(run("-c", "print(6)").stdout)
        """,
    "requests that break off": r"""
        import socket
        for sent in (b"", b"\0\0\0\xff", b"\0\0\0\2{]"):
            with socket.socket(socket.AF_UNIX) as link:
                link.connect(os.environ["TIDB_BINLOG_FORKS"])
                link.sendall(sent)
        print(run("-c", "print(6)").stdout)
        """,
    "descriptors": r"""
        def descriptors():
            return len(os.listdir(f"/proc/{run('-c', 'import os; print(os.getppid())').stdout.strip()}/fd"))
        before = descriptors()
        for sent in (b"\0\0\0\2{]", b"\0\0\0\2{}") * 3:
            with socket.socket(socket.AF_UNIX) as link:
                link.connect(os.environ["TIDB_BINLOG_FORKS"])
                socket.send_fds(link, [sent], [0, 1, 2])
                link.shutdown(socket.SHUT_WR)
                link.recv(1)
        print(descriptors() - before)
        """,
}
"""What one job looks at, one after the other."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where that job runs."""
    made = tmp_path_factory.mktemp("looks")
    (made / "below").mkdir()
    (made / "mine.py").write_text(
        "import os, sys; print(__name__, sys.argv, os.getcwd(), os.environ['GIVEN'], sys.stdin.read()); sys.exit(7)"
    )
    return made


@pytest.fixture(scope="module")
def seen(directory: Path) -> dict[str, str]:
    """What each of ``LOOKS`` printed."""
    code = "\n".join(f"print('look {name}', flush=True)\n{textwrap.dedent(look)}" for name, look in LOOKS.items())
    printed = job(code, directory).stdout.split("look ")[1:]
    return dict(each.split("\n", 1) for each in printed)


def test_a_fork_is_what_an_interpreter_would_have_been(seen: dict[str, str], directory: Path) -> None:
    version = f"Python {sys.version.split()[0]}"
    expected = [f"__main__ {['mine', 'one']} {directory / 'below'} ü hello", "7", "1 ValueError: 5 " + version]
    lines = seen["an interpreter"].split("\n")
    assert lines[0].replace(f"{directory / 'mine.py'}", "mine") == expected[0]
    assert lines[1].split() == ["7"]
    assert expected[2] in seen["an interpreter"]


def test_it_has_imported_already_and_holds_nothing_of_the_job(seen: dict[str, str]) -> None:
    imported, _, descriptors = seen["imported and held"].partition(" ")
    # its streams, the link to who asked, and the listing itself
    assert imported == "True" and len(eval(descriptors)) <= 5


def test_a_collection_of_garbage_in_a_fork_leaves_what_was_imported_alone(seen: dict[str, str]) -> None:
    """It would write to all of it, and so copy its memory."""
    assert seen["garbage"].split() == ["True", "True"]


@pytest.mark.parametrize("how", ["closed", "broken"])
def test_a_fork_that_cannot_even_say_what_is_wrong_ends(how: str, seen: dict[str, str]) -> None:
    """It must not go on as a second job: that would stop the servers of the first."""
    assert seen[how].split() == ["1", "6"]


def test_a_request_that_breaks_off_holds_up_no_other(seen: dict[str, str]) -> None:
    assert seen["requests that break off"].split() == ["6"]


def test_broken_requests_leave_no_descriptors(seen: dict[str, str]) -> None:
    assert seen["descriptors"].split() == ["0"]


def test_everything_ends_with_the_job(tmp_path: Path) -> None:
    job(
        """
        if os.fork() == 0:
            # a job of its own, which is killed
            with contextlib.closing(WorkerForks()) as second:
                second.fork()
                open("socket", "w").write(os.environ["TIDB_BINLOG_FORKS"])
                os.kill(os.getpid(), 9)
        os.wait()
        """,
        tmp_path,
    )
    place = Path((tmp_path / "socket").read_text())
    eventually(lambda: not place.exists() and not place.parent.exists())


def test_without_forks_it_is_a_plain_interpreter(tmp_path: Path) -> None:
    environ = {key: value for key, value in os.environ.items() if key != "TIDB_BINLOG_FORKS"} | {"TIDB_BINLOG_PYTHON": sys.executable}
    for gone in ({}, {"TIDB_BINLOG_FORKS": str(tmp_path / "nothing")}):
        done = subprocess.run(
            [str(WORKER), "-c", "import sys; print(sys.argv); sys.exit(3)"], env=environ | gone, capture_output=True, text=True
        )
        assert (done.stdout, done.returncode) == ("['-c']\n", 3)


def test_a_request_that_is_not_taken_is_run_by_an_interpreter(tmp_path: Path) -> None:
    """Before it forks, and after it has ended."""
    done = job(
        """
        import signal, threading
        def not_taken():
            print(run("-c", "import sys; print('pyspark.worker' in sys.modules); sys.exit(4)"), flush=True)

        with contextlib.closing(WorkerForks()) as second:
            threading.Timer(0.5, second.close).start()
            not_taken()
        with contextlib.closing(WorkerForks()) as third:
            third.fork()
            third.close()
            not_taken()
        """,
        tmp_path,
    )
    assert [("returncode=4" in line, "False" in line) for line in done.stdout.splitlines()] == [(True, True)] * 2


@pytest.mark.parametrize(
    "redirected", [pytest.param(">&-", marks=pytest.mark.slow), pytest.param("<&-", marks=pytest.mark.slow), ">&- 2>&- <&-"]
)
def test_a_job_without_streams_starts(redirected: str) -> None:
    line = f"exec {ROOT}/spark-submit.sh --master 'local[2]' drainer --config /no/such.toml {redirected}"
    assert subprocess.run(["/bin/sh", "-c", line], timeout=60, capture_output=True).returncode == 2


def test_where_there_can_be_no_socket_jobs_start_without_forks(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    command = [str(ROOT / "spark-submit.sh"), "--master", "local[2]", "drainer", "--config", "/no/such.toml"]
    done = subprocess.run(command, env=os.environ | {"TMPDIR": str(deep)}, timeout=60, capture_output=True, text=True)
    assert done.returncode == 2 and "plain interpreters, not as forks" in done.stderr
    assert list(deep.glob("tbs-forks-*")) == []


def test_this_program_has_a_process_that_forks_beside_it(spark: SparkSession) -> None:
    """It has threads, as a notebook has, and its environment stays as it was."""

    def seen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"line": [f"{Path('/proc/self/cmdline').read_text()}{hash('text')}"]})

    *line, hashed = spark.range(1).mapInArrow(seen, "line STRING").collect()[0].line.split(chr(0))
    assert line[1:3] == ["-m", "pyspark_tidb_binlog.jobs.spark.worker_forks"]
    command = [sys.executable, "-c", "print(hash('text'))"]
    plain = subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": "0"}, capture_output=True, text=True)
    assert hashed == plain.stdout.strip(), "as Spark has it in each of its interpreters"
    assert os.environ.keys().isdisjoint({"TIDB_BINLOG_FORKS", "TIDB_BINLOG_PYTHON"})


@pytest.mark.slow
def test_a_program_with_threads_has_a_process_that_forks_beside_it(tmp_path: Path) -> None:
    """As a notebook, whose environment stays as it was, so that what it starts has workers of its own."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import os, threading
            threading.Thread(target=threading.Event().wait, daemon=True).start()
            from pyspark_tidb_binlog.jobs.spark.spark_session import build_session

            def seen(batches):
                import sys
                import pyarrow as pa
                print("printed by a worker")
                for _ in batches:
                    with open("/proc/self/cmdline") as line:
                        yield pa.RecordBatch.from_pydict({"line": [f"{line.read()}{hash('text')}"]})

            before = dict(os.environ)
            session = build_session("program", master="local[1]", delta=False)
            changed = {name for name in os.environ.keys() | before.keys() if os.environ.get(name) != before.get(name)}
            print(sorted(changed & {"PYSPARK_PYTHON", "TIDB_BINLOG_FORKS", "TIDB_BINLOG_PYTHON"}), os.environ.get("PYSPARK_PYTHON"))
            line = session.range(1).mapInArrow(seen, "line STRING").collect()[0].line.split(chr(0))
            print(*line[1:4])
            print(line[-1])
            """
        )
    )
    environ = {name: value for name, value in os.environ.items() if name not in ("PYSPARK_PYTHON", "TIDB_BINLOG_FORKS")}
    environ |= {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path), "TIDB_BINLOG_LOG": str(tmp_path / "program.log")}
    done = subprocess.run([sys.executable, str(program)], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    environment, forked, hashed = done.stdout.splitlines()
    assert environment == f"['PYSPARK_PYTHON'] {sys.executable}"
    assert forked.startswith("-m pyspark_tidb_binlog.jobs.spark.worker_forks ")
    plain = subprocess.run(
        [sys.executable, "-c", "print(hash('text'))"], env=environ | {"PYTHONHASHSEED": "0"}, capture_output=True, text=True
    )
    assert hashed == plain.stdout.strip(), "as Spark has it in each of its interpreters"
    assert "printed by a worker" in (tmp_path / "program.log").read_text()
    assert list(tmp_path.glob("tbs-forks-*")) == [], "the process has ended with the program"


@pytest.mark.slow
@pytest.mark.parametrize("hindrance", ["a long path of sockets", "a program that may not run"])
def test_a_program_without_forks_has_workers_of_its_own_interpreter(tmp_path: Path, hindrance: str) -> None:
    """Not of the machine's ``python3``, which may have no PySpark."""
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho another python3 >&2\nexit 1\n")
    other.chmod(0o755)
    temporary = tmp_path / ("t" * 90 if "path" in hindrance else "tmp")
    temporary.mkdir()
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            f"""
            from pathlib import Path
            from pyspark_tidb_binlog.jobs.spark import spark_session

            def seen(batches):
                import sys
                import pyarrow as pa
                for _ in batches:
                    yield pa.RecordBatch.from_pydict({{"python": [sys.executable]}})

            if {"program" in hindrance}:
                spark_session.PYTHON = Path(__file__)
            session = spark_session.build_session("program", master="local[1]", delta=False)
            print(session.range(1).mapInArrow(seen, "python STRING").collect()[0].python)
            """
        )
    )
    environ = {name: value for name, value in os.environ.items() if name not in ("PYSPARK_PYTHON", "TIDB_BINLOG_FORKS")}
    environ |= {"PYTHONPATH": str(ROOT), "TMPDIR": str(temporary), "TIDB_BINLOG_LOG": str(tmp_path / "program.log")}
    environ["PATH"] = f"{other.parent}:{environ['PATH']}"
    done = subprocess.run([sys.executable, str(program)], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)
    assert done.stdout == f"{sys.executable}\n", done.stderr


@pytest.mark.parametrize("hindrance", ["", "a long path of sockets", "a program that may not run"])
def test_a_program_whose_jvm_does_not_start_keeps_its_environment_and_no_process(tmp_path: Path, hindrance: str) -> None:
    """Whoever mends it tries again, in a notebook in the same process. Where there can be no forks, its JVM would take this interpreter."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            f"""
            import os
            from pathlib import Path
            from pyspark_tidb_binlog.jobs.spark import spark_session
            from pyspark_tidb_binlog.jobs.spark.worker_forks import FORKED_BY

            if {"program" in hindrance}:
                spark_session.PYTHON = Path(__file__)
            try:
                with spark_session._workers_as_forks("local[1]"):
                    inside = [os.environ.get(name) for name in FORKED_BY]
                    raise ValueError
            except ValueError:
                pass
            outside = [os.environ.get(name) for name in FORKED_BY]
            print(all(inside) if {not hindrance} else inside == outside, outside, os.listdir(os.environ["TMPDIR"]))
            """
        )
    )
    environ = {name: value for name, value in os.environ.items() if name not in ("TIDB_BINLOG_FORKS", "TIDB_BINLOG_PYTHON")}
    temporary = tmp_path / ("t" * 90 if "path" in hindrance else "tmp")
    temporary.mkdir()
    environ |= {
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "TMPDIR": str(temporary),
        "TIDB_BINLOG_LOG": str(tmp_path / "program.log"),
    }
    done = subprocess.run([sys.executable, str(program)], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"True [None, None, {sys.executable!r}] []\n", done.stderr


def test_a_fork_of_the_program_ends_without_the_process_that_forks(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import os, subprocess, sys
            from pyspark_tidb_binlog.jobs.spark.worker_forks import WorkerForks

            WorkerForks().begin(sys.stderr)
            if os.fork():
                os.wait()
                code = "import sys; print('pyspark.worker' in sys.modules)"
                print(subprocess.run([os.environ["PYSPARK_PYTHON"], "-c", code], capture_output=True, text=True).stdout.strip())
            """
        )
    )
    environ = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, str(program)], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60)
    assert done.stdout == "True\n", done.stderr
    assert list(tmp_path.glob("tbs-forks-*")) == []
