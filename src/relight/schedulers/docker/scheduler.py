"""Runs jobs on a Docker daemon, with one container per replica and no state outside the daemon.

    render   builds the request, without a daemon                             (`request`)
    submit   pulls and builds images, creates all containers, then starts them; if this fails,
             undoes everything                                                (`images`)
    status   queries the daemon by label, so that any machine that can reach the daemon sees the
             same status                                                      (`replicas`)
    logs     reads them from the daemon                                       (`logs`)

The daemon doesn't know about jobs. When a replica has failed permanently, `status` therefore stops
the job's remaining replicas, and so do the commands that use `status` to wait for a job. No other
process watches the job, but the agents in a training job exit together on their own.
"""

import io
import os
import re
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

from relight.base import env
from relight.base.errors import MachineError, UsageError
from relight.job import launcher_file
from relight.job.app import NOTHING, AppDef, AppState
from relight.job.user import user_name
from relight.schedulers.api import (
    AppStatus,
    Capabilities,
    JobSummary,
    LogQuery,
    Option,
    Request,
    Scheduler,
    find_replica,
    local_time,
)
from relight.schedulers.docker import replicas
from relight.schedulers.docker.daemon import Daemon, address, explanation, ignoring, refusal
from relight.schedulers.docker.images import Images
from relight.schedulers.docker.logs import lines
from relight.schedulers.docker.replicas import CANCELLED, STOPPED, Container
from relight.schedulers.docker.request import (
    LAUNCHER,
    NETWORK,
    NO_NAMES,
    STOP_LIMIT_S,
    Label,
    build_request,
    check_repository,
    format_commands,
    notes_on,
    planned_builds,
)

_POLL_S = 0.2
_ATTEMPTS = 5
_NO_NETWORK = re.compile(r"network \S+ (not found|is ambiguous)")


