"""Queries Slurm for the states of many jobs with a single command.

The JSON output of squeue and sacct changes with every version, unlike the output of `squeue -O` and
`sacct --parsable2`. squeue reports a job until a few minutes after it has ended (MinJobAge). If
accounting is enabled, sacct reports a job forever. Sources: squeue(1), sacct(1), "JOB STATE CODES".
"""

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from relight.base import hostlist
from relight.base.errors import MachineError
from relight.base.values import whole
from relight.job.app import AppState

_LIMIT_S = 30.0
_SINFO_LIMIT_S = 5.0
_NO_MEMORY_MB = 1000
_PENDING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "SUSPENDED",
            "CONFIGURING", "RESV_DEL_HOLD", "POWER_UP_NODE")  # fmt: skip
_RUNNING = ("RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED",
            "LAUNCH_FAILED", "UPDATE_DB")  # fmt: skip
_FAILED = ("FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "PREEMPTED",
           "REVOKED", "RECONFIG_FAIL")  # fmt: skip
STATES = {
    **dict.fromkeys(_PENDING, AppState.PENDING),
    **dict.fromkeys(_RUNNING, AppState.RUNNING),
    **dict.fromkeys(_FAILED, AppState.FAILED),
    "CANCELLED": AppState.CANCELLED,
    "COMPLETED": AppState.SUCCEEDED,
}
_REASONS = {
    "TIMEOUT": "its time limit was reached",
    "NODE_FAIL": "a node was lost",
    "OUT_OF_MEMORY": "it used more memory than it had requested",
    "PREEMPTED": "its nodes were given to another job",
    "DEADLINE": "its deadline was reached",
    "BOOT_FAIL": "a node did not boot",
}
_FIELDS = (("JobID", 20), ("HetJobID", 20), ("HetJobOffset", 14), ("State", 20), ("exit_code", 12),
           ("RestartCnt", 12), ("SubmitTime", 24), ("Name", 256), ("Reason", 80),
           ("ArrayJobID", 20), ("ArrayTaskID", 20), ("NodeList", 4096))  # fmt: skip
_UNAVAILABLE = (
    (
        "Could not establish a configuration source",
        "no Slurm cluster is known on this host",
        "submit from a host in the cluster, or set SLURM_CONF=FILE if slurm.conf is elsewhere",
    ),
    (
        "Unable to process configuration file",
        "Slurm's configuration on this host can't be used",
        "check the file in SLURM_CONF or, if that is not set, slurm.conf in /etc/slurm",
    ),
    (
        "Unable to contact slurm controller",
        "Slurm's controller (slurmctld) is not responding",
        "scontrol ping shows on which host it should run",
    ),
)
"""Messages from Slurm commands that can't reach Slurm, each with its meaning and a remedy."""
_SACCT = "JobID,State,ExitCode,Submit,NodeList,JobName"


class Part(NamedTuple):
    """A job, a component of a heterogeneous job, or a job in an array along with its index.
    `exitcode` is negative if a signal ended the job, and `restarts` is None if unknown.
    """

    app_id: str
    offset: int
    state: str
    exitcode: int
    restarts: int | None
    submitted: str
    name: str
    reason: str
    hosts: tuple[str, ...]
    array_index: int | None = None

    @property
    def app_state(self) -> AppState:
        """The scheduler-independent state."""
        return STATES.get(self.state, AppState.UNKNOWN)

    def explain(self) -> str:
        """Return a message about the part's state, or an empty string."""
        said = "" if self.reason in ("None", "(null)", "") else self.reason
        if self.app_state is AppState.PENDING:
            return f"pending: {said}" if said else "it is waiting"
        if self.app_state is AppState.FAILED and (said, self.exitcode) == ("JobLaunchFailure", -9):
            return "the node that ran its script, the first, was lost"
        if self.app_state is AppState.FAILED:
            return _REASONS.get(self.state, "" if said == "NonZeroExitCode" else said)
        return f"Slurm reports {self.state}" if self.app_state is AppState.UNKNOWN else ""


Jobs = dict[str, list[Part]]


def query(app_ids: Sequence[str]) -> Jobs:
    """Query Slurm for the given jobs, including job arrays and jobs in an array (`12_3`). Return
    the parts of each job, in order.

    Raises:
        MachineError: if Slurm does not respond.
    """
    ids = [app_id for app_id in dict.fromkeys(app_ids) if re.fullmatch(r"\d+(_\d+)?", app_id)]
    if not ids:
        return {}
    whole_jobs = dict.fromkeys(split_array_id(app_id)[0] for app_id in ids)
    found = _chosen(ids, _squeue(["--array", f"--jobs={','.join(whole_jobs)}"]))
    missing = [app_id for app_id in ids if app_id not in found]
    if not missing:
        return found
    return {**found, **_chosen(missing, _sacct([f"--jobs={','.join(missing)}"]))}


