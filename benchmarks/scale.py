"""How costs grow with the number of nodes: `python -m benchmarks.scale [--load 100 1000]`.

1. Real agents on this machine, all started at the same time, each with one worker that sleeps:
   relight, the same number of single-node jobs, and torchrun as far as memory and time permit.
2. One real agent that hosts the coordinator, and load generator agents (`load.py`) that all join at
   once. This measures the time to form a group, messages and bytes per node, and the coordinator's
   CPU time and memory. The heartbeats of an idle group are measured in the same way, and so is a
   restart after a worker on the coordinator's own node was killed.

Writes `scale.json`, `scale.md` and `scale.png` to `benchmarks/results/` (use `--out` for another
directory).
"""

import contextlib
import os
import resource
import signal
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks import results
from benchmarks.load import Load, Traffic
from benchmarks.nodes import Job
from relight.core.group.group_types import GroupSettings
from relight.host.env_fingerprint import collect

AGENTS = (8, 16, 64)
TORCHRUNS = (8, 16)
NODES = (100, 500, 1000, 2000, 5000)
STEADY_S = 4.0
LIMIT_S = 120.0
CAPTION = (
    "* torchrun: measured elsewhere, on another day; threads of one process that all join at once "
    "(2 processors, torch 2.13). At 128 nodes the second round did not end in 180 s."
)
BEAT_BYTES = 36
"""The size of a heartbeat with a two-digit number; its echo has the same size."""


class Threads(NamedTuple):
    """The costs of torchrun's rendezvous by number of nodes. They were measured elsewhere, on a
    different day, with threads in one process that all join simultaneously (2 processors, torch
    2.13, defaults).

    Times are in seconds. Traffic is in bytes per node until the group is formed, and in bytes per
    second and node while it is idle.
    """

    nodes: int
    form_s: float
    form_bytes: float
    steady_bytes: float
    again_s: float | None


TORCHRUN = (
    Threads(1, 0.05, 1e3, 0.7e3, 0.12),
    Threads(4, 1.2, 3e3, 6e3 / 4, 2.1),
    Threads(16, 1.3, 6e3, 60e3 / 16, 2.3),
    Threads(32, 1.3, 11e3, 219e3 / 32, 2.3),
    Threads(48, 1.3, 16e3, 680e3 / 48, 6.8),
    Threads(64, 4.5, 191e3, 825e3 / 64, 11.5),
    Threads(96, 15.5, 838e3, 2.0e6 / 96, 30.2),
    Threads(128, 200.0, 11e6, 3.7e6 / 128, None),
)


class Phase(NamedTuple):
    """The cost of forming a group, of a restart, or of an idle period: wall time, CPU time of the
    coordinator's process, and the agents' sent and received traffic.
    """

    wall_s: float
    cpu_s: float
    sent: Traffic
    got: Traffic

    @property
    def bytes(self) -> int:
        """Bytes in both directions, excluding heartbeats."""
        return self.sent.bytes + self.got.bytes


class Row(NamedTuple):
    """The costs for a number of nodes."""

    nodes: int
    form: Phase
    after_last_s: float
    steady: Phase
    late_echo_s: float
    again: Phase
    idle_kib: int
    kib: int
    lost: int

    def per_node(self) -> dict[str, float]:
        """Return the costs per node, by name."""
        return {
            "form, CPU µs": self.form.cpu_s / self.nodes * 1e6,
            "form, bytes": self.form.bytes / self.nodes,
            "restart, CPU µs": self.again.cpu_s / self.nodes * 1e6,
            "steady, CPU µs/s": self.steady.cpu_s / self.steady.wall_s / self.nodes * 1e6,
            "memory, KiB": (self.kib - self.idle_kib) / self.nodes,
        }


Seconds = dict[str, dict[int, float]]
"""Results by launcher and number of real agents."""


class _Meter:
    """Measures the phases of a job."""

    def __init__(self, load: Load, pid: int) -> None:
        self._load, self._pid = load, pid
        self._begin = time.monotonic()
        self._cpu_s = process_cpu_s(pid)
        self._sent, self._got = load.sent, load.got

    def phase(self, end: float | None = None) -> Phase:
        """Return the costs since the meter was created."""
        wall_s = (end or time.monotonic()) - self._begin
        cpu_s = process_cpu_s(self._pid) - self._cpu_s
        load = self._load
        return Phase(wall_s, cpu_s, load.sent.minus(self._sent), load.got.minus(self._got))


