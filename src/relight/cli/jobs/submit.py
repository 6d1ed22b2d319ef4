"""`relight submit`: submits a job to a scheduler."""

import json
import re
import shlex
import signal
import sys
from collections.abc import Sequence
from inspect import signature
from itertools import takewhile
from typing import Any

from relight.base.env import Environment
from relight.base.errors import EXIT_OK, RelightError, UsageError, signal_exit_code
from relight.base.text import did_you_mean
from relight.cli.jobs.common import (
    JSON,
    Follower,
    Page,
    print_json,
    print_status,
    report,
    say,
    switch,
)
from relight.cli.jobs.schedulers import option_lines
from relight.flags import suggestions
from relight.flags.arguments import parse
from relight.flags.spec import Flag
from relight.job import components
from relight.job.components import loading
from relight.job.components.arguments import HelpAskedError
from relight.job.components.dist import ddp
from relight.job.handles import Handle
from relight.runner.prepared import Prepared
from relight.runner.runner import Runner

PAGE = Page(
    "submit [flags] COMPONENT [its flags] [-- arguments of the script]",
    (
        "Submits a job to this machine, Docker, Slurm …, and prints its handle. A component",
        "defines the job: dist.ddp, utils.python …, or your own path/file.py:function.",
        "With local and ssh, the command shows the job's output and exits when the job ends",
        "(unless -cfg detach=true). With other schedulers it returns immediately, unless --wait",
        "or --log is given. -h selects the resources per node, by TorchX's names (gpu.xlarge:",
        "64 CPUs, 8 GPUs, 256 GiB) or your own, from the module in RELIGHT_NAMED_RESOURCES.",
    ),
    (
        Flag("scheduler", str, "", "NAME", "local, docker, slurm, ssh, auto … (default local)",
             short="s"),
        Flag("scheduler-args", str, "", "K=V,…",
             "scheduler options; the same as -cfg K=V,…; -cfg help lists them"),
        switch("dryrun", "print what would be submitted, then exit"),
        switch("wait", "wait until the job ends; the exit code is the job's"),
        switch("log", "print the job's output while it runs, and wait until it ends"),
        switch("tee-logs", "the same as --log"),
        Flag("workspace", str, "", "DIR", "directory to copy for the job"),
        Flag("parent-run-id", str, "", "ID", "id of the parent run, for trackers"),
        Flag("launcher", str, "auto", "NAME",
             "auto, installed, travels (sent with the job), torchrun"),
        switch("stdin", "read flags and arguments from a JSON object on stdin"),
        JSON,
    ),
    (
        "relight submit dist.ddp -j 1x4 --script train.py -- --epochs 3",
        "relight submit -cfg detach=true dist.ddp -j 2x4 --script train.py",
        "relight submit -s slurm -cfg partition=gpu dist.ddp -j 2x8 -h gpu.xlarge --script a.py",
        "relight submit -s docker --dryrun dist.ddp -j 2:4x8 -h gpu.xlarge -m my.train",
        "relight submit dist.ddp --help        (components: relight components)",
    ),
    "exit code: 0 if the job was submitted or, with --wait, succeeded; otherwise the job's; 2 "
    "wrong usage",
)  # fmt: skip
_STDIN = {
    "component_name": str, "scheduler": str, "scheduler_args": dict, "scheduler_cfg": dict,
    "dryrun": bool, "wait": bool, "log": bool, "tee_logs": bool, "workspace": str,
    "parent_run_id": str, "component_args": dict, "component_args_str": list,
}  # fmt: skip
_NEEDED = ("component_name", "scheduler", "scheduler_args")