def split_array_id(app_id: str) -> tuple[str, int | None]:
    """Split the id of a job in an array, such as `12_3`, into 12 and 3. For all other ids,
    return None as the index.
    """
    job, _, index = app_id.partition("_")
    return job, whole(index)


def _chosen(app_ids: Sequence[str], jobs: Jobs) -> Jobs:
    found = {}
    for app_id in app_ids:
        job, index = split_array_id(app_id)
        parts = [part for part in jobs.get(job, ()) if index in (None, part.array_index)]
        if parts:
            found[app_id] = parts
    return found


def user_jobs(user: int) -> Jobs:
    """Query Slurm for a user's jobs, including those from the last week if accounting is enabled.

    Raises:
        MachineError: if Slurm does not respond.
    """
    past = _sacct([f"--user={user}", "--starttime=now-7days"])
    return {**past, **_squeue([f"--user={user}"])}


class Partition(NamedTuple):
    """The resources that jobs can request on the nodes in one or more partitions.

    `memory` is whether memory is configured. If it isn't, each node has only 1 MB, and a job that
    requests more is rejected. `gpus` is empty, or in Slurm's format, such as `gpu:a100:8`.
    """

    memory: bool
    gpus: str


def partition(name: str) -> Partition:
    """Return the resources in a partition, or in the default partition if the name is empty. If
    Slurm does not respond, assume that memory is configured.
    """
    command = ["sinfo", "--noheader", "--noconvert", "--format=%P %m %G"]
    try:
        process = run([*command, *([f"--partition={name}"] if name else [])], _SINFO_LIMIT_S)
    except MachineError:
        return Partition(memory=True, gpus="")
    rows = [row for line in process.stdout.splitlines() if len(row := line.split()) in (2, 3)]
    rows = [row for row in rows if name or row[0].endswith("*")] or rows
    sizes = [whole(row[1].rstrip("+")) or 0 for row in rows]
    kinds = [each for row in rows for each in re.findall(r"\bgpu\b[^,(]*", " ".join(row[2:]))]
    return Partition(
        memory=not sizes or max(sizes) > _NO_MEMORY_MB, gpus=", ".join(dict.fromkeys(kinds))
    )


def excludable(nodes: Sequence[str], nodelist: str) -> list[str]:
    """Return the given nodes, except those that Slurm doesn't know about or that are in `nodelist`.
    The result is empty if Slurm does not respond.
    """
    try:
        process = run(["sinfo", "--noheader", "--Node", "--format=%N"], _SINFO_LIMIT_S)
    except MachineError:
        return []
    known = set(process.stdout.split()) - set(expand_hosts(nodelist))
    return [node for node in nodes if node in known]


