"""How fast a Pump takes a recorded case in and hands it out: MB/s of wall time and the Pumps' own CPU seconds.

    .venv/bin/python benchmarks/bench_pump.py [--case ../shared/golden/bench] [--repeat 5]

Two Pump processes on loopback, fdatasync on. Prints medians: load (WriteBinlogBatch), each delivery, batched and as a real Pump sends it.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from binlog_source.pump.process import PumpProcess
from binlog_source.upstream import rehearsal
from conf.model import PumpConfig
from schemas.proto import pump_pb2

_MIB = 1 << 20


def main() -> None:
    """Run it."""
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--case", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "golden" / "bench")
    options.add_argument("--repeat", type=int, default=5)
    given = options.parse_args()
    case = rehearsal.load(given.case)
    size = sum(len(payload) for payloads in case.pumps for payload in payloads)
    print(
        f"{given.case.name}: {sum(map(len, case.pumps))} binlogs, {size / _MIB:.1f} MiB, {os.cpu_count()} cores, {given.repeat} repetitions, medians"
    )
    logs = rehearsal.schedule(case)
    with tempfile.TemporaryDirectory() as directory:
        loads = []
        for run in range(given.repeat):
            pumps = [_pump(case, Path(directory) / f"{run}-{n}", n) for n in (1, 2)]
            loads.append(_measured(pumps, lambda pumps=pumps: [None for _ in rehearsal.feed(case, [p.address for p in pumps], logs=logs)]))
            if run + 1 < given.repeat:
                for pump in pumps:
                    pump.stop()
        _report("load", loads, size)
        for delivery in ("sorted", "raw", "tip"):
            for batched in (True, False):
                runs = [_measured(pumps, lambda d=delivery, b=batched: [_pull(p, case, d, b) for p in pumps]) for _ in range(given.repeat)]
                _report(f"{delivery}{', batched' if batched else ''}", runs, size)
        for pump in pumps:
            pump.stop()


def _pump(case: rehearsal.RecordedCase, directory: Path, number: int) -> PumpProcess:
    config = PumpConfig(f"pump-{number}", "127.0.0.1:0", data_dir=str(directory), cluster_id=case.cluster_id, fake_binlog_interval=0)
    return PumpProcess(config).start()


def _pull(pump: PumpProcess, case: rehearsal.RecordedCase, delivery: str, batched: bool) -> None:
    metadata = (("tidb-binlog-delivery", delivery), *((("tidb-binlog-batch", "1"),) if batched else ()))
    with grpc.insecure_channel(pump.address, options=[("grpc.max_receive_message_length", -1)]) as channel:
        method = channel.unary_stream("/binlog.Pump/PullBinlogs", request_serializer=pump_pb2.PullBinlogReq.SerializeToString)
        call = method(pump_pb2.PullBinlogReq(clusterID=case.cluster_id), metadata=metadata)
        for answer in call:
            if pump_pb2.PullBinlogBatch.FromString(answer).entity[-1].meta.commitTs > case.end_ts:
                break
        call.cancel()


def _measured(pumps: Sequence[PumpProcess], act: Callable[[], object]) -> tuple[float, float]:
    cpu, begun = sum(map(_cpu, pumps)), time.perf_counter()
    act()
    return time.perf_counter() - begun, sum(map(_cpu, pumps)) - cpu


def _cpu(pump: PumpProcess) -> float:
    fields = Path(f"/proc/{pump.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _report(name: str, runs: Sequence[tuple[float, float]], size: int) -> None:
    wall, cpu = (statistics.median(values) for values in zip(*runs, strict=True))
    print(f"{name:16} {wall:7.3f} s  {size / _MIB / wall:8.1f} MiB/s   Pumps' CPU {cpu:6.2f} s")


if __name__ == "__main__":
    main()
