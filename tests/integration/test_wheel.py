"""The wheel as people meet it: installed outside the checkout, in a folder with modules of the same names, with nothing activated."""

import json
import os
import pwd
import re
import shutil
import site
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.standalone_spark import StandaloneSpark
from pyspark_tidb_binlog.binlog_source.pump_client.writer import write_binlog
from pyspark_tidb_binlog.conf.version import VERSION
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from tests.support.eventually import eventually
from tests.support.job_scene import LONGEST, Started, at_work, ended_in_order, scene_in
from tests.support.pump_writes import commit, fake, prewrite

ROOT = Path(__file__).parents[2]
JARS = Path(sys.prefix) / "spark-jars"
NOT_FROM_OUTSIDE = ("TIDB_BINLOG", "PYTHON", "PYSPARK", "SPARK", "XDG_", "VIRTUAL_ENV")


def built(folder: Path) -> Path:
    """The wheel's file. A copy, because setuptools writes into the directory that it builds from."""
    left_out = shutil.ignore_patterns(".*", "var", "tests", "build", "dist", "__pycache__")
    source = shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=left_out)
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source))
    (wheel,) = folder.glob("*.whl")
    return wheel


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment."""

    home: Path

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.home / "bin" / "python")

    @property
    def command(self) -> str:
        """The command that the wheel brings."""
        return str(self.home / "bin" / "tidb-binlog")

    @property
    def packages(self) -> Path:
        """Its site-packages."""
        (found,) = self.home.glob("lib/python3*/site-packages")
        return found

    def install(self, wheel: Path) -> None:
        """Only the wheel, without a network."""
        run(sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet", "--no-deps", "--no-index", str(wheel))

    def files(self) -> set[str]:
        """Every file of the installed product, but for byte code."""
        found = (path for path in (self.packages / "pyspark_tidb_binlog").rglob("*") if "__pycache__" not in path.parts)
        return {str(path) for path in found}


def environment(home: Path, without: Collection[str] = ()) -> Environment:
    """A new one that sees the packages of the one that runs this, but those that begin with one of ``without``."""
    run(sys.executable, "-m", "venv", "--without-pip", str(home))
    made = Environment(home)
    for path in Path(site.getsitepackages()[0]).iterdir():
        if not path.name.startswith(tuple(without)) and path.suffix != ".pth" and path.name != "__pycache__":
            (made.packages / path.name).symlink_to(path)
    if JARS.exists():
        (home / "spark-jars").symlink_to(JARS)
    return made


def from_the_index(home: Path, wheel: Path, *more: str) -> Environment:
    """A new one with the wheel's extra ``demo``, and ``more`` packages, from the package index; for every user, if the system's own Python will do."""
    python = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) and _is_new_enough("/usr/bin/python3") else sys.executable
    run(python, "-m", "venv", "--without-pip", str(home))
    made = Environment(home)
    run(sys.executable, "-m", "pip", "--python", made.python, "install", "--quiet", f"{wheel}[demo]", *more)
    return made


def _is_new_enough(python: str) -> bool:
    asked = subprocess.run(
        [python, "-c", "import sys, venv; print(sys.version_info >= (3, 11))"], capture_output=True, text=True, check=False
    )
    return asked.stdout.strip() == "True"


def bare_environ(home: Path) -> dict[str, str]:
    """The variables of a person who has activated nothing; ``home``: where everything of theirs goes."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_FROM_OUTSIDE)}
    return kept | {"HOME": str(home), "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


def run(*command: str) -> None:
    """Run a step that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


PYSPARK = ("pyspark", "py4j", "delta", "pandas", "pyarrow")
PROTOCOL = ["format=protocol"]
OURS = ("conf", "jobs", "schemas", "sinks", "binlog_source")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its file."""
    return built(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Where it is installed with everything."""
    made = environment(tmp_path_factory.mktemp("full") / "venv")
    made.install(wheel)
    return made


@pytest.fixture(scope="module")
def slim(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Where it is installed on a host of Pumps."""
    made = environment(tmp_path_factory.mktemp("slim") / "venv", without=PYSPARK)
    made.install(wheel)
    return made


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder of somebody's own, with modules of the names that the repository has at its top."""
    folder = tmp_path / "somewhere"
    for name in OURS:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("raise ImportError('not the product')\n")
    return folder


def said(command: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = bare_environ(folder.parent / "home") | variables
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=3000)


def test_it_holds_the_product_and_nothing_else(wheel: Path) -> None:
    files = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in files} == {"pyspark_tidb_binlog", "tidb_binlog_spark-0.1.0.dist-info"}
    below = {name.removeprefix("pyspark_tidb_binlog/") for name in files}
    wanted = {
        "conf/drainer.toml",
        "conf/jvm.options",
        "binlog_source/drainer/page.html",
        "docs/runbook.md",
        "docs/errors/ddl.md",
        "docs/spec/wire.md",
        "docs/images/demo.svg",
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "notebooks/replicate.py",
        "notebooks/replicate.ipynb",
        "deploy/tidb-binlog-pump.service",
        "jobs/spark/fork_client.py",
        "jobs/spark/worker-python",
    }
    assert wanted <= below
    assert not {name.partition("/")[0] for name in below} & {"tests", "benchmarks", "var", "build"}
    assert "tidb_binlog_spark-0.1.0.dist-info/licenses/LICENSE" in files
    assert zipfile.ZipFile(wheel).getinfo("pyspark_tidb_binlog/jobs/spark/worker-python").external_attr >> 16 & 0o111, "Spark runs it"


def test_links_between_documents_hold_where_it_is_installed(installed: Environment, wheel: Path) -> None:
    top = installed.packages / "pyspark_tidb_binlog"
    links = [(page, link) for page in sorted(top.rglob("*.md")) for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text())]
    assert len(links) > 30
    assert [f"{page.name}: {link}" for page, link in links if not (page.parent / link).exists()] == []
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA")]
    assert re.findall(r"\]\((?!http)", metadata) == [], "beside a package index no other page is there"


