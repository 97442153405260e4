"""A target's dialect of DDL, pieces of DDL text, and names that TiDB reads without quotes and that MySQL or MariaDB reserve.

Promises: pure; works on tokens (``schemas.ddl_tokens``), so quoted names and strings are never mistaken for keywords.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from pyspark_tidb_binlog.schemas.ddl_tokens import Token, TokenKind, quote_name
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, TableInfo
from pyspark_tidb_binlog.sinks.mysql.ddl.charsets import UPSTREAM_DEFAULT, Charset, target_charset, too_long
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, is_text

Tokens = list[Token]

_CONDITIONS = (["IF", "NOT", "EXISTS"], ["IF", "EXISTS"])


@dataclass(frozen=True, slots=True)
class Dialect:
    """The properties of the target that DDL text depends on, and the upstream's default charset."""

    flavour: Flavour
    default: Charset = field(default_factory=lambda: UPSTREAM_DEFAULT)
    nopad: bool = True
    """A collation that may pad upstream becomes one that does not."""
    binary: bool = False
    """Every collation becomes one that compares bytes, as upstream."""
    folds_names: bool = False
    """Names of tables and databases are stored in lower case (``lower_case_table_names = 1``)."""

    def charset(self, charset: str, collate: str) -> Charset:
        """The target's charset for one of the upstream."""
        return target_charset(charset, collate, self.flavour, self.default, nopad=self.nopad, binary=self.binary)

    def column_charset(self, column: ColumnInfo, info: TableInfo) -> Charset:
        """The target's charset for a column of ``info``, which keeps its own where a longer one does not fit."""
        found = self.charset(column.charset, column.collate)
        if self.binary and self.nopad and self.flavour is Flavour.MYSQL and too_long(column, info):
            own = replace(self, nopad=False).charset(column.charset, column.collate)
            return found if own.charset == found.charset else own
        return found

    def others(self) -> "tuple[Dialect, ...]":
        """The same as it was, or will be, under another ``spark.upstream-new-collations``; the ones that keep more values apart first."""
        ways = ((True, True), (False, True), (True, False), (False, False))
        return tuple(replace(self, nopad=nopad, binary=binary) for nopad, binary in ways if (nopad, binary) != (self.nopad, self.binary))


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Text for the target, and what it leaves out."""

    sql: str
    losses: tuple[str, ...] = ()
    then: str = ""
    """A second, idempotent statement of the same DDL: the declared defaults of columns that ``sql`` adds."""
    may_fail: bool = False
    """Errors of the target are ignored."""
    by_infos: bool = False
    """It is made of the table infos, which have the target's names: nothing of a user's text is in it."""
    plain: "Rewritten | None" = None
    """What is executed where the target refuses it."""


class Losses:
    """Collects what had to be left out of one statement, each text once."""

    def __init__(self, subject: str) -> None:
        """``subject``: the ``schema.table`` with which every text begins."""
        self._subject = subject
        self.texts: list[str] = []

    def add(self, what: str) -> None:
        """Note one loss."""
        text = f"{self._subject}: {what}"
        if text not in self.texts:
            self.texts.append(text)


def words(tokens: Iterable[Token]) -> list[str]:
    """The keywords and signs of the non-blank tokens; an empty word for each name and string."""
    return [t.word for t in tokens if not t.blank]


def split_commas(tokens: Sequence[Token]) -> list[Tokens]:
    """The pieces between top-level commas."""
    pieces: list[Tokens] = [[]]
    for depth, token in with_depth(tokens):
        if depth == 0 and token.text == ",":
            pieces.append([])
        else:
            pieces[-1].append(token)
    return pieces


def with_depth(tokens: Iterable[Token]) -> Iterator[tuple[int, Token]]:
    """Each token with its parenthesis depth; a parenthesis itself has the depth of its content."""
    depth = 0
    for token in tokens:
        if token.kind is TokenKind.SIGN and token.text == "(":
            depth += 1
        yield depth, token
        if token.kind is TokenKind.SIGN and token.text == ")":
            depth -= 1


def closing(tokens: Sequence[Token], opening: int) -> int:
    """Index of the parenthesis that closes the one at ``opening``; the length if there is none."""
    for i, (depth, token) in enumerate(with_depth(tokens[opening:])):
        if depth == 1 and token.text == ")" and token.kind is TokenKind.SIGN:
            return opening + i
    return len(tokens)


def strip(tokens: Sequence[Token]) -> Tokens:
    """The tokens without blanks at both ends."""
    left, right = 0, len(tokens)
    while left < right and tokens[left].blank:
        left += 1
    while right > left and tokens[right - 1].blank:
        right -= 1
    return list(tokens[left:right])


def next_solid(tokens: Sequence[Token], at: int) -> int:
    """Index of the first non-blank token from ``at`` on; the length if there is none."""
    while at < len(tokens) and tokens[at].blank:
        at += 1
    return at


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


def without_conditions(tokens: Sequence[Token]) -> Tokens:
    """What is altered, without IF EXISTS and IF NOT EXISTS, for which MySQL has no syntax there. What the upstream has executed was so."""
    inside = {i for i, (depth, _) in enumerate(with_depth(tokens)) if depth}
    solid = [i for i, t in enumerate(tokens) if not t.blank]
    spoken = ["" if i in inside else tokens[i].word for i in solid]
    dropped: set[int] = set()
    for n in range(len(solid)):
        many = next((len(run) for run in _CONDITIONS if spoken[n : n + len(run)] == run), 0)
        if many and n + many < len(solid):
            dropped.update(range(solid[n], solid[n + many]))
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


def charset_text(found: Charset) -> str:
    """The charset clause of a column."""
    return f"CHARACTER SET {found.charset} COLLATE {found.collate}"


def is_text_or_words(column: ColumnInfo) -> bool:
    """Whether the column's values have a charset: text, ENUM or SET."""
    return is_text(column) or (bool(column.elems) and not column.is_binary)


