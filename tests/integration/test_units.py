"""The systemd units of ``deploy``: verified by systemd's own tool, and tried under a systemd of their own.

That systemd runs in namespaces of its own (processes, mounts), as a user's manager; where that is not permitted, the trial is skipped.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pyspark_tidb_binlog.jobs.entry import cli

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy").glob("*.service"))
HERE, THERE = "/opt/tidb-binlog-spark", str(ROOT)
IN_A_SYSTEMD = """
set -e
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system /run/user/0/systemd/user
chmod 700 /run/user/0
export XDG_RUNTIME_DIR=/run/user/0 HOME=$1
cp -r "$1"/units/* /run/user/0/systemd/user/
/lib/systemd/systemd --user --log-target=null &
for _ in $(seq 100); do systemctl --user is-system-running 2>/dev/null | grep -qE 'running|degraded' && break; sleep 0.1; done
sh "$1/trial.sh"
systemctl --user stop 'tidb-binlog-*' || true
systemctl --user exit || true
"""


def placed(unit: Path, directory: Path) -> Path:
    """The unit as it would be installed with the project here and settings in ``directory``; restarts are quick."""
    text = unit.read_text().replace(HERE, THERE).replace("/etc/tidb-binlog", str(directory)).replace("/var/log/tidb-binlog", str(directory))
    made = directory / "units" / unit.name
    made.parent.mkdir(exist_ok=True)
    # A user's manager runs everything as that user; the project and the settings of a test may lie in /tmp.
    text = re.sub(r"^(User|PrivateTmp)=.*\n", "", text, flags=re.M)
    made.write_text(re.sub(r"^RestartSec=.*", "RestartSec=100ms", text, flags=re.M))
    return made


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_it(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    found = subprocess.run(["systemd-analyze", "verify", str(placed(unit, tmp_path))], capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_it_names_every_exit_code(unit: Path) -> None:
    text = unit.read_text()
    codes = {value for name, value in vars(cli).items() if name.startswith("EXIT_")}
    assert {int(code) for code in re.findall(r"^#   (\d+) ", text, re.M)} == codes | {0}
    assert f"RestartPreventExitStatus={cli.EXIT_CONFIG}\n" in text and "Restart=on-failure\n" in text
    job = re.search(r"^ExecStart=\S+/spark-submit\.sh (\w+)", text, re.M)
    assert job is not None and (ROOT / "jobs" / f"{job[1]}.py").exists()


def tried(directory: Path, trial: str) -> list[str]:
    """What ``trial`` prints in a systemd with both units."""
    if os.geteuid() != 0 or shutil.which("unshare") is None or not Path("/lib/systemd/systemd").exists():
        pytest.skip("needs root and systemd")
    for unit in UNITS:
        placed(unit, directory)
    (directory / "trial.sh").write_text(trial)
    (directory / "in.sh").write_text(IN_A_SYSTEMD)
    command = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", str(directory / "in.sh"), str(directory)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if "BEGUN" not in found.stdout:
        pytest.skip(f"no systemd of one's own here: {found.stderr[-500:]}")
    return found.stdout.partition("BEGUN\n")[2].splitlines()


SHOW = "systemctl --user show -P {what} tidb-binlog-pump"
WAIT = """
until_is() { for _ in $(seq 300); do [ "$(systemctl --user show -P "$1" tidb-binlog-pump)" = "$2" ] && return; sleep 0.1; done; echo "never $1=$2"; }
show() { for what in ActiveState SubState NRestarts ExecMainStatus; do printf '%s ' "$(systemctl --user show -P $what tidb-binlog-pump)"; done; echo; }
serving() { for _ in $(seq 300); do python3 -c "import urllib.request; urllib.request.urlopen('http://127.0.0.1:$PORT/status')" 2>/dev/null && return; sleep 0.1; done; echo "never serving"; }
echo BEGUN
"""


def test_a_pump_is_restarted_after_a_crash_and_not_after_a_stop(tmp_path: Path) -> None:
    port = 18000 + os.getpid() % 2000
    (tmp_path / "pump.toml").write_text(
        f'node-id = "p"\npd-urls = ""\naddr = "127.0.0.1:{port}"\ndata-dir = "{tmp_path / "data"}"\n[storage]\nstop-write-at-available-space = ""\n'
    )
    trial = f"""PORT={port}
{WAIT}
systemctl --user start tidb-binlog-pump; serving; show
kill -9 $(systemctl --user show -P MainPID tidb-binlog-pump); until_is NRestarts 1; serving; show
systemctl --user stop tidb-binlog-pump; show
systemctl --user start tidb-binlog-pump; serving
python3 -c "import urllib.request; urllib.request.urlopen(urllib.request.Request('http://127.0.0.1:{port}/state/p/close', method='PUT'))"
until_is ActiveState inactive; sleep 1; show
"""
    assert tried(tmp_path, trial) == [
        "active running 0 0 ",
        "active running 1 0 ",
        "inactive dead 0 0 ",
        "inactive dead 0 0 ",
    ]


def test_a_wrong_setting_is_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "pump.toml").write_text('gc = "when it rains"\n')
    trial = f"{WAIT}\nsystemctl --user start tidb-binlog-pump; until_is ActiveState failed; sleep 1; show"
    assert tried(tmp_path, trial) == ["failed failed 0 2 "]


def test_a_pump_that_fails_is_tried_again(tmp_path: Path) -> None:
    """Its registry does not answer."""
    (tmp_path / "pump.toml").write_text(
        f'pd-urls = "http://127.0.0.1:9"\naddr = "127.0.0.1:0"\ndata-dir = "{tmp_path / "data"}"\n[storage]\nstop-write-at-available-space = ""\n'
    )
    trial = (
        f"{WAIT}\nsystemctl --user start tidb-binlog-pump; until_is NRestarts 2; systemctl --user show -P ExecMainStatus tidb-binlog-pump"
    )
    (status,) = tried(tmp_path, trial)
    assert status in ("0", "1"), "0 while the next try runs"