def measure(nodes: int) -> Row:
    """Return the costs of a job with one real agent and this many from the load generator."""
    with Job("relight", str(nodes + 1)) as job:
        agent = job.start(hosts=True)
        job.until(lambda: any(b"have joined" in line for _, line in agent.lines))
        pid = agent.process.pid
        facts = collect(script="sh", arguments=["worker.sh"], is_file=False, python="")
        settings = GroupSettings(nodes + 1, nodes + 1, 3)
        load = Load(("127.0.0.1", job.port), "bench", settings, nodes, facts)
        try:
            idle_kib = _rss_kib(pid)
            meter = _Meter(load, pid)
            load.connect()
            formed_at = load.until(lambda: load.in_generation(0), LIMIT_S)
            form, after_last_s = meter.phase(formed_at), formed_at - load.last_ready
            load.during(1)
            load.echoes.clear()
            meter = _Meter(load, pid)
            load.during(STEADY_S)
            steady, late_echo_s, kib = meter.phase(), load.late_echo_s(), _rss_kib(pid)
            if list(load.formed) != [0] or load.counts["stop"]:
                raise RuntimeError("a node was lost while nothing happened")  # noqa: TRY301
            job.until(lambda: bool(agent.workers))
            meter = _Meter(load, pid)
            os.kill(agent.workers[-1].pid, signal.SIGKILL)
            again = meter.phase(load.until(lambda: load.in_generation(1), LIMIT_S))
            lost = load.counts["connections lost"]
            return Row(nodes, form, after_last_s, steady, late_echo_s, again, idle_kib, kib, lost)
        except RuntimeError as error:
            job.read(0.1)
            error.add_note(b"\n".join(line for _, line in agent.lines[-8:]).decode())
            raise
        finally:
            load.close()


def real_s(launcher: str, count: int) -> float:
    """Start this many agents together; return the seconds until all workers have started."""
    with Job(launcher, str(count)) as job:
        since = time.monotonic()
        nodes = [job.start() for _ in range(count)]
        return job.until_run(nodes, count, since, LIMIT_S)


def alone_s(count: int) -> float:
    """Start this many single-node jobs together, to measure launching without forming a group."""
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(Job("relight", "1")) for _ in range(count)]
        since = time.monotonic()
        nodes = [job.start() for job in jobs]
        return max(
            job.until_run([node], 1, since, LIMIT_S) for job, node in zip(jobs, nodes, strict=True)
        )


def main() -> None:
    """Run the benchmarks, print the tables, and write the results."""
    parser = results.arguments("Measure what a group costs by number of nodes.")
    parser.add_argument("--agents", type=int, nargs="*", default=AGENTS, help="real ones")
    parser.add_argument("--torchruns", type=int, nargs="*", default=TORCHRUNS)
    parser.add_argument("--load", type=int, nargs="*", default=NODES)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # the coordinator inherits it
    real: Seconds = {"relight": {}, "alone": {}, "torchrun": {}}
    for count in options.agents:
        real["alone"][count] = alone_s(count)
        real["relight"][count] = real_s("relight", count)
        print(f"{count} agents: {real['relight'][count]:.2f} s", flush=True)
    for count in options.torchruns:
        real["torchrun"][count] = real_s("torchrun", count)
        print(f"{count} torchruns: {real['torchrun'][count]:.2f} s", flush=True)
    rows = []
    for nodes in options.load:
        rows.append(measure(nodes))
        print(f"{nodes} nodes: {rows[-1].per_node()}", flush=True)
    content = {"real": real, "load": [_as_dict(row) for row in rows]}
    text = results.write(options.out, "scale", content, _as_text(real, rows))
    if rows:
        _plot(real, rows, options.out)
    print(f"\n{text}\nwritten to {options.out}")


