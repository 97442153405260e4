"""The documents of this release: ``tidb-binlog docs`` lists the pages, ``tidb-binlog docs runbook`` prints a page, ``--path`` prints its path.

Promises: the pages are files beside the code, in a checkout and in an installation; no network is needed.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark_tidb_binlog.conf.entry import COMMAND, HOME
from pyspark_tidb_binlog.conf.kinds import nearest
from pyspark_tidb_binlog.jobs.entry.cli import add_switch, parser
from pyspark_tidb_binlog.schemas.errors import ConfigError

_AT_THE_TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")


def main(argv: Sequence[str]) -> int:
    """Print the list, or the page that is named."""
    options = parser("docs", "The documents of this release: a list, or one of them.")
    options.add_argument(
        "page", nargs="?", default="", metavar="PAGE", help="the page's name, or the last part of the name: runbook, errors/ddl, ddl"
    )
    add_switch(options, "--path", what="print the path of the page, or of the directory of all pages")
    given = options.parsed(argv)
    known = pages()
    if not given.page:
        print(HOME if given.path else listing(known))
        return 0
    name = given.page.removeprefix("docs/").removesuffix(".md")
    named = [name] if name in known else [one for one in known if one.endswith(f"/{name}")]
    if not named:
        near = " or ".join(nearest(given.page, known))
        raise ConfigError(f"there is no page {given.page!r}" + (f"; did you mean {near}?" if near else f"; {COMMAND} docs lists them"))
    page = known[named[0]]
    if given.path:
        print(page)
    else:
        sys.stdout.write(page.read_text("utf-8"))
    return 0


def pages() -> dict[str, Path]:
    """The pages by name: ``runbook``, ``errors/ddl``, ``README``. If two folders have the same last part, such as ``ddl``, the first page counts."""
    docs = HOME / "docs"
    top = {Path(name).stem: HOME / name for name in _AT_THE_TOP if (HOME / name).exists()}
    return top | {path.relative_to(docs).with_suffix("").as_posix(): path for path in sorted(docs.rglob("*.md"))}


def listing(known: dict[str, Path]) -> str:
    """A line for each page: its name and its title."""
    width = max(map(len, known))
    return "\n".join(f"{name:<{width}}  {_title(path)}" for name, path in known.items())


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as lines:
        return next((line.removeprefix("# ").strip() for line in lines if line.startswith("# ")), "")
