"""Use the Slurm scheduler on a login node: `python slurm_jobs.py VERB ARGUMENTS`, JSON on stdout.

submit NAME CFG ROLE...   roles as JSON objects of Role's fields; prints the id
render NAME CFG ROLE...   prints the script
status ID...              prints {id: {state, message, restarts, exitcode, replicas}}
logs ID ROLE K STREAM follow|once
cancel ID | delete ID | list
"""

import json
import sys
from typing import Any

from relight.base.errors import RelightError
from relight.job import records
from relight.job.app import AppDef, Resource, Role
from relight.schedulers.api import LogQuery
from relight.schedulers.slurm.scheduler import Slurm


def role(fields: dict[str, Any]) -> Role:
    """Return a role with these fields. The entrypoint defaults to `bash` and the image to `img`."""
    resource = Resource(*fields.pop("resource", (-1, -1, -1)))
    fields = {"image": "img", "entrypoint": "bash", **fields, "resource": resource}
    return Role(**{**fields, "args": tuple(fields.get("args", ()))})


def main(verb: str, *words: str) -> Any:
    """Run one command."""
    scheduler = Slurm()
    if verb in ("submit", "render"):
        name, cfg, *roles = words
        app = AppDef(name, tuple(role(json.loads(text)) for text in roles))
        defaults = {option.name: option.default for option in scheduler.options}
        request = scheduler.render(app, {**defaults, **json.loads(cfg)}, records.new_id(name))
        return scheduler.submit(request) if verb == "submit" else request.text
    if verb == "status":
        return {
            app_id: {
                "state": status.state.name,
                "message": status.message,
                "restarts": status.restarts,
                "exitcode": status.exitcode,
                "replicas": [
                    [f"{r.role}/{r.replica}", r.state.name, r.host, r.exitcode, r.error]
                    for r in status.replicas
                ],
            }
            for app_id, status in scheduler.status(words).items()
        }
    if verb == "logs":
        app_id, name, number, stream, how = words
        query = LogQuery(name, int(number), follow=how == "follow", stream=stream)
        for line in scheduler.logs(app_id, query):
            print(line, flush=True)
        return None
    if verb == "list":
        return [[each.app_id, each.state.name, each.name] for each in scheduler.list()]
    return getattr(scheduler, verb)(*words)


if __name__ == "__main__":
    try:
        result = main(*sys.argv[1:])
    except RelightError as error:
        sys.exit(f"{error.message}\nhint: {error.hint}\nexit {error.exit_code}")
    if result is not None:
        print(json.dumps(result))
