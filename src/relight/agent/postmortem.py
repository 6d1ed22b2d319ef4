"""Gathers facts about each failed worker for the diagnosis.

The agent loads this module only after a failure. This module only collects facts, using `host`, and
`core/diagnosis/causes` interprets them.
"""

import errno
import functools
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from relight.base.env import Environment
from relight.base.values import STDERR
from relight.core.diagnosis import blame, causes, failure_text, last_words, loaders, tracebacks
from relight.core.diagnosis.excerpts import headline
from relight.core.failure import CRASHES, ErrorReport, Failure, FailureKind, WorkerEnd
from relight.core.group.messages import JobEnded
from relight.core.workers.worker_command import Command
from relight.host import devices, gpu_errors
from relight.host.loop import Loop
from relight.host.oom_detector import NOBODY
from relight.output import error_files
from relight.output.worker_logs import Logs
from relight.processes import interpreter
from relight.processes.supervisor import Supervisor
from relight.processes.worker_processes import Workers
from relight.stacks import exit_evidence

JOB = "RELIGHT_JOB_ID"
_IN_POD, _TERMINATION_LOG = "KUBERNETES_SERVICE_HOST", "RELIGHT_TERMINATION_LOG"
_MAX_MESSAGE = 4096
"""Maximum number of bytes that the kubelet reads from a termination message."""
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
_JOINS = re.compile(r"\binit_process_group\b|/torch/distributed/rendezvous\.py")
_FUNCTION = "relight.worker.call"
"""The module that runs a function of `relight.launch`."""
_OF_GPU = re.compile(r"CUDA|NCCL|CUBLAS|CUDNN|cuBLAS|cuDNN|NVML|\bGPU\b")
"""Names in GPU errors, as printed by torch and its libraries."""
_MAX_WORDS = 200
_FAULT = "Fatal Python error: Aborted\n"
_AT_EXIT = f"terminate called without an active exception\n{_FAULT}"
"""libstdc++ prints the first line if a thread is still running when the process exits, as happens
with torch.
"""
_CYTHON_FRAME = re.compile(r'(?<=  File ")[\w][\w./-]{0,200}\.(?:pyx|pxi|pxd)(?=", line )')
"""The path of a Cython file, which is relative to the directory in which it was compiled."""
_PYTHON_FRAME = '\n  File "'
_LAST = 20
"""Number of lines at the end of a worker's output that may explain its failure."""
_TIMED_OUT = "DataLoader timed out after"
"""The message that torch's data loader raises at its timeout."""
_NEAR_S = 1.0
"""A traceback that was printed longer than this before a crash is unrelated to the crash."""
_CHILD_KILLED = re.compile(
    r"""killed\ by\ signal:\ Killed | \bSIGKILL\b | BrokenProcessPool | TerminatedWorkerError
    | (?i:code|status|\bexit(?:ed)?|\b(?:ended|died|failed|killed|terminated|returned))
      (?:\ (?:with|by|of|is|was))?\W{1,5}(?:-9|137|signal\W{1,3}9)\b""",
    re.VERBOSE,
)
"""Messages which say that a child process was killed with SIGKILL."""


