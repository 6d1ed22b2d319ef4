"""Runs `relight doctor` on several Lab hosts simultaneously, and reads each one's findings."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from conftest import LIMIT_S, RELIGHT, clean_environment
from netlab import Lab

PORT = 29400

# Fakes a wrong clock, or a different version of Python or torch, by changing what the product code
# reads before it starts.
CHANGED = """
import sys, time
ahead = float(sys.argv.pop(1))
version = sys.argv.pop(1)
real = time.time
time.time = lambda: real() + ahead
if version:
    sys.version_info = (*map(int, version.split(".")), "final", 0)
from relight.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


class Report:
    """A doctor's output."""

    def __init__(self, host: str, code: int, out: str, err: str) -> None:
        self.host, self.code, self.out, self.err = host, code, out, err
        self.whole = json.loads(out) if out.startswith("{") else {}

    @property
    def findings(self) -> list[dict[str, str]]:
        return self.whole["findings"]

    def of(self, level: str) -> list[str]:
        """Return the findings with this level, each as `where: what`."""
        return [f"{f['where']}: {f['what']}" for f in self.findings if f["level"] == level]

    def one(self, words: str, level: str = "error") -> dict[str, str]:
        """Return the only finding with these words, and check that it has a remedy."""
        found = [f for f in self.findings if words in f"{f['where']}: {f['what']} {f['why']}"]
        assert len(found) == 1, (words, self.findings)
        assert found[0]["level"] == level, found
        assert found[0]["remedy"], found
        return found[0]

    def __repr__(self) -> str:
        return f"{self.host} {self.code}\n{self.out}\n{self.err}"


def commands(hosts: Sequence[str], *flags: str, count: int | None = None) -> dict[str, list[str]]:
    """Return the usual command line for each of these hosts."""
    usual = [*RELIGHT, "doctor", "--json", f"--nnodes={count or len(hosts)}",
             f"--rdzv-endpoint=node1:{PORT}", *flags]  # fmt: skip
    return dict.fromkeys(hosts, usual)


def changed(command: Sequence[str], *, ahead_s: float = 0, version: str = "") -> list[str]:
    """Return the same command line with a different clock or a different Python version."""
    return [sys.executable, "-c", CHANGED, str(ahead_s), version, *command[len(RELIGHT) :]]


def diagnose(
    lab: Lab,
    command: Mapping[str, Sequence[str]],
    directory: Path,
    variables: Mapping[str, str] | None = None,
) -> dict[str, Report]:
    """Run doctors to completion at the same time, one per host."""
    env = clean_environment(**{"TMPDIR": str(directory), **(variables or {})})
    started = {
        host: lab[host].start(
            words,
            cwd=directory,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for host, words in command.items()
    }
    reports = {}
    for host, process in started.items():
        out, err = process.communicate(timeout=LIMIT_S)
        reports[host] = Report(host, process.returncode, out, err)
    return reports
