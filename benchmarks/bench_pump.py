"""Write and read rates of a Pump, compared to the disk's own limit and a bare grpcio server in the same run.

    python -m benchmarks.bench_pump [--repeat 3] [--seconds 3] [--log-gb 1] [--case tests/golden/bench] [--parts 2,3,5,6]

1. the disk: appends of one binlog with fdatasync, and of 1 MiB groups with fdatasync
2. WriteBinlog (fdatasync on), 200 bytes at 1, 16 and 64 clients, and as TiDB calls, 64 calls in flight on one connection: Pump, and a grpcio
   server that answers and stores nothing; alternately
3. WriteBinlog, 100 KB at 1 and 16 clients, compared to the disk's append limit
4. PullBinlogs of what 3 wrote, and of small binlogs, sorted and raw, one message per binlog (real Drainer) and batched (our source)
5. memory while the log grows; opening it again with its index and without
6. a recorded case: load and every delivery, with the Pumps' own CPU seconds

The load is ``pump_load`` (one process, one core), the reader is ``pull_load``. gRPC's own clients are too slow: they would limit the result.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import grpc

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.pull_load import PullReader
from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.conf.model import PumpConfig
from pyspark_tidb_binlog.jobs.lab.emulator import rehearsal
from pyspark_tidb_binlog.jobs.lab.emulator.process import ServerProcess
from pyspark_tidb_binlog.jobs.lab.pump_process import PumpProcess
from pyspark_tidb_binlog.schemas.proto import pump_pb2

_CLUSTER = 7
_SMALL, _LARGE = 200, 100_000
_MB = 1e6


def main() -> None:
    """Run it."""
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--repeat", type=int, default=3)
    options.add_argument("--seconds", type=float, default=3.0, help="length of one load")
    options.add_argument("--log-gb", type=float, default=1.0, help="size of the log for the memory figures")
    options.add_argument("--case", type=Path, default=Path(__file__).resolve().parents[1] / "tests" / "golden" / "bench")
    options.add_argument("--dir", type=Path, default=None, help="where the logs go (default: a temporary directory)")
    options.add_argument("--parts", default="2,3,5,6", help="which of the parts 2, 3, 5 and 6, by comma; 4 belongs to 2 and 3")
    given = options.parse_args()
    parts = given.parts.split(",")
    print(f"{os.cpu_count()} cores, {given.repeat} repetitions of {given.seconds:g} s, medians")
    with tempfile.TemporaryDirectory(dir=given.dir) as directory:
        scratch = Path(directory)
        appended = disk(scratch)
        if "2" in parts:
            small_writes(scratch, given.repeat, given.seconds)
        if "3" in parts:
            large_writes(scratch, given.repeat, given.seconds, appended)
        if "5" in parts:
            growing_log(scratch, given.log_gb)
        if "6" in parts and given.case.exists():
            recorded_case(scratch, given.case, given.repeat)
        elif "6" in parts:
            print(f"no recorded case at {given.case}: skipped")


def disk(scratch: Path) -> float:
    """The disk's own limits; MB/s of grouped appends."""
    path = scratch / "disk"
    single = _appends(path, b"x" * (_SMALL + 16), 1.0)
    group = _appends(path, b"x" * (1 << 20), 2.0)
    path.unlink()
    print(
        f"\n1. disk: {single:,.0f} appends of one small binlog with fdatasync a second; {group * (1 << 20) / _MB:,.0f} MB/s in groups of 1 MiB"
    )
    return group * (1 << 20) / _MB


def _appends(path: Path, data: bytes, seconds: float) -> float:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    count, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        os.write(descriptor, data)
        os.fdatasync(descriptor)
        count += 1
    took = time.perf_counter() - begun
    os.close(descriptor)
    return count / took


def small_writes(scratch: Path, repeat: int, seconds: float) -> None:
    """Calls a second, compared to the bare server."""
    print(f"\n2. WriteBinlog, {_SMALL} bytes, calls/s (p50/p99 ms)")
    with _pump(scratch / "small") as pump, _bare() as bare:
        for clients, in_flight in ((1, 1), (16, 1), (64, 1), (1, 64)):
            ours, theirs = _by_turns(
                repeat,
                lambda n=clients, m=in_flight: _load(pump.address, n, _SMALL, seconds, m),
                lambda n=clients, m=in_flight: _load(bare.address, n, _SMALL, seconds, m),
            )
            rate, limit = (statistics.median(run["calls"] / run["seconds"] for run in runs) for runs in (ours, theirs))
            tail = f"{statistics.median(r['p50'] for r in ours):.2f}/{statistics.median(r['p99'] for r in ours):.2f}"
            print(
                f"   {clients:3} clients, {in_flight:2} calls each: {rate:9,.0f} ({tail})   bare grpcio {limit:9,.0f}   ratio {rate / limit:5.2f}"
            )
        print(f"   the Pump's memory: {_peak(pump):.0f} MB at most")
        _pulls(pump, "small binlogs", repeat)
    shutil.rmtree(scratch / "small")


