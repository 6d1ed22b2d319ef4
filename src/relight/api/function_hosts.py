"""`relight.launch` on other hosts: an ssh scheduler job whose workers call the function.

The pickled call is sent as the job's workspace. After a host's agent exits, its wrapper process
(`main`) prints the workers' results on lines that begin with a secret random marker. `_copy_output`
removes those lines from the output.
"""

import base64
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from relight.job import macros
from relight.job.app import AppDef, Role
from relight.job.handles import Handle
from relight.runner.runner import Runner
from relight.worker import call

_PART_BYTES = 30_000
_STREAMS = ("stdout", "stderr")
_PORTS = range(20000, 30000)
_ROLE = "launch"


def run(
    directory: str,
    flags: Sequence[str],
    hosts: Sequence[str],
    variables: Mapping[str, str],
    cfg: Mapping[str, Any],
) -> list[int]:
    """Call the function pickled in `directory` on workers on other hosts, and store the results in
    the same directory.

    Args:
        directory: contains `call.pickle`.
        flags: flags of `relight run`.
        hosts: the hosts, with one agent each.
        variables: variables for the workers.
        cfg: more ssh scheduler options.

    Returns:
        The exit code of each host's agent. Each host has its own results directory, because a rank
        may have run on one host at first and on another host later.

    Raises:
        RelightError: if a host can't run the job. Nothing was started.
    """
    word = secrets.token_hex(8)
    role = make_role(_ROLE, word, flags, len(hosts), variables)
    options = {**cfg, "hosts": list(hosts), "workspace": directory}
    with Runner() as runner:
        handle = runner.find(runner.submit(AppDef(_ROLE, [role]), scheduler="ssh", cfg=options))
        try:
            readers = [
                threading.Thread(
                    target=_copy_output, args=(runner, handle, replica, stream, word, directory)
                )
                for replica in range(len(hosts))
                for stream in _STREAMS
            ]
            for reader in readers:
                reader.start()
            found = runner.wait(handle)
            for reader in readers:
                reader.join()
        finally:
            runner.delete(handle)
    return [each.exitcode or 0 for each in found.replicas] if found.exitcode else [0]


def make_role(
    name: str, word: str, flags: Sequence[str], hosts: int, variables: Mapping[str, str]
) -> Role:
    """Return the role for an ssh job whose workspace is a call's directory.

    Args:
        name: the name of the role.
        word: the marker that begins each result line.
        flags: flags of `relight run`.
        hosts: the number of hosts.
        variables: variables for the workers.
    """
    port = secrets.choice(_PORTS)
    meeting = ["--rdzv-backend=c10d", f'--rdzv-endpoint="$RELIGHT_RANK0_HOST:{port}"',
               f"--rdzv-id={macros.app_id}", f"--nnodes={hosts}"]  # fmt: skip
    command = f'exec "$RELIGHT_PYTHON" -m {__name__} {word} "$@" ' + " ".join(meeting)
    return Role(
        name=name,
        image="",
        entrypoint="sh",
        args=["-c", command, "sh", *flags],
        env=dict(variables),
        num_replicas=hosts,
    )


def attach_marker(app_id: str) -> str:
    """Return the marker for a job that another process may attach to."""
    return f"result-of-{app_id}"


def keep_results(runner: Runner, handle: str, directory: str, word: str) -> None:
    """Store the results in the output of a finished job."""
    for role, replica in runner.replicas(handle):
        for line in runner.log_lines(handle, role, replica, stream="stdout"):
            _printed(line, word, os.path.join(directory, str(replica)))


def _copy_output(
    runner: Runner, handle: Handle, replica: int, stream: str, word: str, directory: str
) -> None:
    """Copy a replica's output to this process's output, without the result lines."""
    for line in runner.log_lines(handle, _ROLE, replica, follow=True, stream=stream):
        if printed := _printed(line, word, os.path.join(directory, str(replica))):
            out = getattr(sys, stream)
            out.write(printed)
            out.flush()


def _printed(line: str, word: str, directory: str) -> str:
    """Return the part of a line that the function printed. If the line contains a result, store the
    result.
    """
    printed, ours, kept = line.partition(word)
    if not ours:
        return printed + "\n"
    name, _, text = kept.strip().partition(" ")
    append_result(directory, name, text)
    return printed


def append_result(directory: str, name: str, text: str) -> None:
    """Append data to a worker's result file, but ignore data that can't have come from a worker."""
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        data = b""
    if not call.is_result_file(name) or not data:
        sys.stderr.write(
            f"relight: note: ignored {name[:80]!r} from a host, because it is not a result\n"
        )
        return
    os.makedirs(directory, mode=0o700, exist_ok=True)
    with open(os.path.join(directory, name), "ab") as file:
        file.write(data)


def main(word: str, flags: Sequence[str]) -> int:
    """Run an agent on this host, print its workers' results, and return its exit code."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # the agent also gets the signal
    here = os.getcwd()
    # The directory can't be passed as an argument, because all hosts of a job have the same
    # arguments.
    script = ["-m", "relight.api.function_hosts"]
    command = [sys.executable, "-m", "relight", "run", *flags, *script]
    code = subprocess.run(command, check=False).returncode
    for name in sorted(os.listdir(here)):
        if call.is_result_file(name):
            with open(os.path.join(here, name), "rb") as file:
                while part := file.read(_PART_BYTES):
                    sys.stdout.write(f"{word} {name} {base64.b64encode(part).decode()}\n")
    sys.stdout.flush()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    if len(sys.argv) == 1:  # a worker
        call.main(os.getcwd())
        sys.exit()
    sys.exit(main(sys.argv[1], sys.argv[2:]))