def quoted(schema: str, name: str) -> str:
    """A table name qualified with its database, quoted."""
    return f"{quote_name(schema)}.{quote_name(name)}"


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


_RESERVED = frozenset(
    "ACCESSIBLE ASENSITIVE BEFORE CONDITION CUBE DECLARE DELETE_DOMAIN_ID DETERMINISTIC DO_DOMAIN_IDS EACH EMPTY EXTERNAL FUNCTION GENERAL GET "
    "IGNORE_DOMAIN_IDS IGNORE_SERVER_IDS INSENSITIVE IO_AFTER_GTIDS IO_BEFORE_GTIDS LIBRARY LOOP MANUAL MASTER_BIND MASTER_DEMOTE_TO_REPLICA "
    "MASTER_DEMOTE_TO_SLAVE MASTER_HEARTBEAT_PERIOD MASTER_SSL_VERIFY_SERVER_CERT MODIFIES OPTIMIZER_COSTS PARALLEL PARSE_VCOL_EXPR PERIOD PORTION "
    "PURGE QUALIFY READS READ_WRITE REF_SYSTEM_ID RESIGNAL RETURN RETURNING SENSITIVE SIGNAL SLOW SPECIFIC SYSTEM UNDO".split()
)
"""Reserved by a MySQL from 5.7 to 9.7 or by a MariaDB, and no keyword that a DDL of TiDB has."""

_NOT_BEFORE = {"GROUPING": "(", "JSON_TABLE": "(", "LATERAL": "(", "MEMBER": "OF", "SOUNDS": "LIKE"}
"""Also reserved, or an operator where an alias may be; before this word or sign it is a function or a clause of TiDB, unless the word before it names something."""

_NAMED_NEXT = frozenset({"KEY", "INDEX", "UNIQUE", "FULLTEXT", "TABLE", "VIEW", "EXISTS", "REFERENCES"})

_OPTIONS = frozenset({"PAGE_CHECKSUM", "STATS_AUTO_RECALC", "STATS_PERSISTENT", "STATS_SAMPLE_PAGES"})
"""Reserved by MariaDB, and options of a table in TiDB."""


def quote_reserved(tokens: Sequence[Token]) -> Tokens:
    """``tokens`` with these names quoted; no feature comment of TiDB may be in them."""
    places = [(i, depth) for i, (depth, token) in enumerate(with_depth(tokens)) if not token.blank]
    solid = [tokens[i] for i, _ in places]
    has_options = [t.word for t in solid[1:2]] == ["TABLE"]
    found = list(tokens)
    for at, (i, depth) in enumerate(places):
        if _is_name(solid, at, among_options=has_options and depth == 0):
            found[i] = Token(TokenKind.NAME, quote_name(tokens[i].text))
    return found


def _is_name(solid: Sequence[Token], at: int, *, among_options: bool) -> bool:
    word = solid[at].word
    if word in _RESERVED:
        return True
    following = solid[at + 1] if at + 1 < len(solid) else Token(TokenKind.SPACE, "")
    before = [t.word for t in solid[max(at - 2, 0) : at]]
    if word in _NOT_BEFORE:
        return following.word != _NOT_BEFORE[word] or (bool(before) and before[-1] in _NAMED_NEXT)
    if word in _OPTIONS:
        return not (among_options and (following.word in ("=", "DEFAULT") or following.kind is TokenKind.NUMBER))
    if word == "OFFSET":  # LIMIT 5 OFFSET 10
        return before[:1] != ["LIMIT"]
    return word == "SEPARATOR" and following.kind is not TokenKind.STRING  # of GROUP_CONCAT
