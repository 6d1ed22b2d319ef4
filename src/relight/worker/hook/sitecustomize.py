"""Replaces the real sitecustomize module in interpreters that relight starts, through PYTHONPATH.

The warm spawner has exactly the same command line as the workers, and stops in this module, before
the script runs. A worker is a fork of the warm spawner that continues from this point. The
interpreter itself then does everything that follows, such as setting up `__main__` and the
arguments, printing tracebacks, and exiting (docs/decisions/0011-warm.md).

In stage `check`, the interpreter runs a command that does nothing. It executes the workers' command
line only after it has verified that this file is imported and that no wrapper program is involved.
An interpreter that didn't import this file would run the script. In stage `learn`, the interpreter
is a worker.
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
    """Strip an environment of the variables that load this file, and return the task."""
    variables.pop("PYTHONPATH", None)
    variables.pop("RELIGHT_ROOM", None)
    if "RELIGHT_PYTHONPATH" in variables:
        variables["PYTHONPATH"] = variables.pop("RELIGHT_PYTHONPATH")
    return variables.pop("RELIGHT_HOOK")


def passed() -> "dict[str, str]":
    """Return the environment that this program was started with."""
    with open("/proc/self/environ", "rb") as file:
        pairs = [os.fsdecode(entry).partition("=") for entry in file.read().split(b"\0")]
    return {name: value for name, equals, value in pairs if equals}


class ImportRecorder:
    """An import finder that never finds a module, but records imports. It writes them, and an
    optimizer's first step, to an in-memory file that belongs to the agent.

    Each line is the name of a module, `=NAME=VALUE` when the script sets a variable, `=NAME` when
    it removes one, `!optimizer` once torch.optim has been imported, or `!step` after the first
    step.

    The file is opened for each line, because the script could see a descriptor that stays open.
    Before Python 3.13, a memory mapping would also keep a descriptor open.

    Args:
        path: the path of the file.
        has_variables: whether to record environment variables.
    """

    def __init__(self, path: str, *, has_variables: bool = True) -> None:
        self.path = path
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self.room = os.fstat(fd).st_size
        text = os.pread(fd, self.room, 0)  # this worker may have executed another program before
        os.close(fd)
        self.end = text.find(b"\0")
        self.installed = (os.path.dirname(os.__file__), "<frozen")
        self.awaits_optimizer = self.awaits_step = True
        os.register_at_fork(after_in_child=self.stop)
        if has_variables:
            sys.addaudithook(self.audit)

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Record the name of a module, unless the caller is importlib.util.find_spec, which doesn't
        import anything.
        """
        del path, target
        caller = sys._getframe(1).f_back
        if caller is not None and caller.f_globals.get("__name__") == "importlib.util":
            return
        if all(map(str.isidentifier, name.split("."))):  # as in preload/importer.py
            self.note(name.encode(errors="replace") + b"\n")
        if self.awaits_optimizer:
            self.await_step()

    def await_step(self) -> None:
        """Have torch call `on_step`, once the worker itself has imported torch's optimizers. The
        module that defines the required function imports other modules afterwards, so this finder
        is called again early enough that no optimizer is missed.
        """
        module = sys.modules.get("torch.optim.optimizer")
        register = getattr(module, "register_optimizer_step_post_hook", None)
        if register is None:
            return
        self.awaits_optimizer = False
        try:
            register(self.on_step)
        except Exception:  # an unknown version of torch
            return
        self.note(b"!optimizer\n")

    def on_step(self, *_: object) -> None:
        """Record the first step. The hook is not removed, because torch may be iterating over its
        hooks at that moment.
        """
        if self.awaits_step:
            self.awaits_step = False
            self.note(b"!step\n")

    def audit(self, event: str, arguments: "tuple[Any, ...]") -> None:
        """Record that the script has set or removed a variable."""
        if event not in ("os.putenv", "os.unsetenv") or self.end < 0:
            return
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__") in (
            "os",
            "collections.abc",
        ):
            frame = frame.f_back
        path = frame.f_code.co_filename
        if not path.startswith(self.installed) and "-packages" + os.sep not in path:
            text = "=".join(map(os.fsdecode, arguments))
            self.note(b"=" + text.encode("unicode_escape") + b"\n")

    def note(self, data: bytes) -> None:
        """Write to the file while there is room for more."""
        begin, end = self.end, self.end + len(data)
        if begin >= 0 and end < self.room:
            self.end = end
            try:
                fd = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
            except OSError:  # the agent has exited, or the script has changed its root or its user
                self.end = -1
                return
            os.pwrite(fd, data, begin)
            os.close(fd)

    def stop(self) -> None:
        """Stop recording."""
        self.end = -1
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def record(variables: "MutableMapping[str, str]") -> None:
    """Record a warm worker's imports if the agent has requested that, and remove the request from
    the worker's environment.
    """
    if "RELIGHT_HOOK" in variables:
        _, _, path = step_aside(variables).partition(":")
        try:
            sys.meta_path.insert(0, ImportRecorder(path, has_variables=False))
        except OSError:
            pass  # the imports are not recorded


def check(setup: "dict[str, Any]") -> None:
    """Become the warm spawner, or raise an exception if this process can't."""
    program = setup["program"]
    has_parent = setup["keep"] or os.getppid() == setup["agent"]
    if not has_parent or not os.path.samefile("/proc/self/exe", program):
        raise RuntimeError(f"{program} starts another program; only an interpreter can be forked")
    variables = passed()
    variables["RELIGHT_HOOK"] = variables["RELIGHT_HOOK"].replace("check", "serve")
    os.execve(program, setup["argv"], variables)


def customize() -> "Exception | None":
    """Import the real sitecustomize module. Return the exception that it raises, or None."""
    del sys.modules["sitecustomize"]
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except Exception as error:
        return error
    return None


def preload(stage: str, control: int, described: int) -> "Exception | None":
    """Run the stage `check` or `serve`. This function returns only in workers."""
    reason = ""
    try:
        import json

        setup = json.loads(os.pread(described, os.fstat(described).st_size, 0))
        if stage == "check":
            check(setup)
        sys.path.insert(0, setup["relight"])
        from relight.preload import warm_fork
        from relight.preload.env_tracer import Watch

        sys.path.remove(setup["relight"])
        sys.path_importer_cache.pop(setup["relight"], None)
        os.close(described)
        variables = passed()
        step_aside(variables)
        for name, value in setup["writes"].items():
            variables.pop(name, None)
            os.environ.pop(name, None)
            if value is not None:
                variables[name] = os.environ[name] = value
        watch = Watch(setup["own"])
        problem = customize()
        warm_fork.serve(setup, control, loaded, variables, watch, record)
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
        sys.meta_path.insert(0, ImportRecorder(rest))
    except OSError:
        pass  # the imports are not recorded

problem = customize() if stage == "learn" else preload(stage, *map(int, rest.split(",")))
if problem is not None:
    raise problem  # usually ModuleNotFoundError, which site expects
