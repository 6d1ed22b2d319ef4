"""Jobs on a Docker daemon: a container a replica, and nothing kept but what the daemon keeps.

    render   what is sent, without a daemon                                   (docker_request)
    submit   images are pulled and built, all containers made, then all started; what fails half-way
             is taken back                                                    (docker_images)

State, logs and the list of jobs come from the daemon by label, so any machine that reaches it sees
the same. Labels can't be changed; that a container was asked to stop is kept in its name.

A daemon knows nothing of jobs, so the commands that look at one see to it that a job ends as a
whole: `status`, and what waits for a job with it, stops the replicas that are left when one has
failed for good. Nobody else watches: the agents of a training job end together by themselves.
"""

import re
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

from relight import env
from relight.errors import MachineError, UsageError
from relight.job.app import AppDef, AppState
from relight.schedulers import docker_request
from relight.schedulers.api import (
    AppStatus,
    Capabilities,
    Listed,
    LogQuery,
    Option,
    ReplicaStatus,
    Request,
)
from relight.schedulers.docker_request import STOP_LIMIT_S, Label

_SOCKET = "unix:///var/run/docker.sock"
_LOOK_S = 0.2
_CANCELLED, _STOPPED = ".cancelled", ".stopped"
_STATES = {
    "created": AppState.SUBMITTED,
    "restarting": AppState.PENDING,
    "paused": AppState.PENDING,
    "removing": AppState.PENDING,
    "running": AppState.RUNNING,
    "dead": AppState.FAILED,
}


def make() -> "Docker":
    """Return the scheduler."""
    return Docker()


