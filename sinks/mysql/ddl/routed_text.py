"""The text of a DDL with the names that tables have at the target (``[[spark.route]]``).

Promises: pure. Names of tables are replaced where a statement has them: after ALTER TABLE and its RENAME, CREATE TABLE, LIKE, REFERENCES, and ON of
an index; each with its database, so that none depends on a current one. Everything else stays as it is.
"""

from collections.abc import Iterator, Sequence

from pyspark_tidb_binlog.schemas.ddl_tokens import Token, TokenKind, quote_name, read_name, text_of, tokenize
from pyspark_tidb_binlog.sinks.routing.routes import Routes

_SKIPPED = frozenset({"IF", "NOT", "EXISTS", "IGNORE", "("})
_NO_TABLE = frozenset({"COLUMN", "INDEX", "KEY"})


def routed_text(query: str, routes: Routes, home: str, *, restored: bool) -> str:
    """``query`` for the target. ``home``: the database upstream of names without one; ``restored``: TiDB's parser wrote it."""
    tokens = tokenize(query, backslash_escapes=not restored)
    solid = [place for place, token in enumerate(tokens) if not token.blank]
    words = [tokens[place] for place in solid]
    out: list[Token] = []
    done = 0
    for at in _places(words):
        if at >= len(words) or solid[at] < done or not _is_name(words[at]):
            continue
        name, end = read_name(words, at)
        to = routes.target(name.schema or home, name.name)
        out += tokens[done : solid[at]]
        out.append(Token(TokenKind.NAME, f"{quote_name(to.schema)}.{quote_name(to.name)}"))
        done = solid[end - 1] + 1
    return text_of([*out, *tokens[done:]])


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
