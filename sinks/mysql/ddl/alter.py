"""Edits the specs of one ALTER TABLE: each is kept, changed or left out.

Promises: pure. If all specs are left out, the result is the empty text. Columns are looked up in the table info after the job,
indexes in the one before it. With IF EXISTS, what the upstream does not have is left out: the target's own may have that name.
"""

from pyspark_tidb_binlog.schemas.ddl_tokens import Token, TokenKind, text_of
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import TableInfo
from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import (
    Dialect,
    Losses,
    Tokens,
    charset_text,
    closing,
    edit_column,
    edit_index,
    is_charset_only,
    is_index,
    next_solid,
    split_commas,
    strip,
    visibility,
    without_conditions,
    words,
)
from pyspark_tidb_binlog.sinks.mysql.ddl.defaults import alter_specs, definition_at, table_name
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour

_SILENT = frozenset(
    "ALGORITHM LOCK WITH WITHOUT CACHE NOCACHE ATTRIBUTES PLACEMENT SHARD_ROW_ID_BITS PRE_SPLIT_REGIONS AUTO_ID_CACHE AUTO_RANDOM_BASE "
    "TTL TTL_ENABLE TTL_JOB_INTERVAL STATS_OPTIONS STATS_BUCKETS STATS_TOPN STATS_SAMPLE_RATE STATS_COL_CHOICE STATS_COL_LIST "
    "ENGINE ROW_FORMAT KEY_BLOCK_SIZE FORCE COMPACT ENABLE DISABLE COMPRESSION ENCRYPTION SECONDARY_LOAD SECONDARY_UNLOAD".split()
)
"""Specs on TiDB's storage, placement, id allocation and statistics, or on how its server executes the change."""

_NAMED = {
    "CACHE": "CACHE left out",
    "TTL": "TTL left out",
    "PLACEMENT": "placement policy left out",
    "SHARD_ROW_ID_BITS": "SHARD_ROW_ID_BITS left out",
}


def edit_alter(
    tokens: Tokens, old: TableAt | None, info: TableInfo | None, dialect: Dialect, losses: Losses, lacking: frozenset[str] = frozenset()
) -> str:
    """The statement for the target; empty if no spec is left. ``lacking``: expression indexes of ``old`` that the target is known to lack."""
    start, end = table_name(tokens)
    absent = expression_indexes(old.info) if old and dialect.flavour is Flavour.MARIADB else lacking
    specs = []
    for spec in alter_specs(tokens):
        if old and _names_nothing(spec, old.info):
            continue
        edited = _edit_spec(strip(spec), info, dialect, losses, absent)
        if edited:
            specs.append(edited)
    return f"ALTER TABLE {text_of(tokens[start:end])} {', '.join(specs)}" if specs else ""


def _names_nothing(spec: Tokens, info: TableInfo) -> bool:
    """Whether the spec is ``DROP | MODIFY | CHANGE … IF EXISTS name`` of a column or index that the upstream does not have."""
    solid = [t for t in spec if not t.blank]
    spoken = [t.word for t in solid]
    at = 2 if spoken[1:2] in (["COLUMN"], ["INDEX"], ["KEY"]) else 1
    if spoken[:1] not in (["DROP"], ["MODIFY"], ["CHANGE"]) or spoken[at : at + 2] != ["IF", "EXISTS"] or len(solid) < at + 3:
        return False
    known = info.indexes if spoken[1] in ("INDEX", "KEY") else info.columns
    return solid[at + 2].name.lower() not in {one.name.lower() for one in known}


def expression_indexes(info: TableInfo) -> frozenset[str]:
    """Lower-case names of expression indexes; a MariaDB's table was created without them."""
    return frozenset(i.name.lower() for i in info.indexes if info.over_expression(i))


