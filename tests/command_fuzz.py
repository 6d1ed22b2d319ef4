"""Run generated command lines for all commands in generated environments, in this process.

No line may end in an internal error (exit code 70), an escaped exception, or an endless wait. A
line runs up to its first effect, so nothing is started, signalled, connected to, or submitted.
Flags, scheduler options, and variable names come from relight's own tables and source, so new ones
are tried without being listed here. Line N of a seed is always the same.

    python -m tests.command_fuzz --lines 100000
    python -m tests.command_fuzz --line 4711        # shows one: command, environment, traceback
"""

import argparse
import contextlib
import ctypes
import functools
import importlib.metadata
import io
import json
import multiprocessing
import os
import random
import re
import shlex
import shutil
import signal
import socket
import string
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import relight
from relight.agent import start
from relight.base.errors import EXIT_INTERNAL
from relight.cli import completion, doctor, main
from relight.cli.coordinator import COORDINATOR_FLAGS
from relight.cli.launch import LAUNCH_FLAGS
from relight.flags.spec import Flag
from relight.host.loop import Loop
from relight.runner.runner import Runner
from relight.schedulers import registry

LIMIT_S = 180
_PART = 500
_CAPABILITY_VERSION = 0x20080522

NUMBERS = (
    "0", "1", "2", "3", "8", "-1", "+1", "1_0", "٣", "²", "1e3", "1e999", "nan", "inf", "-inf",
    "1.5", "0x10", " 1", "1 ", "-0", "65535", "65536", "4294967295", "9" * 18, "9" * 25,
    "9" * 5000, "0" * 5000,
)  # fmt: skip
TEXTS = (
    "", " ", "  ", "\t", "\n", "a\nb", "\r", "\x1b[31m", "\x7f", "é", "\u202e", "\udcff",
    "a\udcffb", "\U0001f525", "x" * 300, "x" * 5000, "a b", "=", "==", "=a", "a=", "a=b", "a=b=c",
    ",", ",,", "a,", ",a", ";", "a;b", ":", "::", "a:", ":a", "-", "--", "---", "-x", "--x=", "'",
    '"', "''", "$HOME", "$", "${local_rank}", "${rank", "%s", "%", "%(x)s", "{}", "{0.__class__}",
    "[", "]", "[1]", "*", "**", "?", "\\", "~", "~root", "~nobody/x", "#", "!", "&", "|", "`",
    "None", "null", "true", "false", "on", "off", "auto", "help", "all",
)  # fmt: skip
PATHS = (
    "train.py", "./train.py", "package", "package/", "package.module", "module.py", "empty.py",
    "binary.py", "shell.sh", "missing.py", "missing/train.py", "train.py/x", "loop", "dangling",
    "fifo", "secret.py", "secret", "secret/x", "program", "broken.json", "list.json", "app.json",
    "config.ini", "component.py", "component.py:job", "component.py:missing", "broken.py",
    "broken.py:job", "events.jsonl", ".", "..", "", "/dev/null", "/dev/null/x", "/proc/self/mem",
    "/proc/missing/x", "/proc/self/fd/0", "x" * 300, "d/" * 3000, "\udcff.py", "a\nb.py",
)  # fmt: skip
HOSTS = (
    "localhost", "127.0.0.1", "127.0.1.1", "0.0.0.0", "::1", "::", "[::1]", "[::1]:1", "[::1",
    "[]:1", "host", "host:1", "host:0", "host:99999", "host:-1", "host:", ":1", "host:٣", "a,b",
    "a,b:1,c", "a,,b", "a,", "/x", "/dev/shm", "http://h:1", "https://[x", "h:1:2", "a..b", ".",
    "..", "é.example", "xn--", "x" * 64 + ".org", "1.2.3", "256.1.1.1", "fe80::1%eth0", "u@h",
    "u@h:22", "h/x", "h,h,h,h,h,h,h,h",
)  # fmt: skip
KNOWN = {
    "nnodes": ("1", "2", "4", "1:4", "2:2", "4:2", "0:1", ":", "1:", "1:2:3", "1000000", "1000001"),
    "nproc-per-node": ("1", "2", "auto", "cpu", "gpu", "xpu", "9999999", "1_0"),
    "rdzv-backend": ("static", "c10d", "etcd", "etcd-v2", "file", "zeus"),
    "rdzv-id": ("job", "none", "a/b", "x" * 200, "x" * 201),
    "max-restarts": ("3", "3/1h", "/", "3/", "3/0s", "3/h", "/h", "٣/1h", "3/²h", "1/999999999d"),
    "rank-order": ("host", "topology", "topology=", "topology=/x", "topology=\0", "rack"),
    "segment": ("1", "2", "0", "-1", "²"),
    "restart-policy": ("smart", "always"),
    "bad-nodes": ("/shared", "/shared,7d", "/shared,", ",7d", "x,²d", "off", "/dev/null,1s"),
    "restart-on": ("75,SIGKILL", "0", "256", "SIGFOO", "²", ",", "1,"),
    "fail-on": ("2", "SIGXCPU,1", "KILL", "-9"),
    "signals-to-handle": (
        "SIGTERM", "SIGUSR1,SIGTERM", "SIGKILL", "SIGRTMIN", "TERM", "15", "SIGTERM,",
    ),
    "health-check": ("disk=10G,gpu", "disk=²G", "disk=", "./check.sh", "network", "shm=9G,", "a b"),
    "status": ("8080", "0.0.0.0:8080", "٣", "²", "[::]:0", "h:"),
    "keep-warm": (
        "on", "10", "while:1", "while:", "while:²", "while:99999999999", "while:0", "1e-9",
    ),
    "preload": (
        "os", "auto", "off", "os.path,json", "relight.missing", "os,auto", "..", "é",
        "antigravity.x",
    ),
    "redirects": ("3", "0:3,1:2", "0:3,", "²:1", "9" * 5000 + ":1", "0:4"),
    "local-ranks-filter": ("0", "0,1", "0,²", ", ,", "9" * 5000),
    "numa-binding": ("node", "socket", "exclusive", "core-complex"),
    "on-preempt": ("SIGUSR1", "SIG", "USR1", "notice", "/dev/null/x", "SIGTERM"),
    "hang-timeout": ("60", "auto", "off", "0.5"),
    "watch-slow-ranks": ("on", "30", "off", "1"),
    "event-log-handler": ("null", "console", "dynamic_rendezvous", "missing"),
    "rdzv-conf": (
        "timeout=1", "join_timeout=600,read_timeout=60", "is_host=1", "is_host=maybe", "rank=0",
        "rank=²", "rank=-1", "a=b", "keep_alive_interval=nan", "lost_after=5", "lost_after=1e9",
        "takeover=alone", "takeover=x", "token=x", "tls=1", "ssl_cert=x,ssl_cert_key=y",
        "last_call_timeout=1", "close_timeout=inf", "protocol=https", "cacert=/dev/null",
    ),
    "scheduler": (*registry.names(), *registry.ALIASES, "run", "auto", "kubernetes_mcad", "lsf"),
    "replica": ("0", "0,1", ",", "²", "0-3", "9" * 5000),
    "lines": ("0", "5", "²"),
    "attempt": ("0", "1", "all", "-1", "²"),
    "since": (
        "10m", "1h", "2026-01-01", "2026-01-01T10:00:00Z", "yesterday", "9999999d", "-1s",
        "0001-01-01", "²h",
    ),
    "until": ("10m", "9999-12-31T23:59:59", "1e9"),
}  # fmt: skip
KNOWN["tee"] = KNOWN["redirects"]
VALID = {
    "nnodes": ("1", "2", "1:4"),
    "nproc-per-node": ("1", "2", "8", "cpu"),
    "rdzv-backend": ("static", "c10d", "c10d", "etcd", "file"),
    "rdzv-endpoint": ("localhost", "127.0.0.1:0", "[::1]:29400", "a,b,c", "/shared/x"),
    "rdzv-id": ("job", "none"),
    "rdzv-conf": ("join_timeout=600,read_timeout=60", "is_host=1", "timeout=1"),
    "max-restarts": ("0", "3", "3/1h"),
    "signals-to-handle": ("SIGTERM,SIGUSR1",),
    "health-check": ("disk=10G,gpu", "./check.sh"),
    "status": ("8080",),
    "keep-warm": ("on", "10"),
    "preload": ("os", "auto", "off"),
    "redirects": ("3", "0:3,1:2"),
    "tee": ("3", "0:3,1:2"),
    "local-ranks-filter": ("0", "0,1"),
    "on-preempt": ("SIGUSR1", "notice"),
    "logs-specs": ("default",),
    "hang-timeout": ("60", "auto"),
    "watch-slow-ranks": ("on", "30"),
    "event-log-handler": ("null", "console"),
    "scheduler": ("local", "slurm"),
    "replica": ("0",),
    "attempt": ("0", "all"),
    "since": ("10m",),
    "until": ("1h",),
    "role": ("default", "x"),
    "name": ("train",),
    "scheduler-args": ("log_dir=home",),
    "numa-binding": ("node", "socket"),
    "launcher": ("auto", "travels", "torchrun"),
    "bind": ("127.0.0.1:0",),
    "rdzv_conf": ("timeout=1",),
    "rank-order": ("host", "topology"),
    "segment": ("1", "2"),
    "restart-policy": ("smart", "always"),
    "bad-nodes": ("/shared,7d",),
    "restart-on": ("75,SIGKILL",),
    "fail-on": ("2,SIGXCPU",),
    "start-method": ("spawn", "fork"),
    "worker-store": ("agent", "rank0"),
    "membership-change": ("stop", "at-checkpoint"),
    "rank": ("0",),
    "node-rank": ("0", "0", "1"),
}  # fmt: skip
_KINDS = {
    "HOST": (HOSTS, ("localhost", "127.0.0.1")),
    "N": (NUMBERS, ("0", "1", "2")),
    "S": (NUMBERS, ("5", "60", "0.5")),
    "PORT": (NUMBERS, ("0", "29500")),
    "FILE": (PATHS, ("home/x", "x.json")),
    "DIR": (PATHS, ("home",)),
    "PATTERN": (PATHS, ("ckpt/*.pt",)),
    "TEXTS": (TEXTS, ("a", "a,,b")),
}  # fmt: skip
HANDLES = (
    "train", "1", "0", "-1", "99999999", "9" * 30, "²", "none-abc-123", "local://relight/x",
    "local://relight/../..", "local:///x", "local://relight/x/role/0", "local://relight/x/role/,",
    "local://relight/x/role/²", "local://relight/x/role/" + "9" * 5000, "slurm://relight/12",
    "slurm://relight/x;y", "run://relight/train-1", "run://relight/..", "ssh://relight/x",
    "docker://relight/x", "kubernetes://relight/default:x", "kubernetes://relight/x",
    "aws_batch://relight/q:x", "ray://relight/host:8265-x", "missing://relight/x", "://", "a://b",
    "a://b/c/d/e", "local://relight/\udcff", "local://relight/" + "x" * 5000, "local_cwd://s/x",
    "torchx://x/y",
)  # fmt: skip
# Variables as the clusters set them (tests/rendezvous/test_environment.py), before mutation.
CLUSTERS: tuple[Mapping[str, str], ...] = (
    {
        "SLURM_JOB_ID": "12",
        "SLURM_STEP_ID": "3",
        "SLURM_JOB_NUM_NODES": "8",
        "SLURM_NNODES": "4",
        "SLURM_STEP_NUM_NODES": "4",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_NODELIST": "gpu[07-10]",
        "SLURM_STEP_TASKS_PER_NODE": "1(x4)",
        "SLURM_NODEID": "2",
        "SLURM_PROCID": "2",
        "SLURM_LOCALID": "0",
        "SLURMD_NODENAME": "gpu09",
        "SLURM_JOB_NODELIST": "gpu[07-14]",
        "SLURM_RESTART_COUNT": "1",
    },
    {
        "OMPI_COMM_WORLD_SIZE": "3",
        "OMPI_COMM_WORLD_RANK": "2",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
        "OMPI_MCA_orte_num_nodes": "3",
        "OMPI_MCA_orte_node_regex": "node[1:1-4]@0(4)",
        "PMIX_NAMESPACE": "134545409",
        "OMPI_MCA_orte_hnp_uri": "134545408.0;tcp://10.77.0.2,172.17.0.1:48835;tcp6://[fd77::2]:39421",
        "OMPI_MCA_orte_local_daemon_uri": "134545408.2;tcp://10.77.0.4:33001",
        "PMIX_RANK": "2",
        "PMIX_SERVER_URI4": "prterun-gpu-01-14202@0.2;tcp4://127.0.0.1:38949",
    },
    {
        "MASTER_ADDR": "head",
        "MASTER_PORT": "23456",
        "WORLD_SIZE": "4",
        "RANK": "1",
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "JOB_COMPLETION_INDEX": "1",
        "PET_NNODES": "4",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "head",
        "NNODES": "4",
        "NODE_RANK": "1",
    },
)  # fmt: skip
_VARIABLE = re.compile(
    r"\b((?:RELIGHT|PET|TORCHX|TORCHELASTIC|TORCH|SLURM|SLURMD|OMPI|PMIX|PMI|KUBERNETES|AWS|RAY|DOCKER|CUDA|NCCL|MASTER|XDG|"
    r"WORLD|LOCAL|GROUP|NODE|OMP|PYTHON|MLFLOW|JOB|HIP|ROCR|ZE)_?[A-Z0-9_]*)\b"
)
_KEPT = {"RELIGHT_MISTAKES"}
"""Variables used by these tests themselves."""


