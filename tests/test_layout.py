"""The project about itself: its shape, its fences and its documents, asserted so that they stay true."""

import ast
import configparser
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import pyspark_tidb_binlog
import pyspark_tidb_binlog.lake
from pyspark_tidb_binlog.conf.model import DrainerConfig, PumpConfig
from pyspark_tidb_binlog.conf.setting import settings_of
from pyspark_tidb_binlog.jobs import command
from pyspark_tidb_binlog.schemas import errors

ROOT = Path(__file__).parents[1]
PACKAGES = ("jobs", "binlog_source", "sinks", "schemas", "conf")
NAMESPACE = "pyspark_tidb_binlog"
NOT_JOBS = {"command", "launch"}
"""Modules of ``jobs`` with a ``main`` that the command does not offer under their names."""
BROAD_EXCEPTS = {
    "jobs/entry/cli.py",
    "jobs/spark/worker_forks.py",
    "binlog_source/cluster/node_tasks.py",
    "binlog_source/rpc/calls.py",
    "binlog_source/pump/storage/index.py",
    "binlog_source/source/tails.py",
    "sinks/mysql/statements.py",
    "sinks/delta/checkpoint_table.py",
    "sinks/lake/mirrors.py",
}
"""Where everything may be caught: to tell it, log it and exit; to answer a client whose handler failed; to go on with a heartbeat, or with rows that nobody else writes, or without one of many tables; where a library raises bare Exceptions;
to raise it again where it belongs."""

INSIDES = {"jobs/spark/pyspark_insides.py", "sinks/engine/spark_jvm.py"}
"""Where private parts of PySpark, Spark and Delta are named."""
PRIVATE_NAMES = {"_jvm", "_jsc", "_jdf", "_jsparkSession", "_jconf", "_gateway", "_ensure_initialized", "_accumulatorServer", "_options"}
PRIVATE_MODULES = re.compile(r"pyspark\.(?!errors$|sql$|sql\.(functions|types|datasource|streaming|pandas\.types)\b)|py4j\.(?!protocol$)")
"""All but the documented ones, and ``from_arrow_schema`` of ``pyspark.sql.pandas.types``, which ``binlog_source`` needs."""
PRIVATE_WORDS = re.compile(
    r"_PYSPARK|PYSPARK_GATEWAY|pyspark\.(worker|daemon|sql\.worker)|python\.daemon\.module|checkpointFileManagerClass"
)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def walked(tree: ast.Module) -> tuple[ast.AST, ...]:
    """All nodes, which most tests look at."""
    return tuple(ast.walk(tree))


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Iterator[None]:
    """Trees are kept for the tests of this file only: they are large."""
    yield
    parsed.cache_clear()
    walked.cache_clear()


@cache
def sources() -> list[Path]:
    found = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return [path for path in found if not re.search(r"_pb2\.py$", path.name)]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sources():
        yield name(path), parsed(path)


def jobs() -> set[str]:
    found = {path.stem for path in (ROOT / "jobs").glob("*.py") if re.search(r"^def main\(", path.read_text(), re.M)}
    return found - NOT_JOBS


def test_the_owners_top_level_is_there() -> None:
    for entry in (
        *PACKAGES,
        "tests",
        "spark-submit.sh",
        "setup.cfg",
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "SECURITY.md",
        "Makefile",
        ".ci/run",
    ):
        assert (ROOT / entry).exists(), entry


def test_every_module_says_what_it_is() -> None:
    assert [path for path, tree in trees() if not ast.get_docstring(tree) and not path.endswith("__init__.py")] == []


