"""DDL text: its tokens, and the target's names in it. Pure.

Works on tokens (``schemas.ddl_tokens``), so quoted names and strings are never mistaken for keywords. A TiDB gets the upstream's text, without IF NOT EXISTS. Its
sessions ignore placement policies (``tidb_placement_mode``).

Names of tables become those of the target (``[[spark.route]]``) where a statement has them: after ALTER TABLE and its RENAME, CREATE TABLE, LIKE, REFERENCES, and ON of
an index. Everything else stays as it is. A view is refused where a table of it has a route. A server with lower_case_table_names = 0 refuses one that spells a table otherwise.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark_tidb_binlog.schemas.ddl_tokens import Token, TokenKind, Tokens, quote_name, read_name, significant, strip, text_of, tokenize
from pyspark_tidb_binlog.sinks.routing.routes import Routes


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Text for the target, and what it leaves out."""

    sql: str
    losses: tuple[str, ...] = ()
    then: tuple[str, ...] = ()
    """More, idempotent statements of the same DDL."""
    may_fail: bool = False
    """Errors of the target are ignored."""
    by_infos: bool = False
    """It is made of the table infos, which have the target's names: nothing of a user's text is in it."""
    plain: "Rewritten | None" = None
    """What is executed where the target refuses it."""


def without_if_not_exists(tokens: Sequence[Token]) -> Tokens:
    """CREATE TABLE, CREATE INDEX and ALTER TABLE without IF NOT EXISTS: the object did not exist upstream, or there would be no job.

    So the target reports an existing object, which must then be compared.
    """
    solid = [i for i, t in enumerate(tokens) if not t.blank]
    spoken = [tokens[i].word for i in solid]
    if spoken[:1] not in (["CREATE"], ["ALTER"]) or not {"TABLE", "INDEX"} & set(spoken[1:4]):
        return list(tokens)
    dropped: set[int] = set()
    for n in range(len(solid) - 3):
        if spoken[n : n + 3] == ["IF", "NOT", "EXISTS"]:
            dropped.update(range(solid[n], solid[n + 3]))
    return [t for i, t in enumerate(tokens) if i not in dropped]


def plain_strings(tokens: Sequence[Token], *, restored: bool) -> Tokens:
    """Strings for our sql_mode: restored text has unescaped backslashes. ``_UTF8MB4`` is removed, being the connection's charset."""
    out: Tokens = []
    for i, token in enumerate(tokens):
        if token.word == "_UTF8MB4" and i + 1 < len(tokens) and tokens[i + 1].kind is TokenKind.STRING:
            continue
        if restored and token.kind is TokenKind.STRING and "\\" in token.text:
            token = Token(TokenKind.STRING, token.text.replace("\\", "\\\\"))
        out.append(token)
    return out


def reads_clock(sql: str) -> bool:
    """Whether ``UNIX_TIMESTAMP('...')`` is in the text, as a boundary of a partition: its number depends on the time zone of the session."""
    solid = [t for t in significant(sql) if t.word != "_UTF8MB4"]
    return any(
        a.word == "UNIX_TIMESTAMP" and b.text == "(" and c.kind is TokenKind.STRING
        for a, b, c in zip(solid, solid[1:], solid[2:], strict=False)
    )


def without_features(tokens: Sequence[Token]) -> Tokens:
    """The tokens without comments and without what only TiDB reads (``/*T! ... */``); MySQL's version comments are kept."""
    out: Tokens = []
    inside = False
    for token in tokens:
        opens = token.kind is TokenKind.FEATURE_OPEN and token.text.startswith("/*T!")
        if not inside and not opens and token.kind is not TokenKind.COMMENT:
            out.append(token)
        inside = opens or (inside and token.kind is not TokenKind.FEATURE_CLOSE)
    return out


def without_end(tokens: Tokens) -> Tokens:
    """The tokens without semicolons and blanks at the end."""
    tokens = strip(tokens)
    while tokens and tokens[-1].text == ";":
        tokens = strip(tokens[:-1])
    return tokens


_SKIPPED = frozenset({"IF", "NOT", "EXISTS", "IGNORE", "("})
_NO_TABLE = frozenset({"COLUMN", "INDEX", "KEY"})


def routed_text(query: str, routes: Routes, home: str, *, restored: bool) -> str:
    """``query``, which makes no view, for the target: each name with its database, so that no name depends on the current database.

    Args:
        query: the text.
        routes: those of the settings.
        home: the upstream's database for names without one.
        restored: TiDB's parser wrote the text.
    """
    tokens = tokenize(query, backslash_escapes=not restored)
    solid = [place for place, token in enumerate(tokens) if not token.blank]
    words = [tokens[place] for place in solid]
    out: list[Token] = []
    done = 0
    for at in _places(words):
        if at >= len(words) or solid[at] < done or not _is_name(words[at]):
            continue
        name, end = read_name(words, at)
        found = routes.target(name.schema or home, name.name)
        out += [*tokens[done : solid[at]], Token(TokenKind.NAME, f"{quote_name(found.schema)}.{quote_name(found.name)}")]
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