class Docker(Scheduler):
    """Runs jobs on the Docker daemon at DOCKER_HOST, or on the local daemon."""

    name = "docker"
    options: Sequence[Option] = (
        Option("copy_env", list, None, "environment variables to pass on; may contain wildcards"),
        Option("env", dict, None, "variables to set"),
        Option("privileged", bool, False, "run privileged containers"),
        Option("network", str, NETWORK, "Docker network, created if missing"),
        Option("shm_size", str, None, "size of /dev/shm, such as 8g (default: the memory size)"),
        Option("gpus", list, None, "GPUs to use, as numbers or UUIDs (default: starting at 0)"),
        Option("publish", list, None, "ports to open on the daemon's loopback, NAME or NAME:PORT"),
        Option(
            "pull", str, "missing", "when to pull images", False, ("missing", "always", "never")
        ),
        Option("quiet", bool, False, "don't show the progress of pulls and builds"),
        Option("image_repo", str, None, "TorchX option; no effect: no image is pushed"),
        Option("workspace", str, None, "directory to add to the images, as a layer"),
    )
    capabilities = Capabilities(
        retries=True, mounts=True, resources=True, elastic=True, images=True, since=True
    )

    def __init__(self) -> None:
        self._daemon = Daemon()
        self._failed_at: dict[str, float] = {}

    def affinity(self) -> int:
        """Return how suitable Docker is on this machine. Docker requires a daemon that is
        configured or running.
        """
        return 0 if find_spec("docker") is None or refusal(address()) else 10

    def render(self, app: AppDef, cfg: Mapping[str, Any], app_id: str) -> Request:
        """Return the containers for an app. See `Scheduler.render`."""
        body = build_request(app, cfg, app_id, env.read())
        text, notes = format_commands(body), tuple(notes_on(app, cfg))
        return Request(self.name, app, cfg, body, text, notes)

    def submit(self, request: Request) -> str:
        """Start the containers, and return the app's id."""
        body = request.body
        app_id = str(body["app_id"])
        with self._daemon.client() as client:
            if not request.cfg.get("gpus"):
                _check_gpus(client, body)
            images = Images(client, quiet=bool(request.cfg.get("quiet")))
            try:
                images.get(body)
                made = [_create(client, body["network"], each) for each in _with_token(body)]
                for container_id in made:
                    _in_network(client, body["network"], partial(client.start, container_id))
            except BaseException:
                _remove(client, app_id)
                raise
        return app_id

    def with_workspace(
        self, app: AppDef, workspace: str, app_id: str, repository: str
    ) -> tuple[AppDef, list[dict[str, str]]]:
        """Return an app for another scheduler, with images in a repository that contain the
        workspace, and the images to push (see `push_images`).

        Raises:
            UsageError: if the repository or the workspace is invalid.
        """
        check_repository(repository)
        builds = planned_builds(app, workspace, app_id, repository)
        images = {build["base"]: build["image"] for build in builds}
        roles = [replace(role, image=images.get(role.image, role.image)) for role in app.roles]
        return replace(app, roles=roles), builds

    def push_images(
        self, builds: Sequence[Mapping[str, str]], app_id: str, *, quiet: bool = False
    ) -> None:
        """Build images on this daemon, and push them.

        Raises:
            MachineError: if the daemon can't be reached, or an image can't be built or pushed.
        """
        with self._daemon.client() as client:
            Images(client, quiet).push(builds, app_id)

    def status(self, app_ids: Sequence[str]) -> dict[str, AppStatus]:
        """Return the status of each job, and stop the remaining replicas of each job that has
        failed.
        """
        with self._daemon.client() as client:
            jobs = replicas.jobs(client, app_ids)
            for app_id, found in jobs.items():
                if replicas.verdict(found)[0] is AppState.FAILED:
                    began = self._failed_at.setdefault(app_id, time.monotonic())
                    kill = time.monotonic() - began > STOP_LIMIT_S
                    replicas.stop(client, found, STOPPED, kill=kill)
        return {app_id: replicas.status(found) for app_id, found in jobs.items()}

    def logs(self, app_id: str, query: LogQuery) -> Iterator[str]:
        """Return a replica's output lines."""
        with self._daemon.client() as client:
            found = _job(client, app_id)
        replica = find_replica(app_id, query, {(r.role, r.number): r for r in found})
        return lines(replica.id, query)

    def cancel(self, app_id: str) -> None:
        """Stop a job, and wait until it is over."""
        with self._daemon.client() as client:
            _cancel(client, app_id, _job(client, app_id))

    def delete(self, app_id: str) -> None:
        """Stop a job, and remove its containers, their logs, and the images that were built for the
        job.
        """
        with self._daemon.client() as client:
            _cancel(client, app_id, replicas.jobs(client, [app_id]).get(app_id, []))
            _remove(client, app_id)
            _remove_networks(client)

    def list(self, _cfg: Mapping[str, Any] = NOTHING, /) -> Sequence[JobSummary]:
        """Return this user's jobs, newest first."""
        user = user_name()
        with self._daemon.client() as client:
            jobs = replicas.jobs(client, None, f"{Label.USER}={user}")
        listed = []
        for app_id, found in jobs.items():
            submitted = local_time(1000 * min(replica.made for replica in found))
            state = replicas.status(found).state
            listed.append(JobSummary(app_id, state, found[0].app_name, submitted))
        return sorted(listed, key=lambda job: job.submitted, reverse=True)

    def close(self) -> None:
        """Close the connection to the daemon."""
        self._daemon.close()


def _job(client: Any, app_id: str) -> list[Container]:
    found = replicas.jobs(client, [app_id]).get(app_id)
    if found is None:
        raise UsageError(f"no job {app_id} on this Docker daemon", hint="relight list -s docker")
    return found


def _cancel(client: Any, app_id: str, found: Sequence[Container]) -> None:
    kill_at = time.monotonic() + STOP_LIMIT_S
    while live := [replica for replica in found if replica.is_live]:
        kill = time.monotonic() > kill_at
        if time.monotonic() > kill_at + STOP_LIMIT_S:
            raise MachineError(f"can't stop {app_id}: Docker can't stop {live[0].name}")
        replicas.stop(client, live, CANCELLED, kill=kill)
        time.sleep(_POLL_S)
        found = replicas.jobs(client, [app_id]).get(app_id, [])


