"""TiDB's DDL text for a TiDB target (ddl.md 6): unchanged, except for what is the upstream's own, or is another value in another session.

    placement policies       removed; a statement that only sets them becomes empty
    TTL                      kept but disabled: the deletes of the upstream's TTL jobs arrive as binlogs
    computed boundaries      ``UNIX_TIMESTAMP('2020-01-01 00:00:00')`` is the number that the upstream has computed, if the table info has it
    defaults                 of an added column the origin default, where rows that are there would get another value; of a TIMESTAMP in UTC

Promises: pure. A nullable TIMESTAMP gets an explicit NULL, because a server without ``explicit_defaults_for_timestamp`` makes it NOT NULL otherwise.
"""

import re
from collections.abc import Callable, Iterator, Sequence

from pyspark_tidb_binlog.schemas.ddl_tokens import Token, TokenKind, quote_string, tokenize
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType, PartitionDef, TableInfo
from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import (
    Tokens,
    alter_specs,
    closing,
    definition_at,
    is_index,
    next_solid,
    split_commas,
    strip,
    table_name,
    with_depth,
    without_if_not_exists,
    words,
)
from pyspark_tidb_binlog.sinks.mysql.ddl.defaults import AS_WRITTEN, UTC_SINCE, declared_literal, fills_otherwise, origin_literal
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, is_bytes

_OFF = tokenize("TTL_ENABLE = 'OFF'")
_WHOLE = re.compile(r"-?\d+")
_ATTRIBUTES = frozenset(
    "NOT NULL DEFAULT AUTO_INCREMENT UNIQUE PRIMARY KEY COMMENT ON FIRST AFTER REFERENCES CHECK CONSTRAINT COLLATE".split()
)
_TEXTS = frozenset({ColumnType.VARCHAR, ColumnType.VAR_STRING, ColumnType.STRING})

Edit = Callable[[str, Tokens], Tokens]
"""Maps the verb (CREATE, ADD, MODIFY, CHANGE, SET) and a column's definition, which begins with its name, to the edited definition."""


def tidb_tokens(query: str, *, restored: bool) -> Tokens:
    """The statement's tokens; empty if nothing is left to execute."""
    tokens = _without_placement(tokenize(query.strip().rstrip(";").rstrip(), backslash_escapes=not restored))
    return _without_empty_specs(_with_ttl_off(without_if_not_exists(tokens)))


def is_tiflash_replica(tokens: Sequence[Token]) -> bool:
    """Whether it is ``ALTER TABLE t SET TIFLASH REPLICA n`` without another spec, whose errors are ignored."""
    specs = alter_specs(list(tokens)) if words(tokens)[:2] == ["ALTER", "TABLE"] else []
    return len(specs) == 1 and words(specs[0])[:3] == ["SET", "TIFLASH", "REPLICA"]


def _without_placement(tokens: Sequence[Token]) -> Tokens:
    kept: Tokens = []
    skipping = False
    i = 0
    while i < len(tokens):
        token = tokens[i]
        end = 0 if skipping else _placement_ends(tokens, i)
        if token.kind is TokenKind.FEATURE_OPEN and "placement" in token.text:
            skipping = True
        elif skipping:
            skipping = token.kind is not TokenKind.FEATURE_CLOSE
        elif not end:
            kept.append(token)
        i = end or i + 1
    return kept


def _placement_ends(tokens: Sequence[Token], at: int) -> int:
    """The index after a ``PLACEMENT POLICY [=] name`` outside a feature comment; 0 if there is none."""
    policy = next_solid(tokens, at + 1)
    if tokens[at].word != "PLACEMENT" or policy >= len(tokens) or tokens[policy].word != "POLICY":
        return 0
    name = next_solid(tokens, policy + 1)
    if name < len(tokens) and tokens[name].text == "=":
        name = next_solid(tokens, name + 1)
    return name + 1


