"""`relight warm start`: creates a warm process before the first job that uses it."""

import os
import signal
import sys

from relight.agent.prepare import prepare
from relight.base import env as environment
from relight.base import exit_signals
from relight.base.errors import EXIT_OK, MachineError, UsageError, signal_exit_code
from relight.base.text import format_duration, pluralize
from relight.base.values import AUTO, BACKGROUND, KEEP_WARM_S, KeepWarm
from relight.cli.jobs.common import say
from relight.events.event_text import describe
from relight.events.event_types import PreloadReady, PreloadWithout
from relight.flags import site
from relight.flags.arguments import parse, to_spec
from relight.flags.spec import LaunchSpec
from relight.host import system
from relight.host.loop import Loop
from relight.warm import preloading
from relight.warm.import_profile import LearnedFile
from relight.warm.warm_processes import WarmProcesses, script
from relight.warm.warm_spawner import WarmSpawner
from relight.warm.worker_program import WorkerProgram

_OF_LAUNCH = ("-m", "relight.worker.call", "ahead")
"""The command that runs `relight.launch` workers. Its last argument is a placeholder for a
directory.
"""
_LIMIT_S = 600.0


def main(argv: list[str]) -> int:
    """Run `relight warm start`, which takes the flags of `relight run`.

    Raises:
        UsageError: if a flag is invalid, or the modules are unknown.
        MachineError: if the process can't be started or used.
    """
    env = environment.read()
    own = site.load(env)
    parsed = parse(argv, env, site=own)
    if not parsed.command:
        parsed = parse([*argv, *_OF_LAUNCH], env, site=own)
    spec = _complete(to_spec(parsed))
    system.require_linux("a warm process")
    job, notes = prepare(spec, parsed.given | {"preload"}, env)
    worker = job.worker_program
    if worker is None:
        raise UsageError("warm starts don't support --no-python, --run-path and --numa-binding")
    for note in notes:
        say(f"note: {note}")
    learned = LearnedFile(worker) if spec.preload == (AUTO,) else None
    modules = list(spec.preload) if learned is None else learned.known.fit
    if not modules:
        raise UsageError(
            f"the imports of {script(worker.argv)} are unknown",
            hint=(
                "name modules, such as --preload=torch, or run the script once with --preload=auto"
            ),
        )
    processes = WarmProcesses(worker)
    if known := processes.find([] if learned is not None else modules):
        say(f"already running: pid {known.pid}, started {format_duration(known.age_s)} ago")
        return EXIT_OK
    _Start(processes, worker, modules, learned).wait()
    made = processes.find([])
    if made is None:
        raise MachineError("the process has imported the modules but is not responding")
    say(
        f"pid {made.pid} keeps {pluralize(made.modules, 'module')} for {script(worker.argv)} until "
        f"unused for {format_duration(made.stays_s)}: {system.memory(made.pid) / 2**20:.0f} MiB"
    )
    return EXIT_OK


def _complete(spec: LaunchSpec) -> LaunchSpec:
    """Fill in the default options for a process that is created in advance."""
    is_of_launch = spec.module and spec.script == _OF_LAUNCH[1]
    is_asked = spec.preload not in ((), (BACKGROUND,))
    preload = spec.preload if is_asked else (("torch",) if is_of_launch else (AUTO,))
    return spec._replace(
        preload=preload, keep_warm=spec.keep_warm or KeepWarm(KEEP_WARM_S, 0), log_dir=os.devnull
    )


class _Start:
    """Starts a warm process, and reports progress until it is ready."""

    def __init__(
        self,
        processes: WarmProcesses,
        worker: WorkerProgram,
        modules: list[str],
        learned: LearnedFile | None,
    ) -> None:
        self._learned = learned
        self._modules = modules
        self._reason: str | None = None
        self._loop = Loop()
        for number in exit_signals.NUMBERS:  # before creating a process that outlives this one
            self._loop.on_signal(number, lambda each: sys.exit(signal_exit_code(each)))
        system.become_subreaper()
        setup = preloading.instructions(worker, modules, learned, {}, low_priority=False)
        try:
            origin = processes.start(setup, is_ahead=True)
        except BlockingIOError:
            raise MachineError(
                "a warm process for this script is already starting", hint="wait for it"
            ) from None
        except OSError as error:
            what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
            raise MachineError(f"can't start a warm process: {what}") from None
        self._pid = origin.pid
        self._spawner = WarmSpawner(self._loop, origin, self)

    def wait(self) -> None:
        """Wait until the process is ready.

        Raises:
            MachineError: if the process can't be used, or does not become ready in time.
        """
        try:
            self._loop.run_until(lambda: self._reason is not None, _LIMIT_S)
        except BaseException:
            os.kill(self._pid, signal.SIGKILL)  # its guard; the process dies with it
            raise
        self._spawner.stop()
        self._loop.close()
        if self._reason is None:
            os.kill(self._pid, signal.SIGKILL)
            self._reason = f"its imports took longer than {format_duration(_LIMIT_S)}"
        if self._reason:
            raise MachineError(f"can't use the warm process: {self._reason}")

    def ready(self, event: PreloadReady) -> None:
        """Record that the warm process can fork workers."""
        del event
        self._reason = ""

    def without(self, module: str, reason: str, seconds: float) -> None:
        """Report a module that is not kept in the warm process."""
        if self._learned is not None:
            self._learned.note_unfit(module, reason, seconds)
        say(describe(PreloadWithout(module, reason, seconds, asked=self._learned is None)))

    def learned(self, unfit: dict[str, str], directories: list[str]) -> None:
        """Store the modules that can't be preloaded."""
        if self._learned is not None:
            self._learned.write(self._modules, unfit, directories)

    def wrote(self, name: str, value: str | None, *, by_library: bool) -> None:
        """Do nothing, because there are no workers."""

    def lost(self, spawner: WarmSpawner, reason: str, *, retry: bool) -> None:
        """Record that the warm process can't be used."""
        del spawner, retry
        self._reason = reason or "it has ended"