class Docker:
    """Runs jobs on the daemon that DOCKER_HOST names, or on this machine's."""

    name = "docker"
    options: Sequence[Option] = (
        Option("copy_env", list, None, "variables of this shell to pass on; may have wildcards"),
        Option("env", dict, None, "variables to set"),
        Option("privileged", bool, False, "give containers all rights on the host"),
        Option("network", str, docker_request.NETWORK, "their network, made if there is none"),
        Option("shm_size", str, None, "size of /dev/shm, such as 8g (default: the memory's)"),
        Option("gpus", list, None, "GPUs to give out, numbers or UUIDs (default: from 0)"),
        Option("publish", list, None, "ports to open on the daemon's loopback, NAME or NAME:PORT"),
        Option(
            "pull", str, "missing", "when to pull images", False, ("missing", "always", "never")
        ),
        Option("quiet", bool, False, "do not show the progress of pulls and builds"),
        Option("workspace", str, None, "directory that is added to the images, as a layer"),
    )
    capabilities = Capabilities(
        retries=True, mounts=True, resources=True, elastic=True, images=True, since=True
    )

    def __init__(self) -> None:
        self._client: Any = None

    def affinity(self) -> int:
        """Return how likely jobs are meant for Docker: a daemon is named, or answers here."""
        return 0 if _refusal(_address()) else 10

    def render(self, app: AppDef, cfg: Mapping[str, Any], app_id: str) -> Request:
        """Return the containers of an app. See `Scheduler.render`."""
        body = docker_request.body(app, cfg, app_id, env.read())
        text, notes = docker_request.text(body), tuple(docker_request.notes(app))
        return Request(self.name, app, cfg, body, text, notes)

    def submit(self, request: Request) -> str:
        """Start the containers and return the id of the app."""
        from relight.schedulers.docker_images import Images

        body, made = request.body, list[str]()
        with self._daemon() as client:
            if not request.cfg.get("gpus"):
                _check_gpus(client, body)
            images = Images(client, quiet=bool(request.cfg.get("quiet")))
            try:
                images.get(body)
                for container in body["containers"]:
                    made.append(_create(client, body["network"], container))
                for container_id in made:
                    client.start(container_id)
            except BaseException:
                for container_id in made:
                    client.remove_container(container_id, v=True, force=True)
                images.remove(str(body["app_id"]))
                raise
        return str(body["app_id"])

    def status(self, app_ids: Sequence[str]) -> dict[str, AppStatus]:
        """Return the statuses of jobs; what is left of one that has failed is stopped."""
        with self._daemon() as client:
            jobs = _jobs(client, app_ids)
            statuses = {app_id: _status(found) for app_id, found in jobs.items()}
            for app_id, status in statuses.items():
                if status.state is AppState.FAILED:
                    _ask_to_stop(client, jobs[app_id], _STOPPED)
        return statuses

    def logs(self, app_id: str, query: LogQuery) -> Iterator[str]:
        """Return the lines that a replica has written."""
        with self._daemon() as client:
            found = _job(client, app_id)
            key = (query.role, query.replica)
            replica = next((r for r in found if (r.role, r.number) == key), None)
            if replica is None:
                known = ", ".join(f"{r.role}/{r.number}" for r in found)
                raise UsageError(
                    f"{app_id} has no replica {query.role}/{query.replica}", hint=f"it has {known}"
                )
        return self._lines(replica.id, query)

    def cancel(self, app_id: str) -> None:
        """Stop a job and return when it is over."""
        with self._daemon() as client:
            kill_at = time.monotonic() + STOP_LIMIT_S
            while live := [replica for replica in _job(client, app_id) if replica.is_live]:
                if time.monotonic() > kill_at + STOP_LIMIT_S:
                    raise MachineError(f"{app_id} does not end: Docker can't end {live[0].name}")
                _ask_to_stop(client, live, _CANCELLED, kill=time.monotonic() > kill_at)
                time.sleep(_LOOK_S)

    def delete(self, app_id: str) -> None:
        """Stop a job and remove its containers, their logs, and the images made for it."""
        from relight.schedulers.docker_images import Images

        self.cancel(app_id)
        with self._daemon() as client:
            found = _job(client, app_id)
            for replica in found:
                client.remove_container(replica.id, v=True, force=True)
            Images(client, quiet=True).remove(app_id)
            _remove_networks(client)

    def list(self) -> Sequence[Listed]:
        """Return this user's jobs, newest first."""
        user = docker_request.user_name()
        with self._daemon() as client:
            jobs = _jobs(client, None, f"{Label.USER}={user}")
        listed = []
        for app_id, found in jobs.items():
            made = datetime.fromtimestamp(min(replica.made for replica in found), UTC)
            submitted = made.astimezone().isoformat(timespec="seconds")
            listed.append(Listed(app_id, _status(found).state, found[0].app_name, submitted))
        return sorted(listed, key=lambda job: job.submitted, reverse=True)

    def close(self) -> None:
        """Give up the connection to the daemon."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _lines(self, container_id: str, query: LogQuery) -> Iterator[str]:
        own = Docker()  # logs may be read by several threads, which can't share a connection
        try:
            yield from own._follow(container_id, query)
        finally:
            own.close()

    def _follow(self, container_id: str, query: LogQuery) -> Iterator[str]:
        with self._daemon() as client:
            since = query.since.timestamp() if query.since else None
            last = ""
            while True:
                began = client.inspect_container(container_id)["State"]["StartedAt"]
                frames = client.logs(
                    container_id,
                    stdout=query.stream != "stderr",
                    stderr=query.stream != "stdout",
                    stream=True,
                    follow=query.follow,
                    timestamps=True,
                    since=since,
                    until=query.until.timestamp() if query.until else None,
                )
                seen = _Frames(frames, last)
                yield from _whole_lines(seen)
                if not query.follow or not _begins_again(client, container_id, began):
                    return
                # What it wrote before does not come twice, though the daemon may send it.
                last = seen.last
                since = _seconds(last) - 1 if last else since

    @contextmanager
    def _daemon(self) -> Iterator[Any]:
        """Give the client; its errors become ours."""
        try:
            import docker
            import requests
        except ImportError:
            raise UsageError(
                "the Docker scheduler needs the package docker",
                hint="pip install 'relight[docker]'",
            ) from None
        where, hint = _address(), "is it running? DOCKER_HOST says where it is"
        try:
            if self._client is None:
                refusal = _refusal(where)
                if refusal:  # the client would leave its socket open
                    raise MachineError(f"no Docker daemon at {where}: {refusal}", hint=hint)
                self._client = docker.APIClient(
                    version="auto",
                    use_ssh_client=True,
                    **docker.utils.kwargs_from_env(environment=dict(env.read().variables)),
                )
            yield self._client
        except docker.errors.APIError as error:
            said = str(error.explanation or error).strip()
            raise MachineError(f"Docker: {' '.join(said.split())}") from None
        except (docker.errors.DockerException, requests.RequestException) as error:
            raise MachineError(
                f"no answer from the Docker daemon at {where}: {_innermost(error)}", hint=hint
            ) from None


class _Replica(NamedTuple):
    """A container as the daemon lists it."""

    id: str
    name: str
    mark: str
    labels: Mapping[str, str]
    state: AppState
    made: float
    exitcode: int | None
    restarts: int
    error: str

    @property
    def role(self) -> str:
        return self.labels[Label.ROLE]

    @property
    def number(self) -> int:
        return int(self.labels[Label.REPLICA])

    @property
    def app_name(self) -> str:
        return self.labels.get(Label.APP_NAME, "")

    @property
    def is_live(self) -> bool:
        return not self.state.is_over

    @property
    def asked(self) -> bool:
        return bool(self.mark)


def _address() -> str:
    return env.read().get("DOCKER_HOST", _SOCKET)


def _refusal(where: str) -> str:
    """Return why a daemon's socket on this machine can't be used; empty if it can, or is none."""
    if not where.startswith(("unix://", "/")):
        return ""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(where.removeprefix("unix://"))
        except OSError as error:
            return error.strerror or str(error)
    return ""


def _jobs(client: Any, app_ids: Sequence[str] | None, *labels: str) -> dict[str, list[_Replica]]:
    """Return the containers of jobs, in the order of their replicas, by the jobs' ids."""
    found: dict[str, list[_Replica]] = {}
    for listed in client.containers(all=True, filters={"label": [Label.APP_ID, *labels]}):
        app_id = listed["Labels"][Label.APP_ID]
        if app_ids is None or app_id in app_ids:
            replica = _replica(client, listed)
            if replica is not None:
                found.setdefault(app_id, []).append(replica)
    for replicas in found.values():
        replicas.sort(key=lambda replica: (replica.made, replica.role, replica.number))
    return found


