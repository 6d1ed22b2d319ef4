"""Run a command line with a launcher, and return a Recording of everything that it left behind.

Values that vary between runs (ports, random names, times) are replaced with a word in braces, so
that two recordings can be compared for equality.
"""

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import conftest
import forked
from conftest import LIMIT_S, PORTABLE

from differential.cases import Case, Word

HERE = Path(__file__).parent
TORCHRUN, RELIGHT = "torchrun", "relight"
COMMANDS = {
    (TORCHRUN, "run"): ("-m", "torch.distributed.run"),
    (TORCHRUN, "launch"): ("-m", "torch.distributed.launch"),
    (RELIGHT, "run"): (*conftest.RELIGHT[1:], "run"),
    (RELIGHT, "launch"): (*conftest.RELIGHT[1:], "launch"),
}
Started = subprocess.Popen[bytes] | forked.Forked


class Recording(NamedTuple):
    """A launcher's result for a case. `says` are the launcher's own lines on stderr, `files` the
    new files below the directory, and `left` those in its TMPDIR.
    """

    exit_code: int
    workers: dict[str, Any]
    stdout: list[str]
    stderr: list[str]
    says: list[str]
    files: dict[str, Any]
    left: list[str]


class Prepared(NamedTuple):
    """A case that is ready to start in its directory, and that directory's initial content."""

    argv: list[Word]
    environment: dict[str, Word]
    port: str
    inputs: set[str]


def prepare(case: Case, launcher: str, work: Path) -> Prepared:
    """Create `work`, a directory that must not exist yet, with everything that a case needs."""
    inputs = _write_inputs(work)
    port = str(free_port())
    fill = _Fill(str(work), port)
    argv = [
        sys.executable,
        str(HERE.parent / "under.py"),
        json.dumps(case.under),
        sys.executable,
        *COMMANDS[launcher, case.command],
        *(fill(word) for word in (*case.flags, *case.script, *case.args)),
    ]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(work),
        "LANG": "C.UTF-8",
        "TMPDIR": str(work / "tmp"),
        "PROBE_DIR": str(work / "records"),
        "PYTHONDONTWRITEBYTECODE": "1",
        **{name: fill(value) for name, value in case.variables.items()},
    }
    return Prepared(argv, environment, port, inputs)


def record(case: Case, launcher: str, work: Path) -> Recording:
    """Run a case with a launcher in `work`, a directory that must not exist yet."""
    argv, environment, port, inputs = prepare(case, launcher, work)
    with _Console(case.console, work / "records") as console:
        given, (exit_code, out, err) = console.run(
            argv,
            work,
            environment,
            case,
            launcher,
            [work / "records" / f"{w}.json" for w in case.workers],
        )
    normal = _Normal(work, port, given)
    lines = [normal.text(line) for line in err.decode("latin-1").split("\n") if line]
    shown = [normal.text(line) for line in out.decode("latin-1").split("\n")]
    if len(case.workers) > 1:  # their order is undefined
        shown.sort()
    return Recording(
        exit_code=exit_code,
        workers=normal.workers(work / "records"),
        stdout=shown,
        stderr=sorted(line for line in lines if _of_a_worker(line)),
        says=[line for line in lines if not _of_a_worker(line)],
        files=normal.tree(work, {*inputs, "records", "tmp"}),
        left=sorted(normal.tree(work / "tmp", set())),
    )


def _of_a_worker(line: str) -> bool:
    """Return whether a line on stderr was written by the probe, and does not merely quote it."""
    return "probe err" in line and not line.startswith(("  ", "relight: "))


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Flatten nested dictionaries, with paths as keys: `workers 0.1 environment RANK`."""
    if isinstance(value, Recording):
        value = value._asdict()
    if not isinstance(value, dict):
        return {path: value}
    result: dict[str, Any] = {}
    for key, each in value.items():
        result.update(flat(each, f"{path} {key}".strip()))
    return result


_ports: set[int] = set()
_ports_lock = threading.Lock()
_choose = random.Random()
"""Not the shared generator: hypothesis seeds that in tests that run alongside these threads."""


def free_port() -> int:
    """Return a free port that the system won't assign to another program before it is used."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        low, high = map(int, file.read().split())
    usual = range(10000, low) if low > 11000 else range(high + 1, 65536)
    while True:
        port = _choose.choice(usual)
        with _ports_lock, socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            if port not in _ports:
                _ports.add(port)
                return port


class _Fill:
    def __init__(self, work: str, port: str) -> None:
        self._values = {"{work}": work, "{port}": port, "{python}": sys.executable}

    def __call__(self, word: Word) -> Word:
        for name, value in self._values.items():
            if isinstance(word, str):
                word = word.replace(name, value)
        return word