def _edit_spec(spec: Tokens, info: TableInfo | None, dialect: Dialect, losses: Losses, absent: frozenset[str]) -> str:
    spoken = words(spec)
    if not spoken:
        return ""
    if dialect.flavour is Flavour.MYSQL:
        spec = without_conditions(spec)
        spoken = words(spec)
    if is_charset_only(spec) or spoken[:2] == ["CONVERT", "TO"]:
        return _charset_spec(spoken[0] == "CONVERT", info, dialect)
    if spoken[0] in _SILENT or spoken[:3] in (["SET", "TIFLASH", "REPLICA"], ["SET", "HYPO", "TIFLASH"]) or spoken[:2] == ["REMOVE", "TTL"]:
        if spoken[0] in _NAMED:
            losses.add(_NAMED[spoken[0]])
        return ""
    if spoken[0] in ("ADD", "MODIFY", "CHANGE"):
        return _definition_spec(spec, info, dialect, losses)
    if _names_absent_index(spec, absent) or _is_check(spoken):
        return ""
    if spoken[:2] == ["EXCHANGE", "PARTITION"]:
        return _without_validation(spec)
    if spoken[0] == "ALTER" and spoken[1] in ("INDEX", "KEY"):
        return text_of(visibility(spec, dialect))
    return text_of(spec)


def _charset_spec(convert: bool, info: TableInfo | None, dialect: Dialect) -> str:
    found = dialect.charset(info.charset if info else "", info.collate if info else "")
    return f"CONVERT TO {charset_text(found)}" if convert else f"DEFAULT CHARACTER SET = {found.charset} COLLATE = {found.collate}"


def _definition_spec(spec: Tokens, info: TableInfo | None, dialect: Dialect, losses: Losses) -> str:
    """ADD, MODIFY and CHANGE: the text before the definition is kept, the definition is edited."""
    at = definition_at(spec)
    if not at:
        return _add_other(spec, next_solid(spec, 1), dialect, losses)
    head, body = text_of(spec[:at]), spec[at:]
    if body and body[0].text == "(":
        return head + _many(body, info, dialect, losses)
    return head + text_of(edit_column(body, info, dialect, losses, explicit=True))


def _many(body: Tokens, info: TableInfo | None, dialect: Dialect, losses: Losses) -> str:
    """``ADD COLUMN (a INT, b INT, KEY (a))``."""
    pieces = []
    for element in split_commas(body[1 : closing(body, 0)]):
        piece = strip(element)
        edited = edit_index(piece, dialect, losses) if is_index(piece) else edit_column(piece, info, dialect, losses, explicit=True)
        if edited is not None:
            pieces.append(text_of(edited))
    return f"({', '.join(pieces)})"


def _add_other(spec: Tokens, at: int, dialect: Dialect, losses: Losses) -> str:
    if spec[at].word == "PARTITION":
        return text_of(spec)
    edited = edit_index(spec[at:], dialect, losses)
    return "ADD " + text_of(edited) if edited is not None else ""


def _names_absent_index(spec: Tokens, absent: frozenset[str]) -> bool:
    solid = [t for t in spec if not t.blank]
    if len(solid) < 3 or solid[0].word not in ("DROP", "RENAME", "ALTER") or solid[1].word not in ("INDEX", "KEY"):
        return False
    named = next((t for t in solid[2:] if not (t.kind is TokenKind.WORD and t.word in ("IF", "EXISTS"))), None)
    return named is not None and named.name.lower() in absent


def _is_check(spoken: list[str]) -> bool:
    """Whether the spec drops or alters a CHECK constraint, which the target's table does not have."""
    return spoken[0] in ("DROP", "ALTER") and spoken[1] in ("CHECK", "CONSTRAINT")


def _without_validation(spec: Tokens) -> str:
    """EXCHANGE PARTITION without its VALIDATION clause: the upstream has validated the rows, and MariaDB does not support the clause."""
    end = next((i for i, t in enumerate(spec) if t.word in ("WITH", "WITHOUT") and _says_validation(spec, i)), len(spec))
    return text_of(strip(spec[:end]))


def _says_validation(spec: Tokens, at: int) -> bool:
    following: list[Token] = [t for t in spec[at + 1 :] if not t.blank]
    return bool(following) and following[0].word == "VALIDATION"
