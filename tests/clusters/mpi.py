"""Open MPI on Lab hosts: mpirun reaches them through a script that replaces ssh."""

import functools
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conftest import LIMIT_S
from netlab import Lab

PACKAGE = "openmpi-bin"


@functools.cache
def mpirun_unavailable() -> str:
    """Return why this machine lacks Open MPI 4's mpirun, or an empty string.

    With version 5, processes on hosts other than mpirun's can't determine which process is first.
    """
    path = shutil.which("mpirun")
    if path is None:
        return f"no mpirun (Debian: {PACKAGE})"
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return "" if "(Open MPI) 4" in version.stdout else "mpirun is not that of Open MPI 4"


class Mpi:
    """mpirun on a Lab. Its files are below one directory; its daemons end with the Lab."""

    def __init__(self, lab: Lab, directory: Path) -> None:
        self.lab, self.directory = lab, directory
        lines = ["#!/bin/sh", "host=$1", "shift", 'case "$host" in']
        for name in lab.hosts:
            # Like ssh, join the arguments into one command line for a shell on that host.
            enter = shlex.join([*lab[name].entrance, "env", f"--chdir={directory}", "--"])
            lines.append(f'{name}) exec {enter} sh -c "$*" ;;')
        lines += ["esac", 'echo "no such host: $host" >&2', "exit 255", ""]
        self.enter = directory / "enter"  # mpirun would pass ssh's flags to a program named ssh
        self.enter.write_text("\n".join(lines))
        self.enter.chmod(0o755)

    def start(self, host: str, *arguments: str | Path, **variables: str) -> "subprocess.Popen[Any]":
        """Start `mpirun arguments` on a host."""
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": self.directory,
            "TMPDIR": "/tmp",  # paths of its sockets must be short
            "OMPI_MCA_plm_rsh_agent": self.enter,
            **root,
            **variables,
        }
        return self.lab[host].start(
            ["mpirun", "--bind-to", "none", *arguments],
            cwd=self.directory,
            env={name: str(value) for name, value in environment.items()},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, host: str, *arguments: str | Path, **variables: str) -> tuple[str, int]:
        """Run `mpirun arguments` on a host; return its output and exit code."""
        process = self.start(host, *arguments, **variables)
        text = process.communicate(timeout=LIMIT_S)[0]
        return text, process.returncode


def slots(hosts: Sequence[str], each: int = 1) -> str:
    """Return a value for --host, with the same number of slots for each host."""
    return ",".join(f"{host}:{each}" for host in hosts)
