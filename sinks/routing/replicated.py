"""Decides what of an upstream is replicated: which tables, which kinds of row changes, which DDLs. Pure.

Promises: every decision depends on the upstream's table names, and is the same for all rows of one table at one schema version. A DDL
across the border of the filter is never applied halfway. A table that it would bring in was not replicated before, so the DDL is refused. A table that it
takes out gets its new name at the target.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Self

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.ddl_jobs import Job, JobType, On, RowsAfter
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name, significant
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.history_fold import TableSnapshot
from pyspark_tidb_binlog.sinks.routing.routes import NO_ROUTES, Routes, why_not_narrowed
from pyspark_tidb_binlog.sinks.routing.table_filter import EventRules, TableFilter


class DdlFate(StrEnum):
    """The fate of a DDL before a target sees it."""

    APPLIED = "applied"
    FILTERED = "filtered"
    """The DDL is about nothing that is replicated."""
    LEFT_OUT = "left out"
    """A rule leaves it out: the target's table stays as it is, and rows are written in its form."""
    REFUSED = "refused"
    """The target cannot have what it would bring in."""


@dataclass(frozen=True, slots=True)
class DdlDecision:
    """The fate of a DDL, and why."""

    fate: DdlFate = DdlFate.APPLIED
    why: str = ""
    strangers: frozenset[int] = frozenset()
    """For a DDL on several tables: the ids of the tables that are replicated neither before nor after it."""

    @property
    def unwanted(self) -> bool:
        """Whether the DDL is not handed to the target, as the settings ask."""
        return self.fate in (DdlFate.FILTERED, DdlFate.LEFT_OUT)


APPLIED = DdlDecision()