def run(
    command: Sequence[str], limit_s: float = _LIMIT_S, variables: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a Slurm command with the given environment, or by default with this process's
    environment.

    Raises:
        MachineError: if the command does not exist, or does not exit in time.
    """
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=limit_s,
            env=variables,
        )
    except FileNotFoundError:
        raise MachineError(
            f"{command[0]} is not installed on this machine",
            hint="submit from a host with Slurm's client commands",
        ) from None
    except subprocess.TimeoutExpired:
        raise MachineError(
            f"{command[0]}: no response within {limit_s:g} s", hint="scontrol ping"
        ) from None


def last_message(process: "subprocess.CompletedProcess[str]") -> str:
    """Return the last message that a Slurm command printed, without its prefixes."""
    said = [line for line in process.stderr.splitlines() if line.strip()]
    last = said[-1] if said else f"{process.args[0]} exited with code {process.returncode}"
    return re.sub(r"^(?:\w+: )?(?:error|fatal): |^slurm_load_jobs error: ", "", last.strip())


def unavailable(process: "subprocess.CompletedProcess[str]") -> MachineError | None:
    """Return the error for a Slurm command that failed because it could not reach Slurm."""
    reason = last_message(process)
    for said, meaning, hint in _UNAVAILABLE:
        if said in reason:
            return MachineError(f"{meaning}: {reason}", hint=hint)
    return None


def _squeue(choice: Sequence[str]) -> Jobs:
    form = ",".join(f"{name}:{width}" for name, width in _FIELDS)
    flags = ["--noheader", "--all", "--states=all", f"--Format={form}"]
    process = run(["squeue", *flags, *choice])
    if process.returncode and "Invalid job id" in process.stderr:
        return {}
    if process.returncode:
        raise unavailable(process) or MachineError(
            f"Slurm: {last_message(process)}", hint="scontrol ping"
        )
    return from_squeue(process.stdout)


def _sacct(choice: Sequence[str]) -> Jobs:
    command = ["sacct", "--noheader", "--parsable2", "--allocations", f"--format={_SACCT}", *choice]
    try:
        process = run(command)
    except MachineError:
        return {}
    return {} if process.returncode else from_sacct(process.stdout)


def from_squeue(text: str) -> Jobs:
    """Parse the output of `squeue --Format` into jobs."""
    parts = []
    for line in text.splitlines():
        values, begin = {}, 0
        for name, width in _FIELDS:
            values[name] = line[begin : begin + width].strip()
            begin += width
        if not values["JobID"].isdecimal():
            continue
        het = values["HetJobID"] not in ("", "N/A", "0")
        index = whole(values["ArrayTaskID"])
        status = whole(values["exit_code"]) or 0  # a wait(2) status
        part = Part(
            app_id=values["HetJobID" if het else "JobID" if index is None else "ArrayJobID"],
            offset=(whole(values["HetJobOffset"]) or 0) if het else 0,
            state=values["State"],
            exitcode=-(status & 0x7F) if status & 0x7F else status >> 8 & 0xFF,
            restarts=whole(values["RestartCnt"]),
            submitted=values["SubmitTime"],
            name=values["Name"],
            reason=values["Reason"],
            hosts=expand_hosts(values["NodeList"]),
            array_index=index,
        )
        parts.append(part)
    return _by_job(parts)


def from_sacct(text: str) -> Jobs:
    """Parse the output of `sacct --parsable2` into jobs."""
    parts = []
    for line in text.splitlines():
        job, state, exits, submitted, nodes, name = [*line.split("|", 5), *[""] * 5][:6]
        match = re.fullmatch(r"(\d+)(?:\+(\d+)|_(\d+))?", job)
        if match is None or not state:
            continue
        code, _, number = exits.partition(":")
        part = Part(
            app_id=match[1],
            offset=int(match[2] or 0),
            state=state.split()[0].rstrip("+"),  # CANCELLED by 1000
            exitcode=-int(number) if int(number or 0) else int(code or 0),
            restarts=None,
            submitted=submitted,
            name=name,
            reason="",
            hosts=expand_hosts(nodes),
            array_index=whole(match[3] or ""),
        )
        parts.append(part)
    return _by_job(parts)


class TaskEnd(NamedTuple):
    """How a failed task in a step ended, according to srun. `lost` means that the task's node was
    lost.
    """

    task: int
    host: str
    exitcode: int
    lost: bool


_TASKS = re.compile(r"srun: error: (\S+): tasks? ([0-9,-]+): (.+)")
_LOST = re.compile(r"srun: error: Node failure on (\S+)")
_SIGNALS = {"Hangup": 1, "Interrupt": 2, "Quit": 3, "Aborted": 6, "Bus error": 7,
            "Floating point exception": 8, "Killed": 9, "User defined signal 1": 10,
            "Segmentation fault": 11, "User defined signal 2": 12, "Broken pipe": 13,
            "Alarm clock": 14, "Terminated": 15, "Out Of Memory": 9}  # fmt: skip


def task_ends(text: str) -> tuple[list[TaskEnd], set[str]]:
    """Parse from srun's stderr how each task ended, in order of failure, and which hosts the step
    has lost.
    """
    ends: list[TaskEnd] = []
    lost: set[str] = set()
    for line in text.splitlines():
        if match := _LOST.search(line):
            lost.update(expand_hosts(match[1]))
        elif match := _TASKS.search(line):
            how = re.sub(r" \(core dumped\)", "", match[3])
            code = re.fullmatch(r"Exited with exit code (\d+)", how)
            exitcode = int(code[1]) if code else -_SIGNALS.get(how, 9)
            hosts = expand_hosts(match[1])
            for index, task in enumerate(_task_numbers(match[2])):
                host = hosts[index] if index < len(hosts) else match[1]
                ends.append(TaskEnd(task, host, exitcode, host in lost))
    return ends, lost


def _task_numbers(text: str) -> Iterable[int]:
    for part in text.split(","):
        low, _, high = part.partition("-")
        yield from range(int(low), int(high or low) + 1)


def expand_hosts(text: str) -> tuple[str, ...]:
    """Expand a list of hosts such as `node[1-3]`. The result is empty for an invalid list."""
    try:
        return tuple(hostlist.expand(text))
    except ValueError:  # such as "None assigned", or a truncated value
        return ()


def _by_job(parts: Iterable[Part]) -> Jobs:
    found: Jobs = {}
    for part in parts:
        found.setdefault(part.app_id, []).append(part)
    return {app_id: sorted(each, key=lambda p: (p.offset, p.array_index or 0))
            for app_id, each in found.items()}  # fmt: skip


def combined_state(parts: Sequence[Part]) -> AppState:
    """Combine the states of all components of a heterogeneous job into the job's state."""
    return combined([part.app_state for part in parts])


def combined(states: Sequence[AppState]) -> AppState:
    """Combine the states of all parts of a job into the job's state."""
    going = [s for s in states if not s.is_over]
    for state in (AppState.RUNNING, AppState.UNKNOWN, AppState.PENDING):
        if state in going:
            return state
    for state in (AppState.FAILED, AppState.CANCELLED):
        if state in states:
            return state
    return AppState.SUCCEEDED
