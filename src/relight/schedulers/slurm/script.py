"""Renders the Slurm batch script for an app. Rendering has no side effects, and the script is meant
to be human-readable.

    #SBATCH lines         the requested resources; several roles form a heterogeneous job
    variables             the variables that all roles share
    run_ROLE              runs one replica, on its node; exported to the step's tasks, or written
                          to a file for tasks in containers (`containers`)
    step                  one `srun` per role, with one task per node; the first task that fails is
                          the cause
    near_the_limit        SIGUSR1 to the workers some time before the time limit
    the end               requeues the job if it was preempted or retries are left; otherwise
                          exits with the root cause's exit code

The script contains the values of environment variables. Only the user can read the script, whereas
other users could read a command line. srun's messages, which are in one file per role, show which
task failed first and how. Without accounting, the messages are the only source of this.

Sources: sbatch(1), srun(1) and scancel(1). srun's errors are worded as in Slurm 22.05 to 25.05.
"""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from relight.base import hostlist
from relight.base.errors import UsageError
from relight.job import launcher_file, macros
from relight.job.app import AppDef, Role
from relight.schedulers.slurm.containers import FORMS, Container, mountable

DEFAULT_SIGNAL = "USR1@120"
GPU_FORMS = ("gpus-per-node", "gpus-per-task", "gres")
_RESERVED_NAMES = (".", "..", "torchelastic", "workspace", "failed", "ended", "retries")
_APP_ID, _REPLICA = "\0app\0", "\0replica\0"  # program arguments never contain a NUL
_MARK = re.compile("\0app\0|\0replica\0")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_ARRAY = re.compile(r"(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)(?:%[1-9]\d*)?")
_SIGNAL = re.compile(r"(?:B:)?(?:SIG)?([A-Z][A-Z0-9]*)(?:@(\d+))?")
LAUNCHER = "launcher"
"""The subdirectory of the job's directory that contains the bundled launcher."""
_RELIGHT_RUN = re.compile(r"(?:\S*/)?relight run\s")


class _Names(NamedTuple):
    """The job's id, the directory that contains the launcher, and the script's log file, in shell
    syntax.
    """

    job: str
    top: str
    log: str


_PLAIN = _Names("${SLURM_JOB_ID}", "$RELIGHT_JOB_DIR", "$RELIGHT_JOB_DIR/batch.log")
_OF_ARRAY = _Names(
    "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}",
    "${RELIGHT_JOB_DIR%/*}",
    "${RELIGHT_JOB_DIR%/*}/batch_$SLURM_ARRAY_TASK_ID.log",
)
"""The names for a job array. They don't use SLURM_JOB_ID, because one job in an array has the same
SLURM_JOB_ID as the whole array.
"""