def test_the_command_says_what_it_is_and_where_its_documents_are(installed: Environment, elsewhere: Path) -> None:
    before = installed.files()
    shown = said([installed.command, "--help"], elsewhere)
    assert (shown.returncode, shown.stderr) == (0, "") and shown.stdout.startswith("usage: tidb-binlog [spark options] JOB")
    assert "spark-submit.sh" not in shown.stdout and "setup" not in shown.stdout
    assert said([installed.command, "--version"], elsewhere).stdout == f"Release Version: {VERSION}\n"
    assert said([installed.command, "drainer", "--help"], elsewhere).stdout.startswith("usage: tidb-binlog drainer ")
    for page, title in (("runbook", "# Runbook"), ("errors/ddl", "# DDLs"), ("ddl", "# DDLs"), ("pump", "# The Pump")):
        assert said([installed.command, "docs", page], elsewhere).stdout.startswith(f"{title}\n")
    assert Path(said([installed.command, "docs", "--path"], elsewhere).stdout.strip(), "conf", "drainer.toml").is_file()
    refused = said([installed.command, "nosuch"], elsewhere)
    assert (refused.returncode, refused.stderr) == (2, "tidb-binlog: there is no job 'nosuch'; tidb-binlog --help lists them\n")
    assert sorted(path.name for path in elsewhere.iterdir()) == sorted(OURS), "logs go to the user's own places"
    assert installed.files() == before


def test_what_a_job_lacks_is_one_line(slim: Environment, installed: Environment, elsewhere: Path) -> None:
    for job in ("drainer", "demo"):
        refused = said([slim.command, job], elsewhere)
        assert refused.returncode == 2 and refused.stderr.count("\n") == 1
        assert f"{job} needs packages that this environment" in refused.stderr and f"[{job}]" in refused.stderr
    refused = said([installed.command, "demo"], elsewhere, JAVA_HOME="/nonexistent")
    assert (refused.returncode, refused.stdout) == (2, "") and refused.stderr.count("\n") == 1
    assert "Spark needs Java 17 or later, but JAVA_HOME (/nonexistent) has no Java" in refused.stderr