def _write_inputs(work: Path) -> set[str]:
    """Create the directory with every form of the probe; return the names of its entries."""
    for folder in ("tmp", "records", "app", "folder"):
        (work / folder).mkdir(parents=True)
    shutil.copy(HERE / "probe.py", work / "probe.py")
    shutil.copy(HERE / "probe.py", work / "app" / "__main__.py")
    shutil.make_archive(str(work / "app"), "zip", work / "app")
    program = work / "program"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -u {work}/probe.py "$@"\n')
    python = work / "python"
    python.write_text(f'#!/bin/sh\nBY_PYTHON_EXEC=1 exec {sys.executable} "$@"\n')
    (work / "folder" / "beside.py").write_text("NAME = 'beside'\n")
    (work / "folder" / "imports.py").write_text("import beside\nimport probe\nprobe.main()\n")
    (work / "recorded.py").write_text(
        "import probe\n"
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "record(probe.main)()\n"
    )
    (work / "gloo.py").write_text(
        "import probe\n"
        "import torch\n"
        "import torch.distributed as dist\n"
        "assert dist.is_torchelastic_launched()\n"
        "dist.init_process_group('gloo')\n"
        "total = torch.tensor([dist.get_rank() + 1.0])\n"
        "dist.all_reduce(total)\n"
        "assert total.item() == 3 and dist.get_world_size() == 2\n"
        "probe.main()\n"
        "dist.destroy_process_group()\n"
    )
    program.chmod(0o755)
    python.chmod(0o755)
    return {path.name for path in work.iterdir()}