def render(
    app: AppDef, cfg: Mapping[str, Any], app_id: str, directory: str, here: str, programs: str
) -> str:
    """Return the batch script.

    Args:
        app: the app, whose macros have not been substituted yet.
        cfg: the scheduler's options.
        app_id: the job's name.
        directory: the directory for logs.
        here: the working directory.
        programs: the directory that contains `relight`, in case it is not on PATH.

    Raises:
        UsageError: if the app or an option can't be expressed in Slurm.
    """
    roles = app.roles
    _check(app, directory)
    is_array = bool(indices(app, cfg))
    names = _OF_ARRAY if is_array else _PLAIN
    signal, seconds = before_the_limit(app, cfg)
    common = _common(cfg, seconds if signal else 0)
    box = None
    if cfg.get("image"):
        mountable(directory)
        box = Container(cfg.get("container") or FORMS[0], str(cfg["image"]), here, names.top)
    lines = [
        "#!/bin/bash",
        f"# Job {app_id}, written by relight. {_how_to_submit(cfg, roles)}",
        "#",
    ]
    first = {"chdir": here, "output": "/dev/null", "open-mode": "append"}
    first |= {"array": cfg["array"]} if is_array else {}
    first |= {key: cfg[key] for key in ("comment", "mail-user", "mail-type") if cfg.get(key)}
    for number, role in enumerate(roles):
        flags = {
            "job-name": app_id,
            **(first if number == 0 else {}),
            **common,
            **_resources(role, cfg),
        }
        lines += ["#SBATCH hetjob"] if number else []
        lines += [_sbatch(name, value) for name, value in flags.items()]
        lines += [f"#SBATCH {_one_line(each)}" for each in cfg.get("sbatch") or ()]
    retries = min(role.max_retries for role in roles)
    lines += [
        "",
        f"export RELIGHT_JOB_DIR={shlex.quote(directory)}{'/$SLURM_ARRAY_TASK_ID' * is_array}",
        '(umask 077 && mkdir -p "$RELIGHT_JOB_DIR")',
        "# `relight submit` passes --output with this file, in the directory that it has created.",
        f'[ ! /dev/stdout -ef /dev/null ] || exec >>"{names.log}" 2>&1',
        "# This script runs on the first node of the first role.",
        "export RELIGHT_RANK0_HOST=$SLURMD_NODENAME TORCHX_RANK0_HOST=$SLURMD_NODENAME",
        f"export RELIGHT_MAX_RETRIES={retries} TORCHX_MAX_RETRIES={retries}",
        "export PYTHONUNBUFFERED=1",
    ]
    lines += _TOKEN if any(map(is_ours, roles)) else []
    lines += [""]
    functions = _function_names(roles)
    for role, name in zip(roles, functions, strict=True):
        lines += _replica_function(role, name, here, "" if box else programs, signal, names)
    lines += ["# Remove files of an earlier attempt."]
    lines += ['(cd "$RELIGHT_JOB_DIR" && rm -f ./*/*/error.json ./*/srun.log failed ended)']
    for role in roles:
        numbers = f"{{0..{role.num_replicas - 1}}}" if role.num_replicas > 1 else "0"
        lines += [f'mkdir -p "$RELIGHT_JOB_DIR"/{role.name}/{numbers}']
    if box is not None:
        lines += ["# An image may drop exported functions: containers read them from files."]
        lines += [
            f'(umask 077 && declare -f {name} >"$RELIGHT_JOB_DIR"/{role.name}/run.sh)'
            for role, name in zip(roles, functions, strict=True)
        ]
    stop = _STOP.strip() if len(roles) > 1 else ""
    step = _STEP.replace("        {stop}\n", f"        {stop}\n" if stop else "")
    elastic = any(role.is_elastic for role in roles)
    step = step.replace("{survivors}", _SURVIVED if elastic else "")
    parts = [_RETRIES, _FIRST_FAILURE, *([_SURVIVORS] if elastic else []), step]
    if signal:
        parts.append(_LIMIT.replace("{signal}", signal).replace("{half}", str(seconds // 2)))
    lines += ["", _naming("\n".join(parts).rstrip(), names)]
    lines += ["trap 'interrupted=yes stopped=yes' TERM # cancelled, or the time limit", ""]
    lines += ["steps=()"]
    for number, (role, name) in enumerate(zip(roles, functions, strict=True)):
        lines += _start_step(role, name, number if len(roles) > 1 else None, box)
    return "\n".join([*lines, "", _naming(_END, names)])


def _naming(commands: str, names: _Names) -> str:
    return commands if names is _PLAIN else commands.replace("$SLURM_JOB_ID", names.job)


def indices(app: AppDef, cfg: Mapping[str, Any]) -> list[int]:
    """Return the indices of a job array, or an empty list if the job isn't an array.

    Raises:
        UsageError: if the option is invalid, or the app can't be run as an array.
    """
    text = str(cfg.get("array") or "")
    if not text:
        return []
    match = _ARRAY.fullmatch(text)
    try:
        found = [int(number) for number in hostlist.expand(f"[{match[1] if match else ''}]")]
    except ValueError:
        found = []
    if not found:
        raise UsageError(
            f"array={text}: expected indices, such as 0-9 or 0-99%8 for 8 jobs at once"
        )
    if len(app.roles) > 1:
        raise UsageError("array: a job with several roles can't be an array")
    return found


def log_path(directory: str, *, is_array: bool) -> str:
    """Return the path of the script's log file, as a value of sbatch's option --output."""
    return os.path.join(directory, "batch_%a.log" if is_array else "batch.log")


def is_ours(role: Role) -> bool:
    """Return whether a role's command runs `relight run`, either directly or through a shell."""
    if os.path.basename(role.entrypoint) == "relight":
        return role.args[:1] == ["run"]
    if role.args[:3] == ["-m", "relight", "run"]:
        return True
    return len(role.args) == 2 and role.args[0] == "-c" and bool(_RELIGHT_RUN.match(role.args[1]))


def minutes(text: str) -> float | None:
    """Convert a time limit in sbatch's format (`90`, `1:30:00`, `2-12`) to minutes, or return None
    for other strings.
    """
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    days, *parts = (int(part) if part else None for part in match.groups())
    given = [part for part in parts if part is not None]
    if days is not None:  # D-H[:M[:S]]
        hours, mins, secs = [*given, 0, 0][:3]
    elif len(given) == 3:
        hours, mins, secs = given
    else:  # M[:S]
        hours, (mins, secs) = 0, [*given, 0][:2]
    return (days or 0) * 1440 + hours * 60 + mins + secs / 60


_TOKEN = """\
# An agent needs this token to join the job.
export RELIGHT_TOKEN=${RELIGHT_TOKEN:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')}
""".splitlines()

_RETRIES = """\
# How often this script has retried the job. SLURM_RESTART_COUNT also counts lost nodes, preemptions
# and requeues by hand.
retries=$(cat "$RELIGHT_JOB_DIR/retries" 2>/dev/null | grep -cxF "$SLURM_JOB_ID")

# This script does not requeue a job that Slurm has cancelled, preempted, or requeued itself.
is_running() { scontrol show job "$SLURM_JOB_ID" | grep -q JobState=RUNNING; }
"""

_FIRST_FAILURE = """\
# Print the exit code or signal of the first failed task, from srun's messages; ignore tasks on
# lost nodes.
first_failure() {
    awk '/: error: Node failure on / { lost[$NF ":"] }
         /: error: [^ ]+: tasks? [^ ]+: / && !($3 in lost) { print $NF; exit }' "$1"
}
"""

_SURVIVORS = """\
# Return whether tasks have exited with 0 while others failed, left the job, or lost their node: an
# agent exits with 0 only if the whole job has succeeded.
has_survivors() {
    local gone
    gone=$(sed -nE 's/.*: error: (Node failure on ([^ ]+)|([^ ]+): tasks? [^ ]+: .*)/\\2\\3/p' "$1")
    [ -n "$gone" ] && ! grep -q 'launch failed' "$1" &&
        (($(scontrol show hostnames "${gone//$'\\n'/,}" | sort -u | wc -l) < $2))
}
"""

_STEP = """\
# Run a role: one task on each of its nodes.
step() {
    local role=$1 nodes=$2 code first_code srun_log=$RELIGHT_JOB_DIR/$1/srun.log
    shift 2
    trap : TERM USR1 # let srun handle the signal; keep waiting
    # Tasks need this script's variables even if the site has set SBATCH_EXPORT=NONE.
    srun --export=ALL --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --wait=0 \\
        --open-mode=append \\
        --output="$RELIGHT_JOB_DIR/$role/%t/stdout.log" \\
        --error="$RELIGHT_JOB_DIR/$role/%t/stderr.log" "$@" 2>"$srun_log"
    code=$?
    cat "$srun_log"
    first_code=$(first_failure "$srun_log")
{survivors}    if [[ $code != 0 && $first_code =~ ^[0-9]+$ ]]; then
        code=$first_code # srun may exit with the code of a task that was stopped afterwards
    fi
    if [ "$code" != 0 ]; then
        echo "$code $role" >>"$RELIGHT_JOB_DIR/failed"
        {stop}
    fi
    return "$code"
}
"""

_SURVIVED = """\
    if [[ $code != 0 && "$*" == *--no-kill* && (-z $first_code || "$*" == *-exit=0*) ]] &&
        has_survivors "$srun_log" "$nodes"; then
        code=0 first_code= # the other nodes went on without those
    fi
"""

_STOP = """\
# The roles of a job end together. After a requeue the job id is the same: kill only if this
        # script still runs.
        scancel --signal=TERM "$SLURM_JOB_ID"
        { sleep 40; kill -0 $$ 2>/dev/null && scancel --signal=KILL "$SLURM_JOB_ID"; } &
"""

_LIMIT = """\
# Slurm sends USR1 to this script when the time limit is near: signal the workers.
near_the_limit() {
    interrupted=yes
    echo "relight: the time limit is near, sending SIG{signal} to the workers"
    scancel --signal={signal} "$SLURM_JOB_ID"
    if [ "$RELIGHT_MAX_RETRIES" -gt "$retries" ]; then
        # Stop what still runs, in time to queue the job again. After a requeue the job id is the
        # same: stop it only if this script still runs.
        { sleep {half}; kill -0 $$ 2>/dev/null && scancel --signal=TERM "$SLURM_JOB_ID"; } &
    fi
}
trap near_the_limit USR1
"""

_END = """\
code=0 role="the job"
for pid in "${steps[@]}"; do
    # A signal interrupts `wait`: wait again.
    until interrupted=; wait "$pid"; step_code=$?; [ -z "$interrupted" ]; do :; done
    [ "$step_code" = 0 ] || code=$step_code
done
# The first failure is the cause. If the disk is full, it isn't recorded.
[ ! -s "$RELIGHT_JOB_DIR/failed" ] || read -r code role <"$RELIGHT_JOB_DIR/failed"
[ "$code" = 0 ] || echo "relight: $role failed with exit code $code"
if [ -n "$stopped" ]; then
    exit "$code" # cancelled or timed out: Slurm records the reason
fi
if [ "$code" = 75 ] && [ $SECONDS -ge 10 ] && is_running; then
    echo "relight: requeueing the job, which was preempted: its workers have saved a checkpoint"
    scontrol requeue "$SLURM_JOB_ID" && exit "$code"
elif [ "$code" != 0 ] && [ "$RELIGHT_MAX_RETRIES" -gt "$retries" ] && is_running; then
    # Record the retry first: Slurm may kill this script when it requeues the job, and retries that
    # can't be recorded would never end.
    if echo "$SLURM_JOB_ID" >>"$RELIGHT_JOB_DIR/retries"; then
        echo "relight: requeueing the job, retry $((retries + 1)) of $RELIGHT_MAX_RETRIES"
        scontrol requeue "$SLURM_JOB_ID" && exit "$code"
    else
        echo "relight: the job is not retried: can't write to $RELIGHT_JOB_DIR"
    fi
fi
echo "$code" >"$RELIGHT_JOB_DIR/ended"
exit "$code"
"""


def _check(app: AppDef, directory: str) -> None:
    for role in app.roles:
        if not re.fullmatch(r"[\w.@+-]+", role.name) or role.name in _RESERVED_NAMES:
            raise UsageError(f"role name {role.name!r} is not a valid directory name")
        for name in role.env:
            if not _VARIABLE.fullmatch(name):
                raise UsageError(f"role {role.name}: {name!r} is not a shell variable name")
    if re.search(r"[%\\\n]", directory):
        raise UsageError(f"{directory}: Slurm can't write logs to a directory with % or \\")


def _how_to_submit(cfg: Mapping[str, Any], roles: Sequence[Role]) -> str:
    copied = ["the workspace"] if cfg.get("workspace") else []
    if any(role.env.get(launcher_file.VARIABLE) == launcher_file.TRAVELS for role in roles):
        copied.append("the launcher")
    if copied:
        return f"Only relight submit copies {' and '.join(copied)}."
    return "Submit it with: sbatch FILE"


def _common(cfg: Mapping[str, Any], seconds: int) -> dict[str, Any]:
    """Return the sbatch flags that all roles share."""
    names = ("account", "partition", "qos", "time", "constraint", "nodelist", "exclude")
    flags: dict[str, Any] = {name: cfg[name] for name in names if cfg.get(name)}
    if cfg.get("exclusive"):
        flags["exclusive"] = True
    flags["requeue" if cfg.get("requeue", True) else "no-requeue"] = True
    if seconds:
        flags["signal"] = f"B:USR1@{seconds}"  # Slurm signals the script, which signals the workers
    return flags


def before_the_limit(app: AppDef, cfg: Mapping[str, Any]) -> tuple[str, int]:
    """Return the signal that workers receive before the time limit, and how many seconds before the
    limit they receive it. If they don't receive a signal, return an empty string and 0.
    """
    text = cfg.get("signal")
    if text is None:  # the signal could kill other programs
        text = DEFAULT_SIGNAL if all(map(is_ours, app.roles)) else "none"
    if text in ("", "none"):
        return "", 0
    match = _SIGNAL.fullmatch(text.upper())
    if match is None or match[1] not in ("USR1", "USR2", "TERM", "INT", "HUP"):
        raise UsageError(
            f"signal={text}: expected SIGNAL@SECONDS with USR1, USR2, TERM, INT or HUP, or none"
        )
    seconds = int(match[2] or 60)
    limit = minutes(str(cfg.get("time") or ""))
    if limit:
        seconds = min(seconds, int(limit * 60 / 4))  # not right at the start of a short job
    return match[1], max(seconds, 1)


def _resources(role: Role, cfg: Mapping[str, Any]) -> dict[str, Any]:
    flags: dict[str, Any] = {"nodes": role.num_replicas, "ntasks-per-node": 1}
    if role.is_elastic:
        # If the number of tasks per node is set, Slurm uses the minimum number of nodes, not the
        # maximum.
        flags = {"nodes": f"{role.min_replicas}-{role.num_replicas}", "no-kill": True}
    resource = role.resource
    if resource.cpu > 0:
        flags["cpus-per-task"] = resource.cpu
    if resource.memMB > 0 and cfg.get("mem", True):
        flags["mem"] = f"{resource.memMB}M"
    if resource.gpu > 0:
        kind, form = cfg.get("gpu_type"), cfg.get("gpus") or GPU_FORMS[0]
        what = f"{kind}:{resource.gpu}" if kind else resource.gpu
        if form == "gpus-per-task" and role.is_elastic:
            raise UsageError(
                f"gpus={form} needs a fixed number of nodes", hint=f"gpus={GPU_FORMS[0]}"
            )
        if form == "gpus-per-task":
            flags["ntasks"] = role.num_replicas
        flags[form] = f"gpu:{what}" if form == "gres" else what
    return flags


def _sbatch(name: str, value: Any) -> str:
    if value is True:
        return f"#SBATCH --{name}"
    text = _one_line(str(value))
    if not re.fullmatch(r"[\w.,:;@%/+=()\[\]&|*!^-]+", text):
        text = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"#SBATCH --{name}={text}"


def _one_line(text: str) -> str:
    if "\n" in text or "\0" in text:
        raise UsageError(f"an sbatch option must be a single line: {text!r}")
    return text


def _function_names(roles: Sequence[Role]) -> list[str]:
    names: list[str] = []
    for role in roles:
        name = "run_" + re.sub(r"\W", "_", role.name, flags=re.ASCII)
        while name in names:
            name += "_"
        names.append(name)
    return names


def _replica_function(
    role: Role, function: str, here: str, programs: str, notice: str, names: _Names
) -> list[str]:
    """Return the shell function that runs one replica."""
    values = {
        "img_root": here,
        "app_id": _APP_ID,
        "replica_id": _REPLICA,
        "rank0_env": "RELIGHT_RANK0_HOST",
    }
    own = macros.substitute(role, values)
    folder = f"$RELIGHT_JOB_DIR/{role.name}/$SLURM_PROCID"
    lines = [f"# One replica of {role.name}; $SLURM_PROCID is its number.", f"{function}() {{"]
    lines += [f"    unset -f {function}"]
    if "TORCHELASTIC_ERROR_FILE" not in own.env:
        lines += [f'    export TORCHELASTIC_ERROR_FILE="{folder}/error.json"']
    if "PET_LOG_DIR" not in own.env:
        lines += [f'    export PET_LOG_DIR="$RELIGHT_JOB_DIR/torchelastic/{role.name}"']
    if is_ours(role) and notice and "RELIGHT_ON_PREEMPT" not in own.env:
        lines += [f"    export RELIGHT_ON_PREEMPT=SIG{notice}"]
    lines += [f"    export {name}={word(value, names.job)}" for name, value in own.env.items()]
    if is_ours(role):
        lines += [f"    export PATH={_path(role, programs, names.top)}"]
    command = " ".join(word(each, names.job) for each in (own.entrypoint, *own.args))
    lines += [f"    exec {command}", "}"]
    return [*lines, f"export -f {function}", ""]


def _path(role: Role, programs: str, top: str) -> str:
    """Return the search path for `relight`, which consists of the node's PATH, the location of
    `relight` on this host, and the job's directory (`job/launcher_file.py`).
    """
    has_launcher = not programs or launcher_file.needed(role)  # no programs in a container
    brought = [f'"{top}/{LAUNCHER}"'] if has_launcher else []
    if brought and role.env.get(launcher_file.VARIABLE) == launcher_file.TRAVELS:
        return ":".join([*brought, '"$PATH"'])
    return ":".join(['"$PATH"', *([shlex.quote(programs)] if programs else []), *brought])


def _start_step(role: Role, function: str, group: int | None, box: Container | None) -> list[str]:
    """Return the lines of the script that start a role's step."""
    part = "" if group is None else f"_HET_GROUP_{group}"
    flags = [] if group is None else [f"--het-group={group}"]
    if role.resource.cpu > 0:  # srun does not inherit this option from sbatch
        flags += [f"--cpus-per-task={role.resource.cpu}"]
    # relight's agents handle the loss of an agent themselves.
    flags += [f"--kill-on-bad-exit={0 if is_ours(role) else 1}"]
    flags += ["--no-kill"] if role.is_elastic else []
    command = ["bash", "-c", function]
    if box is not None:
        flags += box.flags(role)
        load = f'. "$RELIGHT_JOB_DIR"/{role.name}/run.sh && {function}'
        command = [*box.prefix(role), "bash", "-c", f"'{load}'"]
    words = " ".join((*flags, *command))
    return [
        f'echo "$SLURM_JOB_NODELIST{part}" >"$RELIGHT_JOB_DIR"/{role.name}/nodes',
        f'step {role.name} "$SLURM_JOB_NUM_NODES{part}" {words} &',
        "steps+=($!)",
    ]


def word(text: str, job: str = _PLAIN.job) -> str:
    """Quote a string as a single shell word, and insert shell variables for values that only Slurm
    knows.
    """
    if not _MARK.search(text) and "'" not in text:
        return shlex.quote(text)
    quoted = re.sub(r'([\\"$`])', r"\\\1", text)
    shell = {_APP_ID: job, _REPLICA: "${SLURM_PROCID}"}
    return '"' + _MARK.sub(lambda mark: shell[mark[0]], quoted) + '"'
