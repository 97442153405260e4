"""What the text of a DDL says of a replay that does not know whether the DDL was executed. Pure.

A real Drainer saves its checkpoint at once after a DDL (drainer.md 6), and has applied all rows before it. So of the DDLs behind its checkpoint only
the first one may have been executed, and if it was, the rows before it are in the target, too, in the form that the DDL gave them. Most DDLs
may be executed again after these rows were written again. Promises: those of which that is wrong are named, and the columns are that a row
before the DDL says nothing of.
"""

from collections.abc import Collection

from pyspark_tidb_binlog.schemas.ddl_tokens import TokenKind, rename_pairs, tokenize
from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import Tokens, closing, is_index, next_solid, split_commas, strip, words
from pyspark_tidb_binlog.sinks.mysql.ddl.defaults import alter_specs, definition_at


def why_not_twice(query: str) -> str:
    """In words why the DDL must not be executed a second time; empty: it may."""
    if len(rename_pairs(query)) > 1:
        return "it renames several tables, which may give one the name of another"
    if any(words(spec)[:2] == ["EXCHANGE", "PARTITION"] for spec in _specs(query)):
        return "executed twice, EXCHANGE PARTITION gives the rows back"
    return ""


def why_not_rows(query: str, worded: Collection[str]) -> str:
    """In words why rows of its table that were written before the DDL must not be written after it; empty: they may.

    Args:
        query: its text.
        worded: columns, in lower case, of which such a row holds the number of a word (ENUM, SET).
    """
    for spec in _specs(query):
        spoken = words(spec)
        if spoken[0] == "CHANGE" or spoken[:2] == ["RENAME", "COLUMN"]:
            return "it renames a column, by whose old name the rows before it are recorded"
        if spoken[0] == "MODIFY" and (_is_worded(spec) or spec[definition_at(spec)].name.lower() in worded):
            return "it changes the words of an ENUM or SET, by whose numbers the rows before it are recorded"
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