@pytest.fixture
def pump(slim: Environment, elsewhere: Path) -> Iterator[str]:
    """The address of a Pump that the command serves without PySpark, without Java and without a home to write to."""
    environ = bare_environ(Path("/dev/null")) | {"TMPDIR": str(elsewhere.parent), "JAVA_HOME": "/nonexistent"}
    command = [slim.command, "pump", "-pd-urls=", "-addr", "127.0.0.1:0", "--data-dir", "pump"]
    with subprocess.Popen(command, cwd=elsewhere, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving 127.0.0.1:")
        yield line.split()[1]
        process.terminate()
        assert process.wait(60) == 0


APP = """
import os, sys
from pyspark.sql import SparkSession
from pyspark_tidb_binlog import configured

spark = configured(SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false"), delta=False).getOrCreate()
options = dict(one.split("=") for one in sys.argv[1:])
frame = spark.readStream.format("tidb_binlog").options(**options).load()
query = frame.writeStream.format("memory").queryName("got").trigger(availableNow=True).start()
query.awaitTermination()
for row in spark.table("got").where("tp = 1").orderBy("commit_ts").collect():
    print("got", row.start_ts, row.commit_ts)
import pyarrow as pa

def interpreter(batches):
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"python": [sys.executable]})

print("workers", spark.range(1).mapInArrow(interpreter, "python string").collect()[0][0])

from pyspark_tidb_binlog import Replication, load_drainer
from pyspark_tidb_binlog.schemas.errors import ConfigError
try:
    Replication(spark, load_drainer(flags={"syncer.db-type": "lake", "syncer.to.dir": "lake"}))
except ConfigError as error:
    print("refused", error)
"""


@pytest.mark.spark
@pytest.mark.grpc
def test_a_program_of_ones_own_reads_binlogs_with_nothing_activated(installed: Environment, pump: str, elsewhere: Path) -> None:
    """``venv/bin/python app.py``: Spark finds the source, with the interpreter that runs the program, whatever ``python3`` is on PATH."""
    for start_ts in (10, 20):
        for payload in (prewrite(start_ts), commit(start_ts, start_ts + 5)):
            write_binlog(pump, 0, payload, timeout=30, tls=None)
    write_binlog(pump, 0, fake(40), timeout=30, tls=None)
    (elsewhere / "app.py").write_text(APP)
    options = ["pumps=" + pump, "clusterId=0", "startingCommitTs=0", "delivery=sorted", *PROTOCOL]
    short_lived = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    done = said([installed.python, "app.py", *options], elsewhere, SPARK_LOCAL_IP="127.0.0.1", JAVA_TOOL_OPTIONS=short_lived)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("got")] == ["got 10 15", "got 20 25"]
    assert f"workers {installed.python}" in lines
    (refused,) = [line for line in lines if line.startswith("refused")]
    assert "this Spark session has no Delta" in refused
    assert ".config('spark.sql.extensions', 'io.delta.sql.DeltaSparkSessionExtension')" in done.stdout


