"""The alarms: what can be wrong with a stream, from when on, in which words, and what to do. Pure.

``ctl doctor`` prints every check. The Drainer's page shows the alarms that are on. ``drainer --check`` takes its advice from here. ``deploy/`` has the
rules for Prometheus that are made from here.

Promises: a fact that is None is not known; an alarm that needs it is then neither on nor off. Names of alarms are stable. The words contain texts of
Pumps and servers as they were given: whoever shows them removes what a terminal or a page obeys.
"""

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from pyspark_tidb_binlog.conf.entry import COMMAND, document
from pyspark_tidb_binlog.conf.units import duration_in_words
from pyspark_tidb_binlog.schemas.remarks import Remark, some

LAG_SECONDS = 60.0
STILL_SECONDS = 120.0
GC_SECONDS = 3600.0
FREE_SHARE = 0.1
_NAMED = 3
"""Tables whose names are said."""
ONLINE, OFFLINE = "online", "offline"


class Severity(enum.StrEnum):
    """How urgent an alarm is."""

    CRITICAL = "critical"
    """The stream stands still, or will lose something."""
    WARNING = "warning"


class Check(enum.StrEnum):
    """What is checked: a line of ``ctl doctor`` each."""

    DRAINER = "Drainer"
    LAG = "lag"
    PUMPS = "Pumps"
    HISTORY = "DDL history"
    TARGET = "target"
    RIGHTS = "rights"
    GC = "GC distance"
    DISK = "disk"
    VERSIONS = "versions"
    FINDINGS = "findings"
    VERIFIED = "verified"


@dataclass(frozen=True, slots=True)
class Disk:
    """The disk that holds a directory."""

    where: str
    """The directory, with its setting."""
    free: int
    """Bytes."""
    capacity: int
    """Bytes."""

    @property
    def share(self) -> float:
        """The free part, 0 to 1."""
        return self.free / self.capacity if self.capacity else 1.0


@dataclass(frozen=True, slots=True)
class PumpFacts:
    """One Pump."""

    name: str
    state: str = ""
    """As registered; empty = not known: a fixed list of Pumps has no states."""
    trouble: str = ""
    """Why the Pump does not serve the stream; empty = it does."""
    lag_seconds: float | None = None
    """Age of what the stream has read of it."""
    gc_seconds: float | None = None
    """From what the Pump has collected to the stream's position; infinite = it has collected nothing."""
    disk: Disk | None = None
    """That of its binlogs."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What ``verify`` has found of the tables, each when it was compared last."""

    tables: int
    rows: int
    """Rows that differ."""
    differing: tuple[str, ...]
    """The tables that have some, or another definition."""
    oldest: float
    """When the table was compared whose turn is the longest ago. Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a stream and of what surrounds it. None: not known."""

    drainer: str | None = None
    """Why the Drainer does not answer; empty = it does."""
    other: str | None = None
    """Which other stream's Drainer answers at its address."""
    state: str | None = None
    """The Drainer's state."""
    copying: str = ""
    """The progress of the copy before the stream begins, in words; empty = no copy runs."""
    lag_seconds: float | None = None
    still_seconds: float | None = None
    """Since when no batch was applied."""
    holding: str = ""
    """What holds the stream back, in words; empty = nothing does."""
    waiting: str | None = None
    """Which services do not answer the stream, in words; empty = all do."""
    unrecorded: str | None = None
    """Why the newest batches are not in the Delta tables; empty = they are."""
    silent: tuple[str, ...] | None = None
    """The TiDB servers that write no binlogs, though others do, in words."""
    registry: str | None = None
    """Why PD or the registry does not answer; empty = it does."""
    pumps: tuple[PumpFacts, ...] | None = None
    history: str | None = None
    """Why the DDL history cannot be read; empty = it can."""
    target: str | None = None
    """Why the target cannot be used; empty = it can."""
    lease: str | None = None
    """Which other Drainer holds the lease, in words; empty = no other."""
    rights: tuple[Remark, ...] | None = None
    """What the target's account, or that of ``[spark.upstream]``, lacks."""
    versions: tuple[str, ...] | None = None
    """What is not a supported version, a sentence each."""
    disks: tuple[Disk, ...] | None = None
    """Of this machine, that the Drainer writes to."""
    findings: int | None = None
    """Since the Drainer's start; if it does not run, all that are recorded."""
    newest_finding: str = ""
    verified: Verified | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """An alarm as a rule of Prometheus."""

    expr: str
    """PromQL; only metrics that ``/metrics`` of a Drainer or Pump has."""
    says: str
    """The sentence, as a template of Prometheus."""
    wait: str = "1m"
    """How long ``expr`` must hold."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """One row of the table."""

    name: str
    check: Check
    severity: Severity
    wrong: Callable[[Facts], str | None]
    """What is wrong, with its numbers; empty = nothing is; None = not known."""
    todo: str
    """What to do."""
    page: str
    """The document that says more, as ``docs PAGE`` takes it."""
    rule: Rule | None = None
    """None: the metrics do not say it."""


@dataclass(frozen=True, slots=True)
class Raised:
    """An alarm that is on."""

    alarm: Alarm
    what: str
    """What is wrong."""

    @property
    def words(self) -> str:
        """What is wrong, and what to do, on one line."""
        return " ".join(f"{self.what}; {self.alarm.todo} ({document(self.alarm.page)})".split("\n"))

    def to_dict(self) -> dict[str, str]:
        """As the page's JSON has it."""
        alarm = self.alarm
        return {"name": alarm.name, "severity": alarm.severity, "what": self.what, "todo": alarm.todo, "page": alarm.page}