def test_files_and_functions_stay_readable() -> None:
    long_files = [name(path) for path in sources() if len(path.read_text().splitlines()) > 650]
    long_functions = [
        f"{path}:{node.name}"
        for path, tree in trees()
        for node in walked(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (node.end_lineno or 0) - node.lineno >= 65
    ]
    assert (long_files, long_functions) == ([], [])


def test_a_name_means_one_thing() -> None:
    """Over the whole product, so that a reader who meets it knows which it is."""
    classes = [(node.name, path) for path, tree in trees() for node in walked(tree) if isinstance(node, ast.ClassDef)]
    modules = [(path.stem, name(path)) for path in sources() if path.stem != "__init__"]
    for found in (classes, modules):
        places: dict[str, list[str]] = {}
        for what, where in found:
            places.setdefault(what, []).append(where)
        assert {what: where for what, where in places.items() if len(where) > 1} == {}


def test_no_module_imports_itself_in_a_circle() -> None:
    names = {path: f"{NAMESPACE}/{name(path)}".removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in sources()}
    imports = {module: imported(path) & set(names.values()) for path, module in names.items()}
    assert sum(map(len, imports.values())) > 1000
    done: set[str] = set()

    def walk(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " -> ".join((*way[way.index(module) :], module))
        if module not in done:
            for other in imports[module]:
                walk(other, (*way, module))
            done.add(module)

    for module in imports:
        walk(module, ())


@cache
def imported(path: Path) -> set[str]:
    """Modules and ``package.name`` of every import in a file, those for types included."""
    found = set()
    for node in walked(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_the_namespace_is_links_to_every_package() -> None:
    linked = {path.name: path.resolve() for path in (ROOT / NAMESPACE).iterdir() if path.is_symlink()}
    assert linked == {package: ROOT / package for package in PACKAGES}


def test_everything_is_imported_under_one_name() -> None:
    """A bare ``import sinks`` would load each class a second time, as another class."""
    folders = [ROOT / folder for folder in (*PACKAGES, "tests", "benchmarks", "notebooks")]
    bare = [
        f"{name(path)}: {module}"
        for folder in folders
        for path in folder.rglob("*.py")
        for module in imported(path)
        if module.partition(".")[0] in PACKAGES
    ]
    assert bare == []


def test_the_notebook_uses_only_what_is_promised() -> None:
    """Everything else may change in any release."""
    offered = set(pyspark_tidb_binlog.__all__) - {"DefaultSource"}
    tree = ast.parse((ROOT / "notebooks" / "replicate.py").read_text())
    used = {module for module in imported(ROOT / "notebooks" / "replicate.py") if module.startswith(NAMESPACE)}
    lake = {f"{NAMESPACE}.lake", *(f"{NAMESPACE}.lake.{name}" for name in pyspark_tidb_binlog.lake.__all__)}
    assert used <= {NAMESPACE, *(f"{NAMESPACE}.{name}" for name in offered), *lake} and modules_of(tree) & {NAMESPACE}
    (promised,) = re.findall(r"^\| classes and functions .*$", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    assert [name for name in offered if f"`{name}`" not in promised] == []
    assert [name for name in offered if getattr(pyspark_tidb_binlog, name).__name__ != name] == []


def named_insides(tree: ast.Module) -> Iterator[str]:
    """Private names and modules of PySpark in a file, and Spark's classes in the JVM."""
    for node in walked(tree):
        if isinstance(node, ast.Attribute):
            of = node.value
            if node.attr in PRIVATE_NAMES and not (isinstance(of, ast.Name) and of.id == "self"):
                yield ast.unparse(node)
            if node.attr == "spark" and isinstance(of, ast.Attribute) and of.attr == "apache":
                yield ast.unparse(node)
    yield from sorted(module for module in modules_of(tree) if PRIVATE_MODULES.match(module))


def test_two_files_name_the_insides_of_pyspark() -> None:
    """So a port to another Spark reads two files."""
    beside = [(name(path), parsed(path)) for folder in ("benchmarks", "notebooks") for path in (ROOT / folder).glob("*.py")]
    named = [f"{path}: {found}" for path, tree in (*trees(), *beside) if path not in INSIDES for found in named_insides(tree)]
    words = [
        f"{path}: {node.value!r}"
        for path, tree in trees()
        if path not in INSIDES
        for texts in [{id(node.value) for node in walked(tree) if isinstance(node, ast.Expr)}]
        for node in walked(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and PRIVATE_WORDS.search(node.value) and id(node) not in texts
    ]
    assert (named, words) == ([], [])
    assert all(list(named_insides(parsed(ROOT / path))) for path in INSIDES)


def modules_of(tree: ast.Module) -> set[str]:
    """The modules that a file imports, or imports from."""
    found = {alias.name for node in walked(tree) if isinstance(node, ast.Import) for alias in node.names}
    return found | {node.module for node in walked(tree) if isinstance(node, ast.ImportFrom) and node.module}


def test_no_drawer_for_everything() -> None:
    assert [name(path) for path in sources() if path.stem in ("utils", "util", "helpers", "helper", "common", "manager", "misc")] == []


def test_no_error_is_swallowed_unseen() -> None:
    broad = [
        f"{path}:{node.lineno}"
        for path, tree in trees()
        for node in walked(tree)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or (isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")))
        and not any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
    ]
    assert [place for place in broad if place.rpartition(":")[0] not in BROAD_EXCEPTS] == []


def test_no_file_names_the_machine_it_was_written_on() -> None:
    texts = [*sources(), *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "Makefile", ROOT / "setup.cfg", ROOT / "spark-submit.sh"]
    assert [name(path) for path in texts if re.search(r"/work/|/home/|/root/|/tmp/prompts", path.read_text())] == []


def test_no_message_names_the_entry_of_a_checkout() -> None:
    """``conf/entry.py`` has the words. The generated samples and pages name both entries."""
    named = [
        f"{file}:{node.lineno}"
        for file, tree in trees()
        if file not in ("conf/entry.py", "conf/reference.py")
        for bare in [{id(node.value) for node in walked(tree) if isinstance(node, ast.Expr)}]
        for node in walked(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "spark-submit.sh" in node.value and id(node) not in bare
    ]
    assert named == []


def test_every_job_is_offered_and_documented() -> None:
    installed = re.findall(r"^\| `tidb-binlog ([a-z]+)", (ROOT / "docs" / "installed.md").read_text(), re.M)
    assert {*jobs(), "setup"} == set(command.JOBS) == {*installed, "setup"}


def test_every_error_has_its_line_in_the_runbook() -> None:
    runbook = (ROOT / "docs" / "runbook.md").read_text()
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and kind is not errors.ReplicationError]
    assert [kind.__name__ for kind in kinds if f"`{kind.__name__}`" not in runbook] == []


def test_every_setting_that_a_document_names_exists() -> None:
    known = {setting.path for model in (DrainerConfig, PumpConfig) for setting in settings_of(model)}
    named = {
        setting
        for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
        for setting in re.findall(r"`((?:source|pair|syncer|storage|security|spark)\.[a-zA-Z0-9_.-]+)", path.read_text())
    }
    tables = {setting.rpartition(".")[0] for setting in known}
    # Spark's own settings have a second dot
    assert {setting for setting in named - known - tables if not re.match(r"spark\.[a-zA-Z]+\.", setting)} == set()


def test_links_between_documents_lead_somewhere() -> None:
    broken = [
        f"{name(path)}: {link}"
        for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
        for link in re.findall(r"\]\(([^)#:]+)\)", path.read_text())
        if not (path.parent / link).exists()
    ]
    assert broken == []


def test_the_wheel_asks_for_what_the_jobs_are_run_with() -> None:
    """Ranges that hold the versions which the tests run with."""
    pinned = {
        Requirement(line).name: line.partition("==")[2] for line in (ROOT / "requirements.txt").read_text().splitlines() if "==" in line
    }
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "setup.cfg")
    extras = "\n".join(parser["options.extras_require"].values())
    asked = [
        Requirement(line) for line in f"{parser['options']['install_requires']}\n{extras}".splitlines() if line and not line.startswith("#")
    ]
    others = [one for one in asked if one.name != parser["metadata"]["name"]]
    assert len(others) > 10
    assert [str(one) for one in others if not one.specifier.contains(pinned[one.name]) or len(one.specifier) < 2] == ["cryptography>=43"]


def asserting(node: ast.AST, known: set[str]) -> bool:
    """Whether a function checks something itself, or calls one that does."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Assert) or (isinstance(inner, ast.Attribute) and inner.attr in ("raises", "warns", "fail")):
            return True
        if isinstance(inner, ast.Call):
            called = inner.func
            if (called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else "") in known:
                return True
    return False


def test_every_test_can_fail() -> None:
    """A test without an assertion passes although the function that it tests does nothing."""
    functions = [
        (f"{name(path)}:{node.lineno}", node)
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for node in walked(parsed(path))
        if isinstance(node, ast.FunctionDef)
    ]
    known: set[str] = set()
    for _ in range(3):
        known |= {node.name for _, node in functions if asserting(node, known)}
    unsure = [f"{place} {node.name}" for place, node in functions if node.name.startswith("test_") and not asserting(node, known)]
    assert unsure == []


@pytest.mark.parametrize("target", ["help", "setup", "lint", "type", "imports", "test", "golden", "torture", "bench", "demo"])
def test_make_help_lists_the_commands(target: str) -> None:
    assert re.search(rf"^{target}:.*## ", (ROOT / "Makefile").read_text(), re.M)


def test_every_citation_of_the_specification_is_there() -> None:
    """``rows.md 9.3`` is section 9.3 of docs/spec/rows.md; another page that is named lies in docs."""
    cited = {
        (name(path), *found)
        for folder in (*PACKAGES, "tests", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "test_documents.py"  # its pages are made up
        for found in re.findall(r"\b([a-z_-]+\.md)\b(?: (\d+(?:\.\d+)*))?", path.read_text())
    }
    headings = {page.name: set(re.findall(r"^#+ (\d+(?:\.\d+)*)", page.read_text(), re.M)) for page in (ROOT / "docs/spec").glob("*.md")}
    lost = [
        f"{path}: {page} {section}"
        for path, page, section in cited
        if (section not in headings.get(page, ()) if section else page not in headings and not (ROOT / "docs" / page).exists())
    ]
    assert cited and lost == []