def main(argv: list[str]) -> int:
    """Run `relight submit`.

    Raises:
        RelightError: if the job was not submitted.
    """
    with Runner() as runner:
        default = runner.settings.command("component")
        words, rest = split(argv, bool(default))
        values = dict(parse(words, Environment({}), PAGE.flags).values)
        if values["help"]:
            print(PAGE.text())
            return EXIT_OK
        if values["scheduler_args"] in ("help", "?"):
            scheduler = runner.scheduler(runner.scheduler_name(values["scheduler"]))
            print("\n".join(option_lines(scheduler)))
            return EXIT_OK
        args: Any = rest
        if values["stdin"]:
            _check_only_stdin(words, rest)
            address, args = _from_stdin(values)
        elif default and (not rest or rest[0].startswith("-")):
            address = default
        elif rest:
            address, *args = rest
            if not address.strip():
                raise suggestions.blank("the component", address)
        else:
            raise UsageError("no component given", hint=f"relight {PAGE.usage}; relight components")
        try:
            job = runner.dryrun(
                address,
                args,
                scheduler=values["scheduler"],
                cfg=values["scheduler_args"],
                workspace=values["workspace"] or runner.settings.command("workspace"),
                parent_run_id=values["parent_run_id"],
                launcher=values["launcher"],
            )
        except HelpAskedError as help_asked:
            print(help_asked.message)
            return EXIT_OK
        if values["dryrun"]:
            return _print_dry_run(job, as_json=values["json"])
        return _submit(runner, job, values)


def split(argv: list[str], stop_at_unknown: bool) -> tuple[list[str], list[str]]:
    """Split off the flags of `relight submit`, as --NAME=VALUE. The remaining arguments begin with
    the component.

    Args:
        argv: the arguments.
        stop_at_unknown: whether an unknown flag belongs to the component named in the settings.

    Raises:
        UsageError: if a flag is given twice, or without a value.
    """
    words: list[str] = []
    seen: set[str] = set()
    left = list(argv)
    while left and left[0].startswith("-") and left[0] not in ("-", "--"):
        word = left[0]
        name, equals, value = word.partition("=")
        flag = _flag(name)
        if flag is None:
            if stop_at_unknown:
                return words, left
            misplaced = _misplaced(words, left)
            if misplaced is not None:
                raise misplaced
            parse([word], Environment({}), PAGE.flags)  # raises an error with a suggestion
            raise UsageError(f"{word} is ambiguous", hint="relight submit --help")
        left.pop(0)
        if flag.name in seen:
            raise UsageError(f"--{flag.name} is given twice")
        seen.add(flag.name)
        if flag.parse is None:
            words.append(f"--{flag.name}{equals}{value}")
            continue
        if not equals and name[:2] != "--" and name != "-cfg" and len(name) > 2:  # -slocal
            equals, value = "=", name[2:]
        if not equals:
            if not left:
                raise UsageError(f"--{flag.name} needs a value: {flag.metavar}")
            value = left.pop(0)
        words.append(f"--{flag.name}={value}")
    return words, left[1:] if left[:1] == ["--"] else left


def _flag(name: str) -> Flag | None:
    if name in ("-cfg", "--cfg"):
        name = "--scheduler-args"
    if not name.startswith("--"):
        return next((flag for flag in PAGE.flags if flag.short and flag.short == name[1]), None)
    wanted = name[2:].replace("_", "-")
    exact = [flag for flag in PAGE.flags if flag.name == wanted]
    found = exact or [flag for flag in PAGE.flags if flag.name.startswith(wanted)]
    return found[0] if len(found) == 1 else None


def _check_only_stdin(words: list[str], rest: list[str]) -> None:
    beside = ("--stdin", "--dryrun", "--json", "--launcher", "--scheduler")
    wrong = [word for word in words if word.partition("=")[0] not in beside] + rest
    if wrong:
        raise UsageError(f"--stdin and {wrong[0]} are mutually exclusive")


