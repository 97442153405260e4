"""Decides whether the target already has everything that a DDL's text does, where nothing but the text is known. [db]

Promises: reads only. Texts are TiDB's own or restored texts, in which a backslash is an ordinary character. A text that is not recognised counts as
unknown: the caller refuses it, and a person decides.

    ADD COLUMN, ADD INDEX with a name, DROP, CHANGE and RENAME of columns and indexes, RENAME TABLE   the names show whether they ran
    one clause of any other kind                                                                      the target's error shows it
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pyspark_tidb_binlog.schemas.ddl_tokens import QualifiedName, Token, TokenKind, read_name, rename_pairs, split_commas, tokenize
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.mysql.structure import read_tables, read_whole

_HOW = frozenset({"ALGORITHM", "LOCK", "FORCE"})
"""Clauses that say how, not what."""
_INDEX = frozenset({"INDEX", "KEY"})
_NO_COLUMN = frozenset(
    {"PRIMARY", "FOREIGN", "CONSTRAINT", "CHECK", "FULLTEXT", "SPATIAL", "VECTOR", "COLUMNAR", "PARTITION", "STATS_EXTENDED"}
)
_NO_DATABASE, _NO_TABLE = 1049, 1146

_Solid: TypeAlias = Sequence[Token]
"""Tokens without blanks."""


@dataclass(frozen=True, slots=True)
class NameAfter:
    """A name that is there, or not, once a clause has run."""

    kind: str
    """``column``, ``index`` or ``table``."""
    name: str
    there: bool
    schema: str = ""
    """Of a table, where the text has one."""


@dataclass(frozen=True, slots=True)
class _Alter:
    table: QualifiedName
    clauses: tuple[_Solid, ...]


def undoes_itself(statement: str) -> bool:
    """Whether executing it a second time could undo it, with no error: EXCHANGE PARTITION, and names that change places."""
    solid = _solid(statement)
    if solid[:1] and solid[0].word == "ALTER" and any(t.word == "EXCHANGE" for t in solid):
        return True
    pairs = rename_pairs(statement)
    placed = all(name.schema for pair in pairs for name in pair)  # else ``a`` and ``d.a`` may be one table
    found = [_Renamed(*(f"{n.schema}.{n.name}".lower() if placed else n.name.lower() for n in pair)) for pair in pairs]
    if (alter := _alter(solid)) is not None:
        found = [r for clause in alter.clauses if (r := _renamed(clause)) is not None]
    moved = [r for r in found if r.old != r.new or (len(pairs) > 1 and not placed)]
    return bool({r.old for r in moved} & {r.new for r in moved})


def is_one(statement: str) -> bool:
    """Whether it is all or nothing by its names: one RENAME, one clause of an ALTER TABLE, or another kind of DDL."""
    alter = _alter(_solid(statement))
    return len(rename_pairs(statement)) < 2 and (alter is None or len(alter.clauses) < 2)


def names_after(statement: str) -> tuple[NameAfter, ...]:
    """The names that show whether all of the DDL ran; empty: names do not show it."""
    pairs = rename_pairs(statement)
    if pairs:
        found = [n for old, new in pairs for n in (_table(old, there=False), _table(new, there=True))]
    else:
        alter = _alter(_solid(statement))
        by_clause = [list(names_of(clause)) for clause in alter.clauses] if alter is not None else []
        if not all(by_clause):
            return ()
        found = [n for names in by_clause for n in names]
    one = {(n.kind, n.schema.lower(), n.name.lower()) for n in found}
    return tuple(found) if len(one) == len(found) else ()


def has_all_of(session: Session, database: str, statement: str, errno: int) -> bool:
    """Whether the target, which answered ``errno`` (that something of it is so already), has all of ``statement``."""
    if is_one(statement) or (errno in (_NO_DATABASE, _NO_TABLE) and not rename_pairs(statement)):
        return True
    alter, wanted = _alter(_solid(statement)), names_after(statement)
    if not wanted:
        return False
    if alter is None:
        tables = read_tables(session, [(n.schema or database, n.name) for n in wanted])
        return all(((n.schema or database, n.name) in tables) is n.there for n in wanted)
    there = read_whole(session, alter.table.schema or database, alter.table.name)
    has = {"column": there.column, "index": there.key} if there else {}
    return all((n.kind in has and has[n.kind](n.name) is not None) is n.there for n in wanted)


def _table(name: QualifiedName, *, there: bool) -> NameAfter:
    return NameAfter("table", name.name, there, name.schema)


# The text.


@dataclass(frozen=True, slots=True)
class _Renamed:
    old: str
    new: str


def column_at(clause: _Solid) -> int:
    """The place of the column's name in MODIFY or CHANGE; the clause's length if there is none."""
    return min(_behind(clause, _behind(clause, 1, "COLUMN"), "IF", "EXISTS"), len(clause))


def _solid(statement: str) -> _Solid:
    tokens = tokenize(statement, backslash_escapes=False)
    return [t for t in tokens if not t.blank and t.text != ";" and t.kind not in (TokenKind.FEATURE_OPEN, TokenKind.FEATURE_CLOSE)]


def _alter(solid: _Solid) -> _Alter | None:
    """The clauses of an ALTER TABLE, columns in parentheses one by one; None for another statement."""
    if len(solid) < 4 or solid[0].word != "ALTER":
        return None
    at = 2 if solid[1].word == "IGNORE" else 1
    if solid[at].word != "TABLE":
        return None
    at = _behind(solid, at + 1, "IF", "EXISTS")
    table, at = read_name(solid, at)
    clauses = [c for clause in split_commas(solid[at:]) for c in _single(clause)]
    return _Alter(table, tuple(c for c in clauses if c and c[0].word not in _HOW))


def _single(clause: _Solid) -> Iterator[_Solid]:
    at = _behind(clause, _behind(clause, 1, "COLUMN"), "IF", "NOT", "EXISTS")
    if clause and clause[0].word == "ADD" and at < len(clause) and clause[at].text == "(":
        for column in split_commas(clause[at + 1 : -1]):
            yield [clause[0], *column]
    else:
        yield clause


def _behind(solid: _Solid, at: int, *spoken: str) -> int:
    """The place behind these words, if they stand there."""
    return at + len(spoken) if [t.word for t in solid[at : at + len(spoken)]] == list(spoken) else at


def names_of(clause: _Solid) -> Iterator[NameAfter]:
    """What a clause leaves; nothing: it is not known."""
    renamed = _renamed(clause)
    if renamed is not None:
        if renamed.old != renamed.new:
            kind = "index" if clause[1].word in _INDEX else "column"
            yield NameAfter(kind, renamed.old, there=False)
            yield NameAfter(kind, renamed.new, there=True)
        return
    if clause[0].word not in ("ADD", "DROP") or len(clause) < 2:
        return
    added, at = clause[0].word == "ADD", 1
    unique = added and clause[1].word == "UNIQUE"
    at = at + 1 if unique else at
    word = clause[at].word if at < len(clause) else ""
    indexed = unique or word in _INDEX
    at = at + 1 if word == "COLUMN" or word in _INDEX else at
    at = _behind(clause, at, *(("IF", "NOT", "EXISTS") if added else ("IF", "EXISTS")))
    if at >= len(clause) or clause[at].text == "(" or clause[at].word in _NO_COLUMN or clause[at].word == "USING":
        return
    yield NameAfter("index" if indexed else "column", clause[at].name, there=added)


def _renamed(clause: _Solid) -> _Renamed | None:
    spoken = [t.word for t in clause]
    if spoken[:1] == ["CHANGE"]:
        at = column_at(clause)
        return _Renamed(clause[at].name.lower(), clause[at + 1].name.lower()) if at + 1 < len(clause) else None
    if spoken[:1] == ["RENAME"] and len(clause) == 5 and spoken[1] in ("COLUMN", *_INDEX) and spoken[3] == "TO":
        return _Renamed(clause[2].name.lower(), clause[4].name.lower())
    return None
