"""A Slurm cluster on Lab hosts: a private slurmctld, and one slurmd per host.

    with Lab(hosts=["login", "node1", "node2"]) as lab, Slurm(lab, directory) as slurm:
        process = slurm.start(["srun", "-N", "2", "hostname"])

Configuration, state, keys, and logs are below one directory. The machine's services are not used,
and nothing is written outside of the directory. The daemons run in the foreground; those on the
hosts end with the Lab, and munged ends with the `with` block.
"""

import functools
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from conftest import LIMIT_S
from netlab import Lab

PROGRAMS = ("munged", "munge", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "sinfo")
PACKAGES = "munge slurmctld slurmd slurm-client"
# They are in sbin, often missing from PATH.
PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"

CONFIGURATION = """
ClusterName=test
SlurmctldHost={controller}({controller_address})
SlurmctldPort=6817
SlurmdPort=6818
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool.%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1,requeue_delay=1
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
ReturnToService=1
JobRequeue=1
KillWait=3
MinJobAge=300
SlurmctldTimeout=10
SlurmdTimeout=300
SlurmdParameters=config_overrides
{nodes}
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@functools.cache
def slurm_unavailable() -> str:
    """Return why Slurm can't run on this machine, or an empty string if it can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    return f"no {', '.join(missing)} (Debian: {PACKAGES})" if missing else ""


class Slurm:
    """Slurm on a Lab. The first host is the login node and runs slurmctld; the others run slurmd.

    Each node has `cpus` CPUs, regardless of the machine. `switches` are the lines of topology.conf.
    """

    def __init__(
        self, lab: Lab, directory: Path, cpus: int = 8, switches: Sequence[str] = ()
    ) -> None:
        self.lab, self.directory, self.cpus, self.switches = lab, directory, cpus, switches
        self.login, *self.nodes = lab.hosts
        self.munged: subprocess.Popen[Any] | None = None
        self.environment = {
            "PATH": PATH,
            "SLURM_CONF": str(directory / "slurm.conf"),
            "HOME": str(directory),
        }

    def __enter__(self) -> "Slurm":
        try:
            self._configure()
            self._start_munged()
            options = {"env": self.environment, "cwd": self.directory}
            log = (self.directory / "daemons.txt").open("wb")
            with log:
                options |= {"stdout": log, "stderr": log}
                self.lab[self.login].start(["slurmctld", "-D", "-i"], **options)
                for node in self.nodes:
                    self.lab[node].start(["slurmd", "-D", "-N", node], **options)
            self.wait_until_idle()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End munged; everything else runs on the hosts."""
        if self.munged is not None:
            self.munged.terminate()
            try:
                self.munged.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                self.munged.kill()
                self.munged.wait(LIMIT_S)

    def start(self, command: Sequence[str | Path], **options: Any) -> "subprocess.Popen[Any]":
        """Start a command on the login node."""
        environment = {**self.environment, **options.pop("env", {})}
        options = {"cwd": self.directory, **options}
        return self.lab[self.login].start(command, env=environment, **options)

    def run(self, command: Sequence[str | Path], **options: Any) -> tuple[str, int]:
        """Run a command on the login node; return its output and exit code."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = self.start(command, **pipes, **options)
        text = process.communicate(timeout=LIMIT_S)[0]
        return text, process.returncode

    def clear(self) -> None:
        """Cancel all jobs, resume all nodes, and wait until nothing is running."""
        self.run(["scancel", "--user=root"])
        down = ["sinfo", "--noheader", "--Node", "--states=down,drain,fail", "--format=%N"]
        for node in set(self.run(down)[0].split()):
            self.run(["scontrol", "update", f"nodename={node}", "state=resume"])
        self.wait_until_idle()

    def wait_until_idle(self) -> None:
        """Wait until all nodes are up and idle."""
        # A node that has just returned is idle* until it responds, so it is not listed before.
        idle = ["sinfo", "--noheader", "--Node", "--states=idle", "--responding", "--format=%N"]
        self._until(lambda: sorted(self.run(idle)[0].split()) == sorted(self.nodes))

    def _configure(self) -> None:
        for name in ("state", *(f"spool.{node}" for node in self.nodes)):
            (self.directory / name).mkdir()
        lines = [
            f"NodeName={node} NodeAddr={self.lab[node].address} CPUs={self.cpus} Boards=1 "
            f"SocketsPerBoard=1 CoresPerSocket={self.cpus} ThreadsPerCore=1 State=UNKNOWN"
            for node in self.nodes
        ]
        text = CONFIGURATION.format(
            controller=self.login,
            controller_address=self.lab[self.login].address,
            directory=self.directory,
            nodes="\n".join(lines),
        )
        if self.switches:
            text += "TopologyPlugin=topology/tree\n"
            (self.directory / "topology.conf").write_text("\n".join(self.switches) + "\n")
        (self.directory / "slurm.conf").write_text(text)

    def _start_munged(self) -> None:
        key = self.directory / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munged.pid"}
        files |= {"log-file": "munged.log", "seed-file": "munge.seed"}
        flags = [f"--{name}={self.directory / file}" for name, file in files.items()]
        munged = shutil.which("munged", path=PATH)
        assert munged is not None
        with (self.directory / "munged.txt").open("wb") as log:
            self.munged = subprocess.Popen(
                [munged, "--foreground", "--force", "--num-threads=2", *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._until((self.directory / "munge.socket").exists)

    def _until(self, condition: Any) -> None:
        end = time.monotonic() + LIMIT_S
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"Slurm is not ready:\n{self.logs()}")
            time.sleep(0.05)

    def logs(self) -> str:
        """The last parts of the daemons' logs."""
        paths = sorted([*self.directory.glob("*.log"), *self.directory.glob("*.txt")])
        return "\n".join(f"--- {p.name}\n{p.read_text(errors='replace')[-1500:]}" for p in paths)
