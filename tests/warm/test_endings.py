"""Forked workers end like any others: exit codes, tracebacks, exit handlers, child processes.

Scripts run cold and warm; exit code, stdout, and stderr must be equal, byte for byte. All of them
run in one warm process in test_processes.py, so most are left to `make long` here.
"""
# ruff: noqa: E501  # scripts of one line are easier to read on one line

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Launch, long

Script = Callable[..., Path]
MODULES = (
    "atexit,concurrent.futures,faulthandler,inspect,logging,multiprocessing,"
    "multiprocessing.pool,multiprocessing.shared_memory,signal,subprocess,threading,traceback,warnings"
)

SCRIPTS = {
    "falls off the end": "print('done')",
    "sys.exit()": "import sys; sys.exit()",
    "sys.exit(None)": "import sys; sys.exit(None)",
    "sys.exit(0)": "import sys; sys.exit(0)",
    "sys.exit(3)": "import sys; sys.exit(3)",
    "sys.exit(256 + 7)": "import sys; sys.exit(256 + 7)",
    "sys.exit of a text": "import sys; sys.exit('an explanation with é')",
    "sys.exit of a tuple": "import sys; sys.exit((1, 2))",
    "SystemExit in a function": "def f():\n    raise SystemExit(5)\nf()",
    "exit in a finally": "import sys\ntry:\n    1 / 0\nfinally:\n    sys.exit(4)",
    "exception": "def f(x):\n    return 1 / x\n\nf(0)",
    "chain of exceptions": """
def f():
    raise KeyError("inner")
try:
    f()
except KeyError as error:
    raise ValueError("outer") from error
""",
    "exception group": "raise ExceptionGroup('many', [ValueError(1), TypeError(2)])",
    "syntax error": "def f(:\n    pass",
    "unknown module": "import no_such_module",
    "unknown encoding": "# coding: no-such-coding\nprint(1)",
    "recursion": "def f():\n    f()\nf()",
    "own excepthook": "import sys\nsys.excepthook = lambda *e: print('mine', e[1])\n1 / 0",
    "broken excepthook": "import sys\ndef hook(*e):\n    raise TypeError('b')\nsys.excepthook = hook\n1 / 0",
    "notes": "e = ValueError('a')\ne.add_note('a note')\nraise e",
    "print_stack": "import traceback\ndef f():\n    traceback.print_stack()\nf()",
    "faulthandler": "import faulthandler\ndef f():\n    faulthandler.dump_traceback()\nf()",
    "inspect.stack": "import inspect\nprint([(f.filename, f.function, f.lineno) for f in inspect.stack()])",
    "warning": "import warnings\ndef f():\n    warnings.warn('careful', stacklevel=2)\nf()",
    "warning far away": "import warnings\nwarnings.warn('careful', stacklevel=9)",
    "log with stack": "import logging\nlogging.error('bad', stack_info=True)",
    "keyboard interrupt": "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nprint('not here')",
    "caught interrupt": """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    while True:
        pass
except KeyboardInterrupt:
    print("caught")
""",
    "SIGTERM": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nprint('not here')",
    "own SIGTERM handler": """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *a: sys.exit(9))
os.kill(os.getpid(), signal.SIGTERM)
signal.pause()
""",
    "SIGCHLD": """
import os, signal
seen = []
signal.signal(signal.SIGCHLD, lambda *a: seen.append(a[0]))
if os.fork() == 0:
    os._exit(3)
print(os.wait()[1], seen)
""",
    "broken pipe": "import os\nr, w = os.pipe()\nos.close(r)\nos.write(w, b'x')",
    "abort": "import os; os.abort()",
    "segmentation fault": "import ctypes; ctypes.string_at(0)",
    "core limit": "import resource; print(resource.getrlimit(resource.RLIMIT_CORE))",
    "os._exit": "import os, atexit\natexit.register(print, 'never')\nprint('x', end='')\nos._exit(7)",
    "atexit order": "import atexit\natexit.register(print, 1)\natexit.register(print, 2)\nprint(0)",
    "atexit raises": "import atexit\natexit.register(lambda: 1 / 0)",
    "unflushed": "import sys\nsys.stdout.write('no end of line')\nsys.stderr.write('neither')",
    "threads at the end": """
import threading, time, atexit
atexit.register(print, "atexit")
def work():
    time.sleep(0.2)
    print("thread", threading.main_thread().is_alive(), flush=True)
threading.Thread(target=work).start()
threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
print("main")
""",
    "exception in a thread": "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start()\nt.join()",
    "destructor at the end": "class A:\n    def __del__(self):\n        print('gone')\na = A()",
    "unraisable": "class A:\n    def __del__(self):\n        1 / 0\nA()",
    "order of streams": "import sys\nfor i in range(3):\n    print(i)\n    print(i, file=sys.stderr)",
    "input": "print(repr(input('? ')))",
    "reading stdin": "import sys\nprint(sys.stdin.buffer.read(3), sys.stdin.buffer.read())",
    "closed stdout": "import sys\nsys.stdout.close()",
    "pickle of main": """
import pickle
class A:
    pass
def f():
    return 5
print(pickle.loads(pickle.dumps(f))(), type(pickle.loads(pickle.dumps(A()))))
""",
    "dataclass": "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\nprint(A(1), A.__module__)",
    "subprocess": "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'print(5)'], capture_output=True))",
    "subprocess environment": """
import subprocess
text = subprocess.run(["env"], capture_output=True, text=True).stdout
print(sorted(x.partition("=")[0] for x in text.splitlines() if x[:6] in ("RELIGH", "PYTHON", "RANK=0")))
""",
    "exec": "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'print(6)'])",
    "fork": "import os\npid = os.fork()\nif not pid:\n    raise SystemExit(3)\nprint(os.waitpid(pid, 0)[1])",
    **{
        f"multiprocessing {method}": f"""
import multiprocessing, os
def square(x):
    return x * x
def die():
    raise SystemExit(3)
if __name__ == "__main__":
    context = multiprocessing.get_context("{method}")
    with context.Pool(2) as pool:
        print(pool.map(square, range(4)))
    process = context.Process(target=die)
    process.start()
    process.join()
    queue = context.Queue()
    queue.put(1)
    print(process.exitcode, queue.get(), multiprocessing.active_children())
"""
        for method in ("spawn", "fork", "forkserver")
    },
    "shared memory": """
from multiprocessing.shared_memory import SharedMemory
memory = SharedMemory(create=True, size=10)
memory.buf[0] = 3
print(memory.buf[0])
memory.close()
memory.unlink()
""",
    "executor": """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(2) as pool:
    print(list(pool.map(abs, [-1, 2])))
""",
    "asyncio": "import asyncio\nasync def f():\n    p = await asyncio.create_subprocess_exec('true')\n    print(await p.wait())\nasyncio.run(f())",
    "import of a neighbour": "import neighbour\nprint(neighbour.__file__.rpartition('/')[2], neighbour.x)",
    "change of directory": "import os\nos.chdir('/')\nimport neighbour\nprint(neighbour.x)",
    "reload": "import importlib, neighbour\nimportlib.reload(neighbour)\nprint('again')",
    "runpy": "import runpy\nprint(runpy.run_path('neighbour.py')['x'])",
    "main of main": "import __main__, sys\nprint(__main__ is sys.modules[__name__], __name__)",
    "timer": "import signal, time\nsignal.alarm(1)\ntime.sleep(20)",
    "wait status": "import os\nos.system('exit 3')\nprint(os.times()[2] < 5)",
}  # fmt: skip


