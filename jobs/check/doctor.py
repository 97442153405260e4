"""``ctl doctor``: whether all is well with a stream, in eleven lines. No JVM starts.

Each line is a check of ``schemas.alarms``: ``ok`` and what was seen, or the severity, what is wrong and what to do. ``-``: the check does not apply
here. ``unknown``: nobody has answered.

Promises: asks only, and takes no lease. Every question has its own thread and time limit, so a peer that is down is a line. The lines are there after
``_SECONDS`` + ``_MORE_SECONDS``, usually sooner. Exit code 0: every check is ok or does not apply; 1: otherwise.
"""

import contextlib
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata

from pyspark_tidb_binlog.binlog_source.source.gc_bound import gc_ts_in
from pyspark_tidb_binlog.conf.entry import COMMAND
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.conf.units import duration_in_words
from pyspark_tidb_binlog.conf.version import VERSION
from pyspark_tidb_binlog.jobs.check.node_report import NodeReport, Question, asked, drainer_of
from pyspark_tidb_binlog.jobs.check.preflight import TargetSeen, lacking_rights
from pyspark_tidb_binlog.jobs.check.recorded_findings import finding_lines, open_findings
from pyspark_tidb_binlog.jobs.check.upstream_checks import HistorySeen, PumpsSeen, UpstreamSight, ask_pumps, read_history, upstream_remarks
from pyspark_tidb_binlog.jobs.entry.cli import EXIT_FAILED
from pyspark_tidb_binlog.jobs.entry.drainer_options import BootstrapRequest
from pyspark_tidb_binlog.jobs.entry.local_paths import local_path
from pyspark_tidb_binlog.jobs.entry.versions import java_of, require_java, require_spark
from pyspark_tidb_binlog.jobs.stream.report import age_of, facts_of, plain
from pyspark_tidb_binlog.schemas.alarms import Check, Disk, Facts, PumpFacts, Verified, by_check
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import physical_ms
from pyspark_tidb_binlog.schemas.remarks import Remark
from pyspark_tidb_binlog.schemas.tls import TlsSettings
from pyspark_tidb_binlog.sinks.mysql.lease import LeaseRow
from pyspark_tidb_binlog.sinks.mysql.session import connect
from pyspark_tidb_binlog.sinks.verify.verification_table import verified_at

_SECONDS = 10.0
"""How long a question may take."""
_MORE_SECONDS = 5.0
"""How much longer the target's may take, which begins anew with what the others have answered."""
_SIZE = re.compile(r'^binlog_pump_storage_storage_size_bytes\{type="(capacity|available)"\}[ \t]+([0-9.eE+]+)', re.MULTILINE)
_TIDB = re.compile(r"TiDB-v(\d+)\.(\d+)")
_NO_PLACE = "the registry does not say where the Drainer is, and addr has no port: name it with -addr HOST:PORT"
_LAST_TIDB = (8, 3)
"""The last version of TiDB with binlogs."""


def main(config: DrainerConfig, address: str = "") -> int:
    """Print the lines. ``address``: the Drainer's, in place of the registered one."""
    well = True
    for line, good in lines(examined(config, address)):
        print(line)
        well = well and good
    return 0 if well else EXIT_FAILED


@dataclass(frozen=True, slots=True)
class Examined:
    """What was found out."""

    facts: Facts
    words: Mapping[Check, str]
    """By check: what was seen if nothing is wrong, or why nothing is known."""
    not_applicable: frozenset[Check] = frozenset()
    """The checks that do not apply."""


