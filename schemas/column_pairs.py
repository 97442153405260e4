"""Matches the columns of a table after a job to its columns before the job: by id, then by name, then by CHANGE in the job's text.

Promises: pure; nothing is guessed: an ambiguous match gives None.
"""

from collections.abc import Sequence

from pyspark_tidb_binlog.schemas.ddl_jobs import Job, JobType
from pyspark_tidb_binlog.schemas.ddl_tokens import Token, significant, tokenize
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, TableInfo


def visible(info: TableInfo) -> list[ColumnInfo]:
    """The public, non-hidden columns."""
    return [c for c in info.columns if c.public and not c.hidden]


def pair_columns(job: Job, query: str, old: TableInfo, new: TableInfo) -> dict[str, ColumnInfo] | None:
    """The old column of each new one (by lower-case name), matched by id, else by name; added columns are absent. None if ambiguous."""
    pairs = _same(visible(old), visible(new))
    added, lost = _left(pairs, visible(old), visible(new))
    if added and lost:
        if job.type == JobType.MODIFY_COLUMN and len(added) == len(lost) == 1:
            pairs[added[0].name.lower()] = lost[0]
        elif any(t.word == "CHANGE" for t in significant(query)):
            return None
    return pairs


def paired(query: str, old: Sequence[ColumnInfo], new: Sequence[ColumnInfo]) -> dict[str, ColumnInfo] | None:
    """The same over any columns; ``query`` is the text of what changed them, empty = unknown. None if a column that is gone may be one that came."""
    pairs = _same(old, new)
    added, lost = _left(pairs, old, new)
    if not added or not lost:
        return pairs
    if not query:
        return None
    renamed, gone = changed_names(query), {c.name.lower(): c for c in lost}
    come = {c.name.lower() for c in added}
    # The text of a job that is not about these columns, or names one that neither side has, does not say what became of them.
    pairs |= {after: gone[before] for before, after in renamed.items() if before in gone and after in come}
    unclear = any((before in gone) != (after in come) for before, after in renamed.items())
    return None if unclear else pairs


def changed_names(query: str) -> dict[str, str]:
    """Old name -> new name of each ``CHANGE [COLUMN] [IF EXISTS] [[database.]table.]old new …`` of an ALTER TABLE, in lower case.

    In TiDB's own text a backslash in a string is a plain one, in a user's it is not: the text is read in both ways.
    """
    readings = (tokenize(query), tokenize(query, backslash_escapes=False))
    return {old: new for tokens in readings for old, new in _changed_names([t for t in tokens if not t.blank]).items()}


def _changed_names(tokens: Sequence[Token]) -> dict[str, str]:
    depth, found = 0, {}
    for place, token in enumerate(tokens):
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if depth == 0 and token.word == "CHANGE":
            at = next((i for i in range(place + 1, len(tokens)) if tokens[i].word not in ("COLUMN", "IF", "EXISTS")), len(tokens))
            old, at = _column_name(tokens, at)
            new, _ = _column_name(tokens, at)
            if old and new:
                found[old] = new
    return found


def _column_name(tokens: Sequence[Token], at: int) -> tuple[str, int]:
    """The column at ``at`` in lower case, without its table and database, and the index after it; empty at the end of the text."""
    while at + 2 < len(tokens) and tokens[at + 1].text == ".":
        at += 2
    return (tokens[at].name.lower(), at + 1) if at < len(tokens) else ("", at)


def _same(old: Sequence[ColumnInfo], new: Sequence[ColumnInfo]) -> dict[str, ColumnInfo]:
    """The pairs of one id, then those of one name."""
    by_id = {c.id: c for c in old}
    by_name = {c.name.lower(): c for c in old}
    pairs = {c.name.lower(): by_id[c.id] for c in new if c.id in by_id}
    taken = {c.id for c in pairs.values()}
    for column in new:
        same = by_name.get(column.name.lower())
        if column.name.lower() not in pairs and same is not None and same.id not in taken:
            pairs[column.name.lower()] = same
            taken.add(same.id)
    return pairs


def _left(pairs: dict[str, ColumnInfo], old: Sequence[ColumnInfo], new: Sequence[ColumnInfo]) -> tuple[list[ColumnInfo], list[ColumnInfo]]:
    """The new columns without an old one, and the reverse."""
    taken = {c.id for c in pairs.values()}
    return [c for c in new if c.name.lower() not in pairs], [c for c in old if c.id not in taken]
