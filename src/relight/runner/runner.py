"""Describe, submit, monitor and stop jobs from Python.

    with Runner() as runner:
        handle = runner.submit("dist.ddp", ["-j", "2x4", "--script", "main.py"], scheduler="slurm")
        status = runner.wait(handle, timeout=3600)

All errors caused by the user are RelightErrors, which have a one-line message and a hint.
"""

import json
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from datetime import datetime
from itertools import islice
from typing import Any, Self

from relight.base import env as environment
from relight.base.env import Environment
from relight.base.errors import MachineError, UsageError
from relight.base.text import did_you_mean
from relight.job import components, handles, launcher_file, records, serial
from relight.job.app import AppDef, AppState, Role, Workspace
from relight.job.components import loading
from relight.job.handles import RUN, SESSION, Handle
from relight.job.records import new_id
from relight.job.torchx_names import AppDryRunInfo
from relight.runner import (
    container_site,
    node_exclusion,
    options,
    settings,
    site_locks,
    submitted,
    validation,
)
from relight.runner.job_env import with_job_env
from relight.runner.lookup import Purpose, find_job
from relight.runner.plugin_guard import guarded
from relight.runner.prepared import Prepared
from relight.runner.settings import ConfigFile
from relight.runner.submitted import Job
from relight.schedulers import registry
from relight.schedulers.api import AppStatus, LogQuery, Request, Scheduler

DEFAULT_SCHEDULER = "local"
_POLLS = 20
"""Status queries may take up to 1/N of the time, where N is this number."""
_MIN_PAUSE_S, _USUAL_PAUSE_S, _MAX_PAUSE_S = 0.02, 0.5, 10.0