def _with_token(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the containers after adding a token for their job. The network is shared with other
    jobs, and the token prevents other processes on it from joining the job.
    """
    token = f"RELIGHT_TOKEN={os.urandom(16).hex()}"
    for container in body["containers"]:
        config = container["config"]
        own = any(each.startswith("RELIGHT_TOKEN=") for each in config["Env"])
        variables = [*config["Env"], *([] if own else [token])]
        yield {**container, "config": {**config, "Env": variables}}


def _create(client: Any, network: str, container: Mapping[str, Any]) -> str:
    config, name = container["config"], container["name"]
    made = _in_network(client, network, lambda: client.create_container_from_config(config, name))
    container_id = str(made["Id"])
    if container["has_launcher"]:
        client.put_archive(container_id, "/", _packed(launcher_file.build()))
    return container_id


def _packed(launcher: bytes) -> bytes:
    """Return a tar archive that contains the launcher at the path where a container expects it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        entry = tarfile.TarInfo(f"{LAUNCHER}/{launcher_file.NAME}".lstrip("/"))
        entry.size, entry.mode = len(launcher), 0o555
        tar.addfile(entry, io.BytesIO(launcher))
    return packed.getvalue()


def _remove(client: Any, app_id: str) -> None:
    """Remove everything that was created for a job, regardless of which process created it."""
    for listed in client.containers(all=True, filters={"label": f"{Label.APP_ID}={app_id}"}):
        with ignoring(404, 409):  # already removed, or being removed
            client.remove_container(listed["Id"], v=True, force=True)
    Images(client, quiet=True).remove(app_id)


def _in_network(client: Any, name: str, ask: Callable[[], Any]) -> Any:
    """Send a request that needs a network, and retry it if necessary. Other commands may remove the
    network at the same time, or create a second network with the same name, in which case Docker
    rejects the request.
    """
    import docker

    for tries_left in reversed(range(_ATTEMPTS)):
        if name not in NO_NAMES:
            _make_network(client, name)
        try:
            return ask()
        except docker.errors.APIError as error:
            if not tries_left or not _NO_NETWORK.search(explanation(error)):
                raise
        time.sleep(_POLL_S)
    raise AssertionError


def _make_network(client: Any, name: str) -> None:
    """Create a network if it does not exist, and remove any duplicates with the same name."""
    found = _networks(client, name)
    if not found:
        labels = {Label.USER: user_name()}
        with ignoring(409):  # another command has created the network
            client.create_network(name, driver="bridge", check_duplicate=True, labels=labels)
        found = _networks(client, name)
    left = len(found)
    for network in reversed(found):  # every command keeps the same network, the first
        if left > 1 and Label.USER in (network["Labels"] or {}):
            left -= _remove_network(client, network["Id"])


def _networks(client: Any, name: str) -> list[Mapping[str, Any]]:
    found = [each for each in client.networks(names=[name]) if each["Name"] == name]
    return sorted(found, key=lambda each: (each["Created"], each["Id"]))


def _remove_network(client: Any, network_id: str) -> bool:
    """Remove a network if no container uses it, and return whether the network no longer exists."""
    import docker

    try:
        client.remove_network(network_id)
    except docker.errors.APIError as error:
        return bool(error.status_code == 404)
    return True


def _remove_networks(client: Any) -> None:
    """Remove all job networks without containers."""
    for network in client.networks(filters={"label": [Label.USER]}):
        if not client.containers(all=True, filters={"network": network["Id"]}):
            _remove_network(client, network["Id"])


def _check_gpus(client: Any, body: Mapping[str, Any]) -> None:
    """Raise an error if a requested GPU is in use by a running job."""
    configs = [container["config"] for container in body["containers"]]
    wanted = {g for c in configs for g in c["Labels"].get(Label.GPUS, "").split(",") if g}
    if not wanted:
        return
    for listed in client.containers(filters={"label": [Label.GPUS]}):
        taken = sorted(wanted & set(listed["Labels"][Label.GPUS].split(",")))
        if taken:
            raise UsageError(
                f"GPU {', '.join(taken)} belongs to the running job "
                f"{listed['Labels'].get(Label.APP_ID)}",
                hint="choose GPUs with -cfg gpus=4;5;6;7",
            )