def _job(client: Any, app_id: str) -> list[_Replica]:
    found = _jobs(client, [app_id]).get(app_id)
    if found is None:
        raise UsageError(f"no job {app_id} on this Docker daemon", hint="relight list -s docker")
    return found


def _replica(client: Any, listed: Mapping[str, Any]) -> _Replica | None:
    """Return what is known of a container; None if it has just been removed."""
    import docker

    name = str(listed["Names"][0]).lstrip("/")
    mark = next((mark for mark in (_CANCELLED, _STOPPED) if name.endswith(mark)), "")
    state = _STATES.get(listed["State"], AppState.UNKNOWN)
    labels = listed["Labels"]
    exitcode, restarts, error = None, 0, ""
    match = re.match(r"Exited \((-?\d+)\)", listed["Status"])
    if match:
        exitcode = int(match[1])
    if exitcode or state is AppState.FAILED or labels.get(Label.RETRIES, "0") != "0":
        try:
            inspected = client.inspect_container(listed["Id"])
        except docker.errors.NotFound:
            return None
        restarts, error = inspected["RestartCount"], _error(inspected)
    if exitcode is not None:
        ended = AppState.CANCELLED if mark else AppState.FAILED
        state = AppState.SUCCEEDED if exitcode == 0 else ended
    return _Replica(
        listed["Id"], name, mark, labels, state, listed["Created"], exitcode, restarts, error
    )


def _error(inspected: Mapping[str, Any]) -> str:
    state = inspected["State"]
    if state.get("OOMKilled"):
        limit = inspected["HostConfig"].get("Memory", 0) // 2**20
        return f"out of memory{f' (it had {limit} MiB)' if limit else ''}"
    return " ".join(str(state.get("Error") or "").split())


def _status(found: Sequence[_Replica]) -> AppStatus:
    statuses = [
        ReplicaStatus(r.role, r.number, r.state, r.name.split(".")[0], r.exitcode, r.error)
        for r in found
    ]
    started = any(replica.state is not AppState.SUBMITTED for replica in found)
    missing = int(found[0].labels.get(Label.REPLICAS, len(found))) - len(found)
    state, message = _verdict(found)
    if missing > 0 and started and state is not AppState.CANCELLED:
        state, message = AppState.FAILED, f"{missing} of its containers were removed"
    return AppStatus(state, message, tuple(statuses), sum(r.restarts for r in found))


