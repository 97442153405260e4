"""Corrects partition clauses of DDL text for a TiDB.

Promises: pure. A computed boundary (``UNIX_TIMESTAMP('2020-01-01 00:00:00')`` depends on the session's time zone) is replaced by the number
that TiDB computed, if the table info has it.
"""

import re
from collections.abc import Iterator, Sequence

from pyspark_tidb_binlog.schemas.ddl_tokens import Token, TokenKind, tokenize
from pyspark_tidb_binlog.schemas.tableinfo import PartitionDef, TableInfo
from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import Tokens, closing, next_solid, strip

_WHOLE = re.compile(r"-?\d+")


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
