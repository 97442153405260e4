"""Signals in real processes: the first asks, the second ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

JOB = """\
import signal, sys, threading, time
from pyspark_tidb_binlog.jobs.entry.signals import REQUEST, stop_on_signals, take_back

stop = stop_on_signals()
signal.signal(signal.SIGINT, lambda *_: sys.exit("PySpark's own handler"))
take_back()
REQUEST.at_once(lambda: print("the JVM is killed", flush=True))
print("ready", flush=True)
try:
    while not stop.wait(0.2):
        pass
    print("asked", flush=True)
    ends = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < ends:
        time.sleep(0.2)  # not one long wait: a signal that comes just before it begins is handled when it ends
except KeyboardInterrupt:
    print("unwinding", flush=True)
    time.sleep(float(sys.argv[2]))
    sys.exit(130)
"""


HEARD = (
    "import signal\nfor number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT): signal.signal(number, signal.SIG_DFL)\n"
)
"""Whatever the one who runs the tests ignores: under nohup it would be ignored here too."""


def run(*numbers: signal.Signals, works: float = 0.0, unwinds: float = 0.0) -> tuple[int, list[str]]:
    """Send ``numbers``, each once the one before was heard; the exit code and what was printed."""
    command = [sys.executable, "-c", HEARD + JOB, str(works), str(unwinds)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        printed = [job.stdout.readline().strip()]
        for number in numbers:
            job.send_signal(number)
            printed.append(job.stdout.readline().strip())
        printed += [line.strip() for line in job.stdout]
        return job.wait(60), printed


INSIDE = """\
import inspect, os, signal, sys, threading
from pyspark_tidb_binlog.jobs.entry.signals import REQUEST, stop_on_signals

source, first = inspect.getsourcelines(threading.Event.wait)
line = first + next(i for i, text in enumerate(source) if "signaled = self._flag" in text)
left = 3


def trace(frame, event, arg):
    global left
    if frame.f_code is not threading.Event.wait.__code__:
        return None
    def inside(frame, event, arg):
        global left
        if event == "line" and frame.f_lineno == line and frame.f_locals.get("self") is stop:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGTERM)
        return inside
    return inside


stop = stop_on_signals()
print("ready", flush=True)
sys.settrace(trace)
while not stop.wait(0.01):
    pass
sys.settrace(None)
print("asked", flush=True)
"""


def test_a_signal_while_the_event_is_locked_by_the_one_who_waits_for_it() -> None:
    """The handler runs in the main thread, which holds the event's lock at this moment."""
    job = subprocess.run([sys.executable, "-c", INSIDE], cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=20, check=False)
    assert (job.returncode, job.stdout.split()) == (0, ["ready", "asked"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_the_first_signal_is_a_request(number: signal.Signals) -> None:
    assert run(number) == (0, ["ready", "asked"])


@pytest.mark.parametrize(
    ("first", "second"), [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGINT)]
)
def test_the_second_takes_down_what_was_begun(first: signal.Signals, second: signal.Signals) -> None:
    assert run(first, second, works=600) == (130, ["ready", "asked", "the JVM is killed", "unwinding"])


def test_a_job_that_does_not_come_down_is_ended() -> None:
    assert run(signal.SIGTERM, signal.SIGTERM, works=600, unwinds=600) == (143, ["ready", "asked", "the JVM is killed", "unwinding"])


FULL = """\
import os, sys, threading

os.set_blocking(2, False)
try:
    while True:
        os.write(2, b".")
except BlockingIOError:
    os.set_blocking(2, True)
threading.Thread(target=lambda: sys.stderr.write("for ever"), daemon=True).start()
"""


def test_one_whose_errors_nobody_reads_is_ended_too() -> None:
    """A thread holds Python's stream of errors for ever."""
    quiet = JOB.replace('lambda: print("the JVM is killed", flush=True)', "lambda: None")
    command = [sys.executable, "-c", HEARD + FULL + quiet, "600", "600"]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as job:
        assert job.stdout is not None
        try:
            for expected in ("ready", "asked"):
                assert job.stdout.readline().strip() == expected
                job.send_signal(signal.SIGTERM)
            assert job.wait(30) == 128 + signal.SIGTERM
        finally:
            job.kill()


def test_what_the_caller_ignores_stays_ignored() -> None:
    command = ["/bin/sh", "-c", "trap '' HUP; exec \"$@\"", "sh", sys.executable, "-c", JOB, "0", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        job.send_signal(signal.SIGHUP)
        job.send_signal(signal.SIGTERM)
        assert (job.stdout.readline(), job.wait(60)) == ("asked\n", 0)
