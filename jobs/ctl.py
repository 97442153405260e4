"""``./spark-submit.sh ctl``: binlogctl's commands and flags, and the state of a Drainer. No JVM is started.

``COMMANDS`` lists the commands, as ``--help`` does. A command takes only the flags that ``ctl COMMAND --help`` shows. binlogctl's form ``-cmd pumps``
takes every flag. ``-ssl-ca``, ``-ssl-cert`` and ``-ssl-key`` are for a cluster with TLS. Unlike binlogctl, ``ctl`` reads the node's answer: a refused
change is an error.

Promises: only the named command changes anything. Exit codes as in ``jobs/entry/cli.py``.
"""

import argparse
import contextlib
import datetime
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pyspark_tidb_binlog.binlog_source.cluster.discovery import names_registry
from pyspark_tidb_binlog.binlog_source.cluster.registry import DRAINERS, PUMPS, NodeState, NodeStatus, Registry
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import PD_SCHEME, open_registry
from pyspark_tidb_binlog.conf.entry import PLAYGROUND_PORT, PROGRAM, comparing
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.jobs.check.node_report import NodeReport, asked, look
from pyspark_tidb_binlog.jobs.check.recorded_findings import ddl_lines, finding_lines, recorded_findings
from pyspark_tidb_binlog.jobs.entry.cli import (
    EXIT_FAILED,
    JobParser,
    add_security_flags,
    add_switch,
    config_of,
    no_command,
    parser,
    security_of,
)
from pyspark_tidb_binlog.jobs.entry.logs import line
from pyspark_tidb_binlog.schemas.durable_file import replace_file
from pyspark_tidb_binlog.schemas.errors import ConfigError, LeaseHeld, NotUsableYet, PumpUnavailable, ReplicationError
from pyspark_tidb_binlog.schemas.events import moment_of
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import remarkable
from pyspark_tidb_binlog.sinks.mysql.session import connect
from pyspark_tidb_binlog.sinks.translate.local_record import SAVEPOINT, locked

_WATCH_SECONDS = 1.0
_WHERE = f"{Path(__file__).name}:1"
"""The source of a printed log line: parsers expect a file and a line."""
_KINDS = {PUMPS: "pump", DRAINERS: "drainer"}
_SUCCESS = 200
"""The code of an accepted change, in a node's answer."""
_UNREADABLE = (
    "the registered state of this node is not readable: restart the node, which writes the state again; if the node is gone, remove its key"
)
_SET_OFFLINE = (
    "warning: Pump {0} was {1} and did not leave through offline-pump. It may have acknowledged binlogs that no Drainer has read. "
    "A Drainer of this project that reads this Pump waits for it. A Drainer of TiDB Binlog continues without a message. "
    'If the Pump is gone for ever, set spark.gone-pumps = "{0}" in the Drainer: binlogs that only this Pump had are then reported as lost'
)
_STOPPED = "The Drainer is registered as paused: it was stopped. If it will never start again, run ctl update-drainer -node-id {node_id} -state offline"
_PD = "127.0.0.1:2379"

Run = Callable[[argparse.Namespace], int]


@dataclass(frozen=True, slots=True)
class Command:
    """One command."""

    run: Run
    """Takes the command line; the exit code."""
    what: str
    """What the command does, in a line."""
    flags: tuple[str, ...] = ()
    """The command's flags, from ``_FLAGS``."""
    asks: bool = True
    """Whether the command asks the cluster: PD or the registry, and nodes."""