def lines(found: Examined) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it is a good one. Pure."""
    for check, known, alarms in by_check(found.facts):
        for alarm in alarms:
            yield _line(alarm.alarm.severity, check, alarm.words), False
        if not alarms:
            aside = not known and check in found.not_applicable
            yield _line("ok" if known else "-" if aside else "unknown", check, found.words.get(check, "")), known or aside


def _line(mark: str, check: Check, words: str) -> str:
    return f"{mark:<9} {check.value:<12} {plain(words)}".rstrip()


_Server = tuple[TargetSeen, LeaseRow | None, tuple[Remark, ...] | None]
"""The target, who holds its lease, and what the account lacks, if the DDL history names the databases."""


@dataclass(frozen=True, slots=True)
class _Answers:
    """What everybody has answered, or why they have not; ``target`` and ``account`` None: there is none."""

    config: DrainerConfig
    drainer: NodeReport | str | None
    pumps: tuple[PumpsSeen, Mapping[str, str]] | str
    """With the metrics of each Pump that serves the stream, or why it does not show them."""
    history: HistorySeen | str
    disks: tuple[Disk, ...] | str
    findings: tuple[int, str] | str
    verified: Verified | str | None
    target: _Server | str | None
    account: tuple[Remark, ...] | str | None

    def examined(self) -> Examined:
        """All of it together."""
        facts, at = self._stream()
        seen, held, rights = self.target if isinstance(self.target, tuple) else (None, None, None)
        is_own = held is not None and held.words.startswith(f"drainer {self.config.apply.drainer!r} ")
        facts = replace(
            facts,
            silent=facts.silent if isinstance(self.history, str) else facts.silent or self.history.silent,
            registry=self.pumps if isinstance(self.pumps, str) else self.pumps[0].absent,
            pumps=self._all_pumps(facts.pumps or (), at) or None,
            history=self.history if isinstance(self.history, str) else "",
            target="" if isinstance(self.target, tuple) else self.target,
            lease=None if seen is None else held.words if held is not None and not is_own else "",
            rights=self.account if isinstance(self.account, tuple) else rights,
            disks=self._here or None,
            versions=tuple(self._unsupported()),
            # The Drainer looks from time to time.
            verified=self.verified if isinstance(self.verified, Verified) else facts.verified,
        )
        not_applicable = {Check.DISK, Check.VERIFIED}
        if self.target is None:
            not_applicable |= {Check.TARGET} if self.account is not None else {Check.TARGET, Check.RIGHTS}
        if self._is_real:
            not_applicable.add(Check.FINDINGS)
        return Examined(facts, self._words(facts, seen, held), frozenset(not_applicable))

    @property
    def _here(self) -> tuple[Disk, ...]:
        """The disks; none: the Drainer runs on another machine, or has never run."""
        return self.disks if isinstance(self.disks, tuple) else ()

    @property
    def _is_real(self) -> bool:
        """Whether a real Drainer answers, which says less."""
        return isinstance(self.drainer, NodeReport) and not self.drainer.trouble and not self.drainer.progress

    @property
    def _tidb(self) -> Mapping[str, str]:
        return {} if isinstance(self.history, str) else self.history.versions

    def _stream(self) -> tuple[Facts, int]:
        """What the Drainer says, and its position; if it does not answer, what it has left behind."""
        now, said = time.time(), self.drainer
        trouble = said.trouble if isinstance(said, NodeReport) else said
        if isinstance(said, NodeReport) and not trouble:
            progress = said.seen(now)
            return replace(facts_of(progress), findings=None if self._is_real else progress.findings), progress.resolved_ts
        at = self.target[0].commit_ts if isinstance(self.target, tuple) else 0
        number, newest = (None, "") if isinstance(self.findings, str) else self.findings
        is_other, lag = isinstance(said, NodeReport) and said.is_other, age_of(at, now) if at else None
        silent, other = (None, trouble) if is_other else (trouble, None)
        return Facts(drainer=silent, other=other, lag_seconds=lag, findings=number, newest_finding=newest), at

    def _all_pumps(self, of_stream: Sequence[PumpFacts], at: int) -> tuple[PumpFacts, ...]:
        """The Pumps as they answer here, and as the stream sees them. ``at``: the stream's position."""
        if isinstance(self.pumps, str):
            return tuple(of_stream)
        (seen, pages), others = self.pumps, {pump.name: pump for pump in of_stream}
        joined, unread, unfit = [], seen.unread(at) if at else {}, seen.unfit
        for name in sorted({*seen.addresses, *seen.states}):
            other, page = others.pop(name, PumpFacts(name)), pages.get(name, "")
            trouble = unfit.get(name) or unread.get(name) or other.trouble
            ahead, disk = _ahead(at, gc_ts_in(page)), _disk_in(name, page)
            joined.append(PumpFacts(name, seen.states.get(name, ""), trouble, other.lag_seconds, ahead, disk))
        return (*joined, *others.values())

    def _unsupported(self) -> Iterator[str]:
        if self._here:
            needs: tuple[Callable[[], None], ...] = (partial(require_java, *java_of(os.environ)), partial(require_spark, _spark() or "4.2"))
            for require in needs:
                try:
                    require()
                except ConfigError as error:
                    yield str(error)
        for server, version in self._tidb.items():
            match = _TIDB.search(version)
            if match is not None and (int(match[1]), int(match[2])) > _LAST_TIDB:
                yield f"TiDB {server} is {version}, which writes no binlog"

    def _words(self, facts: Facts, seen: TargetSeen | None, held: LeaseRow | None) -> dict[Check, str]:
        pumps, db_type = facts.pumps or (), self.config.apply.db_type
        lag = "nothing is applied yet" if facts.lag_seconds is None else f"{duration_in_words(facts.lag_seconds)} behind"
        versions = [f"this program {VERSION}"]
        if self._here:
            versions += [f"Java {java_of(os.environ)[1] or 'of an unknown version'}", f"Spark {_spark() or 'not installed here'}"]
        versions += [*sorted({f"TiDB {version}" for version in self._tidb.values() if version}), *([seen.session.version] if seen else [])]
        no_rights = "the target does not answer" if seen is None else "without the DDL history, the databases are not known"
        return {
            Check.DRAINER: f"{self.drainer.name}: {facts.state}" if isinstance(self.drainer, NodeReport) else _NO_PLACE,
            Check.LAG: lag if facts.state is None else f"{facts.copying or lag}; held back by {facts.holding or 'nothing'}",
            Check.PUMPS: f"{len(pumps)}: " + ", ".join(f"{pump.name} {pump.state}".rstrip() for pump in pumps),
            Check.HISTORY: "" if isinstance(self.history, str) else f"{len(self.history.history.ordered):,} jobs",
            Check.TARGET: f"{seen.where}, lease: {held.words if held else 'nobody'}" if seen is not None else f"{db_type} is not asked",
            Check.RIGHTS: "all that the stream needs" if facts.rights is not None else no_rights if self.target else f"not of {db_type}",
            Check.GC: _gc_words(pumps),
            Check.DISK: _disk_words((*self._here, *(pump.disk for pump in pumps if pump.disk is not None))),
            Check.VERSIONS: ", ".join(versions),
            Check.FINDINGS: self.findings if isinstance(self.findings, str) else "none",
            Check.VERIFIED: _verified_words(
                facts.verified, time.time(), f"{COMMAND} {'lake ' if db_type == 'lake' else ''}verify --config FILE"
            ),
        } | ({Check.FINDINGS: "none since the Drainer's start"} if facts.drainer == "" and not self._is_real else {})