def _verdict(found: Sequence[_Replica]) -> tuple[AppState, str]:
    """Return the state of a job: failed as soon as a role can't have the replicas it needs."""
    states = [replica.state for replica in found]
    if any(replica.mark == _CANCELLED for replica in found):
        over = all(state.is_over for state in states)
        return (AppState.CANCELLED if over else AppState.RUNNING), "it was cancelled"
    for role in dict.fromkeys(replica.role for replica in found):
        its = [replica for replica in found if replica.role == role]
        failed = [replica for replica in its if replica.state is AppState.FAILED]
        least = int(its[0].labels.get(Label.LEAST, len(its)))
        if failed and len(its) - len(failed) < least:
            return AppState.FAILED, _why(failed[0])
    left = [state for state in states if not state.is_over]
    if left:
        return (AppState.RUNNING if AppState.RUNNING in left else left[0]), ""
    return AppState.SUCCEEDED, ""


def _why(replica: _Replica) -> str:
    why = f"{replica.role}/{replica.number} failed with exit code {replica.exitcode}"
    return f"{why}: {replica.error}" if replica.error else why


def _ask_to_stop(client: Any, found: Sequence[_Replica], mark: str, *, kill: bool = False) -> None:
    """Send SIGTERM to containers that were not yet sent it; mark first, so that nobody takes the
    exit code for a failure.
    """
    import docker

    for replica in found:
        if not replica.is_live or (replica.asked and not kill):
            continue
        try:
            if not replica.asked:
                client.rename(replica.id, replica.name + mark)
            if kill or replica.state is not AppState.RUNNING:
                client.stop(replica.id, timeout=1)
            else:
                client.kill(replica.id, "SIGTERM")
        except docker.errors.APIError as error:
            if error.status_code not in (404, 409):  # it has ended, or is gone
                raise


def _create(client: Any, network: str, container: Mapping[str, Any]) -> str:
    import docker

    for attempt in (1, 2):
        if network not in docker_request.NO_NAMES:
            _make_network(client, network)
        try:
            made = client.create_container_from_config(container["config"], container["name"])
            return str(made["Id"])
        except docker.errors.NotFound:
            if attempt == 2:  # the first time, a delete may just have removed the network
                raise
    raise AssertionError


def _make_network(client: Any, name: str) -> None:
    import docker

    if any(network["Name"] == name for network in client.networks(names=[name])):
        return
    try:
        labels = {Label.USER: docker_request.user_name()}
        client.create_network(name, driver="bridge", check_duplicate=True, labels=labels)
    except docker.errors.APIError as error:
        if error.status_code != 409:  # somebody else was quicker
            raise


def _remove_networks(client: Any) -> None:
    """Remove the networks that were made for jobs and that no container is in."""
    import docker

    for network in client.networks(filters={"label": [Label.USER]}):
        if client.containers(all=True, filters={"network": network["Name"]}):
            continue
        try:
            client.remove_network(network["Id"])
        except docker.errors.APIError:
            pass  # a new job uses it


def _check_gpus(client: Any, body: Mapping[str, Any]) -> None:
    """Refuse GPUs that a running job has."""
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
                hint="-cfg gpus=4;5;6;7 says which to give out",
            )


class _Frames:
    """What a container wrote later than `last`, which goes along with it."""

    def __init__(self, frames: Iterator[bytes], last: str) -> None:
        self._frames = frames
        self.last = last

    def __iter__(self) -> Iterator[bytes]:
        before = self.last
        for frame in self._frames:
            time_of_it, _, data = frame.partition(b" ")
            if time_of_it.decode() > before:  # their texts are all of one length
                self.last = time_of_it.decode()
                yield data


def _begins_again(client: Any, container_id: str, began: str) -> bool:
    """Wait until a container has begun another time, or never will; return which."""
    while True:
        state = client.inspect_container(container_id)["State"]
        if state["StartedAt"] != began:
            return True
        if not (state["Running"] or state["Restarting"]):
            return False
        time.sleep(_LOOK_S)


def _whole_lines(frames: Iterable[bytes]) -> Iterator[str]:
    rest = b""
    for frame in frames:
        *lines, rest = (rest + frame).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


def _seconds(text: str) -> float:
    """Return the seconds since 1970 of a time of Docker's, which has nanoseconds."""
    whole, _, fraction = text.removesuffix("Z").partition(".")
    seconds = datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp()
    return seconds + float(f"0.{fraction or 0}")


def _innermost(error: BaseException) -> str:
    """Return the reason that a chain of errors began with, in one line."""
    while error.__context__ is not None:
        error = error.__context__
    return getattr(error, "strerror", None) or " ".join(str(error).split())