_FLAGS: Mapping[str, Mapping[str, Any]] = {
    "-node-id": {"default": "", "metavar": "ID", "help": "the id of the node"},
    "-state": {"default": "", "metavar": "STATE", "help": f"the state to write: {', '.join(NodeState)}"},
    "-show-offline-nodes": {"help": "also list offline nodes"},
    "-data-dir": {
        "type": Path,
        "default": Path("binlog_position"),
        "metavar": "DIR",
        "help": "the directory of the savepoint file (default: binlog_position)",
    },
    "-time-zone": {"default": "", "metavar": "ZONE", "help": "also write the time in this zone, as a comment"},
    "-tables": {"default": "", "metavar": "DB.TABLE,...", "help": "tables of a lake, by their names upstream; DB.* is a whole database"},
    "-addr": {"default": "", "metavar": "HOST:PORT", "help": "the address of the Drainer, in place of the registered one"},
    "-config": {"type": Path, "metavar": "FILE", "help": "the Drainer's settings: they name its registry, TLS and node-id, too"},
    "-limit": {"type": int, "default": 20, "metavar": "N", "help": "how many findings (default: 20)"},
    "-apply": {"help": "execute the statements and end the stream for good, instead of printing only"},
    "-json": {"help": "one JSON object per Drainer"},
    "-watch": {"help": f"a live panel, renewed every {_WATCH_SECONDS:g} s until Ctrl-C"},
    "-text": {
        "default": "",
        "metavar": "TEXT",
        "help": "the password to encrypt with the key in BINLOG_SECRET_KEY; - reads the first line of stdin",
    },
}


def main(argv: Sequence[str]) -> int:
    """Run one command."""
    if argv and argv[0] in COMMANDS:
        name, given = argv[0], _options_of(argv[0]).parsed(argv[1:])
    else:
        given = _options().parsed(argv)
        name = given.command or given.cmd or "pumps"
    if name not in COMMANDS:
        raise no_command(name, COMMANDS, f"{PROGRAM} ctl")
    if COMMANDS[name].asks:
        _fill_from_settings(given)
    return COMMANDS[name].run(given)


def _fill_from_settings(given: argparse.Namespace) -> None:
    """Take from the settings of ``-config`` what the command line does not say: the registry, TLS, the Drainer's name; its address where nobody registers it."""
    given.drainer, given.addr = "", getattr(given, "addr", "")
    if not given.config:
        return
    config = _settings(given)
    source, given.drainer = config.source, config.apply.drainer
    for name in ("ssl_ca", "ssl_cert", "ssl_key"):
        setattr(given, name, getattr(given, name) or getattr(source.security, name))
    if given.registry or given.pd_urls != _PD:
        return
    if source.pumps.startswith(PD_SCHEME):
        given.pd_urls = source.pumps.removeprefix(PD_SCHEME)
    elif names_registry(source):
        given.registry = source.pumps
    else:
        given.addr = given.addr or config.advertise_addr or config.addr


def _options_of(name: str) -> JobParser:
    """The command line of one command, which takes its own flags only."""
    command = COMMANDS[name]
    options = parser(f"ctl {name}", f"{command.what[0].upper()}{command.what[1:]}.")
    _add_flags(options, command.flags)
    if command.asks:
        _add_flags(options, ("-config",))
        _add_cluster(options)
    return options


def _options() -> JobParser:
    """The command line of binlogctl, or ours with a flag before the command: every command takes every flag."""
    what = {name: command.what for name, command in COMMANDS.items()}
    options = parser(
        "ctl", f"binlogctl's commands, and what a Drainer is doing. {PROGRAM} ctl COMMAND --help shows a command's own flags.", what
    )
    options.usage = f"{options.prog} COMMAND [FLAG ...]"
    options.add_argument("command", nargs="?", metavar="COMMAND", help="one of the above (default: pumps)")
    options.add_argument("-cmd", "--cmd", metavar="COMMAND", help="the same in binlogctl's form")
    _add_cluster(options)
    _add_flags(options, _FLAGS)
    return options


def _add_flags(to: JobParser, names: Iterable[str]) -> None:
    for name in names:
        if "metavar" in _FLAGS[name]:
            to.add_argument(name, f"-{name}", **_FLAGS[name])
        else:
            add_switch(to, name, f"-{name}", what=_FLAGS[name]["help"])


def _add_cluster(to: JobParser) -> None:
    to.add_argument("-pd-urls", "--pd-urls", default=_PD, metavar="URLS", help=f"PD, comma separated (default: {_PD})")
    to.add_argument("-registry", "--registry", default="", metavar="URL", help="the standalone registry instead of PD")
    add_security_flags(to)


