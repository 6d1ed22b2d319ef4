"""Runs a job on sandbox hosts. It starts an agent on each host, injects faults when they are due,
and prefixes each line of output with the name of the host that printed it.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from relight.base.errors import MachineError, signal_exit_code
from relight.base.text import LineBuffer, pluralize
from relight.host import system
from relight.host.loop import Alarm, Loop
from relight.host.process_handle import ProcessHandle
from relight.output.console import Console, Consoles, ConsoleStream
from relight.output.pipe_reader import PipeReader
from relight.sandbox.faults import ALL, HOST, Fault, Plan
from relight.sandbox.keys import Keys, has_terminal
from relight.sandbox.lab import Lab
from relight.sandbox.sandbox_job import SandboxJob
from relight.sandbox.sandbox_keys import KeyReader
from relight.stacks import rank_processes

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LONGEST_LINE = 1 << 20
_FLUSH_S = 10.0


def host_name(host: int) -> str:
    """Return the name of a host. The name of the first host is host1."""
    return f"host{host}"


def run(command: Sequence[str], hosts: int, variables: Mapping[str, str], plan: Plan) -> int:
    """Run an agent on each of several hosts until the job has ended, and return its exit code.

    Args:
        command: each agent's command line.
        hosts: the number of hosts.
        variables: the agents' environment variables.
        plan: the faults to inject.

    Raises:
        MachineError: if the hosts can't be created, or their switch was killed.
    """
    loop = Loop()
    try:
        return Sandbox(loop, command, hosts, variables, plan).run()
    finally:
        loop.close()


class Sandbox:
    """The sandbox hosts that run one job.

    Args:
        loop: waits for output, agent exits, key presses and signals.
        command: each agent's command line.
        hosts: the number of hosts. `run` creates them.
        variables: the agents' environment variables.
        plan: the faults to inject.
    """

    def __init__(
        self,
        loop: Loop,
        command: Sequence[str],
        hosts: int,
        variables: Mapping[str, str],
        plan: Plan,
    ) -> None:
        self.loop = loop
        self.lab = Lab(map(host_name, range(1, hosts + 1)))
        self.plan = plan
        self.job = SandboxJob(hosts)
        self._command, self._variables = command, variables
        self.consoles = Consoles.open(loop)
        self._agents: dict[int, subprocess.Popen[Any]] = {}
        self._readers: list[PipeReader] = []
        self._signals: list[int] = []
        self._began = loop.now()
        self._alarm = Alarm(loop, self._on_time)
        self._keys: Keys | None = None
        self._broken = ""

    def run(self) -> int:
        """Create the hosts, run the job, and remove the hosts."""
        for number in _STOPPING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self.loop.on_signal(number, self._on_signal)
        try:
            with self.lab:
                self.loop.on_readable(self.lab.control, self._on_switch)
                self._run()
                self.loop.forget(self.lab.control)
        finally:
            self.plan = Plan(())  # the last lines may trigger a fault, but no host is left
            if self._keys is not None:
                self._keys.close()
            for reader in self._readers:
                reader.finish()
            self.loop.run_until(lambda: all(r.done for r in self._readers), _FLUSH_S)
            for console in self.consoles:
                console.flush(limit_s=_FLUSH_S)
        if self._broken:
            raise MachineError(self._broken, hint="its hosts no longer exist; start it again")
        if self._signals:
            return signal_exit_code(self._signals[0])
        return self._exit_code() or 0

    def _run(self) -> None:
        self._began = self.loop.now()
        hosts = len(self.lab.hosts)
        for host in range(1, hosts + 1):
            self._start(host)
        if has_terminal():
            self._keys = Keys(self.loop, KeyReader(hosts, self.job), self._do, self._say)
        self._on_time()
        self.loop.run_until(self._is_over)
        if not self._signals and not self._broken:
            self._tell_end()

    def _is_over(self) -> bool:
        if self._broken or len(self._signals) > 1:
            return True
        return not self.job.running if self._signals else self._exit_code() is not None

    def _exit_code(self) -> int | None:
        more = self._keys is not None or self.plan.deadline() is not None
        return self.job.exit_code(faults_left=more)

    def _tell_end(self) -> None:
        for host in sorted(self.job.running):
            what = "frozen" if host in self.job.frozen else "cut off"
            self._say(
                f"{host_name(host)} is {what}; its agent is being killed, because the job is over"
            )
        for fault in self.plan.left():
            self._say(f"line {fault.line} of the faults was never reached: {fault}")

    def _say(self, text: str) -> None:
        self.consoles.stderr.say(f"relight: sandbox: {text}")

    # Starting and reaping agents.

    def _start(self, host: int) -> None:
        ends = []
        for console in self.consoles:
            ours, theirs = os.pipe()
            stream = _Output(console, f"[{host_name(host)}] ".encode(), self._on_line)
            self._readers.append(PipeReader(self.loop, ours, stream))
            ends.append(theirs)
        agent = self._agents[host] = self.lab[host_name(host)].start(
            self._command,
            env=self._variables,
            stdout=ends[0],
            stderr=ends[1],
            # If this process and the switch are killed at the same time, nothing else would stop
            # the agent.
            preexec_fn=partial(system.die_with_parent, signal.SIGKILL),
        )
        for end in ends:
            os.close(end)
        self.job.started(host)
        process = ProcessHandle(agent.pid)
        self.loop.on_readable(process, partial(self._on_exit, host, process, agent))

    def _on_exit(self, host: int, process: ProcessHandle, agent: "subprocess.Popen[Any]") -> None:
        self.loop.forget(process)
        process.close()
        code = agent.wait()
        if self._agents[host] is agent:  # otherwise, another agent has been started on this host
            self.job.ended(host, signal_exit_code(-code) if code < 0 else code)

    def _on_line(self, line: str) -> None:
        if self.plan.watches:
            self._carry_out(self.plan.printed(line, self._now()))

    def _on_switch(self) -> None:
        self.loop.forget(self.lab.control)
        self._broken = "the network of the sandbox has ended: its process was killed"

    def _on_signal(self, number: int) -> None:
        self._signals.append(number)
        if len(self._signals) > 1:
            return
        self._say(
            f"got {signal.Signals(number).name}; stopping the agents; a second signal kills them"
        )
        for host in self.job.running & self.job.frozen:
            self.lab.signal(host_name(host), signal.SIGCONT)
        for host in self.job.running:
            self._agents[host].send_signal(number)

    # Injecting faults.

    def _now(self) -> float:
        return self.loop.now() - self._began

    def _on_time(self) -> None:
        self._carry_out(self.plan.due(self._now()))

    def _carry_out(self, faults: Sequence[Fault]) -> None:
        for fault in faults:
            self._do(fault)
        due = self.plan.deadline()
        self._alarm.set(None if due is None else self._began + due)

    def _do(self, fault: Fault) -> None:
        """Inject a fault, and report it to the user."""
        if self._signals:
            return
        why_not = self._signal_rank(fault) if fault.kind == "rank" else self._change(fault)
        what = f"{fault}: {why_not}" if why_not else str(fault)
        self._say(f"after {self._now():.1f} s: {what}")

    def _change(self, fault: Fault) -> str:
        """Inject a fault. Return an empty string, or the reason why it can't be injected."""
        lab, job = self.lab, self.job
        host, name = fault.number, host_name(fault.number)
        where = name if fault.kind == HOST else None
        if fault.action in ("kill", "freeze", "continue") and host not in job.running:
            return "no agent runs there"
        match fault.action:
            case "kill":
                job.killed(host)
                lab.crash(name)
            case "start":
                if host in job.running:
                    return "its agent is already running"
                lab.mend(name)
                self._start(host)
            case "freeze":
                job.frozen.add(host)
                lab.signal(name, signal.SIGSTOP)
            case "continue":
                job.frozen.discard(host)
                lab.signal(name, signal.SIGCONT)
            case "cut":
                job.cut.add(host)
                lab.cut(name)
            case "heal" if fault.kind == ALL:
                job.cut.clear()
                lab.heal()
            case "heal":
                job.cut.discard(host)
                lab.mend(name)
            case "delay":
                lab.set(delay_ms=fault.value * 1000, host=where)
            case "loss":
                lab.set(loss=fault.value, host=where)
        return ""

    def _signal_rank(self, fault: Fault) -> str:
        number = {
            "kill": signal.SIGKILL,
            "freeze": signal.SIGSTOP,
            "continue": signal.SIGCONT,
        }[fault.action]
        for host in self.job.running:
            if _signal_rank(self._agents[host].pid, fault.number, number):
                return ""
        running = pluralize(len(self.job.running), "host")
        return f"there is no such rank on {running}"


def _signal_rank(agent: int, rank: int, number: int) -> bool:
    """Send a signal to a rank of an agent. Return False if the agent has no such rank."""

    def find() -> int | None:
        return rank_processes.below(agent).get(rank)

    if (pid := find()) is None:
        return False
    try:
        system.signal_if(pid, number, lambda: find() == pid)
    except ProcessLookupError:
        return False
    return True


class _Output(ConsoleStream):
    """The output from one host, searched for `when` conditions."""

    def __init__(self, console: Console, prefix: bytes, on_line: Callable[[str], None]) -> None:
        super().__init__(console, prefix)
        self._on_line = on_line
        self._line = LineBuffer()

    def feed(self, data: bytes) -> None:
        super().feed(data)
        lines = self._line.feed(data)
        self._line.rest = self._line.rest[-_LONGEST_LINE:]
        for line in lines:
            self._on_line(line.decode(errors="replace"))