def _with_ttl_off(tokens: Sequence[Token]) -> Tokens:
    """Set every TTL_ENABLE to OFF, and add one to a TTL without it, which TiDB would enable."""
    switched = any(d == 0 and t.word == "TTL_ENABLE" for d, t in with_depth(tokens))
    out: Tokens = []
    ends = 0
    off = False
    for i, (depth, token) in enumerate(with_depth(tokens)):
        if depth == 0 and token.word == "TTL_ENABLE":
            off = True
        elif depth == 0 and token.word == "TTL" and not switched and not ends:
            ends = _ttl_ends(tokens, i)
        elif off and token.kind is TokenKind.STRING:
            token, off = _OFF[-1], False
        out.append(token)
        if ends == i + 1:
            out += [Token(TokenKind.SPACE, " "), *_OFF]
    return out


def _ttl_ends(tokens: Sequence[Token], at: int) -> int:
    """The index after ``TTL [=] column + INTERVAL n unit``; 0 if it is not such an option."""
    places = [i for i in range(at, len(tokens)) if not tokens[i].blank][1:8]
    if places and tokens[places[0]].text == "=":
        places = places[1:]
    if len(places) < 5 or tokens[places[1]].text != "+" or tokens[places[2]].word != "INTERVAL":
        return 0
    return places[4] + 1


def _without_empty_specs(tokens: Tokens) -> Tokens:
    spoken = words(tokens)
    if spoken[:2] in (["ALTER", "DATABASE"], ["ALTER", "SCHEMA"]):
        return tokens if len(spoken) > 3 or (len(spoken) == 3 and spoken[2]) else []
    if spoken[:2] != ["ALTER", "TABLE"]:
        return tokens
    _, end = table_name(tokens)
    specs = [s for s in alter_specs(tokens) if words(s)]
    joined: Tokens = []
    for n, spec in enumerate(specs):
        joined += [Token(TokenKind.SIGN, ","), *spec] if n else spec
    return [*tokens[:end], *joined] if specs else []


def settle_boundaries(tokens: Sequence[Token], info: TableInfo | None) -> Tokens:
    """The statement with every computed boundary replaced by its number from ``info``, if it is there."""
    by_name = {p.name.lower(): p for p in info.partitions} if info else {}
    out: Tokens = []
    done = 0
    for name, begin, end in _boundaries(tokens):
        values = _numbers(by_name.get(name.lower()))
        if values and _computed(tokens[begin:end]):
            out += [*tokens[done:begin], *tokenize(values)]
            done = end
    return [*out, *tokens[done:]]


def boundaries(tokens: Sequence[Token]) -> Iterator[tuple[int, int]]:
    """(begin, end) of the values of each ``PARTITION name VALUES``, without their parentheses."""
    return ((begin, end) for _, begin, end in _boundaries(tokens))


def _boundaries(tokens: Sequence[Token]) -> Iterator[tuple[str, int, int]]:
    for i, token in enumerate(tokens):
        if token.word != "PARTITION":
            continue
        name = next_solid(tokens, i + 1)
        values = next_solid(tokens, name + 1)
        if values >= len(tokens) or tokens[values].word != "VALUES":
            continue
        opening = next((k for k in range(values, len(tokens)) if tokens[k].text in ("(", ",")), len(tokens))
        if opening < len(tokens) and tokens[opening].text == "(":
            yield tokens[name].name, opening + 1, closing(tokens, opening)


def _numbers(partition: PartitionDef | None) -> str:
    """The partition's values as numbers; empty if they are not numbers or of several columns."""
    if partition is None:
        return ""
    lists = partition.in_values or (partition.less_than,)
    return ", ".join(v[0] for v in lists) if all(len(v) == 1 and _WHOLE.fullmatch(v[0]) for v in lists) else ""


def _computed(values: Sequence[Token]) -> bool:
    """Whether a boundary contains a function call."""
    solid = [t for t in strip(values) if not t.blank]
    return any(a.kind is TokenKind.WORD and b.text == "(" for a, b in zip(solid, solid[1:], strict=False))


