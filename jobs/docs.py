"""The documents of this release: ``tidb-binlog docs`` lists the pages, ``tidb-binlog docs runbook`` prints a page, ``--path`` prints its path.

Promises: the pages are files beside the code, in a checkout and in an installation; no network is needed.
"""

import sys
from collections.abc import Sequence

from pyspark_tidb_binlog.conf.entry import COMMAND, HOME
from pyspark_tidb_binlog.conf.setting import did_you_mean
from pyspark_tidb_binlog.jobs.entry.cli import add_switch, parser
from pyspark_tidb_binlog.jobs.entry.documents import document_text, page_named, pages
from pyspark_tidb_binlog.schemas.errors import ConfigError


def main(argv: Sequence[str]) -> int:
    """Print the list, or the page that is named."""
    options = parser("docs", "The documents of this release: a list, or one of them.")
    options.add_argument(
        "page", nargs="?", default="", metavar="PAGE", help="the page's name, or the last part of the name: runbook, errors/ddl, ddl"
    )
    add_switch(options, "--path", what="print the path of the page, or of the directory of all pages")
    given = options.parsed(argv)
    text = document_text(given.page)
    if text is None:
        raise ConfigError(f"there is no page {given.page!r}{did_you_mean(given.page, pages()) or f'; {COMMAND} docs lists them'}")
    path = page_named(given.page) if given.page else HOME
    sys.stdout.write(f"{path}\n" if given.path else text)
    return 0
