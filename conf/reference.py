"""Writes the reference of all settings, ``docs/settings.md``, and the annotated files ``conf/drainer.toml`` and ``conf/pump.toml``.

``python -m pyspark_tidb_binlog.conf.reference`` writes them from the model (``make settings``). A test fails while one of them differs.
"""

import itertools
import textwrap
from collections.abc import Iterator
from pathlib import Path

from pyspark_tidb_binlog.conf.load import NOT_BUILT
from pyspark_tidb_binlog.conf.model import DrainerConfig, PumpConfig
from pyspark_tidb_binlog.conf.setting import OURS, PAIRS, Program, Setting, is_named, item_type, settings_of, text_of, toml_of

ROOT = Path(__file__).resolve().parents[1]
FILES = {"conf/drainer.toml": DrainerConfig, "conf/pump.toml": PumpConfig}
PAGE = "docs/settings.md"
_WIDTH = 140


def help_of(setting: Setting) -> str:
    """Its help, and what this release does not do with it. One line."""
    return "; ".join(text for text in (setting.help, _limits(setting)) if text)


def default_of(setting: Setting) -> str:
    """Its default in words, ``default: 20``; empty where it is an empty text or list."""
    if setting.unset:
        return f"default: {setting.unset}"
    shown = ",".join(setting.default) if isinstance(setting.default, tuple) else setting.default
    return "" if shown == "" else f"default: {_plain(setting)}"


def example(model: type[Program]) -> str:
    """The annotated file: every setting with its default."""
    job = "drainer" if model is DrainerConfig else "pump"
    what = "The replication stream" if job == "drainer" else "A Pump server"
    head = (
        f"{what}: `tidb-binlog {job} --config {job}.toml`, in a checkout `./spark-submit.sh {job} --config conf/{job}.toml`. Every setting with its default; a line may be left out. A {job}.toml of "
        f"TiDB Binlog is read as it is; what only this project has stands in [{OURS}]. The environment wins over this file "
        f"({model.PREFIX}ADDR=0.0.0.0:8249, TIDB_BINLOG__{OURS.upper()}__CLUSTER_ID=7), flags win over both (-addr 0.0.0.0:8249). "
        "docs/settings.md explains them (`tidb-binlog docs settings`). Generated from conf/model.py: make settings."
    )
    lines, lists = [*_comment(head), ""], []
    for table, settings in _tables(model):
        wanted = [setting for setting in settings if setting.in_file and setting.fields]
        plain = [setting for setting in wanted if not _is_table(setting)]
        if table and plain:
            lines += ["", f"[{table}]"]
        for setting in plain:
            lines += [*_comment(help_of(setting)), _line(setting)]
        lists += [setting for setting in wanted if _is_table(setting)]
    for setting in lists:
        lines += ["", *_comment(help_of(setting)), *_listed(setting)]
    return "\n".join(lines) + "\n"


def settings_page() -> str:
    """``docs/settings.md``."""
    return "\n".join([_PREFACE, *_chapter("Drainer", DrainerConfig), *_chapter("Pump", PumpConfig)]) + "\n"


def main() -> int:
    """Write page and files."""
    for name, model in FILES.items():
        (ROOT / name).write_text(example(model))
    (ROOT / PAGE).write_text(settings_page())
    return 0


def _chapter(title: str, model: type[Program]) -> Iterator[str]:
    yield f"\n## {title}"
    without_effect: dict[str, list[Setting]] = {}
    for table, settings in _tables(model):
        for setting in settings:
            without_effect.setdefault(setting.without_effect, []).append(setting)
        shown = [setting for setting in settings if not setting.without_effect]
        if not shown:
            continue
        yield f"\n### {f'`[{table}]`' if table else 'At the top of the file'}\n"
        if table.endswith("security") and (table, model) != ("security", DrainerConfig):
            yield "The keys of the Drainer's `[security]`."
            continue
        yield "| setting | default | |"
        yield "|---|---|---|"
        for setting in shown:
            default = setting.unset or ("" if setting.default in ("", ()) else f"`{_plain(setting)}`")
            text = help_of(setting).replace("|", "\\|").replace("<", "&lt;")
            yield f"| {_names(setting)} | {default.replace('<', '&lt;')} | {text} |"
    yield "\n### Accepted without effect\n"
    for why, same in without_effect.items():
        if why:
            yield f"- {', '.join(map(_names, same))}: {why}"


