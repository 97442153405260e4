"""Names that TiDB reads bare and a MySQL or MariaDB reserves: they are quoted.

Promises: pure. A word is quoted where TiDB can only have read a name; a string, a comment, a quoted name and a user's variable are none.
"""

from collections.abc import Sequence

from pyspark_tidb_binlog.schemas.ddl_tokens import Token, TokenKind, quote_name
from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import Tokens, next_solid

_NAMES = frozenset(
    "ACCESSIBLE ASENSITIVE BEFORE CONDITION CUBE DECLARE DELETE_DOMAIN_ID DETERMINISTIC DO_DOMAIN_IDS EACH EMPTY EXTERNAL FUNCTION GENERAL GET "
    "IGNORE_DOMAIN_IDS IGNORE_SERVER_IDS INSENSITIVE IO_AFTER_GTIDS IO_BEFORE_GTIDS LIBRARY LOOP MANUAL MASTER_BIND MASTER_HEARTBEAT_PERIOD "
    "MASTER_SSL_VERIFY_SERVER_CERT MODIFIES OPTIMIZER_COSTS PARALLEL PARSE_VCOL_EXPR PURGE QUALIFY READS READ_WRITE REF_SYSTEM_ID RESIGNAL RETURN "
    "SENSITIVE SIGNAL SLOW SPECIFIC SYSTEM UNDO".split()
)
"""Reserved by a MySQL from 5.7 to 9.7 or by a MariaDB, and no keyword that a DDL of TiDB has."""

_NOT_BEFORE = {"GROUPING": "(", "JSON_TABLE": "(", "LATERAL": "("}
"""Reserved, too, and a function or a clause of TiDB before this sign."""


def quote_reserved(tokens: Sequence[Token]) -> Tokens:
    """``tokens`` with these names quoted; no feature comment of TiDB may be in them."""
    return [Token(TokenKind.NAME, quote_name(t.text)) if _is_name(tokens, i) else t for i, t in enumerate(tokens)]


def _is_name(tokens: Sequence[Token], at: int) -> bool:
    word = tokens[at].word
    if word in _NAMES:
        return True
    if word not in _NOT_BEFORE and word != "SEPARATOR":
        return False
    following = next_solid(tokens, at + 1)
    if following == len(tokens):
        return True
    if word == "SEPARATOR":  # of GROUP_CONCAT
        return tokens[following].kind is not TokenKind.STRING
    return tokens[following].text != _NOT_BEFORE[word]