def raised(facts: Facts) -> tuple[Raised, ...]:
    """The alarms that are on, in the order of the table: that of the way of a row."""
    return tuple(Raised(alarm, what) for alarm in ALARMS if (what := alarm.wrong(facts)))


def _lag(facts: Facts) -> str | None:
    if facts.lag_seconds is None:
        return None
    held = f", held back by {facts.holding}" if facts.holding else ""
    return f"the target is {duration_in_words(facts.lag_seconds)} behind{held}" if facts.lag_seconds >= LAG_SECONDS else ""


def _still(facts: Facts) -> str | None:
    if facts.still_seconds is None:
        return None
    if facts.still_seconds < STILL_SECONDS or facts.copying or facts.state not in (ONLINE, None):
        return ""
    return f"nothing was applied for {duration_in_words(facts.still_seconds)}, held back by {facts.holding or 'nothing that is known'}"


def _paused(facts: Facts) -> str | None:
    return facts.state and ("" if facts.state == ONLINE else f"the Drainer is {facts.state}: it applies nothing")


def _waiting(facts: Facts) -> str | None:
    if not facts.waiting:
        return facts.waiting
    # a Pump that is away has an alarm of its own
    return "" if any(pump.trouble for pump in facts.pumps or ()) else f"the stream waits for {facts.waiting}"


def _of_pumps(words: Callable[[PumpFacts], str | None]) -> Callable[[Facts], str | None]:
    """The words about all Pumps; ``words`` None: of this Pump it is not known."""

    def wrong(facts: Facts) -> str | None:
        said = [words(pump) for pump in facts.pumps or ()]
        known = [text for text in said if text is not None]
        return "; ".join(filter(None, known)) if known else None

    return wrong


def _unreachable(pump: PumpFacts) -> str:
    return pump.trouble and (pump.trouble if pump.name in pump.trouble else f"Pump {pump.name} cannot be reached: {pump.trouble}")


def _not_online(pump: PumpFacts) -> str | None:
    if not pump.state:
        return None
    return "" if pump.state in (ONLINE, OFFLINE) else f"Pump {pump.name} is {pump.state}: it takes no more binlogs"


def _behind(pump: PumpFacts) -> str | None:
    if pump.lag_seconds is None:
        return None
    late = pump.lag_seconds >= LAG_SECONDS and not pump.trouble
    return f"Pump {pump.name} is read up to {duration_in_words(pump.lag_seconds)} ago" if late else ""


def _near_gc(pump: PumpFacts) -> str | None:
    if pump.gc_seconds is None:
        return None
    if pump.gc_seconds <= 0:
        return f"Pump {pump.name} has collected binlogs that the stream may not have read"
    near = pump.gc_seconds < GC_SECONDS
    return f"Pump {pump.name} has collected up to {duration_in_words(pump.gc_seconds)} before the stream's position" if near else ""


def _full_pump(pump: PumpFacts) -> str | None:
    return None if pump.disk is None else _full(pump.disk)


