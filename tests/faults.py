"""The catalogue of faults: scripts that fail in one way each, and what the report must say.

Scripts run on real processes. The culprit is rank 1 where nothing else is said; the others wait
until they are stopped. The line with `# here` is the one that the report must name.
"""

from dataclasses import dataclass, field

OTHERS_WAIT = """\
import os, signal, sys, time
if os.environ["RANK"] != "1":
    time.sleep(60)
"""


@dataclass(frozen=True)
class Fault:
    """A script, how it is started, and what the report must say.

    `first` is the first line of the report after the ranks; `says` must be in the report, `hides`
    must not.
    """

    name: str
    script: str
    first: str
    exit_code: int = 1
    who: str = "rank 1"
    wait: bool = True
    nproc: int = 2
    flags: tuple[str, ...] = ()
    command: tuple[str, ...] = ("train.py",)
    says: tuple[str, ...] = ()
    hides: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    here: str = "train.py"

    @property
    def text(self) -> str:
        return (OTHERS_WAIT if self.wait else "") + self.script


def alone(name: str, script: str, first: str, **rest: object) -> Fault:
    """A fault of a job with one worker."""
    return Fault(name, script, first, who="rank 0", wait=False, nproc=1, **rest)  # type: ignore[arg-type]


EXCEPTIONS = [
    Fault("exception", "raise ValueError('bad batch')  # here", "raised ValueError: bad batch"),
    Fault("exception without message", "raise ValueError  # here", "raised ValueError"),
    Fault(
        "exception in a library",
        "import json\ndef load(text):\n    return json.loads(text)  # here\nload('{')",
        "raised JSONDecodeError: Expecting property name enclosed in double quotes",
        says=("in load\n    return json.loads(text)", "of json …"),
    ),
    Fault(
        "exception in a callback of a library",
        "import json\ndef hook(pairs):\n    return pairs['id']  # here\n"
        "json.loads('{}', object_hook=hook)",
        "raised KeyError: 'id'",
        says=("in hook",),
    ),
    Fault(
        "raise from",
        "def read():\n    try:\n        open('/nowhere/x')\n    except OSError as error:\n"
        "        raise RuntimeError('no data') from error  # here\nread()",
        "raised RuntimeError: no data",
        says=("FileNotFoundError", "direct cause"),
    ),
    Fault(
        "raise during handling",
        "try:\n    {}['a']\nexcept KeyError:\n    int('x')  # here",
        "raised ValueError: invalid literal for int() with base 10: 'x'",
        says=("KeyError: 'a'", "During handling"),
    ),
    Fault(
        "group of exceptions",
        "def check(text):\n    try:\n        int(text)  # here\n    except ValueError as error:\n"
        "        return error\nraise ExceptionGroup('two', [check('x'), TypeError('t')])",
        "raised ExceptionGroup: two (2 sub-exceptions): ValueError: invalid literal",
    ),
    Fault(
        "task group",
        "import asyncio\nasync def bad():\n    raise KeyError('k')  # here\nasync def main():\n"
        "    async with asyncio.TaskGroup() as group:\n        group.create_task(bad())\n"
        "asyncio.run(main())",
        "raised ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception): KeyError: 'k'",
    ),
    Fault(
        "local class with a note",
        "def step():\n    class Diverged(Exception): pass\n    error = Diverged('loss is nan')\n"
        "    error.add_note('at step 12')\n    raise error  # here\nstep()",
        "raised Diverged: loss is nan",
        says=("at step 12",),
    ),
    alone("syntax error", "x = 1\nif x  # here\n    pass", "raised SyntaxError: expected ':'"),
    Fault(
        "syntax error in a module",
        "import model",
        "raised SyntaxError: invalid syntax",
        files={"model.py": "import os\ndef f(:  # here\n    pass"},
        here="model.py",
    ),
    Fault(
        "no such module",
        "import nosuchmodule  # here",
        "raised ModuleNotFoundError: No module named 'nosuchmodule'",
    ),
    Fault(
        "no such name",
        "from json import nosuch  # here",
        "raised ImportError: cannot import name 'nosuch' from 'json'",
    ),
    Fault(
        "torch does not load",
        "import torch  # here",
        "raised ImportError: libcudart.so.13: cannot open shared object file",
        files={
            "torch/__init__.py": "raise ImportError('libcudart.so.13: cannot open shared object "
            "file: No such file or directory')  # here"
        },
        here="torch/__init__.py",
    ),
    Fault("assertion", "n = 3\nassert n == 4, f'got {n}'  # here", "raised AssertionError: got 3"),
    Fault("interrupt", "raise KeyboardInterrupt  # here", "raised KeyboardInterrupt", 130),
    Fault(
        "recursion",
        "def f(n):\n    return f(n + 1)  # here\nf(0)",
        "raised RecursionError: maximum recursion depth exceeded",
        says=("[Previous line repeated",),
    ),
    Fault(
        "recursion of two, more than is kept of stderr",
        "def f(n):\n    return g(n + 1) + len(str(n)) + len(str(n)) + len(str(n))  # here\n"
        "def g(n):\n    return f(n + 1)\nsys.setrecursionlimit(3000)\nf(0)",
        "raised RecursionError: maximum recursion depth exceeded",
        says=("frames …",),
    ),
    Fault(
        "message of several lines",
        "raise RuntimeError('weights do not fit:\\n  missing: a\\n\\n  unexpected: b')  # here",
        "raised RuntimeError: weights do not fit:\n",
        says=("  missing: a", "  unexpected: b"),
    ),
    Fault(
        "control characters",
        "text = '\\x1b[31mred\\x1b]0;title\\x07 \\x07bell\\r\\x08\\u202e\\x9b2J end'\n"
        "raise ValueError(text)  # here",
        "raised ValueError: red �bell",
        says=(" end",),
    ),
    Fault(
        "bytes that are not UTF-8",
        "raise ValueError(b'caf\\xe9'.decode(errors='surrogateescape'))  # here",
        "raised ValueError: caf",
    ),
    Fault(
        "prefix of torch",
        "def hook(*error):\n    import traceback\n"
        "    text = ''.join(traceback.format_exception(*error)).split('\\n')\n"
        "    sys.stderr.write('\\n'.join(f'[rank1]: {line}' if line else '' for line in text))\n"
        "sys.excepthook = hook\nraise ValueError('bad batch')  # here",
        "raised ValueError: bad batch",
        says=('\n  File "',),
    ),
    Fault(
        "broken excepthook",
        "def hook(*error):\n    raise OSError('hook')\nsys.excepthook = hook\n"
        "raise ValueError('bad batch')  # here",
        "raised ValueError: bad batch",
    ),
    Fault(
        "destructor after the exception",
        "class Pool:\n    def __del__(self):\n        raise OSError('in a destructor')\n"
        "pool = Pool()\ndef step():\n    raise ValueError('bad batch')  # here\nstep()",
        "raised ValueError: bad batch",
        hides=("destructor",),
    ),
    Fault(
        "exit handler after the exception",
        "import atexit\natexit.register(lambda: 1 / 0)\n"
        "atexit.register(lambda: print('run: 12\\nsummary: none', file=sys.stderr))\n"
        "raise ValueError('bad batch')  # here",
        "raised ValueError: bad batch",
        hides=("ZeroDivisionError",),
    ),
    Fault(
        "child of multiprocessing, then the parent",
        "import multiprocessing\ndef child():\n    raise ValueError('in the child')\n"
        "if __name__ == '__main__':\n    p = multiprocessing.Process(target=child)\n    p.start()\n"
        "    p.join()\n    raise RuntimeError(f'child ended with {p.exitcode}')  # here",
        "raised RuntimeError: child ended with 1",
    ),
    Fault(
        "child of a pool",
        "from concurrent.futures import ProcessPoolExecutor\n"
        "def child():\n    raise ValueError('bad row')  # here\n"
        "if __name__ == '__main__':\n    with ProcessPoolExecutor(1) as pool:\n"
        "        pool.submit(child).result()",
        "raised ValueError: bad row",
    ),
    Fault(
        "noise on stdout",
        "for n in range(2000):\n    print('Traceback (most recent call last):', n)\n"
        "raise ValueError('bad batch')  # here",
        "raised ValueError: bad batch",
    ),
    Fault(
        "a progress bar before the traceback",
        "for n in range(300):\n    print(f'\\r{n}/300 |###   |', end='', file=sys.stderr)\n"
        "raise ValueError('bad batch')  # here",
        "raised ValueError: bad batch",
        hides=("###",),
    ),
]

