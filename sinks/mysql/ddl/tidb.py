"""TiDB's DDL text for a TiDB target (ddl.md 6): unchanged, except for what is the upstream's own, or is another value in another session.

    placement policies       removed; a statement that only sets them becomes empty
    TTL                      kept but disabled: the deletes of the upstream's TTL jobs arrive as binlogs
    computed boundaries      ``UNIX_TIMESTAMP('2020-01-01 00:00:00')`` is the number that the upstream has computed, if the table info has it

Promises: pure. Where the text would set another default than the upstream's, an ALTER is made of its changes (``alteration.by_text``), and a CREATE is followed by
the defaults in UTC.
"""

import re
from collections.abc import Iterator, Sequence

from pyspark_tidb_binlog.schemas.ddl_tokens import Token, TokenKind, tokenize
from pyspark_tidb_binlog.schemas.tableinfo import PartitionDef, TableInfo
from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import (
    Tokens,
    alter_specs,
    closing,
    next_solid,
    strip,
    table_name,
    with_depth,
    without_if_not_exists,
    words,
)

_OFF = tokenize("TTL_ENABLE = 'OFF'")
_WHOLE = re.compile(r"-?\d+")


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
