"""A target that lacks what it has answered: a replica that was behind takes its place behind a chosen call."""

from collections.abc import Callable
from typing import Any

import pytest


def losing(monkeypatch: pytest.MonkeyPatch, owner: Any, method: str, lose: Callable[[], object]) -> None:
    """``lose``, which undoes something at the target, is run once, when ``owner.method`` has returned."""
    answered, left = getattr(owner, method), [lose]

    def lost(*args: Any, **named: Any) -> Any:
        found = answered(*args, **named)
        while left:
            left.pop()()
        return found

    monkeypatch.setattr(owner, method, lost)
