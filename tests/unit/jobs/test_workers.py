"""A Python worker between two tasks."""

from io import BufferedReader, BufferedWriter, BytesIO

import pytest

from pyspark_tidb_binlog.jobs import workers


def test_a_worker_whose_socket_is_closed_ends_and_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_run_task", lambda infile, outfile: pytest.fail("there is no task"))
    answer = BytesIO()
    with pytest.raises(SystemExit) as ended:
        workers.run_task(BufferedReader(BytesIO(b"")), BufferedWriter(answer))
    assert ended.value.code == 1, "0 would mean: wait for the next task"
    assert answer.getvalue() == b""


def test_a_task_is_read_from_its_first_byte_and_memory_is_given_back_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    done = []
    monkeypatch.setattr(workers, "_run_task", lambda infile, outfile: done.append(infile.read()))
    monkeypatch.setattr(workers, "give_back", lambda: done.append(b"given back"))
    workers.run_task(BufferedReader(BytesIO(b"task")), BufferedWriter(BytesIO()))
    assert done == [b"task", b"given back"]