class _Console:
    """The targets of a launcher's three standard descriptors."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind = kind
        self._path = folder / "console"
        self._master = -1

    def __enter__(self) -> "_Console":
        return self

    def __exit__(self, *_: object) -> None:
        if self._master >= 0:
            os.close(self._master)

    def run(
        self,
        argv: list[Word],
        work: Path,
        environment: dict[str, Word],
        case: Case,
        launcher: str,
        records: list[Path],
    ) -> tuple[dict[str, list[int]], tuple[int, bytes, bytes]]:
        """Return the identities of the three descriptors, the exit code, stdout, and stderr."""
        read_in, write_in = os.pipe()
        os.write(write_in, case.stdin)
        os.close(write_in)
        fds = {"0": read_in}
        if self._kind == "pipes":
            (ours_out, fds["1"]), (ours_err, fds["2"]) = os.pipe(), os.pipe()
            ours = [ours_out, ours_err]
        else:
            if self._kind == "pipe":
                mine, theirs = os.pipe()
            elif self._kind == "terminal":
                mine, theirs = os.openpty()
            else:
                theirs = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                mine = os.open(self._path, os.O_RDONLY)
            fds["1"] = fds["2"] = theirs
            ours = [mine]
        given = {name: [os.fstat(fd).st_dev, os.fstat(fd).st_ino] for name, fd in fds.items()}
        try:
            process: Started
            _, module, *words = argv[argv.index("-m") :]
            # These settings, and `launch`, also concern how relight starts.
            as_usual = PORTABLE or case.under or words[:1] == ["launch"]
            if forked.fits(case.variables) and not (as_usual and launcher == RELIGHT):
                process = forked.Forked(
                    str(module), words, work, environment, list(fds.values()), case.under
                )
            else:
                process = subprocess.Popen(
                    argv,
                    cwd=work,
                    env=environment,
                    stdin=fds["0"],
                    stdout=fds["1"],
                    stderr=fds["2"],
                    start_new_session=True,
                )
        finally:
            for fd in set(fds.values()):
                os.close(fd)
        if self._kind == "file":
            exit_code = _end(process, case, records)
            outputs = [_drain(ours[0])]
        else:
            outputs = [b""] * len(ours)

            def drain(index: int) -> None:
                outputs[index] = _drain(ours[index])

            readers = [
                threading.Thread(target=drain, args=(i,), daemon=True) for i in range(len(ours))
            ]
            for reader in readers:
                reader.start()
            exit_code = _end(process, case, records)
            for reader in readers:
                reader.join(LIMIT_S)  # a leftover worker may hold it open
        if len(outputs) == 1:  # the launcher's own lines are mixed with the workers' stderr
            lines = outputs[0].replace(b"\r\n", b"\n").splitlines(keepends=True)
            outputs = [
                b"".join(line for line in lines if b"probe out" in line),
                b"".join(line for line in lines if b"probe out" not in line),
            ]
        return given, (exit_code, outputs[0], outputs[1])


def _drain(fd: int) -> bytes:
    data = bytearray()
    try:
        while chunk := os.read(fd, 65536):
            data += chunk
    except OSError:
        pass  # how a terminal reports that no process has it open any longer
    finally:
        os.close(fd)
    return bytes(data)


def _end(process: Started, case: Case, records: list[Path]) -> int:
    deadline = time.monotonic() + LIMIT_S
    try:
        if case.signal:
            while not all(path.exists() for path in records):
                if time.monotonic() > deadline or process.poll() is not None:
                    break
                time.sleep(0.02)
            process.send_signal(getattr(signal, case.signal))
        return process.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)  # so that it ends its workers as well
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
        process.wait()
        raise


_UUID = re.compile(r"(?<!\w)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_RANDOM = (
    (re.compile(r"\btorchelastic_[a-z0-9_]{8}(?=/|$)"), "torchelastic_{random}"),
    (re.compile(r"\brelight_[0-9a-f]*_[0-9a-f]{16}(?=/|$)"), "relight_{random}"),
    (re.compile(r"\bwatchdog_timer_[-{}a-z0-9]+"), "watchdog_timer_{random}"),
    (re.compile(r"(?<!torchelastic)_[a-z0-9_]{8}(?=/attempt_|/events|$)"), "_{random}"),
)


class _Normal:
    """Replaces values that vary between runs."""

    def __init__(self, work: Path, port: str, given: dict[str, list[int]]) -> None:
        self._work = str(work)
        self._port = port
        self._given = given
        self._first_port = ""

    def text(self, text: str) -> str:
        text = text.replace(self._work, "{work}").replace(sys.executable, "{python}")
        return _UUID.sub("{uuid}", text)

    def path(self, text: str) -> str:
        text = self.text(text)
        for pattern, replacement in _RANDOM:
            text = pattern.sub(replacement, text)
        return text

    def workers(self, folder: Path) -> dict[str, Any]:
        """Return the workers' records."""
        result = {}
        for path in sorted(folder.glob("*.json")):
            worker = self._all(json.loads(path.read_text()))
            del worker["pid"]
            for name, fd in worker["fd"].items():
                worker["fd"][name] = self._fd(fd)
            environment = worker["environment"]
            for name, value in environment.items():
                if value == self._port:
                    environment[name] = "{port}"
            environment["MASTER_PORT"] = self._master_port(environment["MASTER_PORT"], path.stem)
            for name in ("TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_TIMER_FILE"):
                if name in environment:
                    environment[name] = self.path(environment[name])
            result[path.stem] = worker
        for path in sorted(folder.glob("*.signal")):
            result[path.stem]["signal"] = json.loads(path.read_text())
        return result

    def tree(self, folder: Path, known: set[str]) -> dict[str, Any]:
        """Return the mode of everything below a directory, and the content of files."""
        result: dict[str, Any] = {}
        for path in sorted(folder.rglob("*")):
            name = str(path.relative_to(folder))
            if name.partition("/")[0] not in known:
                mode = oct(path.stat().st_mode)
                content = self._content(path) if path.is_file() else None
                result[self.path(name)] = {"mode": mode, "content": content}
        return result

    def _content(self, path: Path) -> Any:
        text = path.read_bytes().decode("latin-1")
        if path.suffix == ".jsonl":
            return "{events}"
        if path.suffix == ".json":
            return error_file(text)
        if path.name.startswith("filtered_"):
            return sorted(text.splitlines(keepends=True))
        return self.text(text)

    def _fd(self, fd: "list[Any] | None") -> str:
        if fd is None:
            return "closed"
        kind, identity, tty = fd
        names = [name for name, each in self._given.items() if each == identity]
        text = f"the launcher's {' and '.join(names)}" if names else f"a {kind} of its own"
        return f"{text}, a terminal" if tty else text

    def _master_port(self, text: str, worker: str) -> str:
        if not text.isdecimal() or not 1024 <= int(text) < 65536:
            return text
        if worker == "0.0":
            self._first_port = text
        return "{any port}" if text == self._first_port else "{another port}"

    def _all(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self._all(each) for each in value]
        if isinstance(value, dict):
            return {key: self._all(each) for key, each in value.items()}
        return value


def error_file(text: str) -> Any:
    """Return the content of an error file without times, and without stack lines from torch."""
    record = json.loads(text)
    extra = record["message"]["extraInfo"]
    assert abs(int(extra["timestamp"]) - time.time()) < 600, extra
    extra["timestamp"] = "{time}"
    extra["py_callstack"] = (extra["py_callstack"].strip().splitlines() or [""])[-1]
    return record