@contextlib.contextmanager
def _registry(given: argparse.Namespace) -> Iterator[Registry]:
    with contextlib.closing(open_registry(given.registry or f"{PD_SCHEME}{given.pd_urls}", security_of(given))) as registry:
        try:
            yield registry
        except PumpUnavailable as error:
            if given.registry or given.pd_urls != _PD:
                raise
            raise PumpUnavailable(
                f"{error}. -pd-urls names another PD, -registry a standalone registry (a playground's: http://127.0.0.1:{PLAYGROUND_PORT})"
            ) from error


def _name(given: argparse.Namespace, kind: str) -> str:
    """The node that is named; empty: none."""
    return str(given.node_id or (given.drainer if kind == DRAINERS else ""))


def _node(registry: Registry, kind: str, node_id: str) -> NodeStatus:
    if not node_id:
        raise ConfigError("name the node: -node-id ID" + (", or -config FILE, the Drainer's settings" if kind == DRAINERS else ""))
    known = {node.node_id: node for node in registry.listing(kind).nodes}
    if node_id not in known:
        raise ConfigError(f"{registry.url} has no {_KINDS[kind]} {node_id!r}; it has {', '.join(sorted(known)) or 'none'}")
    return known[node_id]


def _list(kind: str) -> Run:
    def run(given: argparse.Namespace) -> int:
        with _registry(given) as registry:
            listing = registry.listing(kind)
            for node in listing.nodes:
                if node.state is not NodeState.OFFLINE or given.show_offline_nodes:
                    fields = {"type": _KINDS[kind], "node": _in_words(node)}
                    print(line("INFO", _WHERE, "query node", fields, datetime.datetime.now().astimezone()))
            for node_id in listing.unreadable:
                fields = {"type": _KINDS[kind], "node": f"{{NodeID: {node_id}}}"}
                print(line("ERROR", _WHERE, _UNREADABLE, fields, datetime.datetime.now().astimezone()))
        return 0

    return run


def _in_words(node: NodeStatus) -> str:
    """A node as binlogctl prints it."""
    at = moment_of(node.update_ts)
    millis = f".{at.microsecond // 1000:03d}".rstrip("0").rstrip(".")
    time = f"{at:%Y-%m-%d %H:%M:%S}{millis} +0000 UTC"
    return f"{{NodeID: {node.node_id}, Addr: {node.host}, State: {node.state}, MaxCommitTS: {node.max_commit_ts}, UpdateTime: {time}}}"


def _update(kind: str) -> Run:
    def run(given: argparse.Namespace) -> int:
        if given.state not in list(NodeState):
            raise ConfigError(f"state {given.state!r} is illegal: it is one of {', '.join(NodeState)} (-state)")
        with _registry(given) as registry:
            before = _node(registry, kind, _name(given, kind))
            registry.put_status(kind, replace(before, state=NodeState(given.state)))
        print(f"{_KINDS[kind]} {before.node_id} is registered as {given.state}; a node that runs registers its own state again")
        if kind == PUMPS and given.state == NodeState.OFFLINE and before.state is not NodeState.OFFLINE:
            print(_SET_OFFLINE.format(before.node_id, before.state.value), file=sys.stderr)
        return 0

    return run


def _apply(kind: str, action: str) -> Run:
    def run(given: argparse.Namespace) -> int:
        if kind == DRAINERS and given.addr:
            node = NodeStatus(_name(given, kind), given.addr)
        else:
            with _registry(given) as registry:
                node = _node(registry, kind, _name(given, kind))
        try:
            _changed(given, node, kind, f"/state/{quote(node.node_id, safe=':')}/{action}")
        except PumpUnavailable as error:
            if kind != DRAINERS or node.state is not NodeState.PAUSED:
                raise
            raise PumpUnavailable(f"{error}. {_STOPPED.format(node_id=node.node_id)}") from error
        return 0

    return run


def _reload(given: argparse.Namespace) -> int:
    """Have a Drainer read tables of its lake again."""
    if not given.tables:
        raise ConfigError("name the tables: -tables DB.TABLE,...")
    nodes = _drainers(given)
    if len(nodes) != 1:
        raise ConfigError(f"{len(nodes)} Drainers are registered; name one: -node-id ID")
    _changed(given, nodes[0], DRAINERS, f"/reload/{quote(given.tables)}")
    return 0