def gather(
    supervisor: Supervisor, logs: Logs, command: Command, host: str, loop: Loop
) -> tuple[tuple[Failure, ...], tuple[int, ...]]:
    """Return this node's failures in a generation (at least one), as sent to other nodes, and the
    ranks that succeeded before the first failure. Ranks that succeeded but had printed an error, or
    the reason why they left before others, are also listed as failures, with exit code 0. The
    agent's loop may run during the call.
    """
    workers, had_handler = supervisor.workers, supervisor.workers.had_handler
    ends = [
        causes.without_late_signal(end, had_handler.get(end.local_rank)) for end in supervisor.ends
    ]
    failed = [end for end in ends if end.exitcode]
    first = min(end.at for end in failed)
    over = [
        end for end in ends if causes.had_succeeded(end, first, workers.doing.get(end.local_rank))
    ]
    # A worker that was killed by the stop signal had not finished on its own.
    stopped = [end for end in failed if end.stop_signal and end.exitcode < 0]
    near = _lines_without_crash(ends, logs)
    found = failure_text.with_others(
        _failure(end, logs, workers, command, host) for end in (*failed, *over)
    )
    victims = {e.local_rank for e in found if blame.from_failure(e) is blame.Blame.PEER}
    by_healthy = _lines_of({end.local_rank for end in stopped} - victims, logs)
    by_others = by_healthy | _lines_of(victims, logs)
    counts = Counter(line for rank in victims for line in _lines_of([rank], logs))
    by_other_victims = by_healthy | {line for line, count in counts.items() if count > 1}

    def printed_elsewhere(failure: Failure) -> frozenset[str]:
        if _is_crash(failure.exitcode):
            return near
        return by_other_victims if failure.local_rank in victims else by_others

    found = [_add_output(each, logs, workers, command, printed_elsewhere(each)) for each in found]
    found = with_gpu_errors(found, workers, command)
    found = [
        each if each.exitcode or _has_error(each) else each._replace(words="", report=None)
        for each in found
    ]
    if any(each.exitcode and blame.from_failure(each) is not blame.Blame.NOBODY for each in found):
        found = _with_parting_words(found, logs)
    found = [each for each in found if each.exitcode or _has_error(each) or each.words]
    succeeded = tuple(workers.ranks[end.local_rank] for end in over)
    return failure_text.shared(_with_remedies(found, command, loop), loop.now()), succeeded


def _lines_of(local_ranks: Iterable[int], logs: Logs) -> frozenset[str]:
    return last_words.lines_without_numbers(_stderr(logs, rank) for rank in local_ranks)


def _is_crash(exitcode: int) -> bool:
    return -exitcode in CRASHES


def _lines_without_crash(ends: Sequence[WorkerEnd], logs: Logs) -> frozenset[str]:
    """If a worker crashed, return the lines printed by all workers that did not."""
    crashed = {end.local_rank for end in ends if _is_crash(end.exitcode)}
    others = [end.local_rank for end in ends if end.local_rank not in crashed] if crashed else []
    texts = [_text(read, rank) for rank in others for read in (logs.stderr_of, logs.stdout_of)]
    return last_words.lines_without_numbers(texts)


def _with_parting_words(found: Sequence[Failure], logs: Logs) -> list[Failure]:
    """Return the failures. Workers that exited with code 0 get the reason that they printed, if
    any.
    """
    failed = [each.local_rank for each in found if each.exitcode]
    read = logs.stderr_of, logs.stdout_of
    elsewhere = last_words.lines_without_numbers(_text(of, rank) for of in read for rank in failed)

    def reason(rank: int) -> str:
        return last_words.parting(_stderr(logs, rank), _text(logs.stdout_of, rank), elsewhere)

    return [
        each if each.exitcode or _has_error(each) else each._replace(words=reason(each.local_rank))
        for each in found
    ]


def _has_error(failure: Failure) -> bool:
    """Return whether a worker printed an error, not counting errors that didn't end a process."""
    report = failure.report
    return (report is not None and not report.others) or last_words.is_error(failure.words)


def _with_remedies(found: Sequence[Failure], command: Command, loop: Loop) -> list[Failure]:
    """Return the failures. If a worker lacked a module that is installed in another Python, its
    failure gets a hint.
    """
    remedies: dict[str, str] = {}
    told = []
    for failure in found:
        report, evidence = failure.report, failure.evidence
        raised = failure.is_explained and not failure.stop_signal
        known = raised and not (evidence or command.no_python)
        if known and report is not None and report.type in ("ModuleNotFoundError", "ImportError"):
            evidence = exit_evidence.unsearched_folder(report, command)
        is_import = report is not None and report.type == "ModuleNotFoundError"
        lacked = _NO_MODULE.search(report.message) if report is not None else None
        if lacked is not None and is_import and known and not evidence:
            module = lacked[1]
            if module not in remedies:
                remedies[module] = interpreter.remedy(command.python, command.env, module, loop)
            evidence = remedies[module]
        told.append(failure._replace(evidence=evidence))
    return told