class Line(NamedTuple):
    """A command line with its environment, its stdin, and the settings file in its directory."""

    argv: list[str]
    variables: dict[str, str]
    stdin: str
    settings: str


class Effect(SystemExit):
    """Something would have been started, signalled, or waited for. Ends a thread silently."""


class Chance(random.Random):
    """Generates command lines."""

    wild = 0.5
    """The fraction of arguments that can be anything."""

    def line(self, tables: "Tables") -> Line:
        """Return a command line."""
        self.wild = self.choice((0.0, 0.1, 0.1, 0.2, 0.5, 1.0))
        command = self.choice(tables.commands)
        if self.random() < 0.5:  # half of all lines start workers
            command = self.choice(("run", "run", "run", "launch", "doctor", "coordinator"))
        words = getattr(self, f"_{command}", self._on_jobs)(command, tables) if command else []
        if self.random() < 0.01:
            command = self.choice(TEXTS)
        if self.random() < 0.1 * self.wild:
            words.insert(self.randrange(len(words) + 1), self.choice(TEXTS))
        argv = [command, *words] if self.random() < 0.99 else words
        stdin = self._json() if self.random() < 0.5 else ""
        settings = self._settings(tables) if self.random() < 0.1 else ""
        variables = self._variables(tables)
        return Line([each.replace("\0", "") for each in argv], variables, stdin, settings)

    def value(self, flag: Flag) -> str:
        """Return a value for a flag: a valid one, a nearly valid one, or anything."""
        if flag.parse is None:
            return self.anything() if self.random() < self.wild else self.choice("01")
        if "|" in flag.metavar and self.random() > self.wild and flag.name not in VALID:
            return self.choice(flag.metavar.split("|"))
        kind = next((name for name in _KINDS if re.search(rf"\b{name}\b", flag.metavar)), "")
        if self.random() > self.wild:
            if flag.name in VALID:
                return self.choice(VALID[flag.name])
            return self.choice(_KINDS[kind][1]) if kind else "x"
        match self.randrange(4):
            case 0 if flag.name in KNOWN:
                return self.choice(KNOWN[flag.name])
            case 1 if flag.name in VALID:
                return self.changed(self.choice(VALID[flag.name]))
            case 2 if kind:
                return self.choice(_KINDS[kind][0])
        return self.anything()

    def anything(self) -> str:
        """Return any argument."""
        word = self.choice(self.choice((NUMBERS, TEXTS, PATHS, HOSTS)))
        if self.random() < 0.2:
            return self.changed(word)
        if self.random() < 0.1:
            return self.choice(",;:=/ ").join((word, self.choice(TEXTS), self.choice(NUMBERS)))
        return word

    def changed(self, word: str) -> str:
        """Return an argument with a few characters inserted, removed, or repeated."""
        for _ in range(self.randrange(1, 3)):
            at = self.randrange(len(word) + 1)
            match self.randrange(3):
                case 0:
                    word = word[:at] + self.choice(string.printable + "²é\udcff\u202e") + word[at:]
                case 1:
                    word = word[:at] + word[at + 1 :]
                case _:
                    word = word[:at] + word[at : at + 3] * 2 + word[at + 3 :]
        return word

    def flags(self, table: Sequence[Flag], most: int = 5) -> list[str]:
        """Return some flags from a table, in any spelling."""
        words = []
        for flag in self.choices(table, k=self.randrange(most + 1)) if table else ():
            if flag.name == "help" and self.random() < 0.9:
                continue
            name = flag.name.replace("-", "_") if self.random() < 0.3 else flag.name
            if self.random() < 0.2 * self.wild:
                name = name[: self.randrange(1, len(name) + 1)]
            dashes = "--"
            if self.random() <= 0.1 * self.wild:
                dashes = self.choice(("-", "---", "\u2013", "\u2014"))
            word = dashes + name
            if flag.short and self.random() < 0.3:
                word = f"-{flag.short}"
            if flag.parse is None:
                words.append(
                    word if self.random() > 0.2 * self.wild else f"{word}={self.anything()}"
                )
            elif self.random() < 0.7:
                words.append(f"{word}={self.value(flag)}")
            else:
                words += [word, self.value(flag)] if self.random() > 0.1 * self.wild else [word]
        return words

    def _run(self, command: str, tables: "Tables") -> list[str]:
        words = self.flags(tables.flags[command])
        if self.random() < 0.05 or command == "coordinator":
            return words
        words += ["--"] * (self.random() < 0.1)
        pool: tuple[str, ...] = ("train.py",)
        if self.random() <= 2 * self.wild:
            pool = PATHS if self.random() < 0.6 else TEXTS
        words.append(self.choice(pool))
        words += ["--"] * (self.random() < 0.1)
        return [*words, *(self.anything() for _ in range(self.choice((0, 0, 1, 3))))]

    _launch = _doctor = _coordinator = _run

    def _on_jobs(self, command: str, tables: "Tables") -> list[str]:
        words = self.flags(tables.flags.get(command, ()), 3)
        for _ in range(self.choice((0, 1, 1, 1, 2))):
            dice = self.random()
            word = self.choice(HANDLES) if dice < 0.6 else self.anything()
            if dice > 0.8:
                word = self.choice(tables.words)
            words.insert(self.randrange(len(words) + 1), word)
        return words

    def _warm(self, command: str, tables: "Tables") -> list[str]:
        verb = self.choice(("list", "start", "stop", "", self.anything()))
        if verb == "start":
            return [verb, *self._run("run", tables)]
        return [verb] * bool(verb) + self._on_jobs(command, tables)

    def _sandbox(self, command: str, tables: "Tables") -> list[str]:
        words = self._on_jobs(command, tables)
        if self.random() > self.wild:
            words = [self.choice(("2", "3")), *self.flags(tables.flags[command], 1)]
        return [*words, *self._run("run", tables)]

    def _submit(self, command: str, tables: "Tables") -> list[str]:
        name = self.choice(list(tables.options))
        words = ["--dryrun"] * (self.random() < 0.9) + ["-s", name] * (self.random() < 0.9)
        if self.random() < 0.7:
            words += ["-cfg", self._options(tables.options[name])]
        if self.random() < 0.4:
            words += self.flags(tables.flags[command], 3)
        if self.random() < 0.03:
            return words
        component = self.choice(tables.components)
        words.append(component if self.random() > 0.2 * self.wild else self.anything())
        parameters = tables.parameters.get(component, ("x", "script"))
        for parameter in self.choices(parameters, k=self.randrange(4)):
            dashes = "-" if len(parameter) == 1 else "--"
            words += [f"{dashes}{parameter}", self._of_component(parameter)]
        if component.startswith("dist.") and self.random() < 0.8:
            words += self.choice((["--script", "train.py"], ["-m", "json.tool"]))
        words += ["--"] * (self.random() < 0.5)
        return [*words, *(self.anything() for _ in range(self.choice((0, 1, 2))))]

    def _of_component(self, parameter: str) -> str:
        known = {
            "j": ("1x2", "2", "2x2", "1:2x2", "2x", "x2", "٣x1", "0x0", "99999999999x1", "1x1x1"),
            "h": ("gpu.small", "aws_t3.medium", "cpu", "missing", "generic"),
            "env": ("A=1,B=2", "A", "=1", "A=", "A=1,B", "PATH=x", "A=\n"),
            "mounts": (
                "type=bind,src=/x,dst=/y",
                "type=bind,src=/x",
                "type=volume,src=a,dst=b,readonly",
                "x",
                "type=device,src=/dev/x",
            ),
            "cpu": NUMBERS,
            "gpu": NUMBERS,
            "memMB": NUMBERS,
            "max_retries": NUMBERS,
            "num_replicas": (*NUMBERS[:8], "9" * 5000),
            "name": ("train", "a/b", "/x", "x/", "é", "1", "-", "UPPER", "x" * 300),
            "script": PATHS,
            "m": PATHS,
            "image": ("a:b", "a@sha256:x", "A:B", "/x", ""),
            "rdzv_port": NUMBERS,
        }.get(parameter)
        if self.random() > self.wild:
            return {
                "j": "1x2",
                "h": "gpu.small",
                "env": "A=1",
                "name": "train",
                "script": "train.py",
                "m": "json.tool",
            }.get(parameter, "1")
        return self.choice(known) if known and self.random() < 0.7 else self.anything()

    def _options(self, options: Sequence[Any]) -> str:
        pairs = []
        for option in self.choices(options, k=self.randrange(1, 4)) if options else ():
            dice = self.random()
            value = self.anything()
            if dice > self.wild:
                values = {
                    int: ("1", "0", "30"),
                    float: ("1", "0.5"),
                    bool: ("true", "false"),
                    dict: ("a:b", "a:b;c:d"),
                }
                value = self.choice(option.choices or values.get(option.kind, ("x", "home", "a;b")))
            elif option.kind in (int, float) and self.random() < 0.7:
                value = self.choice(NUMBERS)
            elif option.kind is dict and self.random() < 0.7:
                value = self.choice(("a:", ":", "a:b;c", "a:b;a:c"))
            pairs.append(f"{option.name}={value}")
        return ",".join(pairs) if self.random() > 0.2 * self.wild else self.anything()

    def _variables(self, tables: "Tables") -> dict[str, str]:
        found: dict[str, str] = {}
        if self.random() < 0.3:
            cluster = self.choice(CLUSTERS)
            found |= cluster
            for name in self.choices(list(cluster), k=self.choice((0, 0, 1, 2))):
                found.pop(name, None)
            for name in self.choices(list(cluster), k=self.choice((0, 0, 1, 2))):
                found[name] = (
                    self.anything() if self.random() < 0.5 else self.changed(cluster[name])
                )
        for flag in self.choices(tables.flags["run"], k=self.choice((0, 0, 1, 2))):
            found[flag.variable or f"PET_{flag.field.upper()}"] = self.value(flag)
        for name in self.choices(tables.variables, k=self.choice((0, 0, 1, 3))):
            if name not in found:
                found[name] = self.anything()
        for name in (
            "HOME",
            "PATH",
            "TMPDIR",
            "PYTHON_EXEC",
            "COLUMNS",
            "TERM",
            "LANG",
            "PWD",
            "USER",
        ):
            if self.random() < 0.01:
                found[name] = self.anything()
        return {name: value.replace("\0", "") for name, value in found.items() if name not in _KEPT}

    def _json(self) -> str:
        whole = {
            "component_name": self.choice(("dist.ddp", "utils.echo", 1, "", None)),
            "scheduler": self.choice(("local", "slurm", "", 3)),
            "scheduler_args": self.choice(
                ({}, {"log_dir": 1}, {"": ""}, [], {"partition": "\udcff"})
            ),
            "dryrun": True,
            "component_args": self.choice(
                ({}, {"script": "train.py"}, {"script": None}, {"j": 1}, [], {"env": {"A": 1}})
            ),
            self.choice(("component_args_str", "workspace", "x", "wait")): self.choice(
                (["--script", "train.py"], [1], "", None, 1e999)
            ),
        }
        text = json.dumps(whole)
        return self.choice(
            (
                text,
                text,
                self.changed(text),
                "[" * 100_000,
                "",
                "{",
                "1" * 5000,
                "\udcff",
                '{"a": NaN}',
            )
        )

    def _settings(self, tables: "Tables") -> str:
        name = self.choice(list(tables.options))
        sections = "cli:run", "component:dist.ddp", "torchx:tracker", "tracker:x"
        lines = [
            f"[{self.choice((name, *sections, self.anything()))}]",
        ]
        for _ in range(self.randrange(4)):
            options = [option.name for option in tables.options[name]]
            key = self.choice(
                [*options, "component", "scheduler", "j", "workspace", self.anything()]
            )
            lines.append(f"{key}{self.choice(('=', ' = ', ':', ''))}{self.anything()}")
        return "\n".join(lines)


