"""The site's flags of `relight run` apply to agents in containers, which can't read its file."""

from pathlib import Path
from typing import Any

import pytest
from conftest import Launch

from relight.base.env import Environment
from relight.base.errors import UsageError
from relight.flags import site as sites
from relight.flags.arguments import parse
from relight.flags.site import PASSED, Site
from relight.flags.spec import FLAGS
from relight.job.app import AppDef, Role
from relight.runner.runner import Runner

TEXT = """
locked = ["hang-timeout", "log-dir", "numa-binding", "health-check", "schedulers.docker.privileged"]
[run]
hang-timeout = "600"
event-log-handler = "audit"
restart-on = [75, "SIGKILL"]
watch-metric = ["loss: (.*)", "lr: (.*)"]
virtual-local-rank = true
log-dir = "/var/log/train"
health-check = "/opt/site/check.sh"
on-preempt = "/run/preempted"
rank-order = "topology=/etc/topology"
[run.rdzv-conf]
join_timeout = 300
token_file = "/etc/relight/token"
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    (tmp_path / "config.toml").write_text(TEXT)
    return tmp_path / "config.toml"


def request(path: Path, scheduler: str, **cfg: Any) -> tuple[AppDef, Any]:
    env = Environment({"RELIGHT_CONFIG_DIR": str(path.parent), "HOME": str(path.parent)})
    job = AppDef("job", [Role("main", "img", entrypoint="relight", args=["run", "train.py"])])
    with Runner("s", env=env) as runner:
        found = runner.dryrun(job, scheduler=scheduler, cfg=cfg)
    return found.app, found.request.body


def in_container(path: Path) -> Site:
    """Return the site's configuration as an agent in a container reads it."""
    return sites.load(Environment(request(path, "docker")[0].roles[0].env))


@pytest.mark.parametrize("scheduler", ["docker", pytest.param("kubernetes", marks=[
    pytest.mark.needs_kubernetes
])])  # fmt: skip
def test_site_flags_reach_containers(path: Path, scheduler: str) -> None:
    app, body = request(path, scheduler)
    assert PASSED in str(body)
    values = parse(["x.py"], Environment({}), FLAGS, in_container(path)).values
    assert values["hang_timeout"].idle_s == 600
    assert values["event_log_handler"] == "audit"
    assert values["restart_on"] == (75, 137)
    assert values["watch_metric"] == ("loss: (.*)", "lr: (.*)")
    assert values["virtual_local_rank"] is True
    assert values["conf_defaults"] == (("join_timeout", "300"),)
    assert app.roles[0].env[PASSED]


def test_site_locks_reach_containers(path: Path) -> None:
    site, variables = in_container(path), Environment({"RELIGHT_HANG_TIMEOUT": "9"})
    with pytest.raises(UsageError) as caught:
        parse(["x.py"], variables, FLAGS, site)
    assert caught.value.message == (
        f"RELIGHT_HANG_TIMEOUT=9: locked to 600 by {path} on the submission host"
    )
    with pytest.raises(UsageError, match="locked to its default"):
        parse(["--numa-binding=node", "x.py"], Environment({}), FLAGS, site)


def test_host_files_and_programs_of_site_stay_out_of_containers(path: Path) -> None:
    """A pod must not fail because it lacks a path of the submission host."""
    site = in_container(path)
    assert site.run.keys().isdisjoint(("log-dir", "health-check", "on-preempt", "rank-order"))
    assert not site.locks("log-dir") and not site.locks("health-check")
    assert "/opt/site" not in str(request(path, "docker")[1])


def test_builtin_health_checks_of_site_reach_containers(path: Path) -> None:
    path.write_text('[run]\nhealth-check = "gpu,disk=1G"\non-preempt = "SIGUSR1"\n')
    assert dict(in_container(path).run) == {"health-check": "gpu,disk=1G", "on-preempt": "SIGUSR1"}


@pytest.mark.parametrize(
    ("scheduler", "cfg", "is_passed"),
    [("local", {}, False), ("slurm", {}, False), ("slurm", {"image": "docker://x"}, True)],
)
def test_site_flags_are_only_passed_to_containers(
    path: Path, scheduler: str, cfg: dict[str, str], is_passed: bool
) -> None:
    """Elsewhere, agents read the file on their own node."""
    assert (PASSED in request(path, scheduler, **cfg)[0].roles[0].env) == is_passed


def test_locked_bad_nodes_directory_agrees_with_its_variable(path: Path) -> None:
    path.write_text('locked = ["bad-nodes"]\n[run]\nbad-nodes = "/shared/bad,7d"\n')
    variables = request(path, "docker")[0].roles[0].env
    assert variables["RELIGHT_BAD_NODES"] == "/shared/bad,604800s"
    env = Environment(variables)
    assert parse(["x.py"], env, FLAGS, sites.load(env)).values["bad_nodes"].expiry_s == 604800


def test_job_submitted_from_container_keeps_site_flags(path: Path) -> None:
    variables = request(path, "docker")[0].roles[0].env
    job = AppDef("job", [Role("main", "img", entrypoint="true")])
    with Runner("s", env=Environment({**variables, "HOME": str(path.parent)})) as runner:
        inner = runner.dryrun(job, scheduler="docker").app.roles[0].env
    assert inner[PASSED] == variables[PASSED]


def test_site_without_flags_adds_no_variable(path: Path) -> None:
    path.write_text("[schedulers.docker]\nprivileged = false\n")
    assert PASSED not in request(path, "docker")[0].roles[0].env


@pytest.mark.parametrize("text", ["{", "1", "[1]", '{"run": {"name": "x"}}', '{"run": 1}'])
def test_malformed_site_variable_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match=f"^{PASSED}: "):
        sites.load(Environment({PASSED: text}))


def test_event_handler_of_site_may_be_missing_in_image(launch: Launch, tmp_path: Path) -> None:
    """An image without the plug-in still trains. A handler that the user asks for must exist."""
    site = '{"path": "/etc/relight/config.toml", "run": {"event-log-handler": "audit"}}'
    result = launch("run", "--no-python", "true", RELIGHT_SITE=site)
    assert result.returncode == 0
    assert (
        "relight: note: events aren't sent to audit: this image lacks the plug-in "
        "(event-log-handler of your cluster)"
    ) in result.stderr
    result = launch("run", "--no-python", "true", RELIGHT_SITE=site, PET_EVENT_LOG_HANDLER="mine")
    assert result.returncode == 2
    own = tmp_path / "config.toml"
    own.write_text('[run]\nevent-log-handler = "audti"\n')
    result = launch("run", "--no-python", "true", RELIGHT_SITE=site, RELIGHT_CONFIG_DIR=tmp_path)
    assert result.returncode == 2, "the image's own file is used instead of what was passed"