def end_of(
    preload: str, launch: Launch, tmp_path: Path, path: list[str | Path], nproc: int = 1
) -> tuple[int, str, list[str]]:
    logs = tmp_path / f"logs-{preload.partition(',')[0]}"
    result = launch(
        "run", f"--preload={preload}", f"--nproc-per-node={nproc}", "--redirects=3",
        f"--log-dir={logs}", *path, stdin="one\ntwo\n", OMP_NUM_THREADS="1",
    )  # fmt: skip
    texts = [
        re.sub(r"0x[0-9a-f]{6,}|\d{5,}", "N", file.read_text())
        for file in sorted(logs.glob("*/attempt_0/*/std*.log"))
    ]
    assert texts, result.stderr
    events = next(logs.glob("*/events.jsonl")).read_text().splitlines()
    warm = [e["warm"] for e in map(json.loads, events) if e["event"] == "WorkersForked"]
    assert warm == ([] if preload == "off" else [True]), result.stderr
    return result.returncode, result.stderr if not texts else "", texts


FIRST = {
    "sys.exit(3)", "exception", "SIGTERM", "os._exit", "atexit order", "threads at the end",
    "multiprocessing fork",
}  # fmt: skip
"""The cases that depend most on how a worker is started."""


@pytest.mark.parametrize("name", [x if x in FIRST else long(x) for x in SCRIPTS])
def test_script_ends_identically_cold_and_warm(
    name: str, launch: Launch, tmp_path: Path, script: Script
) -> None:
    """The exit code, stdout, and stderr are the same."""
    script("x = 3\n", "neighbour.py")
    path = script(SCRIPTS[name])
    assert end_of("off", launch, tmp_path, [path]) == end_of(MODULES, launch, tmp_path, [path])