class Tables(NamedTuple):
    """What relight supports: commands and their flags, scheduler options, components, variables."""

    commands: list[str]
    flags: dict[str, Sequence[Flag]]
    options: dict[str, Sequence[Any]]
    components: list[str]
    parameters: dict[str, list[str]]
    variables: list[str]
    words: list[str]

    @classmethod
    def read(cls) -> "Tables":
        """Read them from the code."""
        from relight.job import components
        from relight.job.components import loading
        from relight.job.components.arguments import read_signature

        named = sorted(components.names())
        of_components = {name: read_signature(name, loading.find(name)) for name in named}
        texts = [each.read_text() for each in sorted(Path(relight.__file__).parent.rglob("*.py"))]
        return cls(
            commands=[*main.COMMANDS, *("submit",) * 8, *("sandbox",) * 2, "help"],
            flags={
                **completion.command_flags(),
                "launch": LAUNCH_FLAGS,
                "doctor": doctor.DOCTOR_FLAGS,
                "coordinator": COORDINATOR_FLAGS,
            },
            options={name: registry.find(name).options for name in registry.names()},
            components=[*named, "component.py:job", "broken.py:job", "app.json"],
            parameters={
                name: [each.name for each in signature.parameters]
                for name, signature in of_components.items()
            },
            variables=sorted({name for text in texts for name in _VARIABLE.findall(text)} - _KEPT),
            words=[*named, *registry.names(), "bash", "zsh", "fish", "jobs", "list", "metadata"],
        )


