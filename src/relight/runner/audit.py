"""Reports which user submits, cancels, deletes or debugs a job to the event handler
(--event-log-handler).

The handler runs in a separate process, `python -m relight.runner.audit NAME`, which receives the
event as JSON on stdin, so the handler may block, raise or exit. By the time the handler runs, the
command has done its work, and the handler doesn't affect its exit code.
"""

import json
import subprocess
import sys
import time

from relight.base.env import Environment
from relight.base.errors import UsageError
from relight.base.fields import printable
from relight.base.values import EVENT_HANDLERS
from relight.events import handlers
from relight.events.event_types import SCHEMA
from relight.flags.arguments import parse
from relight.flags.site import Site
from relight.flags.spec import FLAG_BY_NAME
from relight.host import job_origin

_FLAG = FLAG_BY_NAME["event-log-handler"]
_LIMIT_S = 5.0


def record(env: Environment, site: Site, action: str, job: str, detail: str = "") -> None:
    """Report a user's action to the event handler. If that fails, print a message to stderr.

    Args:
        env: the environment. It may set the handler.
        site: the site's configuration. It may also set the handler.
        action: submit, cancel, delete or debug.
        job: the job's handle.
        detail: the component that was submitted, or the rank that is being debugged.
    """
    name, wrong = "", ""
    # A variable must not be able to turn off a handler that the site has locked.
    for variables in (env, Environment({})):
        try:
            name = parse([], variables, (_FLAG,), site).values[_FLAG.field]
            break
        except UsageError as error:
            wrong = error.message
    recorded = bool(name) and name not in EVENT_HANDLERS
    if wrong:
        missing = "" if recorded else f"no audit record of {action}: "
        sys.stderr.write(f"relight: {missing}{wrong}\n")
    if not recorded:
        return
    event = {
        "v": SCHEMA, "n": 1, "t": time.monotonic(), "time": time.time(), "event": "UserAction",
        "action": action, "job": job, "detail": detail,
        "agent": job_origin.from_environment({})._asdict(),
    }  # fmt: skip
    command = [sys.executable, "-m", "relight.runner.audit", name]
    try:
        done = subprocess.run(
            command, input=json.dumps(event), capture_output=True, text=True, timeout=_LIMIT_S,
            check=False, errors="replace",
        )  # fmt: skip
        said = done.stderr.strip().rpartition("\n")[2]
        why = (said or f"it exited with code {done.returncode}") if done.returncode else ""
    except subprocess.TimeoutExpired:
        why = f"it took longer than {_LIMIT_S:g} s"
    except OSError as error:
        why = str(error.strerror)
    if why:
        text = f"relight: --event-log-handler={name}: no audit record of {action}: {why}"
        sys.stderr.write(printable(text, lines=False) + "\n")


def _main() -> None:
    event = json.loads(sys.stdin.read())
    handlers.load(sys.argv[1])(event)


if __name__ == "__main__":
    _main()