ColumnNames = Mapping[int, frozenset[str]]
"""In lower case, by table id."""
NO_NAMES: ColumnNames = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Selection:
    """The filters of one Drainer; picklable. The default replicates everything."""

    tables: TableFilter = field(default_factory=TableFilter)
    rules: EventRules = field(default_factory=EventRules)
    routes: Routes = NO_ROUTES

    @classmethod
    def of(cls, config: ApplyConfig) -> Self:
        """The filters from the settings.

        Raises:
            ConfigError: one of them is not valid.
        """
        return cls(TableFilter.of(config), EventRules.of(config), Routes.of(config))

    @property
    def text(self) -> str:
        """The settings that decide, as ASCII: equal texts decide alike at one target, whose own databases are always the same."""
        settings = asdict(self)
        del settings["tables"]["own"]
        return json.dumps(settings, separators=(",", ":"), default=sorted)

    def keeps(self, table: TableAt | TableSnapshot) -> bool:
        """Whether rows of this table are replicated."""
        return self.tables.keeps(table.schema, table.name)

    def live(self, history: SchemaHistory, version: int) -> tuple[TableAt, ...]:
        """Every table that is replicated at ``version``."""
        tables = (history.table_at(table_id, version) for table_id in sorted(history.tracks))
        return tuple(table for table in tables if table is not None and self.keeps(table))

    def decide(
        self,
        job: Job,
        schema: str,
        before: Sequence[TableAt],
        after: Sequence[TableAt],
        others: Sequence[TableAt] = (),
        known: ColumnNames = NO_NAMES,
    ) -> DdlDecision:
        """Decide what becomes of a DDL.

        Args:
            job: its job.
            schema: the DDL's database.
            before: the tables that it changes, before it; for RECOVER TABLE the restored table, as it was dropped.
            after: the same after it.
            others: with routes, all other tables that are replicated.
            known: with lists of columns, ``routes.column_names`` of the tables after it.
        """
        by_filter = self._by_filter(job, schema, before, after)
        if by_filter is not APPLIED:
            return by_filter
        named = _subject(job, schema, before, after)
        if self.rules.ignores_ddl(*named, job.query):
            return DdlDecision(
                DdlFate.LEFT_OUT, f"a rule of syncer.binlog-filter-rule leaves this DDL out for {'.'.join(filter(None, named))}"
            )
        why_not = self._misrouted(job, schema, before, after, others, known) if self.routes else ""
        strangers = self._strangers(before, after) if job.multiple_table_infos else frozenset()
        return DdlDecision(DdlFate.REFUSED, why_not) if why_not else DdlDecision(strangers=strangers)

    def _strangers(self, before: Sequence[TableAt], after: Sequence[TableAt]) -> frozenset[int]:
        ids = frozenset(t.table_id for t in (*before, *after))
        return ids - {t.table_id for t in (*before, *after) if self.keeps(t)}

    def _misrouted(
        self, job: Job, schema: str, before: Sequence[TableAt], after: Sequence[TableAt], others: Sequence[TableAt], known: ColumnNames
    ) -> str:
        """Why the routes do not let a DDL mean at the target what it means upstream; empty if they do."""
        routes, home = self.routes, self.routes.database(schema).lower()
        if job.type == JobType.DROP_SCHEMA:
            elsewhere = next((t for t in before if self.keeps(t) and routes.target(t.schema, t.name).schema.lower() != home), None)
            if elsewhere is not None:
                to = routes.target(elsewhere.schema, elsewhere.name)
                return f"{elsewhere.schema}.{elsewhere.name} is {to.schema}.{to.name} at the target, and DROP DATABASE {home} would not drop it; drop both by hand"
            guest = next((t for t in others if routes.target(t.schema, t.name).schema.lower() == home), None)
            return f"the target has {guest.schema}.{guest.name} in {home} too; drop the tables of {schema} there by hand" if guest else ""
        if job.type == JobType.CREATE_VIEW and not (job.table_info and job.table_info.view) and (named := self.routed_name(job.query)):
            return f"the view names {named}, which has another name at the target; create the view there by hand"
        coming = [t for t in after if self.keeps(t)]
        return routes.shared((*others, *coming)) or self._misfit(job, [t for t in before if self.keeps(t)], coming, known)

    def _misfit(self, job: Job, before: Sequence[TableAt], after: Sequence[TableAt], known: ColumnNames) -> str:
        """Why lists of columns do not let a DDL mean at the target what it means upstream; empty if they do."""
        if why := self._unconditioned(job, before, after):
            return why
        if not any(map(self.routes.columns_of, (*before, *after))):
            return ""
        if job.kind.effect.rows in (RowsAfter.PARTITIONS_GO, RowsAfter.EXCHANGED):
            return f"{job.type_name}: the target has no partitions of a table with a list of columns; change its rows there by hand"
        for table in after:
            was = next((t for t in before if t.table_id == table.table_id), None)
            wanted = self.routes.columns_of(table)
            if was is not None and wanted != self.routes.columns_of(was):
                return f"{was.schema}.{was.name} and {table.schema}.{table.name} have different lists of columns"
            crossed = _crossing(was, table, wanted) if was is not None else ""
            why = crossed or (why_not_narrowed(table, wanted, known.get(table.table_id, frozenset())) if wanted else "")
            if why:
                return why
        return ""

    def _unconditioned(self, job: Job, before: Sequence[TableAt], after: Sequence[TableAt]) -> str:
        """Why conditions for rows do not let a DDL mean at the target what it means upstream; empty if they do."""
        if job.kind.effect.rows is RowsAfter.EXCHANGED and any(map(self.routes.condition_of, (*before, *after))):
            return "EXCHANGE PARTITION: the target lacks the other rows of a table with a condition for its rows; change its rows there by hand"
        old = {t.table_id: t for t in before}
        for now in after:
            was, where = old.get(now.table_id), self.routes.condition_of(now)
            if was is None:
                continue
            if where != self.routes.condition_of(was):
                return f"{was.schema}.{was.name} and {now.schema}.{now.name} have different conditions for rows"
            if where and (why := _condition_lost(was, now, where)):
                return why
        return ""

    def routed_name(self, query: str) -> str:
        """A word of ``query`` that may be the name of a table or database with a route; empty if there is none."""
        names = {d for d, _ in self.routes.databases} | {t for _, t, _ in self.routes.tables}
        return next((token.name for token in significant(query) if token.name.lower() in names), "")

    def _by_filter(self, job: Job, schema: str, before: Sequence[TableAt], after: Sequence[TableAt]) -> DdlDecision:
        if job.kind.on is On.DATABASE or not (before or after):
            return APPLIED if self.tables.keeps(schema) else DdlDecision(DdlFate.FILTERED)
        kept_before, kept_after = ({t.table_id for t in tables if self.keeps(t)} for tables in (before, after))
        if not kept_after and (not kept_before or job.type == JobType.RECOVER_TABLE):
            return DdlDecision(DdlFate.FILTERED)
        coming = [t for t in after if t.table_id in kept_after and t.table_id not in kept_before]
        old = {t.table_id: t for t in before}
        if job.kind.effect.rows is RowsAfter.EXCHANGED and any(not self.keeps(t) for t in (*before, *after)):
            strange = next(t for t in (*before, *after) if not self.keeps(t))
            return _not_here(f"rows of {strange.schema}.{strange.name} would become rows of a replicated table", strange)
        come_in = next((old[t.table_id] for t in coming if t.table_id in old), None)
        if come_in is not None:
            now = next(t for t in coming if t.table_id == come_in.table_id)
            return _not_here(f"{come_in.schema}.{come_in.name} becomes {now.schema}.{now.name}", come_in)
        return APPLIED