TORCH = """
import torch, torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset
class Squares(Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, i):
        return i * i
def note(*arguments):
    print("worker", torch.utils.data.get_worker_info() is not None, flush=True)
def load(method):
    loader = DataLoader(Squares(), 3, num_workers=1, multiprocessing_context=method, worker_init_fn=note)
    print([batch.tolist() for batch in loader], flush=True)
def add(i, tensor):
    tensor += i + 1
"""
TORCH_SCRIPTS = {
    "all but spawned loaders": TORCH + """
if __name__ == "__main__":
    x = torch.ones(64, requires_grad=True)
    (x * x).sum().backward()
    print(x.grad.sum())
    print(torch.initial_seed(), torch.rand(2).tolist(), torch.get_num_threads(), torch.is_grad_enabled())
    print(torch.get_default_dtype(), torch.cuda.is_available(), torch.__config__.parallel_info())
    load("fork")
    tensor = torch.zeros(1).share_memory_()
    mp.spawn(add, (tensor,), nprocs=1)
    print(tensor.item(), flush=True)
    torch.ones(2) @ torch.ones(3)  # an error in C++
""",
    "a spawned loader": TORCH + """
if __name__ == "__main__":
    load("spawn")
""",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.needs_torch
@pytest.mark.long
@pytest.mark.parametrize("name", TORCH_SCRIPTS)
def test_torch_script_ends_identically_cold_and_preloaded(
    name: str, launch: Launch, tmp_path: Path, script: Script
) -> None:
    """The scripts cover seeds, threads, autograd, loaders, torch.multiprocessing, and an error."""
    path = script(TORCH_SCRIPTS[name])
    assert end_of("off", launch, tmp_path, [path]) == end_of("torch", launch, tmp_path, [path])


@pytest.mark.slow
def test_numpy_generator_is_reseeded_in_each_worker(launch: Launch, script: Script) -> None:
    """The generator is numpy's global one."""
    path = script("import numpy\nprint(numpy.random.rand())")
    result = launch("run", "--preload=numpy", "-v", "--nproc-per-node=3", path)
    assert "workers start with preloaded modules" in result.stderr, result.stderr
    assert len(set(result.stdout.split())) == 3


@pytest.mark.parametrize(
    "name",
    [
        "exception",
        long("sys.exit(3)"),
        long("print_stack"),
        "syntax error",
        "multiprocessing spawn",
        long("multiprocessing forkserver"),
    ],
)
def test_module_ends_identically_cold_and_warm(
    name: str, launch: Launch, tmp_path: Path, script: Script
) -> None:
    script(SCRIPTS[name], "training.py")
    arguments: list[str | Path] = ["-m", "training"]
    cold = end_of("off", launch, tmp_path, arguments)
    assert cold == end_of(MODULES, launch, tmp_path, arguments)


def test_output_of_preloaded_imports_is_printed_by_each_worker(
    launch: Launch, tmp_path: Path, script: Script
) -> None:
    """Output from imported modules reaches every worker's streams, as in a cold start."""
    lib = tmp_path / "lib"
    lib.mkdir()
    (lib / "chatty.py").write_text(
        "import sys, warnings\nprint('out')\nwarnings.warn('careful')\nsys.stderr.write('err\\n')\n"
    )
    path = script("import sys\nsys.path.append('lib')\nimport chatty\n")
    variables = {"PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(lib)])}
    texts = []
    for preload in ("off", "chatty"):
        logs = tmp_path / preload
        result = launch(
            "run", f"--preload={preload}", "-v", "--nproc-per-node=2", "-r3", f"--log-dir={logs}",
            path, **variables,
        )  # fmt: skip
        assert ("workers start with preloaded modules" in result.stderr) == (preload != "off"), (
            result.stderr
        )
        texts.append([f.read_text() for f in sorted(logs.glob("*/attempt_0/*/std*.log"))])
    assert texts[0] == texts[1]
    assert len(texts[0]) == 4 and all(texts[0])