def with_gpu_errors(found: Sequence[Failure], workers: Workers, command: Command) -> list[Failure]:
    """Return the failures, each with the GPU errors in the kernel log that concern the worker."""
    errors = gpu_errors.recent(max(failure.at for failure in found))
    if not errors:
        return list(found)
    visible = [device.pci for device in devices.gpus(command.env)]
    is_mapped = len(workers.ranks) <= len(visible)
    told = []
    for failure in found:
        report = failure.report
        texts = [*failure.last_lines, failure.words, report.message if report else ""]
        said, is_broken = gpu_errors.explain_exit(
            errors,
            pid=failure.pid,
            pci=visible[failure.local_rank] if is_mapped else "",
            visible=visible,
            at=failure.at,
            blames_gpu=not failure.stop_signal
            and (failure.exitcode < 0 or any(_OF_GPU.search(text) for text in texts)),
        )
        told.append(failure._replace(gpu_error=said, gpu_broken=is_broken))
    return told


def with_address(failure: Failure, variables: Mapping[str, str], logs: Logs) -> Failure:
    """Return the failure. If the worker tried to reach one of torch's stores at an address that
    differs from its variables, the failure gets a note. A script may also create stores of its own.

    If a worker was stopped during its attempts, it raised nothing, but torch 2.13 logs each failed
    attempt (TCPStore.cpp).
    """
    report, doing = failure.report, failure.doing
    frames = (*(report.lines if report else ()), *(doing.stack if doing else ()))
    joins = any(_JOINS.search(line) for line in frames)
    found, attempt = blame.address(failure), ""
    if found is None and joins and failure.stop_signal and report is None:
        found = blame.address_in(_stderr(logs, failure.local_rank))
        attempt = f"it was trying to connect to {found[0]}:{found[1]}; " if found else ""
    told = variables.get("MASTER_ADDR", ""), variables.get("MASTER_PORT", "")
    if found is None or failure.evidence or (found[0], str(found[1])) == told:
        return failure
    if frames and not joins:
        return failure._replace(evidence=f"{blame.OTHER_STORE}{told[0]}:{told[1]}")
    evidence = f"{attempt}{blame.OTHER_ADDRESS}{told[0]} and MASTER_PORT={told[1]}"
    if str(found[1]) != told[1] and variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        evidence += blame.OWN_PORT
    return failure._replace(evidence=evidence)


def suspects_peer(logs: Logs, local_rank: int) -> bool:
    """Return whether a failed worker's error blames another worker for exiting or being late."""
    stderr = _stderr(logs, local_rank)
    program = tracebacks.ProgramFacts(_went_on(logs, local_rank), is_function=True)
    raised = _reported(logs, local_rank, stderr, program)
    words = last_words.words(stderr, "")
    return blame.determine(raised, tracebacks.last_lines(stderr), words) is not blame.Blame.NOBODY


def report(end: JobEnded, own: Sequence[Failure], env: Environment) -> str:
    """Return this agent's report on a failed job.

    Args:
        end: how the job ended.
        own: the failures of this node's workers.
        env: the workers' environment. In a `relight submit` job, whose logs are read together, only
            the node with the root cause prints the full report, and the others refer to it. In a
            pod, each node prints it, because Kubernetes deletes the pods that are still running
            when a Job fails, with their logs (deleteActivePods in pkg/controller/job).
    """
    root = end.root
    if not end.report or root is None:
        return "\n".join(end.report or (f"error: {end.reason}",))
    of = root.rank, root.pid, root.host
    ours = any((each.rank, each.pid, each.host) == of for each in own)
    if ours or not env.get(JOB) or env.get(_IN_POD):
        return "\n".join(end.report)
    return f"{end.headline}; its own node reports it. Exit code {end.exit_code}"


def tell_parent(path: str, failure: Failure, logs: Logs | None, headline: str) -> None:
    """Write a failure to the error file provided by the program that started this agent.

    Args:
        path: the error file.
        failure: the failure that ended the job.
        logs: the failed worker's logs, or None if it was on another node or in an earlier
            generation.
        headline: why the job failed, in one line.
    """
    source = logs.error_file(failure.local_rank) if logs is not None else ""
    with suppress(OSError, ValueError):  # optional: the report is also on stderr
        error_files.write(path, failure, source, headline)


def tell_container(headline: str, env: Environment) -> None:
    """Write the headline to the file that the kubelet reads as the container's termination message
    (terminationMessagePath), so that `kubectl describe pod` and `relight status` show it.
    """
    path = env.get(_TERMINATION_LOG) or ("/dev/termination-log" if env.get(_IN_POD) else "")
    if not path:
        return
    with suppress(OSError):  # optional: the report is also on stderr
        # Only write to an existing file, because the kubelet creates it before the container
        # starts.
        fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "wb") as log:
            log.write(headline.encode(errors="replace")[:_MAX_MESSAGE])


