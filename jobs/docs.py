"""The documents of this release: ``tidb-binlog docs`` lists the pages, ``tidb-binlog docs runbook`` prints a page, ``--path`` prints its path.

Promises: the pages are files beside the code, in a checkout and in an installation; no network is needed.
"""

import sys
from collections.abc import Sequence

from pyspark_tidb_binlog.conf.entry import COMMAND, HOME
from pyspark_tidb_binlog.conf.kinds import nearest
from pyspark_tidb_binlog.jobs.entry.cli import add_switch, parser
from pyspark_tidb_binlog.jobs.entry.documents import listing, page_named, pages
from pyspark_tidb_binlog.schemas.errors import ConfigError


def main(argv: Sequence[str]) -> int:
    """Print the list, or the page that is named."""
    options = parser("docs", "The documents of this release: a list, or one of them.")
    options.add_argument(
        "page", nargs="?", default="", metavar="PAGE", help="the page's name, or the last part of the name: runbook, errors/ddl, ddl"
    )
    add_switch(options, "--path", what="print the path of the page, or of the directory of all pages")
    given = options.parsed(argv)
    if not given.page:
        print(HOME if given.path else listing())
        return 0
    page = page_named(given.page)
    if page is None:
        near = " or ".join(nearest(given.page, pages()))
        raise ConfigError(f"there is no page {given.page!r}" + (f"; did you mean {near}?" if near else f"; {COMMAND} docs lists them"))
    if given.path:
        print(page)
    else:
        sys.stdout.write(page.read_text("utf-8"))
    return 0
