"""How this project is started, and where its files are. In a checkout: ``./spark-submit.sh``. Installed: the command ``tidb-binlog``. Pure.

Promises: an error or ``--help`` names the command that the reader has, and a document that this command shows.
"""

from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
"""The directory with ``conf``, ``docs`` and the code: the checkout's root, or the installed package."""
IN_CHECKOUT = (HOME / "spark-submit.sh").is_file()
PROGRAM = "spark-submit.sh" if IN_CHECKOUT else "tidb-binlog"
"""What the program calls itself."""
COMMAND = f"./{PROGRAM}" if IN_CHECKOUT else PROGRAM
"""What a person types."""
PACKAGE = HOME / "pyspark_tidb_binlog" if IN_CHECKOUT else HOME
"""The directory of the package; in a checkout it holds links (docs/adr/0008)."""
PLAYGROUND_PORT = 8260
"""Of a playground's registry: below those that the kernel gives to clients."""
CODE = PACKAGE.parent
"""What has to be on Python's path."""


def document(name: str) -> str:
    """How a person opens the page ``name``, such as ``runbook``."""
    return f"docs/{name}.md" if IN_CHECKOUT else f"`{COMMAND} docs {name}`"


def comparing(*tables: str) -> str:
    """What a person types to compare these tables, named as at the target or upstream, with the upstream; without any: all."""
    named = ",".join(dict.fromkeys(table.replace("`", "") for table in tables))
    return f"{COMMAND} verify -config FILE{f' --tables {named}' if named else ''}"


def sample(name: str) -> str:
    """A file of the project that a person copies or reads, such as ``conf/drainer.toml``: relative to a checkout, else its path."""
    return name if IN_CHECKOUT else str(HOME / name)
