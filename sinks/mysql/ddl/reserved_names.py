"""Quotes names that TiDB reads without quotes and that MySQL or MariaDB reserve.

Promises: pure. A word is quoted where TiDB can only have read a name. Strings, comments, quoted names and user variables stay as they are.
"""

from collections.abc import Sequence

from pyspark_tidb_binlog.schemas.ddl_tokens import Token, TokenKind, quote_name
from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import Tokens, with_depth

_NAMES = frozenset(
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
    if word in _NAMES:
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