EXITS = [
    Fault(
        "message of 1 MB",
        "raise ValueError('x' * 1_000_000)",
        "",  # how much is known depends on how much of stderr is kept
        says=("xxxxxxxxx…",),
    ),
    Fault("exit code", "sys.exit(3)", "exited with code 3", 3, says=("printed nothing",)),
    Fault(
        "exit with a message",
        "sys.exit('no checkpoint in /data')",
        "exited with code 1\n",
        says=("  no checkpoint in /data",),
    ),
    Fault("hard exit", "os._exit(5)", "exited with code 5", 5),
    Fault(
        "exception in a thread only",
        "import threading\ndef work():\n    raise ValueError('in a thread')\n"
        "thread = threading.Thread(target=work)\nthread.start()\nthread.join()\nsys.exit(3)",
        "exited with code 3\n",
        3,
        says=("the last traceback that it printed:", "ValueError: in a thread"),
    ),
    Fault(
        "exception in a log",
        "import logging\ntry:\n    {}['a']\nexcept KeyError:\n    logging.exception('no a')\n"
        "sys.exit(7)",
        "exited with code 7\n",
        7,
        says=("the last traceback that it printed:", "KeyError: 'a'"),
    ),
    Fault(
        "exception in a log, then exit with a message",
        "import logging\ntry:\n    {}['a']\nexcept KeyError:\n    logging.exception('no a')\n"
        "sys.exit('no checkpoint in /data')",
        "exited with code 1\n",
        says=("last lines that it printed:\n  no checkpoint in /data", "KeyError: 'a'"),
    ),
    Fault(
        "garbage on stderr",
        "os.write(2, bytes(range(256)) * 1000)\nos._exit(4)",
        "exited with code 4",
        4,
    ),
    Fault(
        "closed stderr",
        "os.close(2)\nraise ValueError('nobody hears it')",
        "exited with code 1\n",
        says=("it printed nothing to stderr",),
    ),
    Fault(
        "stderr in a file of the script",
        "os.dup2(os.open('own.log', os.O_WRONLY | os.O_CREAT), 2)\nraise ValueError('in a file')",
        "exited with code 1\n",
        says=("it printed nothing to stderr",),
    ),
]

