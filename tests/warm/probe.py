"""Everything that a script can observe about its process, written as JSON to the file RESULT.

Values that differ between runs (pids, ports) are left out or replaced with a relation.
"""

import ctypes
import decimal
import gc
import io
import json
import locale
import logging
import multiprocessing
import os
import random
import resource
import signal
import site
import stat
import sys
import tempfile
import threading
import time
import traceback
import warnings
from pathlib import Path

VOLATILE = {
    "RESULT", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "RELIGHT_PRELOAD",
}  # fmt: skip


def read(name: str) -> str:
    return Path(f"/proc/self/{name}").read_bytes().decode(errors="replace")


def status(*names: str) -> dict[str, str]:
    lines = dict(line.split(":\t", 1) for line in read("status").splitlines() if ":\t" in line)
    return {name: lines[name] for name in names if name in lines}


def descriptors() -> dict[str, str]:
    found = {}
    for name in sorted(os.listdir("/proc/self/fd"), key=int):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        flags = status_of(int(name))
        found[name] = f"{target.partition(':')[0] if '[' in target else target} {flags}"
        if target.startswith(("/tmp", "/dev/pts")):
            found[name] = f"{os.path.basename(os.path.dirname(target))} {flags}"
    return found


def status_of(fd: int) -> str:
    import fcntl

    return f"{fcntl.fcntl(fd, fcntl.F_GETFL):o} {fcntl.fcntl(fd, fcntl.F_GETFD)}"


def stream(name: str) -> dict[str, object]:
    it = getattr(sys, name)
    raw = getattr(it.buffer, "raw", it.buffer)
    return {
        "same": it is getattr(sys, f"__{name}__"),
        "type": type(it).__name__,
        "buffer": type(it.buffer).__name__,
        "raw": type(raw).__name__,
        "mode": it.mode,
        "raw mode": raw.mode,
        "name": it.name,
        "raw name": raw.name,
        "encoding": it.encoding,
        "errors": it.errors,
        "isatty": it.isatty(),
        "seekable": it.seekable(),
        "line_buffering": it.line_buffering,
        "write_through": it.write_through,
        "newlines": repr(it.newlines),
        "closefd": raw.closefd,
        "blksize": getattr(raw, "_blksize", None),
        "fileno": it.fileno(),
    }


def exposed(module: object) -> dict[str, str]:
    names = ("__name__", "__doc__", "__package__", "__file__", "__cached__", "__annotations__")
    found = {name: repr(getattr(module, name, "absent")) for name in names}
    found["loader"] = type(getattr(module, "__loader__", None)).__name__
    spec = getattr(module, "__spec__", None)
    found["spec"] = repr(spec and (spec.name, spec.origin, spec.parent, type(spec.loader).__name__))
    found["builtins"] = repr(getattr(module, "__builtins__", None))
    return found


def pdeathsig() -> int:
    number = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(number), 0, 0, 0)
    return number.value


def parent_has_no_terminal() -> bool:
    return int(read("stat").rpartition(")")[2].split()[4]) == 0


def frames() -> list[str]:
    found = []
    frame = sys._getframe()
    while frame is not None:
        found.append(f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_code.co_name}")
        frame = frame.f_back
    return found