_FILES = {
    "train.py": b"import sys\nprint(sys.argv)\n",
    "empty.py": b"",
    "module.py": b"x = 1\n",
    "binary.py": bytes(range(256)),
    "shell.sh": b"#!/bin/sh\necho x\n",
    "broken.json": b'{"a": ',
    "list.json": b"[1, null]",
    "app.json": b'{"name": "x", "roles": [{"name": 1}]}',
    "config.ini": b"[local]\nlog_dir = x\n[cli:run\n",
    "events.jsonl": b'{"event": "Started"}\nnonsense\n{}\n[]\n\xff\n{"time": "x", "event": 1}\n',
    "broken.py": b"def job(:\n",
    "component.py": b"from relight.job import AppDef, Role\n\n"
    b"def job(x: int = 1, *words: str) -> AppDef:\n"
    b'    """A job.\n\n    Args:\n        x: a number\n        words: some\n    """\n'
    b'    role = Role("r", "", entrypoint="echo", args=list(words), num_replicas=x)\n'
    b'    return AppDef("job", [role])\n',
    "package/__init__.py": b"",
    "package/module.py": b"",
}


def fill(folder: Path) -> None:
    """Create the files that the lines name, and relight's own directories."""
    for name, content in _FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    program = folder / "program"
    program.write_bytes(b"#!/bin/sh\n")
    program.chmod(0o755)
    (folder / "secret.py").touch(0o000)
    (folder / "secret").mkdir(0o000)
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("nowhere")
    os.mkfifo(folder / "fifo")
    for name in ("home", "run", "tmp"):
        (folder / name).mkdir(0o700)