def _failure(end: WorkerEnd, logs: Logs, workers: Workers, command: Command, host: str) -> Failure:
    stderr = _with_own_files(_stderr(logs, end.local_rank), command)
    program = _program(command)
    more = last_words.after_traceback(stderr, program, logs.printed_late(end.local_rank))
    seen = _went_on(logs, end.local_rank)
    if seen is False and more:
        seen = None  # a program that the worker ran may have printed it
    report = _reported(logs, end.local_rank, stderr, program._replace(went_on=seen))
    if report is not None and seen is None and (end.exitcode == 1 or end.stop_signal):
        report = last_words.weighed(report, more)
    if report is None and end.exitcode == 1 and not last_words.words(stderr, ""):
        report = _on_stdout(_text(logs.stdout_of, end.local_rank), program)
    printed_s, went_on = _printed(end, logs, report)
    failure = Failure(
        rank=workers.ranks[end.local_rank],
        local_rank=end.local_rank,
        host=host,
        pid=workers.pids.get(end.local_rank, 0),
        exitcode=end.exitcode,
        at=end.at,
        stop_signal=end.stop_signal,
        report=report,
        last_lines=tracebacks.last_lines(stderr),
        evidence="",
        log=logs.path(end.local_rank, STDERR),
        doing=workers.doing.get(end.local_rank),
        stopping_s=round(end.stopping_s, 6),
        printed_s=printed_s,
        went_on=went_on,
    )
    raised = report is not None and report.kind is FailureKind.RAISED
    if raised and not failure.is_explained:  # it is not known where its message ends
        printed = _reported(logs, end.local_rank, stderr, program._replace(went_on=True))
        failure = failure._replace(report=printed)
    failed_at = time.localtime(time.time() - time.monotonic() + causes.since(failure))
    return failure._replace(when=time.strftime("%F %T%z", failed_at))


def _program(command: Command) -> tracebacks.ProgramFacts:
    is_script = not (command.module or command.no_python or command.run_path)
    return tracebacks.ProgramFacts(
        is_function=command.module and command.script == _FUNCTION,
        script=os.path.basename(command.script) if is_script else "",
    )


def _on_stdout(stdout: str, program: tracebacks.ProgramFacts) -> ErrorReport | None:
    """Return the exception at the end of a worker's stdout if the worker itself printed it."""
    report = tracebacks.from_stderr(stdout, program)
    if report is None or last_words.after_traceback(stdout, program):
        return None
    return report._replace(kind=FailureKind.PRINTED)


def _add_output(
    failure: Failure, logs: Logs, workers: Workers, command: Command, elsewhere: frozenset[str]
) -> Failure:
    """Return the failure with the worker's relevant output other than the exception, and with the
    facts reported by the machine.
    """
    stderr = _with_own_files(_stderr(logs, failure.local_rank), command)
    evidence = (
        _explain_start_failure(workers.evidence.get(failure.local_rank, ""), command)
        or _explain_sigkill(failure, stderr, workers)
        or _explain_signal(failure, command)
        or _explain_exception(failure, stderr, logs, command, workers)
        or ("" if stderr or failure.report else _explain_full_disk(failure))
    )
    words = _informative_line(failure, logs, stderr, elsewhere, command)
    return failure._replace(evidence=evidence, words=words)


def _reported(
    logs: Logs, local_rank: int, stderr: str, program: tracebacks.ProgramFacts
) -> ErrorReport | None:
    """Return a worker's exception with its complete traceback. Torch's `@record` writes only the
    frames below its own frame.
    """
    recorded = error_files.read(logs.error_file(local_rank))
    printed = tracebacks.from_stderr(stderr, program)
    if recorded is None or printed is None:
        return recorded or printed
    same = printed._replace(kind=recorded.kind, lines=recorded.lines) == recorded
    return recorded._replace(lines=printed.lines) if same else recorded