def examined(config: DrainerConfig, address: str = "") -> Examined:
    """Ask everybody at once."""
    tls, db_type = TlsSettings.of(config.source.security), config.apply.db_type
    drainer = Question(lambda: drainer_of(config, address, tls, _SECONDS / 2), _SECONDS)
    pumps = Question(lambda: _pumps(config, tls), _SECONDS)
    history = Question(lambda: read_history(config), _SECONDS)
    disks = Question(lambda: _disks(config), _SECONDS)
    findings = Question(lambda: _findings(config), _SECONDS)
    verified = Question(lambda: verified_at(config.verification_dir), _SECONDS)

    def sight() -> UpstreamSight:
        known, of_pumps = history.answer, pumps.answer
        return UpstreamSight.of(config, None if isinstance(of_pumps, str) else of_pumps[0], None if isinstance(known, str) else known)

    def rights() -> tuple[Remark, ...]:
        """What the account of the upstream lacks, from which the stream of a lake loads tables."""
        return _hindering(upstream_remarks(config, BootstrapRequest(everything=True), sight()))

    target = Question(lambda: _target(config, sight()), _SECONDS + _MORE_SECONDS) if db_type in ("mysql", "tidb") else None
    account = Question(rights, _SECONDS + _MORE_SECONDS) if db_type == "lake" and config.upstream.host else None
    upstream = (drainer.answer, pumps.answer, history.answer)
    here = (disks.answer, findings.answer, verified.answer)
    there = (target.answer if target is not None else None, account.answer if account is not None else None)
    return _Answers(config, *upstream, *here, *there).examined()