def base_variables(folder: Path, mistakes_file: Path) -> dict[str, str]:
    """Return the variables for each line, unless the line sets them."""
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": f"{folder}/home",
        "TMPDIR": f"{folder}/tmp",
        "RELIGHT_MISTAKES": str(mistakes_file),
        "XDG_RUNTIME_DIR": f"{folder}/run",
        "XDG_CACHE_HOME": f"{folder}/home/.cache",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "LANG": "C.UTF-8",
    }


_entry_points = functools.cache(importlib.metadata.entry_points)


@contextlib.contextmanager
def without_effects(folder: Path) -> Iterator[None]:
    """Block effects outside of this process, and removals outside of a folder."""
    kept: list[tuple[Any, str, Any]] = []

    def put(place: Any, name: str, value: Any) -> None:
        kept.append((place, name, getattr(place, name)))
        setattr(place, name, value)

    def effect(*_: Any, **__: Any) -> NoReturn:
        raise Effect(0)

    def no_program(*words: Any, **__: Any) -> NoReturn:
        raise FileNotFoundError(2, "No such file or directory", str(words))

    def kill(pid: int, number: int) -> None:
        if number:
            effect()
        really_kill(pid, number)

    def connect(sock: socket.socket, address: Any) -> None:
        if sock.family != socket.AF_UNIX:
            raise ConnectionRefusedError(111, "Connection refused")
        return really_connect(sock, address)

    def look_up(host: Any, *rest: Any, **options: Any) -> Any:
        if isinstance(host, str):
            host.encode("idna")
        options["flags"] = options.get("flags", 0) | socket.AI_NUMERICHOST
        return really_look_up(host, *rest[:4], **options)

    def remove(path: Any, *rest: Any, **options: Any) -> None:
        assert Path(os.path.realpath(path)).is_relative_to(folder), f"removes {path}"
        really_remove(path, *rest, **options)

    really_kill, really_connect, really_look_up = os.kill, socket.socket.connect, socket.getaddrinfo
    really_remove = shutil.rmtree
    for name in ("fork", "posix_spawn", "execv", "execve", "execvp", "execvpe", "killpg", "_exit"):
        put(os, name, effect)
    put(os, "kill", kill)
    put(signal, "pidfd_send_signal", effect)
    put(signal, "signal", lambda *_: None)
    put(subprocess, "Popen", no_program)
    put(socket.socket, "connect", connect)
    put(socket, "getaddrinfo", look_up)
    put(shutil, "rmtree", remove)
    put(time, "sleep", effect)
    put(Loop, "run_until", effect)
    put(Loop, "run_once", effect)
    put(Runner, "submit", effect)
    put(importlib.metadata, "entry_points", _entry_points)  # 40 ms each
    put(start, "Agent", lambda _: effect())
    try:
        yield
    finally:
        for place, name, value in reversed(kept):
            setattr(place, name, value)


