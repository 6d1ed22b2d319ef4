"""Fork torchrun or relight from a process that has imported it, since a launch consists mostly of
that import: a failing job takes a quarter of the processor time.

The code that runs is the launcher's own, with the given arguments, variables, directory,
descriptors, signals, and limits. Settings that are read before its first line (by the interpreter
and by `import torch`) are the server's, so `fits` decides which launches have to be started as
usual. After its exit handlers, the process exits without finalizing the interpreter, which would
take longer than everything else.

    the tests --> the server --> one process per launch, which reports its exit --> the launcher

In /proc, the launcher has the server's command line and environment, and it has a session of its
own: tests about that have to start it as usual. The server ends with the test process.
"""

import atexit
import functools
import gc
import importlib
import io
import os
import pickle
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from under import set_up

Word = str | bytes
_AT_IMPORT = ("LOGLEVEL", "PYTHON", "TORCH_", "LANG", "LC_", "OMP_", "LD_")
_LATER = {
    "OMP_NUM_THREADS",
    "PYTHON_EXEC",
    "PYTHONPATH",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
}
"""Launchers read these while they run; `_become` handles PYTHONPATH as Python does at its start."""
_MAX = 1 << 17


def fits(variables: Mapping[str, Word]) -> bool:
    """Return whether a launch with these variables behaves the same if the launcher is forked."""
    return not any(name.startswith(_AT_IMPORT) for name in variables.keys() - _LATER)


class Forked:
    """A forked launcher, with the interface of `subprocess.Popen`.

    Args:
        module: The launcher's module, `relight` or one of torch's.
        words: Its arguments.
        cwd: Its working directory.
        env: Its environment.
        fds: Its stdin, stdout and stderr.
        under: The limits and signals of `under.py`.
    """

    def __init__(
        self,
        module: str,
        words: Sequence[Word],
        cwd: Path,
        env: Mapping[str, Word],
        fds: list[int],
        under: Mapping[str, Any],
    ) -> None:
        self._words = list(words)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.connect(_server("relight" if module == "relight" else "torchrun"))
        request = pickle.dumps((module, self._words, str(cwd), dict(env), dict(under)))
        socket.send_fds(self._socket, [request], fds)
        self.pid = int(self._socket.recv(_MAX))
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None
        self.stderr: IO[bytes] | None = None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it was reaped; its exit code is on its way
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        """Return the exit code, or None if it is still running."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code (negative for a signal).

        Raises:
            subprocess.TimeoutExpired: If it runs longer.
        """
        if self.returncode is None:
            if not select.select([self._socket], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self._words, timeout or 0)
            self.returncode = int(self._socket.recv(_MAX))
            self._socket.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[bytes, bytes]:
        """Close stdin, and return what has been printed when the process, and those that it leaves
        behind, have closed their output.

        Raises:
            subprocess.TimeoutExpired: If one of them runs longer.
        """
        if self.stdin is not None:
            self.stdin.close()
        texts: dict[IO[bytes] | None, bytes] = {}

        def read(file: IO[bytes]) -> None:
            texts[file] = file.read()

        files = [file for file in (self.stdout, self.stderr) if file is not None]
        readers = [threading.Thread(target=read, args=(file,), daemon=True) for file in files]
        for reader in readers:
            reader.start()
        end = None if timeout is None else time.monotonic() + timeout
        for reader in readers:
            reader.join(_left_s(end))
        self.wait(_left_s(end))
        if any(reader.is_alive() for reader in readers):
            raise subprocess.TimeoutExpired(self._words, timeout or 0)
        return texts.get(self.stdout, b""), texts.get(self.stderr, b"")


def _left_s(end: float | None) -> float | None:
    return None if end is None else max(0.0, end - time.monotonic())


def start(
    words: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    *,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] = subprocess.PIPE,
    stderr: int | IO[bytes] = subprocess.PIPE,
) -> Forked:
    """Start a relight command line with these streams, which are those of `subprocess.Popen`."""
    ends: list[int] = []
    ours: list[IO[bytes] | None] = []
    for stream, mode in ((stdin, "wb"), (stdout, "rb"), (stderr, "rb")):
        file = None
        if stream == subprocess.PIPE:
            source, sink = os.pipe()
            theirs, end = (source, sink) if mode == "wb" else (sink, source)
            file = open(end, mode)
        elif stream == subprocess.DEVNULL:
            theirs = os.open(os.devnull, os.O_RDWR)
        elif stream == subprocess.STDOUT:
            theirs = os.dup(ends[1])
        else:
            theirs = os.dup(stream if isinstance(stream, int) else stream.fileno())
        ends.append(theirs)
        ours.append(file)
    process = Forked("relight", words, cwd, env, ends, {})
    for fd in ends:
        os.close(fd)
    process.stdin, process.stdout, process.stderr = ours
    return process


