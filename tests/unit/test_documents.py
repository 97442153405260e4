"""What the documents point at is there: their links, the paths and make targets that they name, and the pages that code and scripts name."""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from pyspark_tidb_binlog.jobs import docs
from pyspark_tidb_binlog.schemas import errors
from pyspark_tidb_binlog.schemas.errors import ConfigError

ROOT = Path(__file__).parents[2]
SPEC = "docs/spec/"
"""About the real programs, whose files it names."""
EXAMPLES = {"app.py", "front.py"}
"""Files that are the reader's."""
_ENDS = "py|md|toml|sh|cfg|txt|ipynb|svg|png|proto|service|options"


@cache
def tracked() -> frozenset[str]:
    """Every file of the project."""
    found = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip("no checkout of git")
    return frozenset(name for name in found.stdout.splitlines() if (ROOT / name).exists())


@cache
def known() -> frozenset[str]:
    """Every file and directory, by its path from the root and by each end of that path."""
    places = {"/".join(name.split("/")[:i]) for name in tracked() for i in range(1, name.count("/") + 2)}
    return frozenset("/".join(place.split("/")[i:]) for place in places for i in range(place.count("/") + 1))


def pages() -> list[str]:
    return sorted(name for name in tracked() if name.endswith(".md"))


@cache
def anchors(page: Path) -> frozenset[str]:
    """The names of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


def broken_links(name: str) -> Iterator[str]:
    page = ROOT / name
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", page.read_text())):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        to = page.parent / path if path else page
        if not to.exists() or (anchor and anchor not in anchors(to)):
            yield f"{name}: {link}"


def strange_paths(name: str) -> Iterator[str]:
    """Files and directories in backquotes that the project does not have."""
    tops = {place.partition("/")[0] for place in tracked()}
    for quoted in re.findall(r"`([^`\n]+)`", (ROOT / name).read_text()):
        for word in quoted.split():
            path = word.strip("(),;:").partition("::")[0].removeprefix("./").rstrip("/")
            is_file = re.fullmatch(rf"[\w./-]+\.({_ENDS})", path) is not None
            is_room = re.fullmatch(r"[\w.-]+(/[\w.-]+)+", path) is not None and path.partition("/")[0] in tops
            if (is_file or is_room) and path not in known() and path.rpartition("/")[2] not in EXAMPLES:
                yield f"{name}: {quoted}"


def test_links_lead_somewhere() -> None:
    assert [link for page in pages() for link in broken_links(page)] == []


def test_paths_that_documents_name_are_there() -> None:
    assert [path for page in pages() if not page.startswith(SPEC) for path in strange_paths(page)] == []


def test_pages_that_the_command_shows_are_there() -> None:
    asked = {(name, page) for name in pages() for page in re.findall(r"tidb-binlog docs ([a-z][\w/-]*)", (ROOT / name).read_text())}
    assert asked and [(name, page) for name, page in sorted(asked) if page not in docs.pages()] == []


def test_targets_of_make_that_documents_name_are_there() -> None:
    targets = set(re.findall(r"^([a-z_-]+):", (ROOT / "Makefile").read_text(), re.M))
    asked = {(page, target) for page in pages() for target in re.findall(r"(?:`|^    )make ([a-z-]+)", (ROOT / page).read_text(), re.M)}
    assert asked and [(page, target) for page, target in sorted(asked) if target not in targets] == []


@pytest.mark.parametrize(
    ("asked", "title"),
    [
        ("runbook", "Runbook"),
        ("docs/errors/ddl.md", "DDLs"),
        ("ddl", "DDLs"),
        ("spec/ddl", "ddl.md"),
        ("pump", "The Pump"),
        ("CHANGELOG", "Changelog"),
    ],
)
def test_a_page_is_shown_by_its_name_or_the_last_part_of_it(asked: str, title: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert docs.main([asked]) == 0
    assert capsys.readouterr().out.startswith(f"# {title}")


def test_a_page_that_is_not_there_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no page 'errors/dll'; did you mean errors/ddl"):
        docs.main(["errors/dll"])


def test_pages_that_code_names_are_there() -> None:
    """An error that sends somebody to a page, and to a heading of it."""
    wrong = []
    for name in tracked():
        if not name.endswith((".py", ".sh", ".toml", ".service", "Makefile")) or name == "tests/unit/test_documents.py":
            continue
        text = (ROOT / name).read_text()
        shown = [(f"docs/{page}.md", "") for page in re.findall(r"\bdocument\(['\"]([\w/-]+)['\"]\)", text)]
        for page, heading in shown + re.findall(r"(docs/[\w/-]+\.md)(?:, ([A-Z]\w+(?: \w+)*)\))?", text):
            to = ROOT / page
            if not to.exists() or (heading and heading.lower().replace(" ", "-") not in anchors(to)):
                wrong.append(f"{name}: {page} {heading}")
    assert wrong == []


def test_headings_for_errors_are_words_of_messages() -> None:
    """Whoever searches the pages for what a message says finds its heading."""
    product = [
        ast.walk(ast.parse((ROOT / name).read_text())) for name in tracked() if name.endswith(".py") and not name.startswith("tests/")
    ]
    said = [node.value for nodes in product for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    headings = [
        heading for page in (ROOT / "docs" / "errors").glob("*.md") for heading in re.findall(r"^### (.+)$", page.read_text(), re.M)
    ]
    kinds = {name for name in vars(errors) if name[0].isupper()}
    assert headings and [heading for heading in headings if heading not in kinds and not any(heading in text for text in said)] == []


def test_what_is_not_there_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = frozenset(tracked())
    page = tmp_path / "runbook.md"
    page.write_text(
        "[a](none.svg) [c](#nowhere) [d](runbook.md#here) `jobs/none.py` `sinks/nothing/` `https://x/y.svg` `apply.py` `` `\n\n# Here\n"
    )
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    monkeypatch.setattr(f"{__name__}.tracked", lambda: files)
    assert list(broken_links("runbook.md")) == ["runbook.md: none.svg", "runbook.md: #nowhere"]
    assert list(strange_paths("runbook.md")) == ["runbook.md: jobs/none.py", "runbook.md: sinks/nothing/"]
