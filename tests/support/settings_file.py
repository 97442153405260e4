"""A file of settings as a person writes it."""

from pathlib import Path


def toml(directory: Path, text: str) -> Path:
    """``drainer.toml`` with this text, for ``load_drainer`` and ``load_pump``."""
    file = directory / "drainer.toml"
    file.write_text(text)
    return file
