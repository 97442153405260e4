"""A private Kafka broker, controller and all, on random loopback ports, from the jars that ``spark-submit.sh setup --kafka`` brings."""

import base64
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from pyspark_tidb_binlog.jobs.lab.ports import free_port
from tests.support.certificates import Authority
from tests.support.eventually import eventually

JARS = Path(sys.prefix) / "kafka-jars"
USER, PASSWORD = "drainer", "hard-to-guess-too"


def _scala() -> Path:
    """Scala's library, which Spark brings, and so leaves out of what it resolves."""
    (found,) = (Path(pyspark.__file__).parent / "jars").glob("scala-library-*.jar")
    return found


class PrivateKafka:
    """One broker; its data outlives ``kill`` and ``restart``."""

    def __init__(self, work_dir: Path) -> None:
        """``start`` (or ``with``) runs it. Topics are created when they are asked for."""
        self._work_dir = work_dir
        self.port, self.secure_port, self._controller = free_port(), free_port(), free_port()
        self.front_port, self.behind_port = free_port(), free_port()
        """Of a front that a test may run (``LosingFront``), which clients are told, and of the listener behind it."""
        self.ca = work_dir / "ca" / "test-ca.pem"
        """The file of the CA that has signed the broker's certificate."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"127.0.0.1:{self.port}"

    @property
    def secure_address(self) -> str:
        """``host:port`` of the listener that asks for TLS and SASL: ``USER`` with ``PASSWORD``, by PLAIN or SCRAM-SHA-512."""
        return f"127.0.0.1:{self.secure_port}"

    def login(self, mechanism: str, password: str) -> dict[str, str]:
        """Options of librdkafka for that listener."""
        tls = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(self.ca)}
        return tls | {"sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": password}

    @property
    def data_dir(self) -> Path:
        """Where the broker keeps its topics."""
        return self._work_dir / "log"

    def start(self) -> Self:
        """Run it, and wait until it answers."""
        settings = self._work_dir / "server.properties"
        if not settings.exists():
            self._work_dir.mkdir(parents=True, exist_ok=True)
            settings.write_text(self._settings())
            self._certify()
            cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            scram = f"SCRAM-SHA-512=[name={USER},password={PASSWORD}]"
            self._java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings), "--add-scram", scram).wait(600)
        self._process = self._java("kafka.Kafka", str(settings))
        eventually(self._answers, seconds=120, seen=self._log)
        return self

    @property
    def running(self) -> bool:
        """Whether it was started and not killed."""
        return self._process is not None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def signal(self, number: int) -> None:
        """To the broker, which runs. A stop is waited for: threads of a process end what they are at."""
        assert self._process is not None
        self._process.send_signal(number)
        if number == signal.SIGSTOP:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()

    def _answers(self) -> bool:
        assert self._process is not None and self._process.poll() is None, self._log()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def _java(self, main: str, *arguments: str) -> "subprocess.Popen[bytes]":
        with (self._work_dir / "kafka.log").open("ab") as log:
            return subprocess.Popen(self._command(main, *arguments), stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _command(self, main: str, *arguments: str) -> list[str]:
        assert (JARS / ".complete").exists(), "Kafka is missing: ./spark-submit.sh setup --kafka"
        home = os.environ.get("JAVA_HOME")
        java = f"{home}/bin/java" if home else str(shutil.which("java"))
        return [java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*:{_scala()}", main, *arguments]

    def _log(self) -> str:
        return (self._work_dir / "kafka.log").read_text(errors="replace")[-4000:]

    def _certify(self) -> None:
        """Key and certificate in one file, as Kafka wants them."""
        made = Authority(self.ca.parent).certify("broker")
        (self._work_dir / "broker.pem").write_bytes(made.key.read_bytes() + made.cert.read_bytes())

    def _settings(self) -> str:
        jaas = "org.apache.kafka.common.security"
        named = f"PLAINTEXT://{self.address},SECURE://{self.secure_address}"
        lines = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller}",
            "listeners": f"{named},BEHIND://127.0.0.1:{self.behind_port},CONTROLLER://127.0.0.1:{self._controller}",
            "advertised.listeners": f"{named},BEHIND://127.0.0.1:{self.front_port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BEHIND:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL",
            "listener.name.secure.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "listener.name.secure.plain.sasl.jaas.config": f'{jaas}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
            "listener.name.secure.scram-sha-512.sasl.jaas.config": f"{jaas}.scram.ScramLoginModule required;",
            "listener.name.secure.ssl.keystore.type": "PEM",
            "listener.name.secure.ssl.keystore.location": self._work_dir / "broker.pem",
            # How long a broker that was killed counts as alive: one that is started again waits for that.
            "broker.heartbeat.interval.ms": 200,
            "broker.session.timeout.ms": 1000,
            "log.dirs": self.data_dir,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "num.network.threads": 1,
            "num.io.threads": 2,
            "log.cleaner.enable": "false",
        }
        return "".join(f"{name}={value}\n" for name, value in lines.items())
