"""Prepares the pages for MkDocs (``mkdocs.yml``, ``make site``): ``docs/index.md`` is the navigation, and linked files beside ``docs`` join the site.

Promises: the files of the pages stay unchanged, with links that work on a code host; only MkDocs' input is changed. The strict build fails for a page if
``docs/index.md`` names neither the page nor another page of its folder.
"""

import re
from collections.abc import Iterator
from os.path import relpath
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BESIDE = "project"
"""The folder of the site for files that are not in ``docs``."""
_LINK = re.compile(r"(?<=\]\()([^)\s#:]+)")
_FENCED = re.compile(r"^( *```.*?^ *```)$", re.M | re.S)
_LISTS = (
    (re.compile(r"^((?![-*] |[|#>\s]|\d+\. ).*\n)(?=[-*] |\d+\. )", re.M), r"\1\n"),
    (re.compile(r"^ {2,3}(?=[-*] )", re.M), "    "),
)
"""Lists that code hosts understand and Python's Markdown does not: directly after a paragraph, or nested by two or three spaces."""


def on_config(config: MkDocsConfig) -> None:
    """The groups of ``docs/index.md`` as navigation."""
    groups = (DOCS / "index.md").read_text("utf-8").split("\n## ")[1:]
    config.nav = ["index.md", *({text.partition("\n")[0]: list(entries(text))} for text in groups)]


def entries(text: str) -> Iterator[str | dict[str, Any]]:
    """The pages that a group names, in its order. A folder's page brings the others of its folder."""
    for title, link in re.findall(r"\[([^\]]+)\]\(([^)\s#:]+)", text):
        path = (DOCS / link).resolve()
        if path.is_relative_to(DOCS) and path.parent != DOCS:
            first = [name for name in ("README.md",) if (path.parent / name).exists()]
            others = sorted(page.name for page in path.parent.glob("*.md") if page.name not in first)
            yield {title.capitalize(): [uri(path.parent / name) for name in (*first, *others)]}
        else:
            yield uri(path)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The pages of ``docs``, and every file beside ``docs`` that a page of the site links to."""
    open_pages = sorted(DOCS.rglob("*.md"))
    seen = set(open_pages)
    while open_pages:
        page = open_pages.pop()
        for path in targets(page.read_text("utf-8"), page.parent):
            if path in seen or path.is_relative_to(DOCS):
                continue
            seen.add(path)
            files.append(File.generated(config, uri(path), abs_src_path=str(path)))
            if path.suffix == ".md":
                open_pages.append(path)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with links as its place in the site needs them. What leads nowhere is left for MkDocs to name."""
    source = Path(str(page.file.abs_src_path))
    here = Path(uri(source)).parent

    def placed(link: re.Match[str]) -> str:
        to = (source.parent / link[0]).resolve()
        return relpath(uri(to), here) if to.is_file() else link[0]

    pieces = _FENCED.split(markdown)
    for pattern, written in _LISTS:
        pieces[::2] = [pattern.sub(written, text) for text in pieces[::2]]
    pieces[::2] = [_LINK.sub(placed, text) for text in pieces[::2]]
    pieces[1::2] = [re.sub(r"^( *```\w+) .*", r"\1", fenced) for fenced in pieces[1::2]]
    return "\n".join(pieces)


def targets(text: str, folder: Path) -> Iterator[Path]:
    """The files of the project that a page in ``folder`` links to."""
    for link in dict.fromkeys(_LINK.findall(text)):
        path = (folder / link).resolve()
        if path.is_file() and path.is_relative_to(ROOT):
            yield path


def uri(path: Path) -> str:
    """Where a file of the project is in the site."""
    return path.relative_to(DOCS).as_posix() if path.is_relative_to(DOCS) else f"{BESIDE}/{path.relative_to(ROOT).as_posix()}"