SIGNALS = [
    Fault("abort", "os.abort()", "was killed by SIGABRT\n", 134, says=("PYTHONFAULTHANDLER=1",)),
    Fault(
        "segmentation fault",
        "import ctypes\nctypes.string_at(0)",
        "was killed by SIGSEGV\n",
        139,
        says=("PYTHONFAULTHANDLER=1",),
    ),
    Fault(
        "segmentation fault with faulthandler",
        "import ctypes\ndef crash():\n    ctypes.string_at(0)  # here\ncrash()",
        "was killed by SIGSEGV\n",
        139,
        variables={"PYTHONFAULTHANDLER": "1"},
        says=("Fatal Python error: Segmentation fault",),
        hides=("PYTHONFAULTHANDLER",),
    ),
    Fault(
        "abort after an exception in native code",
        "import faulthandler\nfaulthandler.enable()\n"
        "os.write(2, b'terminate called after throwing an instance of '\n"
        "    b\"'c10::DistBackendError'\\n  what():  no device\\n\")\nos.abort()  # here",
        "was killed by SIGABRT: DistBackendError: no device",
        134,
    ),
    Fault(
        "abort of a thread in native code after an exception that ended the script",
        "import atexit\natexit.register(lambda: (\n"
        "    os.write(2, b'terminate called without an active exception\\n'), os.abort()))\n"
        "raise ValueError('bad batch')  # here",
        "raised ValueError: bad batch\n",
        1,
        says=("a thread of C++ code still ran when it ended (SIGABRT)",),
    ),
    Fault(
        "bus error",
        "os.kill(os.getpid(), signal.SIGBUS)",
        "was killed by SIGBUS\n",
        135,
        says=("/dev/shm",),
    ),
    Fault("arithmetic", "os.kill(os.getpid(), signal.SIGFPE)", "was killed by SIGFPE\n", 136),
    Fault(
        "terminated by somebody",
        "import subprocess\nsubprocess.run(['sh', '-c', 'kill -TERM $PPID'])\ntime.sleep(60)",
        "was killed by SIGTERM: relight did not send it",
        143,
    ),
    Fault(
        "killed by somebody",
        "import subprocess\nsubprocess.run(['sh', '-c', 'kill -KILL $PPID'])\ntime.sleep(60)",
        "was killed by SIGKILL",
        137,
        hides=("out of memory",),
    ),
    Fault(
        "killed after a traceback that it survived",
        "import logging\ntry:\n    {}['a']\nexcept KeyError:\n    logging.exception('no a')\n"
        "os.kill(os.getpid(), signal.SIGKILL)",
        "was killed by SIGKILL",
        137,
        says=("the last traceback that it printed:",),
    ),
    Fault("real-time signal", "os.kill(os.getpid(), 40)", "was killed by signal 40: relight", 168),
]

FAULTS = [*EXCEPTIONS, *EXITS, *SIGNALS]