def _pumps(config: DrainerConfig, tls: TlsSettings | None) -> tuple[PumpsSeen, Mapping[str, str]]:
    def page(address: str) -> str:
        return asked(address, "GET", "/metrics", tls).decode(errors="replace")

    seen = ask_pumps(config)
    fit = {pump: address for pump, address in seen.addresses.items() if pump not in seen.unfit}
    pages = {pump: Question(partial(page, address), _SECONDS / 2) for pump, address in fit.items()}
    return seen, {pump: asked_now.answer for pump, asked_now in pages.items()}


def _target(config: DrainerConfig, sight: UpstreamSight) -> _Server:
    with connect(config.target, config.apply) as session:
        seen = TargetSeen(config, session, sight)
        return seen, seen.lease, _hindering(lacking_rights(seen)) if sight.history is not None else None


def _hindering(remarks: Iterable[Remark]) -> tuple[Remark, ...]:
    return tuple(one for one in remarks if one.hinders)


def _disks(config: DrainerConfig) -> tuple[Disk, ...]:
    """Each disk of this machine that has a directory of the Drainer."""
    named = {"spark.checkpoint-dir": config.checkpoint_dir, "spark.delta-dir": config.delta_dir, "data-dir": config.data_dir}
    named |= {"syncer.to.dir": config.files.dir, "syncer.relay.log-dir": config.relay.log_dir}
    found: dict[int, Disk] = {}
    for setting, uri in named.items():
        path = local_path(uri) if uri else None
        with contextlib.suppress(OSError):
            if path is not None and path.exists():
                usage = shutil.disk_usage(path)
                found.setdefault(path.stat().st_dev, Disk(f"the disk of {setting} {path}", usage.free, usage.total))
    return tuple(found.values())


def _findings(config: DrainerConfig) -> tuple[int, str]:
    rows = open_findings(config)
    return len(rows), [*finding_lines(rows, 1, config.apply.log_row_data)][-1] if rows else ""


def _disk_in(pump: str, page: str) -> Disk | None:
    sizes = {kind: int(float(value)) for kind, value in _SIZE.findall(page)}
    return Disk(f"the disk of Pump {pump}", sizes["available"], sizes["capacity"]) if len(sizes) == 2 else None


def _ahead(at: int, gc_ts: int | None) -> float | None:
    """Seconds from ``gc_ts`` of a Pump to the stream's position."""
    if gc_ts is None or (gc_ts and not at):
        return None
    return (physical_ms(at) - physical_ms(gc_ts)) / 1000 if gc_ts else math.inf


def _gc_words(pumps: Sequence[PumpFacts]) -> str:
    known = [(pump.gc_seconds, pump.name) for pump in pumps if pump.gc_seconds is not None]
    if not known:
        return "no Pump says what it has collected, or the stream's position is not known"
    nearest, name = min(known)
    if math.isinf(nearest):
        return "no Pump has collected anything"
    return f"Pump {name} has collected up to {duration_in_words(nearest)} before the stream's position"


def _disk_words(disks: Sequence[Disk]) -> str:
    if not disks:
        return "no directory of the Drainer is on this machine, and no Pump says"
    least = min(disks, key=lambda disk: disk.share)
    return f"least free: {least.share:.0%} ({least.free / 1e9:.1f} GB) of {least.where}"


def _verified_words(found: Verified | None, now: float, command: str) -> str:
    if found is None:
        return f"no table yet: {command} compares them with the upstream"
    return f"{found.tables} tables are equal, the oldest comparison {duration_in_words(max(now - found.oldest, 0.0))} ago"


def _spark() -> str:
    try:
        return metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return ""
