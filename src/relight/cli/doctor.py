"""`relight doctor`: finds problems with this machine and with the network between the nodes.

The command accepts the same command line as `relight run`, so that you can replace `run` with
`doctor` in a command. Flags unrelated to machines or networks are accepted and ignored.
"""

import json
import os
import sys
from typing import Any

from relight.base import env as environment
from relight.base.env import Environment
from relight.base.errors import EXIT_OK, UsageError
from relight.base.text import pluralize
from relight.base.values import parse_interval
from relight.doctor.gathering import gather
from relight.doctor.hosting import GatherSettings
from relight.flags import site, suggestions
from relight.flags.arguments import ParsedFlags, parse
from relight.flags.site import Site
from relight.flags.spec import FLAGS, Flag, LaunchSpec, check
from relight.flags.usage import flag_lines
from relight.health import endpoint, inspection
from relight.health import machine_findings as machine
from relight.health.doctor_messages import Verdict
from relight.health.finding import ERROR, OK, WARNING, Finding, format_finding, in_order
from relight.host import env_fingerprint
from relight.processes import interpreter
from relight.rendezvous import backends
from relight.rendezvous.autodetect import take
from relight.rendezvous.config import DEFAULT_ENDPOINT_PORT, arrange

EXIT_FOUND = 1
WAIT_S = 10.0
OWN = (
    Flag("timeout", parse_interval, WAIT_S, "S",
         "how long to wait for the next node after one has joined", from_env=False),
    Flag("json", None, False, "", "print one JSON object", from_env=False),
)  # fmt: skip
_HELP_FLAGS = ("nnodes", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "rdzv-backend", "node-rank",
          "master-addr", "master-port", "local-addr", "help", "verbose")  # fmt: skip
_STATIC = {"node-rank", "master-addr", "master-port"}

_CHANGED: dict[str, dict[str, Any]] = {
    "rdzv-backend": {"default": "c10d"},
    "verbose": {"help": "also print checks that passed"},
}
DOCTOR_FLAGS = (
    *(flag._replace(**_CHANGED.get(flag.name, {})) for flag in FLAGS),
    *OWN,
)


def main(argv: list[str]) -> int:
    """Run `relight doctor` and return 0, or 1 if an error was found.

    Raises:
        RelightError: if the command line is invalid.
    """
    env = environment.read()
    of_site = site.load(env)
    parsed = parse(argv, env, DOCTOR_FLAGS, of_site)
    if parsed.values["help"]:
        print(usage())
        return EXIT_OK
    spec = _spec(parsed, env)
    wait_s = float(parsed.values["timeout"])
    python = interpreter.choose(env)
    known = _facts(spec, python)
    seen = inspection.read(env, known)
    verdict = _network(spec, env, wait_s, {**known, **inspection.collect_facts(seen)})
    alone = spec.runs_locally() and not spec.rdzv_endpoint.host
    found = [*verdict.findings, *machine.judge(seen, alone=alone), *_unknown_locks(of_site)]
    if parsed.values["json"]:
        _print_json(seen, verdict, found)
    else:
        _print(found, verdict, verbose=spec.verbose)
    return EXIT_FOUND if any(finding.level == ERROR for finding in found) else EXIT_OK


def usage() -> str:
    """Return the help text of `relight doctor`."""
    lines = [
        "usage: relight doctor [flags]",
        "",
        "Checks this machine. With --nnodes and --rdzv-endpoint, it also checks the network",
        "between the nodes; start it on all of them. It accepts the command line of relight run",
        "(replace run with doctor).",
        "",
    ]
    lines += flag_lines(flag for flag in DOCTOR_FLAGS if flag.name in _HELP_FLAGS or flag in OWN)
    lines += [
        "",
        "examples:",
        "  relight doctor",
        "  relight doctor --nnodes=4 --rdzv-endpoint=gpu-01     (on each of the four)",
        "  srun --nodes=4 --ntasks-per-node=1 relight doctor",
        "",
        "exit code: 0 if there are no errors (warnings are possible); 1 if there are errors; "
        "2 wrong usage",
    ]
    return "\n".join(lines)


