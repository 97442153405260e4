"""The mark table of a target in a ring: every transaction that we send first changes a row of it (drainer.md 7). [db]

Promises: the table, its columns and the marking statement are the real Drainer's, so a real Drainer at either end understands our marks, and we its. Each
connection has a row of its own, with an id that no other connection of any process, Drainer or channel member has. So no two transactions meet in
this table. Ids of a real Drainer are small numbers; ours are above ``SMALLEST_ID``, and only ours are ever deleted.

A person, or a Drainer of the same channel that starts, may delete a mark. The transaction that misses its mark writes it again:
what is written is marked, or not written.
"""

import os
import secrets
import threading

from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.mysql.structure import ABSENT
from pyspark_tidb_binlog.sinks.mysql.target import Target
from pyspark_tidb_binlog.sinks.routing.table_filter import MARK_SCHEMA, MARK_TABLE

CREATE = (
    f"create database IF NOT EXISTS {MARK_SCHEMA};",
    f"CREATE TABLE If Not Exists {MARK_SCHEMA}.{MARK_TABLE} (id bigint not null,channel_id bigint not null DEFAULT 0, val bigint DEFAULT 0, "
    "channel_info varchar(64) ,PRIMARY KEY (id,channel_id));",
)
"""A real Drainer's texts."""
SMALLEST_ID = 1 << 32
_SLOT_BITS = 20
_BASES = range(SMALLEST_ID >> _SLOT_BITS, 1 << 63 - _SLOT_BITS)


class MarkIds:
    """The ids of one process: 43 random bits, and a number. A clean connection gives its number back, so that the table stays small."""

    def __init__(self) -> None:
        """Draws the random part."""
        self._lock = threading.Lock()
        self._renew()

    def _renew(self) -> None:
        self._base = secrets.choice(_BASES) << _SLOT_BITS
        self._next = 0
        self._free: list[int] = []

    def take(self) -> int:
        """One that no connection has."""
        with self._lock:
            if self._free:
                return self._free.pop()
            if self._next >> _SLOT_BITS:
                self._renew()
            self._next += 1
            return self._base + self._next - 1

    def give_back(self, mark_id: int) -> None:
        """Give back the mark of a connection that is closed and had no transaction open: a transaction that was lost may still hold its row for a while."""
        with self._lock:
            if mark_id >> _SLOT_BITS == self._base >> _SLOT_BITS:
                self._free.append(mark_id)

    def own(self) -> tuple[int, int]:
        """The first and the last id that this process may have."""
        with self._lock:
            return self._base, self._base + (1 << _SLOT_BITS) - 1


_ids = MarkIds()


def _in_child() -> None:
    global _ids
    _ids = MarkIds()


os.register_at_fork(after_in_child=_in_child)


class TransactionMark:
    """What marks the transactions of one connection."""

    def __init__(self, channel_id: int) -> None:
        """Nothing is sent before the first transaction."""
        self._channel_id = channel_id
        self._id: int | None = None

    def begin(self, session: Target) -> None:
        """Open a transaction, and mark it."""
        if self._id is None:
            self._id = self._claimed(session, _ids.take())
        session.execute("BEGIN")
        marked = f"update {MARK_SCHEMA}.{MARK_TABLE} set val=val+1 where id={self._id} and channel_id={self._channel_id} limit 1;"
        if session.execute(marked) != 1:
            session.execute(self._replace(self._id))

    def release(self, *, clean: bool) -> None:
        """The connection is closed; ``clean``: with no error, and no transaction open."""
        if self._id is not None and clean:
            _ids.give_back(self._id)
        self._id = None

    def remove_stale(self, session: Target) -> None:
        """Delete, in the caller's transaction, what connections of former processes have left."""
        first, last = _ids.own()
        self._remove(session, f" and not id between {first} and {last}")

    def remove_all(self, session: Target) -> None:
        """Delete, in the caller's transaction, the channel's marks: nothing more is written after it."""
        self._remove(session)

    def _remove(self, session: Target, but: str = "") -> None:
        """One by one by the whole key: a scan would wait for the marks of other channels, which running transactions hold."""
        found = session.query(
            f"select id from {MARK_SCHEMA}.{MARK_TABLE} where channel_id = {self._channel_id} and id >= {SMALLEST_ID}{but}"
        )
        for (mark_id,) in found:
            session.execute(f"delete from {MARK_SCHEMA}.{MARK_TABLE} where channel_id = {self._channel_id} and id = {mark_id}")

    def _claimed(self, session: Target, mark_id: int) -> int:
        try:
            session.execute(self._replace(mark_id))
        except ApplyError as error:
            if error.errno not in ABSENT:
                raise
            for statement in CREATE:
                session.execute(statement)
            session.execute(self._replace(mark_id))
        session.commit()
        return mark_id

    def _replace(self, mark_id: int) -> str:
        return f"REPLACE INTO {MARK_SCHEMA}.{MARK_TABLE}(id,channel_id,val,channel_info)  VALUES ({mark_id},{self._channel_id},1,'')"
