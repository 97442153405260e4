"""Edits defaults in DDL text, so that existing rows get TiDB's ``origin_default`` and not the target's evaluation of the text.

Promises: pure. A new column is added with its origin default as a literal, and then gets its declared default in a second statement if the
two differ (``DEFAULT CURRENT_TIMESTAMP`` would fill in the target's current time). A TIMESTAMP's literal is taken from the table info,
which has it in UTC, like the session; in the text it is in the time zone of the user's session. A nullable TIMESTAMP gets an explicit NULL,
because a server without ``explicit_defaults_for_timestamp`` makes it NOT NULL otherwise.
"""

from collections.abc import Callable, Iterator, Sequence

from pyspark_tidb_binlog.schemas.arrowtypes import missing_value, zero_value
from pyspark_tidb_binlog.schemas.ddl_tokens import Token, TokenKind, quote_name, quote_string, tokenize
from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.tableinfo import ColumnFlag, ColumnInfo, ColumnType, TableInfo
from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import Dialect, Tokens, closing, is_index, next_solid, split_commas, with_depth, words
from pyspark_tidb_binlog.sinks.mysql.ddl.column_sql import column_definition, is_now
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, is_bytes

_LOBS = frozenset({ColumnType.TINYBLOB, ColumnType.BLOB, ColumnType.MEDIUMBLOB, ColumnType.LONGBLOB, ColumnType.JSON})
_ATTRIBUTES = frozenset(
    "NOT NULL DEFAULT AUTO_INCREMENT UNIQUE PRIMARY KEY COMMENT ON FIRST AFTER REFERENCES CHECK CONSTRAINT COLLATE".split()
)
_AS_WRITTEN = frozenset({ColumnType.BIT, ColumnType.ENUM, ColumnType.SET, ColumnType.JSON, ColumnType.FLOAT, ColumnType.DOUBLE})
"""Types whose default is not compared with the value that TiDB makes of it."""
_TEXTS = frozenset({ColumnType.VARCHAR, ColumnType.VAR_STRING, ColumnType.STRING})
UTC_SINCE = 1
"""``ColumnInfo.version`` from which the default of a TIMESTAMP is stored in UTC."""

Edit = Callable[[str, Tokens], Tokens]
"""Maps the verb (CREATE, ADD, MODIFY, CHANGE, SET) and a column's definition, which begins with its name, to the edited definition."""


def origin_literal(column: ColumnInfo, flavour: Flavour) -> str:
    """The value of the column in rows written before it existed, as a literal for a DEFAULT clause."""
    origin, tp = column.origin_default, column.tp
    value = missing_value(column, None)
    if value is None:
        return "NULL"
    if tp == ColumnType.BIT:
        return f"b'{int(value):b}'"
    if tp == ColumnType.YEAR:
        return f"'{int(value):04}'"  # '0' is the year 2000
    if tp == ColumnType.SET:
        return quote_string(",".join(word for place, word in enumerate(column.elems) if int(value) >> place & 1))
    if tp == ColumnType.ENUM:
        return quote_string(column.elems[0] if origin is None and column.elems else str(origin))
    if is_bytes(column) and isinstance(value, bytes):
        text = f"x'{value.hex()}'"
    else:
        text = quote_string(value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value))
    return f"({text})" if tp in _LOBS and flavour is Flavour.MYSQL else text


def fills_otherwise(column: ColumnInfo, flavour: Flavour) -> bool:
    """Whether the target, executing the text as it is, might give existing rows another value than the origin default."""
    if column.generated or column.flag & ColumnFlag.AUTO_INCREMENT:
        return False
    declared = column.default is not None or column.default_bit is not None
    if not declared:
        if column.tp in _LOBS and flavour is not Flavour.MARIADB:
            return False  # a literal default is not allowed there, and these servers fill in the same zero value as TiDB
        return column.not_null and (
            column.tp in (ColumnType.TIMESTAMP, ColumnType.JSON) or missing_value(column, None) != zero_value(column)
        )
    return not _declares_origin(column) or _is_cast(column)