def _changed(given: argparse.Namespace, node: NodeStatus, kind: str, path: str) -> None:
    """Have a node do something, and print its answer."""
    answer = asked(node.host, "PUT", path, security_of(given))
    try:
        said = json.loads(answer)
        code, message = int(said["code"]), str(said["message"])
    except (ValueError, KeyError, TypeError) as error:
        raise PumpUnavailable(f"{_KINDS[kind]} {node.node_id} at {node.host} answered {answer[:200]!r}") from error
    if code != _SUCCESS:
        raise ReplicationError(f"{_KINDS[kind]} {node.node_id} at {node.host} refuses: {message}")
    print(message)


def _generate_meta(given: argparse.Namespace) -> int:
    """Write ``savepoint`` as binlogctl does. The times are comments, so that a Drainer can read the file. Refused while a Drainer writes there."""
    with _registry(given) as registry:
        ts = registry.tso()
    text = f"commitTS = {ts}\n"
    if given.time_zone:
        at = moment_of(ts)
        try:
            zone = None if given.time_zone == "Local" else ZoneInfo(given.time_zone)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise ConfigError(f"there is no time zone {given.time_zone!r}") from error
        text += f"# {at.isoformat(' ')}\n# {at.astimezone(zone).isoformat(' ')}\n"
    directory: Path = given.data_dir
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        held = locked(directory)
        try:
            replace_file(directory / SAVEPOINT, text)
        finally:
            os.close(held)
    except LeaseHeld as error:
        raise ConfigError(f"{error}. Stop that Drainer first: this command replaces its savepoint") from error
    except OSError as error:
        raise ConfigError(f"cannot write {directory / SAVEPOINT}: {error}") from error
    print(line("INFO", _WHERE, "save meta", {"meta": f"commitTS: {ts}"}, datetime.datetime.now().astimezone()))
    return 0


def _encrypt(given: argparse.Namespace) -> int:
    """Print the encrypted form of a password."""
    # only who uses it needs the library
    from pyspark_tidb_binlog.conf.encrypted import SECRET_KEY, encrypted, uses_known_key

    text = sys.stdin.readline().removesuffix("\n") if given.text == "-" else given.text
    if not text:
        raise ConfigError("there is no text to encrypt: give -text TEXT, or -text - for the first line of stdin")
    try:
        print(encrypted(text, os.environ))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if uses_known_key(os.environ):
        print(f"warning: {SECRET_KEY} is not set: anybody can decrypt this text", file=sys.stderr)
    return 0


def _status(given: argparse.Namespace) -> int:
    """Each Drainer that is not offline, or the one that is named; 1 if one does not answer."""
    if given.watch:
        return _watch(given)
    nodes = _drainers(given)
    if not nodes:
        print("no Drainer is registered")
    reports = _looks(given, nodes)
    for report in reports:
        print(report.json() if given.json else report.text())
    return EXIT_FAILED if any(report.trouble for report in reports) else 0


def _drainers(given: argparse.Namespace) -> list[NodeStatus]:
    """The Drainers to report."""
    name = _name(given, DRAINERS)
    if given.addr:
        return [NodeStatus(name or given.addr, given.addr)]
    with _registry(given) as registry:
        wanted = [_node(registry, DRAINERS, name)] if name else registry.listing(DRAINERS).nodes
    return [node for node in wanted if name or node.state is not NodeState.OFFLINE]


def _watch(given: argparse.Namespace) -> int:
    """A panel of each Drainer, until Ctrl-C."""
    # Not at the top: only who watches needs the library.
    from pyspark_tidb_binlog.jobs.stream.reporter import InPlace, draws

    if given.json or not draws(sys.stdout, os.environ):
        raise ConfigError(
            "status --watch needs a terminal, without -json and with a TERM other than dumb: in a program use status -json or GET /progress"
        )
    try:
        from pyspark_tidb_binlog.jobs.stream.panel import LivePanel, panels_text
    except ModuleNotFoundError as error:
        raise ConfigError(f"status --watch needs a package that this environment lacks: pip install 'rich>=14,<16' ({error})") from error
    place, panels = InPlace(sys.stdout), dict[str, LivePanel]()
    try:
        while True:
            reports = _looks(given, _drainers(given))
            facts = [
                panels.setdefault(report.name, LivePanel(report.name)).facts(report.seen(time.time()), report.trouble) for report in reports
            ]
            place.show(partial(panels_text, facts, environ=os.environ) if facts else lambda columns, lines: "no Drainer is registered")
            time.sleep(_WATCH_SECONDS)
    except KeyboardInterrupt:
        return 0
    finally:
        place.keep()


