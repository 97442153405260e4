"""The documents of this release: files beside the code, in a checkout and in an installation.

Promises: a name finds a page of the release or nothing, never another file.
"""

from pathlib import Path

from pyspark_tidb_binlog.conf.entry import HOME

_AT_THE_TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")


def pages() -> dict[str, Path]:
    """The pages by name: ``runbook``, ``errors/ddl``, ``README``. If two folders have the same last part, such as ``ddl``, the first page counts."""
    docs = HOME / "docs"
    top = {Path(name).stem: HOME / name for name in _AT_THE_TOP if (HOME / name).exists()}
    return top | {path.relative_to(docs).with_suffix("").as_posix(): path for path in sorted(docs.rglob("*.md"))}


def page_named(name: str) -> Path | None:
    """The page of a name, or of the last part of a name."""
    known = pages()
    plain = name.removeprefix("docs/").removesuffix(".md")
    return known.get(plain) or next((path for one, path in known.items() if one.endswith(f"/{plain}")), None)


def document_text(name: str) -> str | None:
    """The text of a page; for an empty name a line for each page, with its title. None: there is no such page."""
    if not name:
        known = pages()
        width = max(map(len, known))
        return "".join(f"{one:<{width}}  {_title(path)}\n" for one, path in known.items())
    path = page_named(name)
    return path.read_text("utf-8") if path is not None else None


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as lines:
        return next((line.removeprefix("# ").strip() for line in lines if line.startswith("# ")), "")