class Runner:
    """Submits jobs to schedulers and monitors them. Call `close` when done, or use the runner in a
    `with` statement.

    Args:
        session: the session name to use in job handles.
        found: the settings; if None, they are read from the settings files.
        env: the environment, or None for this process's environment.
    """

    def __init__(
        self,
        session: str = SESSION,
        *,
        found: ConfigFile | None = None,
        env: Environment | None = None,
    ) -> None:
        if "/" in session or session != "".join(session.split()):
            raise UsageError(f"session={session!r}: expected a name without '/'")
        self.session = session
        self.env = environment.read() if env is None else env
        self.settings = settings.load(self.env) if found is None else found
        self._schedulers: dict[str, Scheduler] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to schedulers. Jobs keep running if their scheduler supports
        that.
        """
        while self._schedulers:
            self._schedulers.popitem()[1].close()

    def scheduler_name(self, asked: str = "") -> str:
        """Return the name of the scheduler to use. This is the requested scheduler or, if none is
        requested, the scheduler from the settings, or `local`. `auto` is resolved to a name.
        """
        name = asked or self.settings.command("scheduler") or DEFAULT_SCHEDULER
        return registry.choose() if name == "auto" else name

    def scheduler(self, name: str) -> Scheduler:
        """Look up a scheduler by name. The same object is returned for the same name until the
        runner is closed.

        Raises:
            UsageError: if no scheduler has this name.
        """
        if name not in self._schedulers:
            self._schedulers[name] = guarded(name, registry.find(name))
        return self._schedulers[name]

    def dryrun(
        self,
        app: AppDef | str,
        args: Sequence[str] | Mapping[str, Any] = (),
        *,
        scheduler: str = "",
        cfg: Mapping[str, Any] | str = "",
        workspace: str | Workspace = "",
        parent_run_id: str = "",
        launcher: str = components.AUTO,
        app_id: str = "",
    ) -> Prepared:
        """Return the job exactly as `submit` would submit it, without submitting, creating or
        changing anything.

        Args:
            app: an app, or the address of a component.
            args: the component's arguments, either as command-line arguments or as values by name.
            scheduler: the scheduler's name, or `auto`. If empty, the scheduler from the settings is
                used, or `local` if there is none.
            cfg: the scheduler's options, by name or as `k=v,k2=v2`.
            workspace: a directory to copy for the job, if the scheduler supports it; defaults to
                the roles' workspace.
            parent_run_id: the parent run's id, for trackers.
            launcher: one of `components.LAUNCHERS`. `torchrun` is only valid for built-in
                components.
            app_id: the name of the job's directory, from `records.new_id`; by default, a new one is
                chosen.

        Raises:
            RelightError: if an argument is invalid.
        """
        if not isinstance(app, AppDef | str):
            raise UsageError(f"{app!r} is neither an app nor a component address")
        if isinstance(args, str) or not isinstance(args, Sequence | Mapping):
            raise UsageError(f"arguments {args!r}: expected a list of strings or a dict")
        if not isinstance(cfg, Mapping | str):
            raise UsageError(f"cfg={cfg!r}: expected a dict, or a string k=v,k2=v2")
        if launcher not in components.LAUNCHERS:
            raise UsageError(
                f"--launcher={launcher}: expected {', '.join(components.LAUNCHERS)}",
                hint=did_you_mean(launcher, components.LAUNCHERS),
            )
        name = self.scheduler_name(scheduler)
        found, site = self.scheduler(name), self.settings.site
        words: tuple[str, ...] = ()
        script = ""
        if isinstance(app, str):
            line, given = ((), args) if isinstance(args, Mapping) else (args, {})
            words = (app, *line, *map(str, given.values()))
            section = self.settings.section(f"component:{app}")
            app, script = loading.build(app, line, given, section, launcher)
        app = validation.validate(app)
        workspace = str(workspace) or validation.common_workspace(app)
        values, notes = self._cfg(name, found, cfg, workspace)
        is_local = found.capabilities.files
        missing = validation.missing_script(script, workspace, values, is_local=is_local)
        notes = [*notes, *node_exclusion.add(name, found, values, self.env, site)]
        notes += [f"{site.path}: {what}" for what in site_locks.unlockable(site)]
        locks = site_locks.check(name, found, app, values, site)

        more: dict[str, str] = {}
        if launcher in (launcher_file.INSTALLED, launcher_file.TRAVELS):
            more[launcher_file.VARIABLE] = launcher
        if found.capabilities.images or values.get("image"):
            more |= container_site.variables(site)
        app = with_job_env(app, name, self.session, parent_run_id, self.env, self.settings, more)
        app_id = app_id or new_id(app.name)
        images: Sequence[Mapping[str, str]] = ()
        if workspace and found.capabilities.pushes_images:
            made: tuple[AppDef, Sequence[Mapping[str, str]]]
            made = _docker().with_workspace(app, workspace, app_id, values["image_repo"])
            app, images = made
            notes += [
                f"the workspace is added to {each['base']} and pushed as {each['image']}"
                for each in images
            ]
        rendered = found.render(app, values, app_id)
        request = _as_the_roles_want(rendered)
        if request.body != rendered.body:
            what = "pre_proc of a role changes the request"
            for option in locks.names:
                raise site_locks.bypassed(what, name, option, values, site)
        return Prepared(
            scheduler=name,
            session=self.session,
            app_id=app_id,
            app=app,
            request=request,
            notes=(*notes, *request.notes),
            words=words,
            missing=missing,
            workspace=workspace,
            images=images,
        )

    def resolve_cfg(self, scheduler: str, cfg: Mapping[str, Any]) -> dict[str, Any]:
        """Return a scheduler's options with the defaults filled in, as in `dryrun`.

        Raises:
            UsageError: if an option is invalid.
        """
        return self._cfg(scheduler, self.scheduler(scheduler), cfg, "")[0]

    def submit(
        self,
        app: AppDef | str | Prepared,
        args: Sequence[str] | Mapping[str, Any] = (),
        *,
        scheduler: str = "",
        cfg: Mapping[str, Any] | str = "",
        workspace: str | Workspace = "",
        parent_run_id: str = "",
        launcher: str = components.AUTO,
    ) -> str:
        """Submit a job that `dryrun` prepared, or that the same arguments describe, and return its
        handle.

        Raises:
            RelightError: if an argument is invalid. Nothing has been submitted in this case.
        """
        job = app
        if not isinstance(job, Prepared):
            job = self.dryrun(
                job,
                args,
                scheduler=scheduler,
                cfg=cfg,
                workspace=workspace,
                parent_run_id=parent_run_id,
                launcher=launcher,
            )
        if job.missing:
            hint = "check the path; --dryrun shows what would be submitted"
            raise UsageError(job.missing, hint=hint)
        if job.images:
            quiet = bool(job.request.cfg.get("quiet"))
            with closing(_docker()) as docker:
                docker.push_images(job.images, job.app_id, quiet=quiet)
        handle = submitted.submit(job, self.scheduler(job.scheduler), self.env)
        self._audit("submit", handle, job.words[0] if job.words else job.app.name)
        return handle

    def find(self, text: str, purpose: Purpose = Purpose.READ) -> Handle:
        """Return the job, or the part of a job, that a handle, an id or a name refers to. All
        methods with a `handle` argument accept the same texts.

        Args:
            text: a handle; the id or the name of a job submitted from this machine; or the id, the
                name or the agent's pid of a `relight run` job on this machine.
            purpose: what the job is looked up for. A name must refer to the only unfinished job of
                this name or, to read about it, may refer to the newest if all are over.

        Raises:
            UsageError: if no job or several jobs match.
        """
        return find_job(self.scheduler, text, purpose)

    def status(self, handle: str | Handle) -> AppStatus:
        """Return a job's status.

        Raises:
            UsageError: if the job does not exist.
        """
        job = self._parsed(handle)
        found = self.scheduler(job.scheduler).status([job.app_id]).get(job.app_id)
        record = submitted.find_record(job)
        if found is None and record is not None:
            state = AppState[record["state"]]
            why = "its scheduler no longer knows it"
            if records.is_being_submitted(record["id"]):
                why = "it is being submitted"
            elif state is AppState.UNSUBMITTED:
                why = "relight submit was interrupted; clean up with relight delete"
            said = record.get("message") if state is AppState.FAILED else ""
            why = f"{said}; {why}" if said else why
            return AppStatus(state if state.is_over else AppState.UNKNOWN, why)
        if found is None:
            raise UsageError(f"no such job: {job}", hint="see relight list")
        submitted.record_state(record, found)
        return found

    def wait(self, handle: str | Handle, timeout: float | None = None) -> AppStatus:
        """Wait until a job is over, and return its status.

        Args:
            handle: the job's handle.
            timeout: the maximum number of seconds to wait, or None to wait forever.

        Raises:
            TimeoutError: if the job is not over by then. The job keeps running.
            MachineError: if the job's scheduler no longer knows how the job ended, or if the job
                was deleted.
            UsageError: if the job does not exist.
        """
        start, job = time.monotonic(), self._parsed(handle)
        found = None
        while True:
            asked = time.monotonic()
            try:
                found = self.status(job)
            except UsageError:
                if found is None:
                    raise
                raise MachineError(f"{job} has been deleted") from None
            now = time.monotonic()
            if found.state.is_over:
                return found
            if found.state is AppState.UNKNOWN and not found.replicas:
                raise MachineError(f"{job}: {found.message or 'unknown state'}")
            if timeout is not None and now - start >= timeout:
                raise TimeoutError(f"{job} is {found.state.name} after {timeout:g} s")
            pause = max(min((now - start) / _POLLS, _USUAL_PAUSE_S), (now - asked) * _POLLS)
            pause = min(max(pause, _MIN_PAUSE_S), _MAX_PAUSE_S)
            left = pause if timeout is None else start + timeout - now
            time.sleep(max(0.0, min(pause, left)))

    def cancel(self, handle: str | Handle) -> AppStatus:
        """Stop a job if it isn't over yet, and return its status.

        Raises:
            UsageError: if the job does not exist, or the handle refers to only part of a job, or is
                a name and all jobs of this name have ended.
        """
        return self.cancel_unless_over(handle)[1]

    def cancel_unless_over(self, handle: str | Handle) -> tuple[bool, AppStatus]:
        """Do the same as `cancel`, and also return whether the job was already over.

        Raises:
            UsageError: as for `cancel`.
        """
        job = submitted.current_handle(self._whole(handle, "cancelled", Purpose.CANCEL))
        was_over = self.status(job).state.is_over
        if not was_over:
            self.scheduler(job.scheduler).cancel(job.app_id)
            self._audit("cancel", str(job))
        return was_over, self.status(job)

    def delete(self, handle: str | Handle) -> None:
        """Stop a job and remove its logs, state and record.

        Raises:
            UsageError: if the job does not exist.
        """
        job = submitted.current_handle(self._whole(handle, "deleted", Purpose.DELETE))
        record = submitted.find_record(job)
        if record is None:
            self.status(job)
        scheduler = self.scheduler(job.scheduler)
        try:
            scheduler.delete(job.app_id)
        except UsageError:
            if record is None or scheduler.status([job.app_id]):
                raise  # otherwise, only the job's record is left to delete
        if record is not None:
            records.remove(record["id"])
        self._audit("delete", str(job))

    def log_lines(
        self,
        handle: str | Handle,
        role: str = "",
        replica: int = 0,
        *,
        regex: str = "",
        since: datetime | None = None,
        until: datetime | None = None,
        follow: bool = False,
        stream: str = "combined",
        last: int | None = None,
        rank: int | None = None,
        attempt: str = "",
    ) -> Iterator[str]:
        """Return the log lines of one replica, without line endings.

        Args:
            handle: the job's handle.
            role: the role's name; by default, the first role.
            replica: the replica's number within the role.
            regex: return only matching lines.
            since: return only lines from this time on, if the scheduler's logs have timestamps.
            until: return only lines up to this time.
            follow: whether to wait for new lines until the replica has finished.
            stream: stdout, stderr or combined.
            last: of the lines that already exist, return only this many of the most recent ones.
            rank: return the lines of the worker with this rank instead of a replica's lines.
            attempt: return a worker's lines from the attempt that started after this number of
                restarts, or from `all` attempts. The default is the last generation for `relight
                run` jobs, and all generations for submitted jobs.

        Raises:
            UsageError: if the job, replica, rank or attempt does not exist, the scheduler can't
                identify the rank's lines, or the regex is invalid.
        """
        job = self._parsed(handle)
        wanted = compiled(regex)
        query = LogQuery(role or job.role, replica, follow, since, until, stream)
        read = self._reader(job, query, rank, attempt)

        def lines(*, follow: bool) -> Iterator[str]:
            found = read(follow)
            return found if wanted is None else (line for line in found if wanted.search(line))

        if last is None:
            return lines(follow=follow)
        if not follow:
            return iter(deque(lines(follow=False), maxlen=last))
        there = sum(1 for _ in lines(follow=False))
        return islice(lines(follow=True), max(0, there - last), None)

    def _reader(
        self, job: Handle, query: LogQuery, rank: int | None, attempt: str
    ) -> Callable[[bool], Iterator[str]]:
        """Return a function that returns a replica's or rank's log lines. The function's argument
        is whether to follow the log.
        """
        if attempt and rank is None:
            if job.scheduler != handles.RUN:
                raise UsageError(
                    f"--attempt={attempt}: replica logs of {job} contain all attempts",
                    hint="select a worker with --rank=N",
                )
            rank = query.replica
        if rank is not None and (attempt or job.scheduler != handles.RUN):
            from relight.runner import event_log

            part, of = job._replace(role=query.role), attempt or event_log.ALL
            return lambda follow: event_log.output(
                self, part, rank, query.stream, follow=follow, attempt=of
            )
        if rank is not None or not query.role:
            known = self.replicas(job)
            query = query._replace(role=query.role or known[0][0])
            if rank is not None:  # in a `relight run` job, each replica is a rank
                query = query._replace(replica=rank)
                if rank not in (number for _, number in known):
                    ranks = ", ".join(str(number) for _, number in known[:20])
                    why = f"{job} has no rank {rank} on this machine"
                    raise UsageError(why, hint=f"it has {ranks}")
        scheduler = self.scheduler(job.scheduler)
        return lambda follow: scheduler.logs(job.app_id, query._replace(follow=follow))

    def replicas(self, handle: str | Handle) -> list[tuple[str, int]]:
        """Return the role and number of each replica in a job, or only of the replicas that the
        handle refers to.

        Raises:
            UsageError: if the job, role or replica does not exist.
        """
        job = self._parsed(handle)
        record, why = submitted.find_record(job), ""
        if record is not None and record.get("app") is not None:
            found = [
                (role.name, number)
                for role in serial.from_json(record["app"]).roles
                for number in range(role.num_replicas)
            ]
        else:
            status = self.status(job)
            why = status.message
            found = [(each.role, each.replica) for each in status.replicas]
            if not found and job.scheduler == RUN:
                raise UsageError(_why_no_workers(job, status.state), hint=why)
        wanted = [
            (role, number)
            for role, number in found
            if job.role in ("", role) and (not job.replicas or number in job.replicas)
        ]
        if wanted and set(job.replicas) <= {number for _, number in wanted}:
            return wanted
        shown = ", ".join(f"{role}/{number}" for role, number in found[:20])
        part = "/".join([job.role, ",".join(map(str, job.replicas))]).strip("/")
        raise UsageError(
            f"{job} has no replica {part}".rstrip(), hint=f"it has {shown}" if shown else why
        )

    def list(self, scheduler: str = "") -> Sequence[Job]:
        """Return this user's jobs, newest first. These are the jobs recorded on this machine and,
        if a scheduler is specified, all jobs that the scheduler knows of.
        """
        cfg = self._settings_cfg(scheduler) if scheduler else {}
        return submitted.listed(self.scheduler, scheduler, self.session, cfg)

    def describe(self, handle: str | Handle) -> dict[str, Any]:
        """Return a job's record without secrets. It consists of the app, the time and place of
        submission, and the job's current state.

        Raises:
            UsageError: if the job does not exist.
        """
        job = self._parsed(handle)
        record = submitted.find_record(job)
        if record is None:
            found = self.status(job)
            known = {"message": found.message, "url": found.url}
            return {"handle": str(job), "state": found.state.name, "app": None, **known}
        return {**record, "state": submitted.states_now(self.scheduler, [record])[0].name}

    def describe_native(self, handle: str | Handle) -> Any:
        """Return the scheduler's own description of a job, such as its Kubernetes objects, or None.

        Raises:
            UsageError: if the job does not exist.
        """
        job = self._parsed(handle)
        native = getattr(self.scheduler(job.scheduler), "native", None)
        return None if native is None else native(job.app_id)

    def _parsed(self, handle: str | Handle, purpose: Purpose = Purpose.READ) -> Handle:
        if not isinstance(handle, str | Handle):
            raise UsageError(f"{handle!r} is not a job handle")
        return self.find(handle, purpose) if isinstance(handle, str) else handle

    def _whole(self, handle: str | Handle, what: str, purpose: Purpose) -> Handle:
        job = self._parsed(handle, purpose)
        if job.role:
            raise UsageError(
                f"{job}/{job.role} is only a part of a job; jobs can only be {what} as a whole",
                hint=str(job),
            )
        return job

    def _settings_cfg(self, name: str) -> dict[str, Any]:
        found = self.scheduler(name)
        optional = [each._replace(required=False) for each in found.options]
        return options.resolve(name, optional, {}, *self._load_settings(name, found))[0]

    def _load_settings(
        self, name: str, found: Scheduler
    ) -> tuple[dict[str, str], str, options.SiteOptions]:
        """Return a scheduler's options from the settings files, the names of those files (for
        messages), and the scheduler's options from the site's file.
        """
        where = f"the settings ({', '.join(self.settings.files)})" if self.settings.files else ""
        names = found.name, name
        sections = {k: v for each in names for k, v in self.settings.section(each).items()}
        return sections, where, options.site_options(self.settings.site, *names)

    def _audit(self, *what: str) -> None:
        from relight.runner import audit

        audit.record(self.env, self.settings.site, *what)

    # The steps of a dry run.

    def _cfg(
        self, name: str, found: Scheduler, cfg: Mapping[str, Any] | str, workspace: str
    ) -> tuple[dict[str, Any], Sequence[str]]:
        given = dict(options.parse(cfg) if isinstance(cfg, str) else cfg)
        settings = self._load_settings(name, found)
        values, notes = options.resolve(name, found.options, given, *settings)
        if workspace:
            from relight.job import workspaces

            try:
                folders = workspaces.absolute(workspace)
            except UsageError as error:
                raise UsageError(f"--workspace={workspace}: {error.message}") from None
            if found.capabilities.pushes_images:
                if not values["image_repo"]:
                    raise UsageError(
                        f"--workspace={workspace}: {name} needs a repository for the image that "
                        "contains it",
                        hint="-cfg image_repo=REGISTRY/NAME, to which docker can push",
                    )
            elif "workspace" not in values:
                notes.append(f"{name} takes no workspace, because the job runs where the files are")
            elif "workspace" not in given:
                values["workspace"] = folders
        return values, notes


def compiled(regex: str) -> "re.Pattern[str] | None":
    """Compile a regular expression, or return None if it is empty.

    Raises:
        UsageError: if it is invalid.
    """
    try:
        return re.compile(regex) if regex else None
    except re.error as error:
        raise UsageError(f"--regex={regex}: {error}") from None


def _why_no_workers(job: Handle, state: AppState) -> str:
    if state is AppState.PENDING:
        return f"{job} has not started any worker yet"
    return f"{job} had no workers when it ended" if state.is_over else f"{job} has no known worker"


def _docker() -> Any:
    """Return the Docker scheduler, which builds the images for schedulers that pull them."""
    return registry.find("docker")


def _as_the_roles_want(request: Request) -> Request:
    """Return the request after each role's own `pre_proc` function has modified it."""
    for role in request.app.roles:
        if type(role).pre_proc is Role.pre_proc:
            continue
        info = AppDryRunInfo(deepcopy(request.body), json.dumps, app=request.app, cfg=request.cfg)
        body = role.pre_proc(request.scheduler, info).request
        if body != request.body:
            request = request._replace(body=body, text=json.dumps(body, indent=2))
    return request