class Player:
    """Runs command lines in one process, in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.tables = Tables.read()
        self.codes: Counter[str] = Counter()
        self._filled: list[tuple[str, int, int]] | None = None
        self._null = os.open(os.devnull, os.O_RDWR)
        self._folder = folder
        self._mistakes = folder.parent / "mistakes"

    def line(self, seed: int, number: int) -> Line:
        """Return a line by its seed and number."""
        return Chance(f"{seed}:{number}").line(self.tables)

    def play(self, line: Line) -> str:
        """Run a line; return the traceback of the error found, or an empty string."""
        if self._seen() != self._filled:
            self.empty()
            fill(self._folder)
            self._filled = self._seen()
        os.chdir(self._folder)
        if line.settings:
            Path(".relightconfig").write_text(line.settings, errors="surrogateescape")
        os.environ.clear()
        os.environ.update(base_variables(self._folder, self._mistakes) | line.variables)
        in_threads: list[str] = []
        threading.excepthook = lambda args: in_threads.append(
            "".join(traceback.format_exception(args.exc_value))
        )
        streams = sys.stdin, sys.stdout, sys.stderr, sys.path[:]
        stdin = line.stdin.encode(errors="surrogateescape")
        sys.stdin = io.TextIOWrapper(io.BytesIO(stdin), errors="surrogateescape")
        sys.stdout = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace")
        sys.stderr = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace")
        console = os.dup(1), os.dup(2)
        os.dup2(self._null, 1)
        os.dup2(self._null, 2)
        signal.alarm(LIMIT_S)
        wrong = ""
        try:
            with without_effects(self._folder):
                code: object = main.main(line.argv)
            sys.stdout.flush()
        except SystemExit as end:
            code = end.code
        except OSError as error:  # entry() turns it into exit code 4
            code = f"{type(error).__name__} {error.filename is not None}"
            wrong = "".join(traceback.format_exception(error)) if error.filename is None else ""
        except BaseException as error:
            code, wrong = EXIT_INTERNAL, "".join(traceback.format_exception(error))
        finally:
            signal.alarm(0)
            os.dup2(console[0], 1)
            os.dup2(console[1], 2)
            os.close(console[0])
            os.close(console[1])
            said = sys.stderr
            sys.stdin, sys.stdout, sys.stderr, sys.path[:] = streams
        self.codes[str(code)] += 1
        if not wrong and code == EXIT_INTERNAL:
            said.seek(0)
            wrong = f"InternalError: {said.buffer.getvalue().decode()}"
        if self._mistakes.exists():
            wrong += f"recorded: {self._mistakes.read_text()}"
            self._mistakes.unlink()
        return wrong or "".join(in_threads)

    def _seen(self) -> list[tuple[str, int, int]]:
        """Return the entries in the folder with their sizes and modification times."""
        found = []
        for folder, names, files in os.walk(self._folder):
            for name in (*names, *files):
                status = os.lstat(os.path.join(folder, name))
                found.append((f"{folder}/{name}", status.st_size, status.st_mtime_ns))
        return found

    def empty(self) -> None:
        """Remove the files that lines have left."""
        os.chdir("/")
        with contextlib.suppress(OSError):
            os.chmod(self._folder / "secret", 0o700)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(exist_ok=True)


class Results(NamedTuple):
    """The errors found, with line numbers, and counts of how lines ended."""

    wrong: list[tuple[str, int]]
    ends: Counter[str]


def _ring(*_: object) -> NoReturn:
    raise TimeoutError(f"no end within {LIMIT_S} s")


def _drop_capabilities() -> None:
    """Make files without read permission unreadable for root as well (capset(2))."""
    header = struct.pack("Ii", _CAPABILITY_VERSION, 0)
    if ctypes.CDLL(None, use_errno=True).capset(header, bytes(24)):
        raise OSError(ctypes.get_errno(), "capset")


def _place(wrong: str) -> str:
    """Return where an error occurred, for counting."""
    lines = wrong.strip().splitlines()
    ours = [
        each.strip() for each in lines if "/relight/" in each and each.strip().startswith("File")
    ]
    where = " < ".join(
        re.sub(r'File ".*/relight/(.*)", line (\d+), in', r"\1:\2", each) for each in ours[:-3:-1]
    )
    return f"{lines[-1][:150]} ({where})"


def _play(seed: int, first: int, last: int) -> Results:
    """Run the lines of a seed from `first` up to, but not including, `last`."""
    wrong = list[tuple[str, int]]()
    with _player() as player:
        for number in range(first, last):
            if found := player.play(player.line(seed, number)):
                wrong.append((_place(found), number))
    return Results(wrong, player.codes)


@contextlib.contextmanager
def _player() -> Iterator[Player]:
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="relight-fuzz-", dir=memory) as base:
        player = Player(Path(base) / "w")
        yield player
        player.empty()


def main_of_fuzz() -> int:
    """Run lines; return 1 if any of them failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.command_fuzz")
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--from", type=int, default=0, dest="start")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--line", type=int, help="run this one only, and show it")
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, _ring)
    _drop_capabilities()
    if options.line is not None:
        return _show(options.seed, options.line)
    begun = time.monotonic()
    found: Counter[str] = Counter()
    examples: dict[str, int] = {}
    ends: Counter[str] = Counter()
    Tables.read()  # so that its imports are done only once
    last = options.start + options.lines
    parts = [
        (options.seed, first, min(first + _PART, last))
        for first in range(options.start, last, _PART)
    ]
    # Each chunk runs in its own process, so that descriptors left open by a line are closed with
    # it.
    with multiprocessing.get_context("fork").Pool(options.at_once, maxtasksperchild=1) as pool:
        for part in [pool.apply_async(_play, each) for each in parts]:
            results = part.get()
            ends += results.ends
            for place, number in results.wrong:
                found[place] += 1
                examples.setdefault(place, number)
    for place, count in found.most_common():
        print(f"{count} times, as in --line {examples[place]}: {place}")
    how = ", ".join(f"{end}: {count}" for end, count in ends.most_common())
    seconds = time.monotonic() - begun
    print(f"{options.lines} lines, {seconds:.0f} s, {found.total()} went wrong; exit codes {how}")
    return 1 if found else 0


def _show(seed: int, number: int) -> int:
    with _player() as player:
        line = player.line(seed, number)
        words = [f"{name}={shlex.quote(value)}" for name, value in line.variables.items()]
        words.append(shlex.join(["relight", *line.argv]))
        wrong = player.play(line)
    for text in (*words, line.settings, wrong, *player.codes):
        print(text[:4000].encode(errors="backslashreplace").decode())
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main_of_fuzz())