def _stderr(logs: Logs, local_rank: int) -> str:
    """Return the end of a worker's stderr. If the process aborted at exit, the stack printed by
    faulthandler is left out. The program had already ended by then, so the abort isn't a separate
    crash.
    """
    text = _text(logs.stderr_of, local_rank)
    before, at_exit, stack = text.rpartition(_AT_EXIT)
    if at_exit and (_went_on(logs, local_rank) is False or _PYTHON_FRAME not in stack):
        return f"{before}{at_exit.partition(_FAULT)[0]}"
    return text


def _with_own_files(stderr: str, command: Command) -> str:
    """Return a worker's stderr with the full paths of the user's own Cython files. Other relative
    paths of such files belong to libraries.
    """
    folders = "" if command.module else os.path.dirname(command.script), ""

    @functools.cache
    def find(path: str) -> str:
        try:
            paths = [os.path.abspath(os.path.join(folder, path)) for folder in folders]
        except OSError:  # the working directory was deleted
            return path
        return next(filter(os.path.isfile, paths), path)

    return _CYTHON_FRAME.sub(lambda match: find(match[0]), stderr)


def _text(read: Callable[[int], str], local_rank: int) -> str:
    try:
        return read(local_rank)
    except OSError:
        return ""  # the file was removed


def _went_on(logs: Logs, local_rank: int) -> bool | None:
    """Return whether the program kept running after its last traceback, or None if unknown."""
    printed = logs.printed(local_rank)
    return printed.went_on if printed is not None else None


def _printed(
    end: WorkerEnd, logs: Logs, report: ErrorReport | None
) -> tuple[float | None, bool | None]:
    """Return how many seconds before its exit a worker printed the exception in its report, and
    whether its program kept running afterwards, with None for an unobserved value.
    """
    printed = logs.printed(end.local_rank)
    if printed is None or printed.at is None or report is None:
        return None, None
    if report.kind is FailureKind.CRASHED:  # not a traceback
        return None, None
    return round(max(0.0, end.at - printed.at), 6), printed.went_on


def _informative_line(
    failure: Failure, logs: Logs, stderr: str, elsewhere: frozenset[str], command: Command
) -> str:
    """Return the most informative line in a worker's output. If a thread or the program printed
    another exception before the fatal one, include that exception. A line on stdout may have been
    printed before the traceback, unless the program kept running after it. Such a line may also
    have been printed before a crash, unless it reports an error.
    """
    report, local_rank = failure.report, failure.local_rank
    is_exception = report is not None and report.kind is not FailureKind.CRASHED
    crashed = _is_crash(failure.exitcode) and not failure.aborted_at_exit
    before = tracebacks.printed_before(stderr) if failure.is_explained else None
    if (
        before is not None
        and before.type
        and not last_words.lines_without_numbers(before.lines) <= elsewhere
        and not (crashed and _is_old(failure, logs))
    ):
        if failure_text.ended_thread(before):
            return failure_text.printed_exception(before, _MAX_WORDS, places=True)
        at = f" at {before.where}" if before.where else ""
        return f"{before.type}: {headline(before, _MAX_WORDS)}{at}"
    stdout = _text(logs.stdout_of, local_rank)
    if is_exception:
        earlier, later = tracebacks.besides(stderr, _program(command))
        is_ignored = report is not None and tracebacks.is_ignored(report)
        # An error that did not end the worker may be irrelevant by the time it ended.
        kept = earlier if failure.is_explained else [*earlier, *later] if is_ignored else later
        if failure.is_explained:
            numberless = last_words.lines_without_numbers
            kept = [line for line in kept if not numberless([line]) <= elsewhere]
        stderr = "\n".join(kept)
        if not (failure.is_explained or is_ignored or _went_on(logs, local_rank)):
            stdout = ""
    if crashed:
        said = last_words.before_crash(stderr, elsewhere)
        printed = "" if said else last_words.before_crash(stdout, elsewhere)
        return said or (printed if last_words.is_error(printed) else "")
    said = last_words.words(stderr, stdout, elsewhere)
    if failure.exitcode > 0 or last_words.is_error(said):
        return said
    return last_words.words(stderr, "", elsewhere)


def _is_old(failure: Failure, logs: Logs) -> bool:
    """Return whether a worker's last traceback was printed some time before a signal ended it."""
    printed = logs.printed(failure.local_rank)
    return printed is not None and printed.at is not None and failure.at - printed.at > _NEAR_S


