"""The rest of the catalogue: faults where the output goes elsewhere, with error files, of several
workers, and of programs that are no scripts.
"""

import sys

from faults import OTHERS_WAIT, Fault, alone

RAISE = "raise ValueError('bad batch')  # here"
RAISED = "raised ValueError: bad batch"
OUTPUT = [
    Fault("stderr in a file", RAISE, RAISED, flags=("-r", "2"), says=("log: ", "/1/stderr.log")),
    Fault("tee", RAISE, RAISED, flags=("-t", "3"), says=("log: ",)),
    Fault("rank not shown", RAISE, RAISED, flags=("--local-ranks-filter", "0")),
    Fault("no logs", RAISE, RAISED, flags=("--log-dir", "/dev/null")),
    Fault(
        "logs removed by the script",
        "import shutil\nshutil.rmtree('logs')\n" + RAISE.replace("  # here", ""),
        "exited with code 1\n",
        flags=("-r", "3", "--log-dir", "logs"),
    ),
    Fault("run path", RAISE, RAISED, flags=("--run-path",)),
]


def error_file(content: str, then: str = "sys.exit(1)") -> str:
    return f"path = os.environ['TORCHELASTIC_ERROR_FILE']\n{content}\n{then}"


RECORD = """\
import json, traceback
try:
    raise ValueError('bad batch')  # here
except ValueError as error:
    json.dump({"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": {
        "py_callstack": traceback.format_exc(), "timestamp": str(int(time.time()))}}},
        open(path, "w"))
"""
WRITE = "open(path, 'w').write({!r})"
ERROR_FILES = [
    Fault("error file", error_file(RECORD), RAISED),
    Fault("error file, other exit code", error_file(RECORD, "os._exit(9)"), RAISED, 9),
    Fault(
        "error file of 4 MB",
        error_file(RECORD.replace("{error}", "{error}{'x' * 4_000_000}")),
        RAISED,
    ),
    Fault(
        "error file with a text",
        error_file(WRITE.format('{"message": "GPU 3 fell off the bus", "timestamp": 1}')),
        "reported: GPU 3 fell off the bus",
    ),
    Fault(
        "error file with controls",
        error_file(WRITE.format('{"message": "E: \\ud800\\u001b[2J\\u202e", "timestamp": 1}')),
        "raised E: ��",
    ),
    Fault("error file not JSON", error_file(WRITE.format('{"message": '), RAISE), RAISED),
    Fault("error file empty", error_file(WRITE.format(""), RAISE), RAISED),
    Fault("error file without message", error_file(WRITE.format('{"a": 1}'), RAISE), RAISED),
    Fault("error file with a list", error_file(WRITE.format("[1]"), RAISE), RAISED),
    Fault(
        "error file too deep",
        error_file("open(path, 'w').write('[' * 200_000)", RAISE),
        RAISED,
    ),
    Fault(
        "error file of 40 MB that is no JSON",
        error_file("open(path, 'w').write('x' * 40_000_000)", RAISE),
        RAISED,
    ),
    Fault("error file is a directory", error_file("os.mkdir(path)", RAISE), RAISED),
    Fault("error file is a pipe", error_file("os.mkfifo(path)", RAISE), RAISED),
]