def observe() -> dict[str, object]:
    main = sys.modules["__main__"]
    environment = {k: v for k, v in os.environ.items() if k not in VOLATILE}
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_char_p
    return {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "path": sys.path,
        "path0": sys.path[0],
        "meta_path": [getattr(f, "__name__", type(f).__name__) for f in sys.meta_path],
        "path_hooks": len(sys.path_hooks),
        "path_importer_cache": sorted(p for p in sys.path_importer_cache if "relight" in p),
        "main": exposed(main),
        "main names": sorted(vars(main)),
        "__file__": __file__,
        "frames": frames(),
        "stack": [f"{os.path.basename(e.filename)} {e.name}" for e in traceback.extract_stack()],
        "cwd": os.getcwd(),
        "environ": environment,
        "environ order": list(environment),
        "environ type": type(os.environ).__name__,
        "getenv": str(libc.getenv(b"LOCAL_RANK")),
        "getenv of the hook": str(libc.getenv(b"RELIGHT_HOOK")),
        "PYTHONPATH": os.environ.get("PYTHONPATH"),
        "descriptors": descriptors(),
        "stdin": stream("stdin"),
        "stdout": stream("stdout"),
        "stderr": stream("stderr"),
        "stdin text": "" if int(os.environ["RANK"]) or sys.stdin.isatty() else sys.stdin.readline(),
        "terminal": parent_has_no_terminal(),
        "signals": {n: repr(signal.getsignal(n)) for n in range(1, 32)},
        "signal masks": status("SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt"),
        "wakeup fd": signal.set_wakeup_fd(-1),
        "itimer": signal.getitimer(signal.ITIMER_REAL),
        "umask": status("Umask"),
        "limits": {n: resource.getrlimit(getattr(resource, n))
                   for n in dir(resource) if n.startswith("RLIMIT_")},
        "nice": os.nice(0),
        "scheduler": os.sched_getscheduler(0),
        "io priority": libc.syscall(252, 1, 0),
        "affinity": sorted(os.sched_getaffinity(0)),
        "process group": os.getpgid(0) == os.getpid(),
        "session": os.getsid(0) == os.getpid(),
        "ids": [os.getresuid(), os.getresgid(), os.getgroups()],
        "capabilities": status("CapInh", "CapPrm", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp"),
        "pdeathsig": pdeathsig(),
        "threads": len(os.listdir("/proc/self/task")),
        "thread": [threading.current_thread() is threading.main_thread(),
                   threading.main_thread().native_id == os.getpid(), threading.active_count(),
                   threading.current_thread().name],
        "children": multiprocessing.active_children(),
        "cpu time": time.process_time() < 5,
        "children time": os.times()[2:4],
        "gc": [gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.callbacks)],
        "recursion limit": sys.getrecursionlimit(),
        "switch interval": sys.getswitchinterval(),
        "flags": repr(sys.flags),
        "xoptions": repr(sys._xoptions),
        "warnoptions": sys.warnoptions,
        "warning filters": repr(warnings.filters),
        "executable": sys.executable,
        "prefixes": [sys.prefix, sys.base_prefix, sys.exec_prefix],
        "site": [site.ENABLE_USER_SITE, site.PREFIXES, "sitecustomize" in sys.modules],
        "dont_write_bytecode": sys.dont_write_bytecode,
        "comm": read("comm"),
        "cmdline": read("cmdline"),
        "locale": [locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(False)],
        "filesystem encoding": [sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()],
        "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__,
                  sys.gettrace(), sys.getprofile(), repr(sys.unraisablehook)],
        "exception": repr(sys.exc_info()),
        "last exception": hasattr(sys, "last_value"),
        "interactive": [hasattr(sys, "ps1"), sys.flags.inspect],
        "relight": sorted(n for n in sys.modules if n.partition(".")[0] == "relight"),
        "main module": main is sys.modules.get("__main__") and main.__dict__ is globals(),
        "logging": [logging.root.level, len(logging.root.handlers)],
        "decimal": repr(decimal.getcontext()),
        "start method": [multiprocessing.get_start_method(True),
                         multiprocessing.get_all_start_methods(),
                         multiprocessing.current_process().name,
                         multiprocessing.parent_process()],
        "temporary directory": tempfile.gettempdir(),
        "dumpable": ctypes.CDLL(None).prctl(3, 0, 0, 0, 0),
        "subreaper": status("NSpid").get("NSpid") is not None,
        "working set is ours": stat.S_ISDIR(os.stat(".").st_mode),
        "text default": io.text_encoding(None),
    }  # fmt: skip


def drawn() -> dict[str, object]:
    """Return state that must differ between two workers."""
    return {
        "random": random.random(),
        "authkey": bytes(multiprocessing.current_process().authkey).hex(),
        "temporary name": next(tempfile._get_candidate_names()),
        "urandom": os.urandom(8).hex(),
    }


if __name__ == "__main__":
    with open(os.environ["RESULT"] + os.environ["RANK"], "w") as file:
        json.dump({"seen": observe(), "drawn": drawn()}, file, default=repr)