def settle_defaults(
    tokens: Tokens, info: TableInfo | None, old: TableInfo | None, flavour: Flavour
) -> tuple[Tokens, tuple[ColumnInfo, ...]]:
    """A CREATE or ALTER TABLE with its defaults edited, and the added columns whose default still has to be declared."""
    by_name = {c.name.lower(): c for c in info.columns} if info else {}
    there = {c.name.lower() for c in old.columns if c.public} if old else set()
    added: list[ColumnInfo] = []

    def edit(verb: str, definition: Tokens) -> Tokens:
        column = by_name.get(definition[0].name.lower())
        if column is None or column.generated:
            return definition
        if verb == "ADD" and column.name.lower() not in there and (fills_otherwise(column, flavour) or _is_rewritten(definition, column)):
            added.append(column)
            return _nullable(_with_default(definition, origin_literal(column, flavour)), column)
        return _nullable(_in_utc(definition, column), column) if column.tp == ColumnType.TIMESTAMP else definition

    return _each_definition(tokens, edit), tuple(added)


def _each_definition(tokens: Tokens, edit: Edit) -> Tokens:
    spoken = words(tokens)
    if "TABLE" not in spoken[:4] or spoken[0] not in ("CREATE", "ALTER"):
        return tokens
    if spoken[0] == "CREATE":
        opening = next((i for i, t in enumerate(tokens) if t.kind is TokenKind.SIGN and t.text == "("), len(tokens))
        return _inside(tokens, opening, "CREATE", edit)
    _, end = table_name(tokens)
    return [*tokens[:end], *_joined(_edit_spec(spec, edit) for spec in alter_specs(tokens))]


def _inside(tokens: Tokens, opening: int, verb: str, edit: Edit) -> Tokens:
    """The tokens with the definitions in the parentheses at ``opening`` edited."""
    end = closing(tokens, opening)
    pieces = split_commas(tokens[opening + 1 : end])
    edited = (piece if not words(piece) or is_index(piece) else _edited(verb, piece, edit) for piece in pieces)
    return [*tokens[: opening + 1], *_joined(edited), *tokens[end:]]


def _edited(verb: str, piece: Tokens, edit: Edit) -> Tokens:
    begin = next_solid(piece, 0)
    return [*piece[:begin], *edit(verb, piece[begin:])]


def _joined(pieces: Iterator[Tokens]) -> Tokens:
    out: Tokens = []
    for i, piece in enumerate(pieces):
        out += [Token(TokenKind.SIGN, ","), *piece] if i else piece
    return out


def _edit_spec(spec: Tokens, edit: Edit) -> Tokens:
    begin = next_solid(spec, 0)
    inner = spec[begin:]
    spoken = words(inner)
    if not spoken or spoken[0] not in ("ADD", "MODIFY", "CHANGE", "ALTER"):
        return spec
    if spoken[0] == "ALTER":
        return [*spec[:begin], *_edit_set_default(inner, edit)]
    at = definition_at(inner)
    if not at:
        return spec
    if inner[at].text == "(" and inner[at].kind is TokenKind.SIGN:
        return [*spec[:begin], *_inside(inner, at, spoken[0], edit)]
    return [*spec[:begin], *inner[:at], *edit(spoken[0], inner[at:])]


def _edit_set_default(inner: Tokens, edit: Edit) -> Tokens:
    """``ALTER [COLUMN] c SET DEFAULT x``, edited like a definition ``c DEFAULT x``."""
    at = next_solid(inner, 1)
    at = next_solid(inner, at + 1) if at < len(inner) and inner[at].word == "COLUMN" else at
    set_at = next_solid(inner, at + 1)
    default_at = next_solid(inner, set_at + 1)
    if default_at >= len(inner) or inner[set_at].word != "SET" or inner[default_at].word != "DEFAULT":
        return inner
    name, space = inner[at], Token(TokenKind.SPACE, " ")
    edited = edit("SET", [name, space, *inner[default_at:]])
    clause = next((edited[i : _default_ends(edited, i)] for i, t in enumerate(edited) if t.word == "DEFAULT"), [])
    return [*inner[:default_at], *clause]


