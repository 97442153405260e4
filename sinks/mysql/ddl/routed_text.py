"""Puts the target's table names into the text of a DDL: those of ``[[spark.route]]``, spelled as the tables were created.

Promises: pure. Names of tables are replaced where a statement has them: after ALTER TABLE and its RENAME, CREATE TABLE, LIKE, REFERENCES, and ON of
an index. Everything else stays as it is. TiDB accepts any case; to a server with lower_case_table_names = 0, ``Orders`` and ``orders`` are two tables. In a
view, the tables of FROM and JOIN get the spelling with which they were created, and the view's own spelling as alias for its columns.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from pyspark_tidb_binlog.schemas.ddl_tokens import QualifiedName, Token, TokenKind, quote_name, read_name, text_of, tokenize
from pyspark_tidb_binlog.sinks.routing.routes import Routes, TargetName

_SKIPPED = frozenset({"IF", "NOT", "EXISTS", "IGNORE", "("})
_NO_TABLE = frozenset({"COLUMN", "INDEX", "KEY"})
_MADE = frozenset({"VIEW", "TABLE", "INDEX", "SEQUENCE", "DATABASE", "SCHEMA"})
_TAKE_FROM = frozenset({"EXTRACT", "TRIM", "SUBSTRING", "SUBSTR", "MID"})
"""Functions with a FROM in their parentheses."""
_BEHIND_TABLE = frozenset(
    "ON USING WHERE GROUP HAVING ORDER LIMIT UNION EXCEPT INTERSECT WINDOW FOR LOCK WITH JOIN INNER CROSS LEFT RIGHT NATURAL STRAIGHT_JOIN".split()
)
"""Words that follow a table without an alias."""


def routed_text(query: str, routes: Routes, home: str, *, restored: bool) -> str:
    """``query`` for the target, each name with its database, so that no name depends on the current database.

    Args:
        query: the text.
        routes: those of the settings.
        home: the upstream's database for names without one.
        restored: TiDB's parser wrote the text.

    A view stays as it is: a view that names a table with a route is refused.
    """

    def to(name: QualifiedName) -> str:
        found = routes.target(name.schema or home, name.name)
        return f"{quote_name(found.schema)}.{quote_name(found.name)}"

    return query if _makes_view(_solid(query, restored=restored)) else _renamed(query, to, restored=restored)


def spelled_text(query: str, spelled: Mapping[tuple[str, str], TargetName], home: str, *, restored: bool) -> str:
    """``query`` with tables spelled as they were made. ``spelled``: by database and name in lower case; the others as for ``routed_text``."""

    def to(name: QualifiedName) -> str:
        found = spelled.get(((name.schema or home).lower(), name.name.lower()))
        if found is None:
            return ""
        return f"{quote_name(found.schema)}.{quote_name(found.name)}" if name.schema else quote_name(found.name)

    return _renamed(query, to, restored=restored) if spelled else query


def table_names(query: str) -> tuple[QualifiedName, ...]:
    """The names of tables in a text."""
    found: list[QualifiedName] = []

    def note(name: QualifiedName) -> str:
        found.append(name)
        return ""

    _renamed(query, note, restored=False)
    return tuple(found)


def _renamed(query: str, to: Callable[[QualifiedName], str], *, restored: bool) -> str:
    """``to`` writes a name; empty: it stays."""
    tokens = tokenize(query, backslash_escapes=not restored)
    solid = [place for place, token in enumerate(tokens) if not token.blank]
    words = [tokens[place] for place in solid]
    view = _makes_view(words)
    out: list[Token] = []
    done = 0
    for at in _of_view(words) if view else _places(words):
        if at >= len(words) or solid[at] < done or not _is_name(words[at]):
            continue
        name, end = read_name(words, at)
        if not (written := to(name)):
            continue
        out += tokens[done : solid[at]]
        out.append(Token(TokenKind.NAME, f"{written} AS {quote_name(name.name)}" if view and not _has_alias(words, end) else written))
        done = solid[end - 1] + 1
    return text_of([*out, *tokens[done:]])


def _solid(query: str, *, restored: bool) -> list[Token]:
    return [token for token in tokenize(query, backslash_escapes=not restored) if not token.blank]


def _makes_view(words: Sequence[Token]) -> bool:
    spoken = [t.word for t in words]
    return spoken[:1] == ["CREATE"] and next((word for word in spoken if word in _MADE), "") == "VIEW"


def _of_view(words: Sequence[Token]) -> Iterator[int]:
    """Where the tables of a view begin, ascending; none if it names results of its own (WITH), or columns by database and table."""
    spoken = [t.word for t in words]
    own = any(word == "WITH" and spoken[at + 1] not in ("CHECK", "CASCADED", "LOCAL", "ROLLUP") for at, word in enumerate(spoken[:-1]))
    if own or any(token.text == "." == after.text for token, after in zip(words, words[2:], strict=False)):
        return
    opened: list[str] = []
    for at, word in enumerate(spoken):
        if word == "(":
            opened.append(spoken[at - 1])
        elif word == ")" and opened:
            opened.pop()
        elif word in ("FROM", "JOIN", "STRAIGHT_JOIN") and not (word == "FROM" and opened and opened[-1] in _TAKE_FROM):
            yield from _listed(words, at + 1)


def _listed(words: Sequence[Token], at: int) -> Iterator[int]:
    """A table, and those behind commas."""
    while at < len(words):
        while at < len(words) and words[at].word == "(":
            at += 1
        if at >= len(words) or not _is_name(words[at]) or words[at].word in ("SELECT", "DUAL"):
            return
        yield at
        _, at = read_name(words, at)
        if _has_alias(words, at):
            at += 1 + (words[at].word == "AS")
        if at >= len(words) or words[at].word != ",":
            return
        at += 1


def _has_alias(words: Sequence[Token], at: int) -> bool:
    return at < len(words) and (words[at].word == "AS" or (_is_name(words[at]) and words[at].word not in _BEHIND_TABLE))


def _places(words: Sequence[Token]) -> Iterator[int]:
    """Where the names of tables begin, ascending."""
    verb = words[0].word if words else ""
    seen_table = False
    for at, token in enumerate(words):
        after = at + 1
        if token.word == "TABLE" and not seen_table and verb in ("ALTER", "CREATE") and at < 5:
            seen_table = True
            yield _after_skipped(words, after)
        elif token.word == "ON" and not seen_table and verb in ("CREATE", "DROP"):
            seen_table = True
            yield after
        elif token.word == "SEQUENCE" and not seen_table and at < 4:
            seen_table = True
            yield _after_skipped(words, after)
        elif token.word == "REFERENCES" or (token.word == "LIKE" and verb == "CREATE" and _copies(words, at)):
            yield after
        elif token.word == "RENAME" and verb == "ALTER" and after < len(words) and words[after].word not in _NO_TABLE:
            yield after + (words[after].word in ("TO", "AS", "="))


def _copies(words: Sequence[Token], at: int) -> bool:
    """Whether the LIKE at ``at`` is that of CREATE TABLE ... LIKE."""
    opened = [t.text for t in words[:at]].count("(")
    return opened == 0 or (opened == 1 and words[at - 1].text == "(")


def _after_skipped(words: Sequence[Token], at: int) -> int:
    while at < len(words) and words[at].word in _SKIPPED:
        at += 1
    return at


def _is_name(token: Token) -> bool:
    return token.kind in (TokenKind.NAME, TokenKind.WORD) or (token.kind is TokenKind.STRING and token.text.startswith('"'))