def _declares_origin(column: ColumnInfo) -> bool:
    """Whether new rows get the same value as those that were there."""
    if column.tp == ColumnType.TIMESTAMP or column.default_is_expr or is_now(column):
        return False
    return (column.default, column.default_bit) == (column.origin_default, column.origin_default_bit)


def _is_cast(column: ColumnInfo) -> bool:
    """Whether TiDB makes another value of the declared default than its text says; a target may make yet another one."""
    if column.tp in _AS_WRITTEN or is_bytes(column):
        return False
    try:
        value = missing_value(column, None)
    except Corruption:
        return False  # rows that lack the column say so
    return (value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)) != str(column.default)


def declare(name: str, columns: Sequence[ColumnInfo], info: TableInfo, dialect: Dialect) -> str:
    """The statement that sets the declared defaults of columns that were added with ``origin_literal``; empty if these are the same.

    ``name``: the quoted table. The statement is idempotent.
    """
    clauses = []
    for column in columns:
        wanted = declared_literal(column)
        declares = column.default is not None and _declares_origin(column)
        if declares or wanted == origin_literal(column, dialect.flavour):
            continue
        if wanted is None and (column.default is not None or column.default_bit is not None):
            clauses.append(f"MODIFY COLUMN {column_definition(column, info, dialect, explicit=True)}")
        elif wanted is None and column.tp == ColumnType.TIMESTAMP:
            continue  # without a default a server may set the column to the current time
        elif wanted is None:
            dropped = "DROP DEFAULT" if column.not_null else "SET DEFAULT NULL"
            clauses.append(f"ALTER COLUMN {quote_name(column.name)} {dropped}")
        else:
            clauses.append(f"ALTER COLUMN {quote_name(column.name)} SET DEFAULT {wanted}")
    return f"ALTER TABLE {name} {', '.join(clauses)}" if clauses else ""


def declared_literal(column: ColumnInfo) -> str | None:
    """The declared default as a literal; None if there is none or it is an expression."""
    if column.default_bit is not None:
        return f"b'{int.from_bytes(column.default_bit, 'big'):b}'"
    if column.default is None and not column.not_null:
        return "NULL"
    if column.default is None or column.default_is_expr or is_now(column):
        return None
    return quote_string(str(column.default))


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


def definition_at(spec: Tokens) -> int:
    """Index of the definition in ADD, MODIFY or CHANGE [COLUMN] [IF NOT EXISTS]; 0 if the spec does not define a column."""
    verb = spec[0].word
    at = next_solid(spec, 1)
    if at >= len(spec):
        return 0
    if spec[at].word == "COLUMN":
        at = next_solid(spec, at + 1)
    elif verb == "ADD" and (is_index(spec[at:]) or spec[at].word == "PARTITION"):
        return 0
    while at < len(spec) and spec[at].kind is TokenKind.WORD and spec[at].word in ("IF", "NOT", "EXISTS"):
        at = next_solid(spec, at + 1)
    at = next_solid(spec, at + 1) if verb == "CHANGE" else at
    return at if at < len(spec) else 0


def table_name(tokens: Tokens) -> tuple[int, int]:
    """Begin and end of the name in ``ALTER TABLE name …``."""
    at = next(i for i, t in enumerate(tokens) if t.word == "TABLE")
    begin = next_solid(tokens, at + 1)
    end = begin + 1
    while end < len(tokens) and (tokens[end].text == "." or tokens[end - 1].text == "."):
        end += 1
    return begin, end


def alter_specs(tokens: Tokens) -> list[Tokens]:
    """What ``ALTER TABLE name …`` does, piece by piece, with the blanks between."""
    return split_commas(tokens[table_name(tokens)[1] :])


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
    if at < 2 or at >= len(definition) or column.origin_default is None or column.tp in _AS_WRITTEN or is_bytes(column):
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
