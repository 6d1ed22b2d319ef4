"""The `relight` command: finds the subcommand, runs it, and turns errors into a one-line message
and an exit code.
"""

import errno
import io
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from relight.base import exit_signals
from relight.base.errors import (
    EXIT_INTERNAL,
    EXIT_MACHINE,
    EXIT_OK,
    EXIT_SIGNAL_BASE,
    RelightError,
    UsageError,
    describe_bug,
    format_exception_oneline,
)

COMMANDS = {
    "run": "start and supervise this node's workers (torchrun)",
    "launch": "like run, compatible with torch.distributed.launch",
    "exec": "run a program that uses relight instead of torchrun",
    "shim": "replace torchrun permanently, in one environment",
    "coordinator": "coordinate multi-node jobs, for example on a login node",
    "doctor": "check this machine and the network between the nodes",
    "sandbox": "run a job on simulated hosts on this machine, and inject faults",
    "submit": "submit a job to this machine, Docker, Slurm … (torchx run)",
    "status": "show the state of a job, or the agents on this machine",
    "top": "watch jobs live: ranks, steps, CPU, memory, last lines",
    "stacks": "show the stacks of a job's ranks, even if they hang",
    "debug": "attach to pdb in a rank that is at breakpoint()",
    "logs": "print the output of a job",
    "events": "print the history of a job, one event per line",
    "wait": "wait until a job ends",
    "cancel": "stop a job",
    "delete": "stop a job and remove its logs and record",
    "list": "list jobs, including finished ones",
    "describe": "show a job's submission: app, time, origin",
    "tracker": "show metadata, artifacts and lineage of jobs (torchx tracker)",
    "components": "list components and their flags",
    "schedulers": "list schedulers and their options",
    "configure": "write a template settings file",
    "nodes": "list and forget nodes with failed hardware",
    "warm": "list, start and stop warm processes",
    "completion": "print completion for bash, zsh or fish",
    "version": "print the version",
}

JOB_COMMANDS = {
    **{name: name for name in ("exec", "shim", "sandbox", "warm", "completion")},
    **{name: f"inspect.{name}" for name in ("status", "top", "stacks", "debug", "events")},
    **{
        name: f"jobs.{name}"
        for name in ("submit", "logs", "wait", "cancel", "delete", "list", "describe", "tracker",
                     "components", "schedulers", "configure", "nodes")
    },
}  # fmt: skip
"""The module in this package with the `main` of each command that has a `Page`. The module of any
other command has the command's name.
"""
_LAUNCHERS = ("run", "launch")
_ON_NODES = ("run", "launch", "coordinator", "doctor")
"""Commands that run on training nodes."""

_REBUILD = (
    "use a different Python, or rebuild this one with the headers it needs (_ctypes: libffi; "
    "_ssl: OpenSSL)"
)
_DISK_FULL = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG)

USAGE = "usage: relight COMMAND [flags] SCRIPT [arguments of the script]"


class _BestEffortStream(io.FileIO):
    """A stderr stream that ignores write errors (ENOSPC, EPIPE, EBADF), so that they can't change
    the exit code.
    """

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def _escape_controls(text: str) -> str:
    """Return text with its control characters escaped, such as a carriage return in a file name."""
    text = text.replace("\n", " ")
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def main(argv: list[str]) -> int:
    """Run one relight command and return its exit code.

    Args:
        argv: the arguments that follow the program's name.
    """
    try:
        return _command(argv)(argv[1:])
    except RelightError as error:
        print("relight: error:", _escape_controls(error.message), file=sys.stderr)
        if error.hint:
            print("hint:", _escape_controls(error.hint), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_SIGNAL_BASE + 2


def entry() -> NoReturn:
    """Run the command given by this process's command line."""
    exit_signals.exit_on_signals()
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:  # a file opened later would get this number
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)
    encoding = sys.stderr.encoding if sys.stderr else None
    sys.stderr = io.TextIOWrapper(
        _BestEffortStream(2, "w", closefd=False), encoding, "backslashreplace", line_buffering=True
    )  # write whole lines, because several agents may share it
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # As with stderr, a character that the terminal can't encode must not cause an error.
        sys.stdout.reconfigure(errors="backslashreplace")
    exit_code = EXIT_OK
    try:
        exit_code = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as a pager, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError as error:
        exit_code = EXIT_MACHINE
        if error.filename is None and error.errno in _DISK_FULL:
            print(f"relight: error: can't write the output: {error.strerror}", file=sys.stderr)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        elif isinstance(error, FileNotFoundError) and _has_lost_directory():
            print("relight: error: the working directory was deleted", file=sys.stderr)
            print("hint: cd to it again if it was replaced, or to another", file=sys.stderr)
        else:
            too_many = error.errno in (errno.EMFILE, errno.ENFILE)
            what = (
                f"{error.filename}: {error.strerror}"
                if error.filename
                else format_exception_oneline(error)
            )
            what = f"a different descriptor: {what}" if too_many and not error.filename else what
            print(f"relight: error: this machine refuses {what}", file=sys.stderr)
            if too_many:
                print("hint: check `ulimit -n`", file=sys.stderr)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name in sys.stdlib_module_names:
            exit_code = EXIT_MACHINE
            what, hint = f"{sys.executable} was built without {error.name}", _REBUILD
        else:
            exit_code = EXIT_INTERNAL
            what = f"internal error in relight (a bug): {describe_bug(error)}"
            hint = "please report it, with these lines and the command"
        print(f"relight: error: {what}\nhint: {hint}", file=sys.stderr)
    if sys.argv[1:2] and sys.argv[1] in _LAUNCHERS:
        exit_signals.quick_exit(exit_code)
    sys.exit(exit_code)


def _has_lost_directory() -> bool:
    try:
        os.getcwd()
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return False


def _command(argv: list[str]) -> Callable[[list[str]], int]:
    name = argv[0] if argv else "--help"
    if name not in _LAUNCHERS:
        exit_signals.restore_defaults()
    if name in COMMANDS and argv[1:] == ["--version"]:
        return _version
    if name == "help" and argv[1:] and argv[1] in COMMANDS:
        command = _command([argv[1]])
        return lambda _: command(["--help"])
    if name in _ON_NODES:
        from relight.host import system  # noqa: F401  # raises on systems without support
    if name in COMMANDS and name != "version":
        # A shell waits for `completion jobs`, so skip the imports that `completion` needs.
        file = JOB_COMMANDS.get(name, name) if argv != ["completion", "jobs"] else "jobs.known_jobs"
        full = f"relight.cli.{file}"
        try:
            __import__(full)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{full}.".startswith(f"{error.name}."):
                raise
            raise UsageError(  # see job/launcher_file.py
                f"relight {name} is not included in the launcher that is sent with a job",
                hint="install relight from a wheel or a clone (pip install .)",
            ) from None
        main_of: Callable[[list[str]], int] = sys.modules[full].main
        return main_of
    if name in ("version", "--version", "-V"):
        return _version
    if name in ("help", "--help", "-h"):
        return _help
    from relight.flags import suggestions

    raise suggestions.unknown_command(argv, list(COMMANDS))


def _version(_: list[str]) -> int:
    from relight.base import package

    try:
        commit = package.read("commit").strip()
    except OSError:  # missing from editable installations
        commit = ""
    version = f"relight {package.__version__}"
    print(f"{version} (commit {commit})" if commit else version)
    return 0


def _help(_: list[str]) -> int:
    print(USAGE + "\n")
    for name, text in COMMANDS.items():
        print(f"  {name:13}{text}")
    print("\nSee relight COMMAND --help for details.")
    return 0