def process_cpu_s(pid: int) -> float:
    """Return the CPU time of a process's main thread. An agent doesn't have any others."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def _rss_kib(pid: int) -> int:
    fields = Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()
    return int(fields[0])


def _as_dict(row: Row) -> dict[str, object]:
    result: dict[str, object] = row._asdict()
    for name in ("form", "steady", "again"):
        phase: Phase = getattr(row, name)
        sent, got = phase.sent._asdict(), phase.got._asdict()
        result[name] = {**phase._asdict(), "sent": sent, "got": got}
    return {**result, "per node": row.per_node()}


def _as_text(real: Seconds, rows: list[Row]) -> list[str]:
    return [
        results.machine(),
        "",
        "Real agents, all started at the same moment on this machine, until all workers run:",
        "",
        *results.table(
            "nodes | relight | the same number of single-node jobs | torchrun",
            (
                " | ".join((str(count), *(_seconds(each.get(count)) for each in real.values())))
                for count in sorted({*real["relight"], *real["torchrun"]})
            ),
        ),
        "",
        "One coordinator, and a load generator on this machine whose agents all connect at once:",
        "",
        *results.table(
            "nodes | formed after the first arrival | after the last arrival | messages per node, "
            "sent / received | bytes, sent / received | coordinator CPU time | per node",
            map(_forming, rows),
        ),
        "",
        f"Then {STEADY_S:.0f} s with heartbeats only, then the restart after a worker is killed; "
        "some 20 ms of that do not depend on the number of nodes:",
        "",
        *results.table(
            "nodes | CPU usage, heartbeats | per node | 99 % of echoes within | "
            "restart of all workers | CPU time | per node | messages, sent / received | "
            "coordinator memory | per node",
            map(_later, rows),
        ),
    ]


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} s"


def _forming(row: Row) -> str:
    form = row.form
    return (
        f"{row.nodes:,} | {form.wall_s:.2f} s | {1000 * row.after_last_s:.0f} ms"
        f" | {_share(form.sent.messages, row)} / {_share(form.got.messages, row)}"
        f" | {_share(form.sent.bytes, row)} / {_share(form.got.bytes, row)}"
        f" | {form.cpu_s:.2f} s | {row.per_node()['form, CPU µs']:.0f} µs"
    )


def _later(row: Row) -> str:
    again, per_node = row.again, row.per_node()
    return (
        f"{row.nodes:,} | {100 * row.steady.cpu_s / row.steady.wall_s:.1f} %"
        f" | {per_node['steady, CPU µs/s']:.0f} µs/s | {1000 * row.late_echo_s:.1f} ms"
        f" | {again.wall_s:.2f} s | {again.cpu_s:.2f} s"
        f" | {per_node['restart, CPU µs']:.0f} µs"
        f" | {_share(again.sent.messages, row)} / {_share(again.got.messages, row)}"
        f" | {row.kib / 1024:.1f} MiB | {per_node['memory, KiB']:.1f} KiB"
    )


def _share(value: float, row: Row) -> str:
    """Return the share of a single node."""
    share = value / row.nodes
    return f"{share:.0f}" if share >= 100 else f"{share:.3g}"


def _plot(real: Seconds, rows: list[Row], folder: str) -> None:
    figure, axes = results.plots([1] * 4, (15, 4.4))
    ours, theirs = results.COLOURS["relight"], results.COLOURS["torchrun"]
    counts, known = [row.nodes for row in rows], [each.nodes for each in TORCHRUN]
    form, sizes, steady, cpu = axes
    form.plot(counts, [row.form.wall_s for row in rows], "o-", color=ours,
              label="relight, load generator")  # fmt: skip
    form.plot(known, [each.form_s for each in TORCHRUN], "s--", color=theirs, label="torchrun *")
    for name, colour in (("relight", ours), ("torchrun", theirs)):
        form.plot(list(real[name]), list(real[name].values()), "^", markersize=7, mfc="white",
                  color=colour, label=f"{name}, real agents, from their start")  # fmt: skip
    form.set_title("seconds until all are in the group", fontsize=9)
    sizes.plot(counts, [row.form.bytes / row.nodes for row in rows], "o-", color=ours,
               label="relight, first")  # fmt: skip
    sizes.plot(counts, [row.again.bytes / row.nodes for row in rows], "o:", color=ours,
               label="relight, restart")  # fmt: skip
    sizes.plot(known, [each.form_bytes for each in TORCHRUN], "s--", color=theirs,
               label="torchrun, first *")  # fmt: skip
    sizes.set_title("bytes a node until formed", fontsize=9)
    beats = [
        (row.steady.sent.beats + row.steady.got.beats) * BEAT_BYTES / row.steady.wall_s / row.nodes
        for row in rows
    ]
    steady.plot(counts, beats, "o-", color=ours, label="relight, a beat in 0.25 s")
    steady.plot(known, [each.steady_bytes for each in TORCHRUN], "s--", color=theirs,
                label="torchrun *, a beat in 5 s, a look in 1 s")  # fmt: skip
    steady.set_title("bytes a second and node while nothing happens", fontsize=9)
    for name, style in (("form, CPU µs", "o-"), ("restart, CPU µs", "o:"),
                        ("steady, CPU µs/s", "o--")):  # fmt: skip
        values = [row.per_node()[name] for row in rows]
        cpu.plot(counts, values, style, color=ours, label=f"relight, {name}")
    cpu.set_title("time of the coordinator for each node", fontsize=9)
    cpu.set_ylim(bottom=0)
    for axis in axes:
        axis.set_xscale("log")
        axis.set_xlabel("nodes", fontsize=8)
        axis.legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16))
        if axis is not cpu:
            axis.set_yscale("log")
    figure.text(0.01, 0.01, CAPTION, fontsize=7)
    results.save(figure, folder, "scale", within=(0, 0.03, 1, 1))


if __name__ == "__main__":
    main()