def large_writes(scratch: Path, repeat: int, seconds: float, appended: float) -> None:
    """MB/s compared to the disk, then the read rates."""
    print(f"\n3. WriteBinlog, {_LARGE // 1000} KB, MB/s (p50/p99 ms); the disk in groups of 1 MiB: {appended:,.0f}")
    with _pump(scratch / "large") as pump:
        for clients in (1, 16):
            runs = [_load(pump.address, clients, _LARGE, seconds) for _ in range(repeat)]
            rate = statistics.median(run["megabytes"] / run["seconds"] for run in runs)
            tail = f"{statistics.median(r['p50'] for r in runs):.1f}/{statistics.median(r['p99'] for r in runs):.1f}"
            print(f"   {clients:3} clients: {rate:9,.0f} ({tail})   ratio to the disk {rate / appended:5.2f}")
        print(f"   the Pump's memory: {_peak(pump):.0f} MB at most")
        _pulls(pump, "large binlogs", repeat)
    shutil.rmtree(scratch / "large")


def _pulls(pump: PumpProcess, name: str, repeat: int) -> None:
    print(f"4. PullBinlogs of {name}, from the beginning to the end")
    for delivery in ("sorted", "raw"):
        for batched in (False, True):
            upto = _end(pump.address, delivery)
            runs = []
            for _ in range(repeat):
                begun = time.perf_counter()
                binlogs, size = _pull(pump.address, delivery, batched, upto)
                took = time.perf_counter() - begun
                runs.append((size / _MB / took, binlogs / took))
            rate, count = (statistics.median(values) for values in zip(*runs, strict=True))
            print(f"   {delivery + (', batched' if batched else ''):16} {rate:8,.0f} MB/s  {count:9,.0f} binlogs/s")


def growing_log(scratch: Path, gigabytes: float) -> None:
    """Memory as the log grows; the time to open it."""
    shown = -1.0
    print(f"\n5. memory while the log grows to {gigabytes:g} GB of binlogs of 2 KB, 16 clients")
    with _pump(scratch / "grown") as pump:
        while (size := _size(scratch / "grown" / "value")) < gigabytes * 1e9:
            _load(pump.address, 16, 2000, 2.0)
            if size // (gigabytes * 1e8) > shown:
                shown = size // (gigabytes * 1e8)
                print(f"   log {size / _MB:7,.0f} MB   now {_now(pump):4.0f} MB   at most {_peak(pump):4.0f} MB")
        print(f"   log {_size(scratch / 'grown' / 'value') / _MB:7,.0f} MB   now {_now(pump):4.0f} MB   at most {_peak(pump):4.0f} MB")
        records = _pull(pump.address, "raw", True, _end(pump.address, "raw"))[0]
        pump.kill()
        for index in ("with its index", "without"):
            begun = time.perf_counter()
            pump.start()
            took = time.perf_counter() - begun
            print(f"   opened {index} after kill -9: {took:.2f} s ({records / took:,.0f} binlogs/s of {records:,})")
            pump.kill()
            shutil.rmtree(scratch / "grown" / "index")
    shutil.rmtree(scratch / "grown")


def recorded_case(scratch: Path, directory: Path, repeat: int) -> None:
    """A recorded case through two Pumps."""
    case = load(directory)
    size = sum(len(payload) for payloads in case.pumps for payload in payloads)
    print(f"\n6. {directory.name}: {sum(map(len, case.pumps))} binlogs, {size / _MB:.1f} MB, two Pumps")
    logs = rehearsal.schedule(case)
    for run in range(repeat):
        with _pump(scratch / f"{run}-1", case.cluster_id) as one, _pump(scratch / f"{run}-2", case.cluster_id) as two:
            pumps = (one, two)
            feeding = [_measured(pumps, lambda p=pumps: [None for _ in rehearsal.feed(case, [pump.address for pump in p], logs=logs)])]
            if run + 1 == repeat:
                _report("load", feeding, size)
                for delivery in ("sorted", "raw"):
                    upto = {pump: _end(pump.address, delivery, case.cluster_id) for pump in pumps}
                    runs = [
                        _measured(
                            pumps, lambda d=delivery, u=upto: [_pull(p.address, d, True, end, case.cluster_id) for p, end in u.items()]
                        )
                        for _ in range(repeat)
                    ]
                    _report(f"{delivery}, batched", runs, size)