def _explain_start_failure(evidence: str, command: Command) -> str:
    """Return the reason why a worker could not be started, with the missing file if known."""
    if evidence.endswith(os.strerror(errno.EAGAIN)):
        return f"{evidence} (check `ulimit -u` and the container's pids limit)"
    for number, explain in (
        (errno.ENOENT, exit_evidence.missing_interpreter),
        (errno.ENOEXEC, exit_evidence.unknown_format),
    ):
        if evidence.endswith(os.strerror(number)):
            is_program = command.no_python and not command.run_path
            program = command.script if is_program else command.python
            known = explain(program, command.env)
            return evidence.replace(os.strerror(number), known) if known else evidence
    return evidence


def _explain_signal(failure: Failure, command: Command) -> str:
    """Return the machine's evidence about a signal that the kernel sent."""
    number = -failure.exitcode if failure.exitcode < 0 else failure.exitcode - 128
    if number == signal.SIGBUS:
        return exit_evidence.bus_error(command.env)
    return exit_evidence.cpu_limit() if number == signal.SIGXCPU else ""


def _explain_exception(
    failure: Failure, stderr: str, logs: Logs, command: Command, workers: Workers
) -> str:
    """Return the machine's evidence about a worker's exception."""
    report = failure.report
    closed = exit_evidence.closed_output(report, failure.exitcode, is_closed=logs.reader_is_gone)
    if closed:
        return closed
    texts = [report.message, *report.lines] if report is not None else stderr.split("\n")[-_LAST:]
    if not failure.stop_signal and (
        said := exit_evidence.local_rank(texts, command, len(workers.ranks))
    ):
        return said
    if report is not None and failure.is_explained and report.message.startswith(_TIMED_OUT):
        return workers.loaders.get(failure.local_rank, "")
    lost = _lost_loader(failure, workers)
    full = exit_evidence.full_shared_memory([*texts, lost], command.env)
    if lost or full:
        return f"{lost}; {full}" if lost and full else lost or full
    temporary = command.env.get("TMPDIR", "/tmp")  # noqa: S108
    log = os.path.dirname(failure.log)
    full = exit_evidence.full_disks(texts, (".", log, temporary))
    return full or exit_evidence.file_size_limit(texts)


def _explain_full_disk(failure: Failure) -> str:
    """Return a note if a worker's output may have been lost because the disk was full."""
    if failure.stop_signal or failure.exitcode < 0 or not failure.log:
        return ""
    free, size = exit_evidence.space(os.path.dirname(failure.log))
    full = size and not free  # some file systems report no blocks
    return "the disk of its log is full; output may be lost" if full else ""


def _explain_sigkill(failure: Failure, stderr: str, workers: Workers) -> str:
    """Return the kernel's report on a SIGKILL that the agent did not send."""
    if failure.stop_signal:
        return ""
    if failure.exitcode == -signal.SIGKILL:
        found = workers.oom_kills.explain_kill(failure.pid, failure.at)
        return exit_evidence.hard_cpu_limit() or found if found.startswith(NOBODY) else found
    is_shell = failure.exitcode == 128 + signal.SIGKILL
    is_silent = failure.exitcode > 0 and not stderr
    lost = _lost_loader(failure, workers)
    if is_shell or is_silent or _reports_killed_child(failure) or _CHILD_KILLED.search(lost):
        found = workers.oom_kills.explain_child_kill(failure.at, is_worker=is_shell)
        return f"{lost}; {found}" if lost and found else found
    return ""


def _lost_loader(failure: Failure, workers: Workers) -> str:
    """Return how a worker's DataLoader process died, if that explains the worker's failure."""
    evidence = workers.loaders.get(failure.local_rank, "")
    is_cause = loaders.is_death(evidence) and loaders.lost_one(failure._replace(evidence=evidence))
    return evidence if is_cause else ""


def _reports_killed_child(failure: Failure) -> bool:
    """Return whether a worker's exception, or otherwise its last output, says that a process that
    it had started was killed with SIGKILL.
    """
    report = failure.report
    if report is not None and failure.is_explained:
        texts = [f"{report.type}: {report.message}", report.cause]
    else:
        texts = list(failure.last_lines)
    return any(_CHILD_KILLED.search(text[:_MAX_MESSAGE]) for text in texts)