def names_column(where: str, name: str) -> bool:
    """Whether a condition may be about this column; True where a text in it is like its name."""
    where, name = where.lower(), name.lower()
    return quote_name(name) in where or name in re.findall(r"[\w$]+", where)


def _condition_lost(was: TableAt, now: TableAt, where: str) -> str:
    """Why a condition does not say after a DDL what it said before, in words."""
    before, after = ({c.name.lower(): c for c in t.info.public_columns()} for t in (was, now))
    for name in sorted(n for n in before if names_column(where, n)):
        if name not in after:
            return f"the condition {where!r} of {now.schema}.{now.name} names {name}, which the table does not have after this DDL; write the condition for that table"
        if (before[name].id, before[name].elems) != (after[name].id, after[name].elems):
            return f"the values of {name} of {now.schema}.{now.name} are converted, so its condition {where!r} may become true or false without a row change"
    return ""


def _crossing(was: TableAt, now: TableAt, wanted: frozenset[str]) -> str:
    """A column that a rename brings into the list, or takes out of it, in words."""
    before, after = ({c.id: c.name for c in t.info.public_columns()} for t in (was, now))
    for column_id, name in after.items():
        former = before.get(column_id)
        if former is not None and (former.lower() in wanted) != (name.lower() in wanted):
            return f"{former} of {now.schema}.{now.name} becomes {name}, but its list of columns has only one of the two names; name both there"
    return ""


def _not_here(what: str, table: TableAt) -> DdlDecision:
    return DdlDecision(
        DdlFate.REFUSED,
        f"{what}, but {table.schema}.{table.name} is not replicated, so the target has none of its rows. Copy these rows to the target, so that it is as the "
        "upstream after this DDL, and then skip the DDL",
    )


def _subject(job: Job, schema: str, before: Sequence[TableAt], after: Sequence[TableAt]) -> tuple[str, str]:
    """The name by which a real Drainer filters a DDL: after RENAME the new one, of several tables the last one."""
    if job.kind.on is On.DATABASE:
        return schema, ""
    wanted = job.table_info.id if job.table_info else job.table_id
    subject = next((t for t in (*after, *before) if t.table_id == wanted), None) or next(iter((*after, *before)), None)
    return (subject.schema, subject.name) if subject else (schema, job.table_name)