def _full(disk: Disk) -> str:
    return f"{disk.where} has {disk.free / 1e9:.1f} GB free ({disk.share:.0%})" if disk.share < FREE_SHARE else ""


def _disks(facts: Facts) -> str | None:
    return None if facts.disks is None else "; ".join(filter(None, map(_full, facts.disks)))


def _rights(facts: Facts) -> str | None:
    if facts.rights is None:
        return None
    return "; ".join(f"{one.where} {one.what}{f': {one.todo}' if one.todo else ''}" for one in facts.rights)


def _findings(facts: Facts) -> str | None:
    if facts.findings is None:
        return None
    newest = f", the newest: {facts.newest_finding}" if facts.newest_finding else ""
    return f"{facts.findings:,} findings{newest}" if facts.findings else ""


def _differs(facts: Facts) -> str | None:
    found = facts.verified
    if found is None:
        return None
    return found.differing and f"{some(found.differing, _NAMED)} differ from the upstream ({found.rows:,} rows)" or ""


# fmt: off
ALARMS = (
    Alarm("drainer-silent", Check.DRAINER, Severity.CRITICAL, lambda facts: facts.drainer,
          "start the Drainer; the last message of its log says why it ended", "runbook",
          Rule("last_over_time(binlog_drainer_spark_lag_seconds[1h]) unless binlog_drainer_spark_lag_seconds",
               "the Drainer does not answer; it was {{ $value | humanizeDuration }} behind")),
    Alarm("drainer-other", Check.DRAINER, Severity.CRITICAL, lambda facts: facts.other,
          "name the settings that this Drainer runs with (-config FILE); or, to run both, give each its own addr and node-id", "runbook"),
    Alarm("drainer-paused", Check.DRAINER, Severity.WARNING, _paused,
          f"{COMMAND} ctl resume-drainer, before the gc of the Pumps collects what is not read", "runbook",
          Rule('binlog_drainer_spark_state{state!="online"} == 1', "the Drainer is {{ $labels.state }}: it applies nothing")),
    Alarm("unrecorded", Check.DRAINER, Severity.WARNING, lambda facts: facts.unrecorded,
          "mend spark.delta-dir: the stream goes on meanwhile, and retries", "errors/machine"),
    Alarm("waiting", Check.LAG, Severity.CRITICAL, _waiting,
          "start that service, make it reachable or end the session that is named: the stream then goes on by itself", "runbook"),
    Alarm("lag", Check.LAG, Severity.WARNING, _lag,
          "mend what holds it back; if nothing does, give the stream more, or wait until the backlog is applied", "scaling",
          Rule(f"binlog_drainer_spark_lag_seconds > {LAG_SECONDS:g}", "the target is {{ $value | humanizeDuration }} behind")),
    Alarm("no-progress", Check.LAG, Severity.CRITICAL, _still,
          "look at the Pump, stage or DDL that is named; a DDL on a large table may take this long", "runbook",
          Rule(f"changes(binlog_drainer_checkpoint_tso[{STILL_SECONDS:g}s]) == 0"
               ' and ignoring(state) binlog_drainer_spark_state{state="online"} == 1 and binlog_drainer_spark_batches_total > 0',
               f"nothing was applied for {STILL_SECONDS:g} s", "30s")),
    Alarm("tidb-without-binlog", Check.PUMPS, Severity.CRITICAL, lambda facts: None if facts.silent is None else "; ".join(facts.silent),
          "end it: GET /binlog/recover at its status port if it is Skipping, binlog.enable if it is Off. Copy what was written meanwhile", "errors/upstream",
          Rule("binlog_drainer_spark_tidb_without_binlog == 1",
               "TiDB server {{ $labels.server }} writes no binlog: what is written through it is lost to the stream", "0s")),
    Alarm("registry-silent", Check.PUMPS, Severity.CRITICAL, lambda facts: facts.registry,
          "start PD, the registry or the Pumps, or correct pd-urls or spark.pumps", "errors/upstream"),
    Alarm("pump-unreachable", Check.PUMPS, Severity.CRITICAL, _of_pumps(_unreachable),
          "start this Pump, or correct its registered address, the settings in [security] or spark.cluster-id", "errors/upstream",
          Rule("binlog_drainer_spark_pump_unreachable == 1", "Pump {{ $labels.nodeID }} cannot be reached, and the stream waits for it")),
    Alarm("pump-not-online", Check.PUMPS, Severity.WARNING, _of_pumps(_not_online),
          "start it again, unless somebody is closing it", "errors/upstream"),
    Alarm("pump-behind", Check.PUMPS, Severity.WARNING, _of_pumps(_behind),
          "see what the Pump waits for: an orphan, a full disk, a registry that does not answer", "errors/pump",
          Rule(f"time() - binlog_drainer_pump_position / 1000 > {LAG_SECONDS:g}"
               ' unless on (instance, job) binlog_drainer_spark_state{state!="online"} == 1',
               "Pump {{ $labels.nodeID }} is read up to {{ $value | humanizeDuration }} ago")),
    Alarm("history-silent", Check.HISTORY, Severity.CRITICAL, lambda facts: facts.history,
          "start a TiDB server, or correct spark.tidb-status", "errors/upstream"),
    Alarm("target-silent", Check.TARGET, Severity.CRITICAL, lambda facts: facts.target,
          "correct host, port, user or password, or start the server", "errors/target"),
    Alarm("lease-held", Check.TARGET, Severity.CRITICAL, lambda facts: facts.lease and f"the lease is held by {facts.lease}",
          "stop that Drainer before this one is started", "errors/target"),
    Alarm("rights-missing", Check.RIGHTS, Severity.CRITICAL, _rights,
          "grant what is missing", "target"),
    Alarm("gc-near", Check.GC, Severity.CRITICAL, _of_pumps(_near_gc),
          "raise gc of the Pumps now, and find out why the stream lags", "errors/upstream",
          # The label is the one that TiUP gives to all of a cluster; without it, one Prometheus watches one cluster.
          Rule("(min by (tidb_cluster) (binlog_drainer_checkpoint_tso) - max by (tidb_cluster) (binlog_pump_storage_gc_ts > 0)) / 1000" f" < {GC_SECONDS:g}",
               "a Pump has collected up to {{ $value | humanizeDuration }} before the position of a Drainer")),
    Alarm("disk-low", Check.DISK, Severity.WARNING, _disks,
          "free space: with a full disk the stream ends", "errors/machine"),
    Alarm("pump-disk-low", Check.DISK, Severity.CRITICAL, _of_pumps(_full_pump),
          "free space, or lower gc of the Pump: it refuses binlogs before its disk is full", "errors/pump",
          Rule('binlog_pump_storage_storage_size_bytes{type="available"} / ignoring(type)'
               f' binlog_pump_storage_storage_size_bytes{{type="capacity"}} < {FREE_SHARE:g}',
               "{{ $value | humanizePercentage }} of the disk of Pump {{ $labels.instance }} is free")),
    Alarm("version-unsupported", Check.VERSIONS, Severity.WARNING, lambda facts: None if facts.versions is None else "; ".join(facts.versions),
          "install a supported version", "supported"),
    Alarm("findings", Check.FINDINGS, Severity.WARNING, _findings,
          f"{COMMAND} ctl findings --config FILE shows them; {COMMAND} verify, of a lake lake verify, says what differs; copy such a table again: --bootstrap DB.TABLE",
          "errors/findings",
          Rule("binlog_drainer_spark_findings_total > 0",
               "{{ $value }} findings of kind {{ $labels.kind }} since the Drainer's start", "0s")),
    Alarm("differs", Check.VERIFIED, Severity.CRITICAL, _differs,
          f"{COMMAND} verify --config FILE says what differs and how to repair it; find out why, or it comes again", "verify",
          Rule("binlog_drainer_spark_verified_differing_tables > 0", "{{ $value }} tables differ from the upstream, as verify has found", "0s")),
)
# fmt: on
"""Every alarm. No two have the same name."""

NAMED: Mapping[str, Alarm] = {alarm.name: alarm for alarm in ALARMS}
"""By name."""


def by_check(facts: Facts) -> Iterator[tuple[Check, bool, tuple[Raised, ...]]]:
    """Each check: whether anything is known of it, and its alarms that are on."""
    for check in Check:
        told = [(alarm, alarm.wrong(facts)) for alarm in ALARMS if alarm.check is check]
        yield check, any(what is not None for _, what in told), tuple(Raised(alarm, what) for alarm, what in told if what)