PEERS = """\
import os, signal, socket, sys, time
signal.signal(signal.SIGTERM, lambda *_: None)
rank = int(os.environ["RANK"])
if rank == 0:
    with socket.create_server(("127.0.0.1", 0)) as server:
        os.symlink(str(server.getsockname()[1]), "port")
        peer, _ = server.accept()
    peer.sendall(b"gradients")
    peer.recv(100)
while not os.path.islink("port"):
    time.sleep(0.01)
"""
CONNECT = """\
peer = socket.create_connection(("127.0.0.1", int(os.readlink("port"))))
while not peer.recv(1, socket.MSG_PEEK):
    pass
"""
GONE = "raised ConnectionResetError: [Errno 104] Connection reset by peer"
ALL = "while len([f for f in os.listdir('.') if f.startswith('ready')]) < 8: time.sleep(0.01)\n"
TOGETHER = (
    "import os, signal, time\nsignal.signal(signal.SIGTERM, lambda *_: None)\n"
    "rank = int(os.environ['RANK'])\nopen(f'ready{rank}', 'w').close()\n" + ALL
)
MANY = [
    Fault(
        "culprit slower to die than its victim",
        PEERS + CONNECT + "try:\n    raise ValueError('bad batch')  # here\n"
        "finally:\n    peer.close()\n    time.sleep(1)",
        RAISED,
        wait=False,
        says=(f"what followed:\n  rank 0: {GONE}",),
    ),
    Fault(
        "culprit stopped in its exit handler",
        PEERS + CONNECT + "import atexit\n"
        "atexit.register(time.sleep, 60)\natexit.register(peer.close)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_DFL)\nraise ValueError('bad batch')  # here",
        RAISED,
        wait=False,
        says=(f"rank 0: {GONE}",),
    ),
    Fault(
        "a peer is lost and nobody is the culprit",
        PEERS.replace("    peer.recv(100)", "    peer.recv(100)  # here") + CONNECT + "peer.close()"
        "\nsignal.signal(signal.SIGTERM, signal.SIG_DFL)\ntime.sleep(60)",
        GONE,
        who="rank 0",
        wait=False,
        says=(
            "no worker here failed on its own; rank 1 still ran",
            "rank 1: stopped by the agent (SIGTERM)",
        ),
    ),
    Fault(
        "all the same",
        TOGETHER + "raise ValueError(f'rank {rank} has {rank * 7} bad rows')  # here",
        "raised ValueError: rank ",
        who="ranks 0-7",
        wait=False,
        nproc=8,
        says=("first rank ",),
        hides=("what followed",),
    ),
    Fault(
        "all different",
        TOGETHER + "time.sleep(rank / 20)\nraise ValueError(chr(97 + rank))  # here",
        "raised ValueError: a",
        who="rank 0",
        wait=False,
        nproc=8,
        says=("raised ValueError: b\n", "  ranks 5-7: in other ways\n"),
    ),
    Fault(
        "one of eight",
        "def deep(n):\n    if n:\n        return deep(n - 1), n\n"
        "    raise ValueError('bad batch')  # here\ndeep(40)",
        RAISED,
        nproc=8,
        flags=("-r", "3"),
        says=("ranks 0, 2-7: stopped by the agent (SIGTERM)", "log: ", "exit code 1; no restarts"),
    ),
]

INSTALLED = "lib/python3.11/site-packages"
PROGRAMS = [
    Fault(
        "installed program",
        "",
        RAISED,
        command=("-m", "trainer"),
        files={
            f"{INSTALLED}/trainer/__init__.py": "",
            f"{INSTALLED}/trainer/__main__.py": OTHERS_WAIT + "from numbers_of import step\n"
            "def work():\n    raise ValueError('bad batch')  # here\nstep(work)\n",
            f"{INSTALLED}/numbers_of/__init__.py": "def step(f):\n    return f()\n",
        },
        variables={"PYTHONPATH": INSTALLED},
        here=f"{INSTALLED}/trainer/__main__.py",
    ),
    Fault(
        "console script",
        "",
        RAISED,
        command=("--no-python", sys.executable, "bin/train"),
        files={
            "bin/train": "import sys\nsys.path[0] = 'lib/python3.11/site-packages'\n"
            "from trainer import main\nmain()\n",
            f"{INSTALLED}/trainer.py": OTHERS_WAIT + f"def main():\n    {RAISE}\n",
        },
        here=f"{INSTALLED}/trainer.py",
    ),
    alone(
        "no module of that name",
        "",
        "exited with code 1\n",
        command=("-m", "json.nosuchmodule"),  # of another package it would be known beforehand
        says=("No module named json.nosuchmodule",),
    ),
    alone(
        "no known form of program",
        "",
        "exited with code 127: it could not be started: Exec format error",
        exit_code=127,
        command=("--no-python", "./program"),
        files={"program": "echo without a first line\n"},
    ),
    Fault(
        "shell that is killed",
        "",
        "was killed by SIGKILL",
        137,
        command=("--no-python", "sh", "-c", "[ $RANK = 1 ] || sleep 60; kill -KILL $$"),
    ),
    Fault(
        "shell whose child is killed",
        "",
        "exited with code 137, as a shell reports SIGKILL",
        137,
        command=(
            "--no-python",
            "sh",
            "-c",
            "[ $RANK = 1 ] || sleep 60; sh -c 'kill -9 $$'; exit $?",
        ),
    ),
    Fault(
        "shell with a Python program in it",
        RAISE.replace("  # here", ""),
        RAISED,
        command=("--no-python", "sh", "-c", f"{sys.executable} train.py || exit $?"),
    ),
]

FAULTS = [*OUTPUT, *ERROR_FILES, *MANY, *PROGRAMS]
