"""Found on PYTHONPATH in place of the real sitecustomize, by an interpreter that relight started.

A process that preloads modules has the very command line of the workers and stops here, before it
has come to the script. A worker is a fork of it that goes on from here, so that all that follows is
the interpreter's own: `__main__`, arguments, tracebacks, exit (docs/decisions/0011-warm.md).

In stage `check` the interpreter runs a command that does nothing, and replaces itself by the
workers' command line only when it is known that this file is found and that no other program stands
between: an interpreter that passed by here would run the script. In stage `learn` it is a worker.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from typing import Any

HERE = os.path.dirname(__file__)
loaded = set(sys.modules)


def step_aside(variables: "MutableMapping[str, str]") -> str:
    """Take what brought us here out of an environment, and return it."""
    variables.pop("PYTHONPATH", None)
    if "RELIGHT_PYTHONPATH" in variables:
        variables["PYTHONPATH"] = variables.pop("RELIGHT_PYTHONPATH")
    return variables.pop("RELIGHT_HOOK")


def passed() -> "dict[str, str]":
    """Return the environment that this program was started with."""
    with open("/proc/self/environ", "rb") as file:
        pairs = [os.fsdecode(entry).partition("=") for entry in file.read().split(b"\0")]
    return {name: value for name, equals, value in pairs if equals}


class Recorder:
    """A finder that finds nothing and notes what was looked for, in shared memory."""

    def __init__(self, path: str) -> None:
        from mmap import mmap

        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self.memory, self.end = mmap(fd, 0), 0
        os.close(fd)
        os.register_at_fork(after_in_child=self.stop)

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Note a name."""
        del path, target
        data = name.encode(errors="replace") + b"\n"
        begin, self.end = self.end, self.end + len(data)
        if self.end < len(self.memory):
            self.memory[begin : self.end] = data

    def stop(self) -> None:
        """Note nothing more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def check(setup: "dict[str, Any]") -> None:
    """Become the process that preloads, or raise."""
    program = setup["program"]
    if os.getppid() != setup["agent"] or not os.path.samefile("/proc/self/exe", program):
        raise RuntimeError(f"{program} starts another program; only an interpreter can be forked")
    variables = passed()
    variables["RELIGHT_HOOK"] = variables["RELIGHT_HOOK"].replace("check", "serve")
    os.execve(program, setup["argv"], variables)


def customize() -> "Exception | None":
    """Import the real sitecustomize; return what it has raised."""
    del sys.modules["sitecustomize"]
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except Exception as error:
        return error
    return None


def preload(stage: str, control: int, described: int) -> "Exception | None":
    """Check, or serve: only workers return."""
    reason = ""
    try:
        import json

        setup = json.loads(os.pread(described, os.fstat(described).st_size, 0))
        if stage == "check":
            check(setup)
        sys.path.insert(0, setup["relight"])
        from relight.worker import warm
        from relight.worker.watch import Watch

        sys.path.remove(setup["relight"])
        sys.path_importer_cache.pop(setup["relight"], None)
        os.close(described)
        variables = passed()
        step_aside(variables)
        watch = Watch(setup["own"])
        problem = customize()
        warm.serve(setup, control, loaded, variables, watch)
    except RuntimeError as error:
        reason = str(error)
    except BaseException as error:
        reason = repr(error)
    else:
        return problem
    try:
        os.write(control, f"unfit {reason}\n".encode(errors="replace"))
    finally:
        os._exit(1)


stage, _, rest = step_aside(os.environ).partition(":")
sys.path[:] = [path for path in sys.path if path != HERE]
sys.path_importer_cache.pop(HERE, None)
if stage == "learn":
    try:
        sys.meta_path.insert(0, Recorder(rest))
    except OSError:
        pass  # nothing is learned

problem = customize() if stage == "learn" else preload(stage, *map(int, rest.split(",")))
if problem is not None:
    raise problem  # mostly that there is none, which site expects
