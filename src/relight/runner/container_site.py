"""Passes the site's flags of `relight run`, and their locks, to jobs in containers, where agents
can't read the site's file.

They travel in one variable (`flags.site.PASSED`) and not as one variable for each flag. The agent
thus knows that they come from the site: the job's own flags and variables override them, locks
apply to flags on the agent's command line, and an image with its own file uses that.
"""

import json

from relight.base.env import Environment
from relight.flags.arguments import parse
from relight.flags.rdzv_conf import KEY_BY_NAME
from relight.flags.site import CONF, PASSED, SUBMISSION_HOST, Site
from relight.flags.spec import FLAG_BY_NAME
from relight.runner.site_locks import DEFAULTS, plain_name

_OF_HOST = frozenset(("failure-report", "keep-warm", "log-dir", "tracker"))
"""Flags that name files or processes of a host. A container may lack them and then fail to
start.
"""


def variables(site: Site) -> dict[str, str]:
    """Return the variable that contains the site's flags. The result is empty if the site has none.

    Raises:
        UsageError: if a value in the site's file is invalid.
    """
    values = parse([], Environment({}), [FLAG_BY_NAME[name] for name in site.run], site).values
    local = {n for n in site.run if n in _OF_HOST or _is_local(values[FLAG_BY_NAME[n].field])}
    files = {key for key, _ in site.conf if key in KEY_BY_NAME and KEY_BY_NAME[key].is_file}
    run = {name: text for name, text in site.run.items() if name not in local}
    conf = {key: text for key, text in site.conf if key not in files}
    locked = [name for name in sorted(site.locked) if plain_name(name) not in local | files]
    locked = [name for name in locked if not name.startswith(("schedulers.", *DEFAULTS))]
    if not run and not conf and not locked:
        return {}
    content = {
        "path": site.path.removesuffix(SUBMISSION_HOST),
        "run": run | ({CONF: conf} if conf else {}),
        "locked": locked,
    }
    return {PASSED: json.dumps(content)}


def _is_local(value: object) -> bool:
    """Return whether a flag's value is a file or a program, such as a command for the health
    check.
    """
    return bool(getattr(value, "file", "") or getattr(value, "command", ""))