def run(
    words: Sequence[str], cwd: Path, env: Mapping[str, str], timeout: float
) -> "subprocess.CompletedProcess[str]":
    """Run a relight command line to its end, with nothing on stdin.

    Raises:
        subprocess.TimeoutExpired: If it, or a process that holds its output, runs longer. The
            launcher is then killed.
    """
    process = start(words, cwd, env)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        texts = process.communicate(timeout)
    finally:
        process.kill()  # if it runs: it is in a session of its own, which ^C doesn't reach
    process.stdout.close()
    process.stderr.close()
    out, err = (
        io.TextIOWrapper(io.BytesIO(text), errors="surrogateescape").read() for text in texts
    )
    return subprocess.CompletedProcess(words, process.wait(), out, err)


@functools.cache
def _server(launcher: str) -> str:
    """Return the address of this process's server, and start it the first time."""
    name = "\0relight-tests-" + os.urandom(8).hex()
    variables = {"PATH": os.environ["PATH"], "HOME": "/", "LANG": "C.UTF-8"}
    variables["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [sys.executable, str(Path(__file__).with_name("under.py")), "{}", sys.executable]
    command += ["-c", "import forked; forked.serve()", launcher, name[1:]]
    variables["OPENBLAS_NUM_THREADS"] = "1"  # forks would lose numpy's threads
    variables["PYTHONPATH"] = str(Path(__file__).parent)
    process = subprocess.Popen(
        command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    atexit.register(process.communicate)  # closes its stdin, which ends it
    return name


def serve() -> None:
    """Fork the launcher for each client; returns in the process that becomes the launcher."""
    _, launcher, name = sys.argv
    (_import_torchrun if launcher == "torchrun" else _import_relight)()
    sys.path.remove(os.environ.pop("PYTHONPATH"))
    assert len(os.listdir("/proc/self/task")) == 1
    gc.freeze()  # a collection would copy all pages
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind("\0" + name)
    listener.listen()
    print("ready", flush=True)
    while 0 not in select.select([listener, 0], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            told = _look_after(connection)
            if told is not None:
                _become(*told)
            return
        connection.close()
        while _reap():
            pass


def _import_torchrun() -> None:
    import torch.distributed.launch  # with everything that it needs
    import torch.distributed.run  # noqa: F401
    from torch.distributed.elastic.agent.server import local_elastic_agent  # noqa: F401
    from torch.distributed.elastic.rendezvous import (
        c10d_rendezvous_backend,  # noqa: F401
        dynamic_rendezvous,
    )

    assert dynamic_rendezvous.get_method_name is not None
    dynamic_rendezvous.get_method_name = _caller  # torch's own reads the sources of all modules
    for name in ("torch.distributed.run", "torch.distributed.launch"):
        del sys.modules[name]  # it becomes the main module


def _import_relight() -> None:
    import relight.agent.start
    import relight.cli.run  # noqa: F401
    from relight.agent import agent

    for name in agent._LOADED_LATER:
        importlib.import_module(name)


def _caller(depth: int = 2) -> str:
    """Return the name of the function that called the caller, like torch's `get_method_name`."""
    return sys._getframe(depth).f_code.co_name


def _reap() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] > 0
    except ChildProcessError:
        return False


def _look_after(
    connection: socket.socket,
) -> tuple[list[int], str, list[str], str, dict[str, str], dict[str, Any]] | None:
    """Fork again and report that process's exit; in that process, return its launch."""
    request, fds, _, _ = socket.recv_fds(connection, _MAX, 3)
    pid = os.fork()
    if pid == 0:
        return fds, *pickle.loads(request)  # from the tests themselves
    for fd in fds:
        os.close(fd)
    connection.send(b"%d" % pid)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    connection.send(b"%d" % code)
    os._exit(0)


def _become(
    fds: list[int],
    module: str,
    words: list[str],
    cwd: str,
    env: dict[str, str],
    under: dict[str, Any],
) -> None:
    os.setsid()
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    os.closerange(3, 1024)
    os.chdir(cwd)
    sys.path[0] = cwd
    sys.path[1:1] = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    set_up(under)
    os.environ.clear()
    os.environb.update({os.fsencode(name): os.fsencode(value) for name, value in env.items()})
    tempfile.tempdir = None
    sys.argv[1:] = map(os.fsdecode, words)
    code: object = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as error:
        code = error.code or 0
        if not isinstance(code, int):
            raise
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 255)