def _spec(parsed: ParsedFlags, env: Environment) -> LaunchSpec:
    """Return the launch spec from the flags or the cluster's variables. The spec may lack a
    script.
    """
    fields = {name: parsed.values[name] for name in LaunchSpec._fields if name in parsed.values}
    if "rdzv-backend" not in parsed.given and _STATIC & parsed.given:
        fields["rdzv_backend"] = "static"
    if parsed.command and not parsed.command[0].strip():
        raise suggestions.blank("the script", parsed.command[0])
    script, *arguments = [*parsed.command, ""][: len(parsed.command) or 1]
    spec = LaunchSpec(**fields, script=script, script_args=tuple(arguments))
    spec, given, notes = take(spec, parsed.given, env)
    check(spec, given)
    backends.check(spec.rdzv_backend)
    is_file = spec.script not in ("", "-") and not (spec.module or spec.no_python)
    if is_file and not os.path.exists(spec.script):
        raise UsageError(f"no such file: {spec.script}", hint="check the path")
    for note in notes:
        print(f"relight: note: {note}", file=sys.stderr)
    if spec.rdzv_backend not in ("c10d", "static"):
        raise UsageError(
            f"--rdzv-backend={spec.rdzv_backend}: relight doctor needs an endpoint that is hosted "
            "by one of the nodes",
            hint="relight doctor --rdzv-endpoint=HOST --nnodes=N, with any node's host name",
        )
    return spec


def _facts(spec: LaunchSpec, python: str) -> dict[str, str]:
    found = env_fingerprint.collect(
        script=spec.script,
        arguments=spec.script_args,
        is_file=bool(spec.script) and not (spec.module or spec.no_python),
        python=python,
    )
    if not spec.script:
        del found["arguments"]
    return found


def _network(spec: LaunchSpec, env: Environment, wait_s: float, known: dict[str, str]) -> Verdict:
    """Return the findings about the network and the other nodes."""
    if not spec.runs_locally():
        meeting, _, _ = arrange(spec, env)
        wanted = spec.nnodes.max_nodes

        def say(came: list[str]) -> None:
            if len(came) < wanted:
                text = f"{len(came)} of {pluralize(wanted, 'node')} joined: {', '.join(came)}"
                print(f"relight: {text}; waiting for the others", file=sys.stderr, flush=True)

        return gather(GatherSettings(meeting, spec.nnodes, wait_s, known), say)
    found: list[Finding] = []
    if spec.rdzv_endpoint.host:
        for each in (spec.rdzv_endpoint, *spec.rdzv_endpoint.others):
            port = DEFAULT_ENDPOINT_PORT if each.port is None else each.port
            found += endpoint.judge(endpoint.examine(each.host, port, 2.0))
    return Verdict(tuple(found), ())


def _unknown_locks(of_site: Site) -> list[Finding]:
    if not of_site.locked:
        return []
    from relight.runner import site_locks  # loads the schedulers

    found = site_locks.unknown(of_site)
    return [Finding(WARNING, what, of_site.path, "", hint) for what, hint in found]


def _print(found: list[Finding], verdict: Verdict, *, verbose: bool) -> None:
    wrong = [finding for finding in found if finding.level != OK]
    for finding in in_order(found if verbose else wrong):
        print("\n".join(format_finding(finding)))
    if wrong:
        errors = sum(finding.level == ERROR for finding in wrong)
        warnings = sum(finding.level == WARNING for finding in wrong)
        print(
            f"{pluralize(errors, 'error')}, {pluralize(warnings, 'warning')}; "
            f"checked {_scope(verdict)}"
        )
    else:
        print(f"no problems found; checked {_scope(verdict)}")


def _scope(verdict: Verdict) -> str:
    machine = "shared memory, temporary files, limits, memory, GPUs, packages"
    count = len(verdict.came)
    if count < 2:
        return machine
    pairs = pluralize(count * (count - 1) // 2, "pair")
    what = "connections, packet sizes, versions, clocks"
    return f"{machine}; {pairs} among {count} nodes: {what} (in {verdict.seconds:.1f} s)"


def _print_json(seen: machine.Machine, verdict: Verdict, found: list[Finding]) -> None:
    disks = {"shm": seen.shm._asdict(), "tmp": seen.tmp._asdict()}
    print(
        json.dumps(
            {
                "host": seen.host,
                "ok": not any(finding.level == ERROR for finding in found),
                "nodes": verdict.came,
                "seconds": round(verdict.seconds, 3),
                "findings": [finding._asdict() for finding in in_order(found)],
                "machine": {**seen._asdict(), **disks, "gpus": seen.gpus._asdict()},
            }
        )
    )
