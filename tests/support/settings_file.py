"""A file of settings as a person writes it."""

from functools import partial
from pathlib import Path

from pyspark_tidb_binlog.conf.load import load
from pyspark_tidb_binlog.conf.model import PumpConfig

load_pump = partial(load, PumpConfig)


def toml(directory: Path, text: str) -> Path:
    """``drainer.toml`` with this text, for ``load_drainer`` and ``load_pump``."""
    file = directory / "drainer.toml"
    file.write_text(text)
    return file