def _looks(given: argparse.Namespace, nodes: Iterable[NodeStatus]) -> list[NodeReport]:
    tls = security_of(given)
    return [look(node, tls, registered=not given.addr) for node in nodes]


def _settings(given: argparse.Namespace) -> DrainerConfig:
    return config_of(DrainerConfig, argparse.Namespace(config=given.config), partial(logging.warning, "%s"))


def _ddl(given: argparse.Namespace) -> int:
    config = _settings(given)
    with connect(config.target, config.apply) as session:
        found = remarkable(session, config.apply.checkpoint_schema, config.source.cluster_id)
    for text in ddl_lines(found):
        print(text)
    return 0


def _findings(given: argparse.Namespace) -> int:
    """Print the newest findings; returns 1 if no Drainer has run with these settings."""
    config = _settings(given)
    try:
        rows = recorded_findings(config)
    except NotUsableYet as error:
        print(error)
        return EXIT_FAILED
    for text in finding_lines(rows, given.limit, config.apply.log_row_data):
        print(text)
    tables = sorted({row["table"] for row in rows if row["table"] and not row["closed_at"]})
    if tables and config.apply.db_type in ("mysql", "tidb"):
        print(f"whether they differ now: {comparing(*tables)}")
    return 0


def _doctor(given: argparse.Namespace) -> int:
    # Not at the top: no other command needs all that a check reads.
    from pyspark_tidb_binlog.jobs.check import doctor

    return doctor.main(_settings(given), given.addr)


def _promote(given: argparse.Namespace) -> int:
    # Not at the top: no other command needs all that a check reads.
    from pyspark_tidb_binlog.jobs.check import promote

    return promote.main(_settings(given), apply=given.apply)


COMMANDS: Mapping[str, Command] = {
    "pumps": Command(_list(PUMPS), "the registered Pumps", ("-show-offline-nodes",)),
    "drainers": Command(_list(DRAINERS), "the registered Drainers", ("-show-offline-nodes",)),
    "update-pump": Command(_update(PUMPS), "write a state of a Pump into the registry", ("-node-id", "-state")),
    "update-drainer": Command(_update(DRAINERS), "write a state of a Drainer into the registry", ("-node-id", "-state")),
    "pause-pump": Command(_apply(PUMPS, "pause"), "a Pump takes no more binlogs and ends", ("-node-id",)),
    "pause-drainer": Command(_apply(DRAINERS, "pause"), "a Drainer holds its stream between two batches", ("-node-id",)),
    "resume-drainer": Command(_apply(DRAINERS, "resume"), "a paused Drainer goes on", ("-node-id",)),
    "offline-pump": Command(_apply(PUMPS, "close"), "a Pump ends for good once every Drainer has read everything", ("-node-id",)),
    "offline-drainer": Command(_apply(DRAINERS, "close"), "a Drainer ends and is registered as offline", ("-node-id",)),
    "reload-tables": Command(_reload, "a Drainer reads tables of its lake again from the upstream", ("-node-id", "-addr", "-tables")),
    "generate_meta": Command(_generate_meta, "write a savepoint file with a new timestamp", ("-data-dir", "-time-zone")),
    "encrypt": Command(_encrypt, "encrypt a password for encrypted_password", ("-text",), asks=False),
    "doctor": Command(_doctor, "whether all is well: eleven checks, each ok or what to do", ("-config", "-addr"), asks=False),
    "status": Command(_status, "each Drainer: its position and what holds it back", ("-node-id", "-addr", "-json", "-watch")),
    "ddl": Command(_ddl, "the DDLs that the target did not execute as TiDB wrote them", ("-config",), asks=False),
    "promote": Command(_promote, "what to set before applications write to the target", ("-config", "-apply"), asks=False),
    "findings": Command(_findings, "the newest findings", ("-config", "-limit"), asks=False),
}
"""By name."""
