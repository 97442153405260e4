"""DDLs in a replay that does not know whether they were executed: what their text says about a second execution. Pure.

A real Drainer applies all rows before a DDL first, and saves its checkpoint at once after the DDL (drainer.md 6). So only the first DDL behind its
checkpoint may have been executed. If it was, the target already has the rows before it, in the form that the DDL gave them. For most DDLs it is safe to
write these rows again and to execute the DDL again.

Promises: names the DDLs for which this is wrong, and the columns that rows from before the DDL do not have.
"""

from collections.abc import Collection

from pyspark_tidb_binlog.schemas.ddl_tokens import TokenKind, rename_pairs, tokenize
from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import (
    Tokens,
    alter_specs,
    closing,
    definition_at,
    is_index,
    next_solid,
    split_commas,
    strip,
    words,
)


def why_not_twice(query: str) -> str:
    """In words why the DDL must not be executed a second time; empty: it may."""
    if len(rename_pairs(query)) > 1:
        return "it renames several tables, and a second time it may give a table another's name"
    if any(words(spec)[:2] == ["EXCHANGE", "PARTITION"] for spec in _specs(query)):
        return "a second EXCHANGE PARTITION would put the rows back"
    return ""


def why_not_rows(query: str, worded: Collection[str]) -> str:
    """Why rows from before the DDL must not be written after it, in words; empty: they may.

    Args:
        query: its text.
        worded: columns, in lower case, for which such a row holds the number of a word (ENUM, SET).
    """
    for spec in _specs(query):
        spoken = words(spec)
        if spoken[0] == "CHANGE" or spoken[:2] == ["RENAME", "COLUMN"]:
            return "it renames a column, and the rows before it are recorded under the old name"
        if spoken[0] == "MODIFY" and (_is_worded(spec) or spec[definition_at(spec)].name.lower() in worded):
            return "it changes the words of an ENUM or SET, and the rows before it are recorded by the old numbers of these words"
    return ""


def added_columns(query: str) -> frozenset[str]:
    """Columns, in lower case, that the DDL adds: rows before it have NULL, or nothing, for them."""
    found = set()
    for spec in _specs(query):
        at = definition_at(spec) if words(spec)[0] == "ADD" else 0
        if at and spec[at].text == "(":
            pieces = [strip(piece) for piece in split_commas(spec[at + 1 : closing(spec, at)])]
            found |= {piece[0].name.lower() for piece in pieces if piece and not is_index(piece)}
        elif at:
            found.add(spec[at].name.lower())
    return frozenset(found)


def _specs(query: str) -> list[Tokens]:
    """What one ALTER TABLE does, piece by piece; nothing of another statement."""
    tokens = [t for t in tokenize(query, backslash_escapes=False) if t.kind not in (TokenKind.FEATURE_OPEN, TokenKind.FEATURE_CLOSE)]
    while tokens and (tokens[-1].blank or tokens[-1].text == ";"):
        tokens.pop()
    if words(tokens)[:1] != ["ALTER"] or "TABLE" not in words(tokens)[:3]:
        return []
    return [spec for spec in map(strip, alter_specs(tokens)) if spec]


def _is_worded(spec: Tokens) -> bool:
    """Whether the spec defines a column with words."""
    at = next_solid(spec, definition_at(spec) + 1)
    return at < len(spec) and spec[at].word in ("ENUM", "SET")