def _pull(address: str, delivery: str, batched: bool, upto: Sequence[int], cluster_id: int = _CLUSTER) -> tuple[int, int]:
    """Binlogs and bytes of a pull from the beginning to ``upto``."""
    with contextlib.closing(PullReader(address, cluster_id, delivery, batched)) as reader:
        reader.until(upto, partial(_mark, delivery))
        return reader.binlogs, reader.size


def _mark(delivery: str, entity: pump_pb2.Entity) -> tuple[int, ...]:
    return (entity.meta.commitTs,) if delivery == "sorted" else (entity.pos.suffix, entity.pos.offset)


def _end(address: str, delivery: str, cluster_id: int = _CLUSTER) -> tuple[int, ...]:
    """How far a pull of ``delivery`` gets now: the last position that the tip delivery reports."""
    with grpc.insecure_channel(address) as channel:
        method = channel.unary_stream("/binlog.Pump/PullBinlogs", request_serializer=pump_pb2.PullBinlogReq.SerializeToString)
        call = method(
            pump_pb2.PullBinlogReq(clusterID=cluster_id),
            metadata=(("tidb-binlog-delivery", "tip"), ("tidb-binlog-batch", "1")),
            timeout=2.0,
        )
        end: tuple[int, ...] = (0,)
        try:
            for answer in call:
                last = pump_pb2.PullBinlogBatch.FromString(answer).entity[-1]
                # in the tip delivery meta.commitTs is the sorted promise
                end = _mark(delivery, last)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
    return end


def _load(address: str, clients: int, size: int, seconds: float, in_flight: int = 1) -> dict[str, float]:
    flags = [f"--clients={clients}", f"--in-flight={in_flight}", f"--size={size}", f"--seconds={seconds}", f"--first-ts={time.time_ns()}"]
    ran = subprocess.run([sys.executable, "-m", "benchmarks.pump_load", address, *flags], capture_output=True, check=True, cwd=_ROOT)
    outcome: dict[str, float] = json.loads(ran.stdout)
    if outcome["failed"]:
        raise SystemExit(f"{outcome['failed']} calls failed at {address}")
    return outcome


def _by_turns(repeat: int, *acts: Callable[[], dict[str, float]]) -> list[list[dict[str, float]]]:
    runs: list[list[dict[str, float]]] = [[] for _ in acts]
    for _ in range(repeat):
        for act, found in zip(acts, runs, strict=True):
            found.append(act())
    return runs


@contextmanager
def _pump(directory: Path, cluster_id: int = _CLUSTER, **more: int) -> Iterator[PumpProcess]:
    config = PumpConfig(
        "pump-1",
        "127.0.0.1:0",
        data_dir=str(directory),
        cluster_id=cluster_id,
        fake_binlog_interval=0,
        stop_write_at_available_space="",
        **more,
    )
    pump = PumpProcess(config)
    pump.start()
    try:
        yield pump
    finally:
        pump.stop()


@contextmanager
def _bare() -> Iterator[ServerProcess]:
    server = ServerProcess("bare grpcio server", [sys.executable, "-m", "benchmarks.bare_grpc"])
    server.start()
    try:
        yield server
    finally:
        server.kill()


def _status(pump: PumpProcess, name: str) -> float:
    for line in Path(f"/proc/{pump.pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1000
    return 0.0


def _now(pump: PumpProcess) -> float:
    return _status(pump, "VmRSS")


def _peak(pump: PumpProcess) -> float:
    return _status(pump, "VmHWM")


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


def _measured(pumps: Sequence[PumpProcess], act: Callable[[], object]) -> tuple[float, float]:
    cpu, begun = sum(map(_cpu, pumps)), time.perf_counter()
    act()
    return time.perf_counter() - begun, sum(map(_cpu, pumps)) - cpu


def _cpu(pump: PumpProcess) -> float:
    fields = Path(f"/proc/{pump.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _report(name: str, runs: Sequence[tuple[float, float]], size: int) -> None:
    wall, cpu = (statistics.median(values) for values in zip(*runs, strict=True))
    print(f"   {name:16} {wall:7.3f} s  {size / _MB / wall:8.1f} MB/s   Pumps' CPU {cpu:6.2f} s")


_ROOT = Path(__file__).resolve().parent.parent

if __name__ == "__main__":
    main()