@pytest.fixture(scope="module")
def from_index(wheel: Path) -> Iterator[Environment]:
    """An empty environment, the extra ``demo`` and Jupyter's engine, all from the package index; every user may read it, and nobody write it."""
    with tempfile.TemporaryDirectory(prefix="wheel-") as place:
        os.chmod(place, 0o755)
        made = from_the_index(Path(place) / "venv", wheel, "nbclient", "ipykernel", "matplotlib")
        run("chmod", "-R", "a-w", str(made.packages))
        before = made.files()
        yield made
        assert made.files() == before, "nothing is written beside the code"
        run("chmod", "-R", "u+w", str(made.packages))


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.mysql
@pytest.mark.grpc
def test_the_demo_ends_well_where_everything_comes_from_the_package_index(from_index: Environment, elsewhere: Path) -> None:
    """With what the first start fetches from Maven Central, and a second one that fetches nothing."""
    for first in (True, False):
        done = said([from_index.command, "demo", "--seconds", "4", "--rate", "40"], elsewhere)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "every table is equal" in done.stdout and "`tidb-binlog docs architecture`" in done.stdout
        assert ("setup: fetching io.delta:" in done.stderr) == first


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.mysql
@pytest.mark.grpc
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_without_a_home_runs_the_demo(from_index: Environment) -> None:
    """In a working directory that is not theirs: logs and jars go below the temporary directory, which is all that they can write to."""
    someone = pwd.getpwnam("nobody")
    with tempfile.TemporaryDirectory(prefix="someone-") as place:
        os.chown(place, someone.pw_uid, someone.pw_gid)
        # MariaDB's socket needs a short path, which the temporary directory must begin.
        environ = bare_environ(Path("/nonexistent")) | {"TMPDIR": place}
        reach = subprocess.run([from_index.python, "-c", ""], user=someone.pw_uid, group=someone.pw_gid, extra_groups=(), check=False)
        if reach.returncode:
            pytest.skip(f"{someone.pw_name} cannot start {os.path.realpath(from_index.python)}")
        done = subprocess.run(
            [from_index.command, "demo", "--seconds", "4", "--rate", "40"],
            cwd="/", env=environ, user=someone.pw_uid, group=someone.pw_gid, extra_groups=(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "every table is equal" in done.stdout
        assert [path.name for path in Path(place).glob("tidb-binlog-*/log/demo.log")] == ["demo.log"]


NOTEBOOK = """
import nbformat, sys
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], 4)
NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.mysql
@pytest.mark.grpc
def test_the_notebook_runs_in_a_real_jupyter(from_index: Environment, wheel: Path, elsewhere: Path) -> None:
    """``Run all`` with nothing set, as a person has it who copied the notebook beside the wheel: tables as HTML, plots as PNG, DDLs to be read."""
    (elsewhere / "dist").mkdir()
    shutil.copy(wheel, elsewhere / "dist")
    folder = elsewhere / "notebooks"
    folder.mkdir()
    shutil.copy(from_index.packages / "pyspark_tidb_binlog" / "notebooks" / "replicate.ipynb", folder)
    (folder / "run.py").write_text(NOTEBOOK)
    paths = f"{from_index.home / 'bin'}:{os.environ['PATH']}"
    command = [from_index.python, "run.py", "replicate.ipynb", "done.ipynb"]
    done = said(command, folder, PATH=paths, TIDB_BINLOG_NOTEBOOK_SECONDS="8")
    assert done.returncode == 0, done.stdout + done.stderr
    cells = [cell for cell in json.loads((folder / "done.ipynb").read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in cells)
    shown = [output["data"] for cell in cells for output in cell["outputs"] if output["output_type"] == "display_data"]
    tables = ["".join(data["text/html"]) for data in shown if "text/html" in data]
    assert len(tables) == 7 and all("<table" in table for table in tables)
    assert sum(data.get("image/png", "").startswith("iVBORw0KGgo") for data in shown) == 4
    ddls = next(table for table in tables if "CREATE DATABASE" in table)
    assert "CREATE TABLE `account` (`id` BIGINT NOT NULL" in ddls, "statements are shown to be read, not cut off"


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.mysql
@pytest.mark.grpc
def test_a_drainer_runs_on_two_workers_of_a_standalone_cluster(installed: Environment, mariadb: PrivateMariaDB, elsewhere: Path) -> None:
    """The executors have the environment's Python on a path that all see, and get the code from the command."""
    with StandaloneSpark(elsewhere.parent / "cluster") as cluster, scene_in(elsewhere.parent, mariadb) as scene:
        settings = [f"--conf={name}={value}" for name, value in cluster.settings().items() if name != "spark.submit.pyFiles"]
        environ = bare_environ(elsewhere.parent / "home") | {"PYSPARK_PYTHON": installed.python}
        job = scene.drainer("--master", cluster.url, *settings, "--delivery=raw", started=Started(installed.command, environ))
        scene.workload.begin()
        at_work(job)
        written = scene.workload.end()
        eventually(lambda: job.process.poll() is not None or scene.standing() >= written.upto_ts, seconds=LONGEST, seen=job.said)
        job.process.terminate()
        ended_in_order(job, scene)
        assert scene.differences() == []
        used = {path.parents[2].name for path in (elsewhere.parent / "cluster").glob("worker-*/app-*/*/tidb_binlog_spark.zip")}
        assert len(used) == 2, "both workers have had the code"