def _names(setting: Setting) -> str:
    """Its path, and its flag unless that is its name."""
    names = [setting.path] * setting.in_file + [f"-{setting.flag}"] * (setting.flag not in ("", setting.name) or not setting.in_file)
    return ", ".join(f"`{name}`" for name in names)


def _tables(model: type[Program]) -> Iterator[tuple[str, list[Setting]]]:
    """The settings of each table, in the order of the real files; ours last."""
    settings = settings_of(model)
    order = list(dict.fromkeys(sorted((setting.table for setting in settings), key=lambda table: (table == OURS, table))))
    for table in order:
        yield table, [setting for setting in settings if setting.table == table]


def _limits(setting: Setting) -> str:
    if setting.without_effect:
        return f"without effect here: {setting.without_effect}" if setting.fields else ""
    if setting.targets and "mysql" not in setting.targets:
        return f"{' or '.join(setting.targets)} only"
    if setting.by_row:
        return "only with net-change = false"
    refused = [value for where, value in NOT_BUILT if where == setting.path and value]
    return f"not built: {', '.join(refused)}" if refused else ""


def _plain(setting: Setting) -> str:
    return toml_of(text_of(setting.kind, setting.default) if isinstance(setting.kind, str) else setting.default)


def _is_table(setting: Setting) -> bool:
    return item_type(setting.kind) is not None or setting.kind == PAIRS


def _line(setting: Setting) -> str:
    if setting.unset:
        return f"# {setting.name} = {setting.unset}"
    return f"{setting.name} = {_plain(setting)}"


def _listed(setting: Setting) -> list[str]:
    """A table of names and values, or an example of a list of tables, which has no line for "none"."""
    item = item_type(setting.kind)
    if item is None:
        return [f"[{setting.path}]"]
    header = f"[{setting.path}.NAME]" if is_named(item) else f"[[{setting.path}]]"
    keys = [one for one in settings_of(item) if one.path != "name"]
    return [f"# {header}", *(f"# {one.path} = {toml_of(one.default)}  # {one.help}" for one in keys)]


def _comment(text: str) -> list[str]:
    return list(itertools.chain(f"# {line}" for line in textwrap.wrap(text, _WIDTH - 2, break_long_words=False, break_on_hyphens=False)))


_PREFACE = """\
# Settings

Generated from `conf/model.py` by `make settings`; `drainer --help-all` and `pump --help-all` show the same.

- **Files.** A `drainer.toml` or `pump.toml` of TiDB Binlog is read as it is; keys in any case. What only this project has is in `[spark]`. An
  unknown key is an error that names the nearest one.
- **Order.** Flag, environment, file, default.
- **Flags.** `-config FILE`, `--config=FILE`; a switch needs no value (`-safe-mode`, `-sync-ddl=false`). A setting's path is a flag
  (`--syncer.to.host db1`), and its name where it is unique or a real program's flag (`--parts 4`). Other flags are in the table.
- **Environment.** `TIDB_BINLOG__SYNCER__SYNC_DDL`: the path with `__` for a dot, `_` for a dash. It wins over the real program's: `BINLOG_SERVER_` (Drainer) or `PUMP_` and
  the flag's name. `MYSQL_HOST`, `MYSQL_PORT`, `MYSQL_USER`, `MYSQL_PSWD` and `KAFKA_ADDRS` count where nothing else is set.
- **Durations.** `90s`, `1m30s`, `8h`. A number without a unit is days for `gc`, and refused for `syncer.to.read-timeout`.
- **Lists of tables** as a flag or in the environment are TOML: `'[{db-name = "a", tbl-name = "b"}]'`.
- **Not built** (Oracle, ZooKeeper): an error that names the alternative. A setting without effect is a line in the log."""

if __name__ == "__main__":
    raise SystemExit(main())