def _from_stdin(values: dict[str, Any]) -> tuple[str, Any]:
    """Read the JSON object from stdin into `values`, and return the component and its arguments."""
    try:
        found = json.load(sys.stdin)
    except ValueError as error:
        raise UsageError(f"--stdin: not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError("--stdin: expected a JSON object", hint=f"keys: {', '.join(_STDIN)}")
    for key, value in found.items():
        if key not in _STDIN:
            hint = did_you_mean(key, _STDIN, f"keys: {', '.join(_STDIN)}")
            raise UsageError(f"--stdin: unknown key: {key}", hint=hint)
        if not isinstance(value, _STDIN[key]):
            raise UsageError(f"--stdin: {key} must be a {_STDIN[key].__name__}, not {value!r}")
    if values["scheduler"]:  # --scheduler takes precedence
        found["scheduler"] = values["scheduler"]
    for key in _NEEDED:
        if key not in found:
            raise UsageError(f"--stdin: {key} is missing", hint=f"needed: {', '.join(_NEEDED)}")
    if "component_args" in found and "component_args_str" in found:
        raise UsageError("--stdin: component_args and component_args_str are mutually exclusive")
    for key in ("dryrun", "wait", "log", "tee_logs", "workspace", "parent_run_id", "scheduler"):
        values[key] = found.get(key) or values[key]
    values["scheduler_args"] = {**found["scheduler_args"], **found.get("scheduler_cfg", {})}
    words = found.get("component_args_str", [])
    if not all(isinstance(word, str) for word in words):
        raise UsageError("--stdin: component_args_str must be a list of strings")
    return found["component_name"], words or found.get("component_args", [])


def _print_dry_run(job: Prepared, *, as_json: bool) -> int:
    for note in filter(None, (*job.notes, job.missing)):
        say(f"note: {note}")
    if as_json:
        print_json(job.to_json())
    else:
        print(job.request.text.rstrip("\n"))
    return EXIT_OK


def _submit(runner: Runner, job: Prepared, values: dict[str, Any]) -> int:
    for note in job.notes:
        say(f"note: {note}")
    scheduler = runner.scheduler(job.scheduler)
    lives = scheduler.capabilities.survives_caller or bool(job.request.cfg.get("detach"))
    logs = values["log"] or values["tee_logs"] or not lives
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(signal_exit_code(number)))
    handle = runner.find(runner.submit(job))
    if not values["json"]:
        print(handle, flush=True)
    try:
        found = runner.status(handle)
        if logs or values["wait"]:
            found = _watch(runner, handle, logs=logs)
    except (KeyboardInterrupt, SystemExit):
        say(f"{handle} keeps running" if lives else f"stopping {handle}")
        raise
    if values["json"]:
        print_status(handle, found)
    return found.exitcode if found.state.is_over else EXIT_OK


def _watch(runner: Runner, handle: Handle, *, logs: bool) -> Any:
    follower = Follower(runner, handle, sys.stderr) if logs else None
    found = runner.wait(handle)
    if follower is not None:
        try:
            follower.join()
        except RelightError as error:  # this doesn't affect the job's outcome
            say(f"note: the output is incomplete: {error.message}")
    report(handle, found)
    return found


def _misplaced(given: Sequence[str], left: Sequence[str]) -> UsageError | None:
    """Return an error if a component's flag was given where the component should be, otherwise
    None. A flag is assumed to be one of `dist.ddp` unless a built-in component follows.

    Args:
        given: the preceding flags of `relight submit`.
        left: the flag and all arguments after it.
    """
    known = components.names()
    words = takewhile("--".__ne__, left)
    is_file = re.compile(r"[^-=][^=]*\.py:\w+").fullmatch
    component = next((word for word in words if word in known or is_file(word)), "")
    function = loading.find(component) if component in known else ddp
    flag = left[0].partition("=")[0]
    if flag.lstrip("-").replace("-", "_") not in signature(function).parameters:
        return None
    if component:
        return UsageError(f"{flag} must come after {component}", hint=f"relight {PAGE.usage}")
    line = shlex.join(["relight", "submit", *given, "dist.ddp", *left])
    return UsageError("no component given", hint=f"did you mean {line}?")
