"""Records docs/pictures/recovery.cast, a terminal session that shows how a worker is killed.

    python -m documentation.recording

The file is an asciicast (version 2, https://docs.asciinema.org/manual/asciicast/v2/). Its marker
holds the command that was entered in another terminal. `documentation.picture` renders it.
"""

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CAST = ROOT / "docs" / "pictures" / "recovery.cast"
# With --redirects=2, tracebacks of the ranks that lose their peer go to files.
COMMAND = (
    "relight run --nproc-per-node=4 --max-restarts=3 --redirects=2 --log-dir=logs "
    "--preload=torch,torch._dynamo digits.py"
)
COLUMNS, ROWS = 110, 50
KILL_AFTER = b"epoch 12 of"
VICTIM = 2


def main() -> None:
    """Run the job, kill a worker midway, and write the terminal output with timestamps."""
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    events: list[tuple[float, str, str]] = []
    with tempfile.TemporaryDirectory(prefix="relight-recording-") as folder:
        (Path(folder) / "digits.py").write_text((ROOT / "examples" / "digits.py").read_text())
        process = subprocess.Popen(
            [sys.executable, "-m", *COMMAND.split()],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=terminal,
            stderr=terminal,
        )
        os.close(terminal)
        began, shown = time.monotonic(), b""
        killed = 0
        while data := _read(screen):
            events.append((time.monotonic() - began, "o", data.decode()))
            shown += data
            if KILL_AFTER in shown and not killed:
                killed = _pid_of(VICTIM, process.pid)
                os.kill(killed, signal.SIGKILL)
                events.append((time.monotonic() - began, "m", f"kill -9 {killed}"))
        process.wait()
    head = {"version": 2, "width": COLUMNS, "height": ROWS, "command": COMMAND}
    lines = [json.dumps(head), *(json.dumps([round(at, 3), *rest]) for at, *rest in events)]
    CAST.write_text("\n".join(lines) + "\n")


def _read(screen: int) -> bytes:
    try:
        return os.read(screen, 65536)
    except OSError:  # EIO: no process has the terminal open anymore
        return b""


def _pid_of(rank: int, ancestor: int) -> int:
    """Return the pid of a rank that descends from a process."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
            line = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if f"RANK={rank}".encode() in variables and b"digits.py" in line:
            pid = int(folder.name)
            if _descends(pid, ancestor):
                return pid
    raise LookupError(f"no rank {rank} below {ancestor}")


def _descends(pid: int, ancestor: int) -> bool:
    while pid > 1:
        if pid == ancestor:
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return False


if __name__ == "__main__":
    main()