def _default_at(definition: Tokens) -> int:
    """The index of the top-level DEFAULT of a definition; 0 if it has none."""
    return next((i for i, (d, t) in enumerate(with_depth(definition)) if i and d == 0 and t.word == "DEFAULT"), 0)


def _is_rewritten(definition: Tokens, column: ColumnInfo) -> bool:
    """Whether TiDB has stored the text of the default otherwise than it is written, as the target may not: a text 1e20, a DATE with a time."""
    at = next_solid(definition, _default_at(definition) + 1)
    if at < 2 or at >= len(definition) or column.origin_default is None or column.tp in AS_WRITTEN or is_bytes(column):
        return False
    token = definition[at]
    if token.kind is TokenKind.STRING:
        return token.text != quote_string(str(column.default))
    return column.tp in _TEXTS and (token.kind is TokenKind.NUMBER or token.text in ("+", "-"))


def _default_ends(tokens: Tokens, at: int) -> int:
    """The index after the DEFAULT clause at ``at``."""
    i = next_solid(tokens, at + 1)
    while i < len(tokens) and tokens[i].text in ("+", "-", "."):
        i = next_solid(tokens, i + 1)
    if i >= len(tokens):
        return len(tokens)
    if tokens[i].text == "(":
        return closing(tokens, i) + 1
    if tokens[i].kind is not TokenKind.WORD:
        return i + 1
    if tokens[i].word == "NEXT":
        name = next_solid(tokens, next((k for k in range(i, len(tokens)) if tokens[k].word == "FOR"), i) + 1)
        return name + 3 if name + 1 < len(tokens) and tokens[name + 1].text == "." else name + 1
    following = next_solid(tokens, i + 1)
    if following < len(tokens) and (tokens[following].kind is TokenKind.STRING and (following == i + 1 or tokens[i].text.startswith("_"))):
        return following + 1  # b'1', x'41', _utf8mb4 'a'
    if following < len(tokens) and tokens[following].text == "(":
        return closing(tokens, following) + 1
    return i + 1


def _with_default(definition: Tokens, literal: str) -> Tokens:
    clause = list(tokenize(f"DEFAULT {literal}"))
    at = _default_at(definition)
    if at:
        return [*definition[:at], *clause, *definition[_default_ends(definition, at) :]]
    return _inserted(definition, clause)


def _inserted(definition: Tokens, clause: Tokens) -> Tokens:
    """The definition with ``clause`` inserted before the first attribute, after the type."""
    place = next((i for i, (d, t) in enumerate(with_depth(definition)) if i > 1 and d == 0 and t.word in _ATTRIBUTES), len(definition))
    space, end = Token(TokenKind.SPACE, " "), place
    while definition[end - 1].kind is TokenKind.SPACE:
        end -= 1
    return [*definition[:end], space, *clause, *([space, *definition[place:]] if place < len(definition) else definition[end:])]


def _in_utc(definition: Tokens, column: ColumnInfo) -> Tokens:
    at = _default_at(definition)
    literal = declared_literal(column)
    if not at or literal in (None, "NULL") or column.version < UTC_SINCE:
        return definition
    return _with_default(definition, str(literal))


def _nullable(definition: Tokens, column: ColumnInfo) -> Tokens:
    """The definition with an explicit NULL for a nullable TIMESTAMP; ``DEFAULT NULL`` does not count as one."""
    if column.tp != ColumnType.TIMESTAMP or column.not_null:
        return definition
    at = _default_at(definition)
    end = _default_ends(definition, at) if at else 0
    said = any(d == 0 and t.word == "NULL" and not (at < i < end) for i, (d, t) in enumerate(with_depth(definition)))
    return definition if said else _inserted(definition, [Token(TokenKind.WORD, "NULL")])
