"""DDL text, by its tokens (``schemas.ddl_tokens``): quoted names and strings are never mistaken for keywords. Pure.

A TiDB gets the upstream's text, without IF NOT EXISTS. Its sessions ignore placement policies (``tidb_placement_mode``). Names in a text are never changed: where a table
has another name at the target (``[[spark.route]]``), its statements are made of the table infos.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark_tidb_binlog.schemas.ddl_tokens import Token, TokenKind, Tokens, significant, strip


@dataclass(frozen=True, slots=True)
class DdlStatement:
    """Text for the target, and what it leaves out."""

    sql: str
    losses: tuple[str, ...] = ()
    then: tuple[str, ...] = ()
    """More, idempotent statements of the same DDL."""
    may_fail: bool = False
    """Errors of the target are ignored."""
    by_infos: bool = True
    """It has the target's names and columns. A user's text may not."""


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
