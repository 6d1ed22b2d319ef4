"""The site configuration: defaults below everything else, and locked values."""

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Launch

from relight.base.env import Environment
from relight.base.errors import MachineError, UsageError
from relight.base.values import PreemptionSource
from relight.cli import doctor
from relight.cli.jobs import effective_settings
from relight.flags import rdzv_conf
from relight.flags import site as sites
from relight.flags.arguments import parse, to_spec
from relight.flags.site import Site
from relight.flags.spec import FLAGS, LaunchSpec
from relight.job.app import AppDef, Role
from relight.runner import options, settings
from relight.runner.options import SiteOptions
from relight.runner.runner import Runner
from relight.schedulers.api import Option

TEXT = """
locked = ["hang_timeout", "keep_alive_interval", "schedulers.slurm.partition"]
new-table = { x = 1 }
[run]
hang-timeout = "auto"
max_restarts = 3
preload = ["torch", "numpy"]
virtual-local-rank = true
flag-of-tomorrow = 1
[run.rdzv-conf]
keep_alive_interval = 1
join_timeout = 300
[schedulers.slurm]
partition = "gpu"
time = 60
[schedulers.slurm.of-tomorrow]
[components."dist.ddp"]
j = "1x2"
[submit]
scheduler = "slurm"
"""


def written(folder: Path, text: str = TEXT) -> Environment:
    """Return an environment with this site file and an empty home directory."""
    (folder / "config.toml").write_text(text)
    return Environment({"RELIGHT_CONFIG_DIR": str(folder), "HOME": str(folder / "home")})


def spec(site: Site, *words: str, **variables: str) -> LaunchSpec:
    """Return the result of a command line at a site."""
    return to_spec(parse([*words, "x.py"], Environment(variables), FLAGS, site))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Return the site described by TEXT."""
    return sites.load(written(tmp_path))


def test_flags_and_variables_override_site_defaults(site: Site) -> None:
    assert spec(site).max_restarts.most == 3
    assert spec(site, PET_MAX_RESTARTS="2").max_restarts.most == 2
    assert spec(site, "--max-restarts=1", PET_MAX_RESTARTS="2").max_restarts.most == 1
    assert spec(site).preload == ("torch", "numpy")
    assert spec(site).virtual_local_rank is True


def test_site_defaults_are_not_treated_as_user_flags(site: Site) -> None:
    """Notes about flags without effect are for whoever typed them."""
    assert parse(["x.py"], Environment({}), FLAGS, site).given == set()


def test_rdzv_conf_is_merged_with_site_defaults_key_by_key(site: Site) -> None:
    """Ineffective and overridden site keys are dropped without a note."""
    found = spec(site, "--rdzv-conf=last_call_timeout=9,join_timeout=60")
    values, notes = rdzv_conf.parse(
        rdzv_conf.merged(found.rdzv_conf, found.conf_defaults, "c10d"), "c10d"
    )
    assert (values.last_call_timeout, values.join_timeout, values.keep_alive_interval) == (9, 60, 1)
    assert notes == []
    assert rdzv_conf.merged((), (("lease_ttl", "9"), ("nope", "1")), "c10d") == ()


@pytest.mark.parametrize(
    ("words", "variables", "message"),
    [
        (["--hang-timeout=off"], {}, "--hang-timeout=off: locked to auto by {}"),
        ([], {"RELIGHT_HANG_TIMEOUT": "9"}, "RELIGHT_HANG_TIMEOUT=9: locked to auto by {}"),
        (["--rdzv-conf=keep_alive_interval=2"], {},
         "--rdzv-conf: keep_alive_interval=2: locked to 1 by {}"),
    ],
)  # fmt: skip
def test_locked_site_value_cannot_be_overridden(
    site: Site, words: list[str], variables: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        spec(site, *words, **variables)
    assert caught.value.message == message.format(site.path)


def test_flag_may_repeat_locked_site_value(site: Site) -> None:
    same = spec(site, "--hang-timeout=auto", "--rdzv-conf=keep_alive_interval=1")
    assert same.hang_timeout == spec(site).hang_timeout


def test_flag_locked_without_a_value_is_locked_to_its_default() -> None:
    site = Site("/etc/relight/config.toml", locked=frozenset({"run.status", "rdzv-conf.takeover"}))
    with pytest.raises(UsageError, match=r"locked to its default"):
        spec(site, "--status=8080")
    with pytest.raises(UsageError, match=r"takeover=alone: locked to its default by"):
        spec(site, "--rdzv-conf=takeover=alone")
    assert spec(site).status is None


OPTIONS = (
    Option("partition", str, None, "x"),
    Option("time", str, None, "x"),
    Option("privileged", bool, False, "x"),
)
AT_SITE = SiteOptions(
    {"partition": "gpu", "time": 60, "tomorrow": 1}, {"partition", "privileged"}, "site.toml"
)


def test_site_scheduler_options_have_lowest_precedence() -> None:
    """Unknown options are for another version, and are ignored."""
    values, notes = options.resolve("s", OPTIONS, {}, site=AT_SITE)
    assert (values["partition"], values["time"], notes) == ("gpu", "60", [])
    values, _ = options.resolve("s", OPTIONS, {"time": "1"}, {"time": "2"}, site=AT_SITE)
    assert values["time"] == "1"
    assert options.resolve("s", OPTIONS, {}, {"time": "2"}, site=AT_SITE)[0]["time"] == "2"


@pytest.mark.parametrize(
    ("given", "file", "message"),
    [
        ({"partition": "x"}, {}, "s's option partition=x: locked to gpu by site.toml"),
        ({"privileged": "true"}, {}, "s's option privileged=true: locked to False by site.toml"),
        ({}, {"Partition": "x"}, "in f: s's option partition=x: locked to gpu by site.toml"),
    ],
)
def test_locked_scheduler_option_cannot_be_overridden(
    given: dict[str, str], file: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        options.resolve("s", OPTIONS, given, file, "f", AT_SITE)
    assert caught.value.message == message


def test_user_settings_files_override_site_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    env = written(tmp_path)
    assert settings.load(env).command("scheduler") == "slurm"
    assert settings.load(env).section("component:dist.ddp") == {"j": "1x2"}
    (tmp_path / ".torchxconfig").write_text("[cli:run]\nscheduler = docker\n")
    assert settings.load(env).command("scheduler") == "docker"


def test_effective_settings_list_each_value_with_its_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    env = written(tmp_path)
    (tmp_path / ".relightconfig").write_text("[slurm]\ntime = 30\n[local]\nlog_dir = a\n")
    env = Environment({**env.variables, "RELIGHT_NAME": "n"})
    path = str(tmp_path / "config.toml")
    lines = [line.split() for line in effective_settings.lines(env, ["slurm"], every=False)]
    assert ["rdzv-conf", "keep_alive_interval", "1", path, "(locked)"] in lines
    assert ["hang-timeout", "auto", path, "(locked)"] in lines
    assert ["max-restarts", "3", path] in lines
    assert ["name", "n", "RELIGHT_NAME"] in lines
    assert ["partition", "gpu", path, "(locked)"] in lines
    assert ["time", "30", str(tmp_path / ".relightconfig")] in lines
    assert lines[-1] == ["ignored", "in", f"{path}:", "new-table,", "run.flag-of-tomorrow"]
    shown = effective_settings.lines(env, ["slurm"], every=True)
    assert ["qos", "default"] in [line.split() for line in shown]


def test_effective_settings_include_those_under_aliases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    env = written(
        tmp_path,
        'locked = ["schedulers.local_cwd.prepend_cwd"]\n[schedulers.local_cwd]\n'
        "prepend_cwd = true\n",
    )
    (tmp_path / ".relightconfig").write_text("[local]\nlog_dir = a\n[local_cwd]\nlog_dir = b\n")
    files, site = str(tmp_path / ".relightconfig"), str(tmp_path / "config.toml")
    for name, log_dir in (("local", "a"), ("local_cwd", "b")):
        shown = effective_settings.lines(env, [name], every=False)
        lines = [line.split() for line in shown]
        assert ["prepend_cwd", "True", site, "(locked)"] in lines
        assert ["log_dir", log_dir, files] in lines


def test_run_and_launch_read_site_config(
    launch: Launch, script: Callable[[str], Path], tmp_path: Path
) -> None:
    written(tmp_path, 'locked = ["nproc-per-node"]\n[run]\nnproc-per-node = 2\n')
    env = {"RELIGHT_CONFIG_DIR": str(tmp_path)}
    path = script("import os; os.write(1, os.environ['WORLD_SIZE'].encode())")
    assert launch("run", path, **env).stdout.split() == ["2", "2"]
    assert launch("launch", "--use-env", path, **env).stdout.split() == ["2", "2"]
    refused = launch("run", "--nproc-per-node=1", path, **env)
    assert refused.returncode == 2 and "locked to 2" in refused.stderr


def test_config_directory_without_config_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"RELIGHT_CONFIG_DIR=.*: this directory contains no config.toml"
    ):
        sites.load(Environment({"RELIGHT_CONFIG_DIR": str(tmp_path)}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[run", "Expected ']'"),
        ("run = 1", "run must be a table"),
        ("locked = 'x'", "locked must be a list of names"),
        ("[run]\nrdzv-id = 'x'", "run.rdzv-id is specific to each job"),
        ("[run]\ntee = {a = 1}", "the value of run.tee has a type that is not valid for a flag"),
        ("[run]\nrdzv-conf = 'x'", "expected KEY=VALUE"),
        ("[schedulers]\nslurm = 1", "slurm must be a table"),
        ("[run]\nlog-dir = ['/a', '/b']", "run.log-dir must be a single value, not a list"),
        ("[run.rdzv-conf]\njoin_timeout = [1, 2]", "join_timeout must be a single value"),
        ("[submit]\nscheduler = ['slurm', 'ssh']", "submit.scheduler must be a single value"),
    ],
)
def test_malformed_site_config_error_includes_its_path(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(MachineError, match=message) as caught:
        sites.load(written(tmp_path, text))
    assert caught.value.message.startswith(f"can't read {tmp_path / 'config.toml'}: ")


def test_invalid_site_value_error_shows_config_file(tmp_path: Path) -> None:
    site = sites.load(written(tmp_path, "[run]\nmax-restarts = 'x'"))
    with pytest.raises(UsageError, match=r"config.toml: max-restarts = x: "):
        spec(site)


def test_exit_code_rules_from_site_config(tmp_path: Path) -> None:
    """The rules may be a list, or text as on the command line."""
    site = sites.load(written(tmp_path, '[run]\nfail-on = [2, "SIGXCPU"]\nrestart-on = "75"\n'))
    assert (spec(site).fail_on, spec(site).restart_on) == ((2, 152), (75,))


def test_site_list_of_preemption_signals(tmp_path: Path) -> None:
    site = sites.load(written(tmp_path, "[run]\non-preempt = ['SIGUSR1', 'SIGUSR2']\n"))
    assert spec(site).on_preempt == PreemptionSource((10, 12))


def test_site_list_for_repeatable_flag_is_like_repeating_the_flag(tmp_path: Path) -> None:
    site = sites.load(written(tmp_path, "[run]\nwatch-metric = ['loss: ([0-9]+)', 'lr: (.*)']\n"))
    assert spec(site).watch_metric == ("loss: ([0-9]+)", "lr: (.*)")


@pytest.mark.parametrize(
    ("locked", "suggestion"),
    [
        ("hang-timout", "did you mean hang-timeout?"),
        ("run.rdzv-conf.join_timeut", "did you mean join_timeout?"),
        ("schedulers.slurm.partion", "did you mean schedulers.slurm.partition?"),
        ("schedulers.slrum.partition", "did you mean schedulers.slurm.partition?"),
        (
            "xyz",
            "valid names: flags of relight run, keys of --rdzv-conf, and schedulers.NAME.OPTION",
        ),
    ],
)
def test_unknown_locked_name_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locked: str, suggestion: str
) -> None:
    monkeypatch.chdir(tmp_path)
    env = written(tmp_path, f"locked = ['{locked}', 'status', 'run.rdzv-conf.takeover', "
                  "'schedulers.slurm.mail_type']\n")  # fmt: skip
    path = tmp_path / "config.toml"
    note = f"{path}: locked: there is no {locked}, so this has no effect; {suggestion}"
    assert effective_settings.lines(env, ["slurm"], every=False)[-1] == note


def test_unknown_locked_name_is_reported_to_administrators_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    env = written(tmp_path, "locked = ['hang-timout', 'schedulers.local.detach']\n")
    with Runner("s", env=env) as runner:
        job = runner.dryrun(AppDef("job", [Role("r", "i", entrypoint="true")]), scheduler="local")
    assert not [note for note in job.notes if "locked" in note]
    monkeypatch.setenv("RELIGHT_CONFIG_DIR", str(tmp_path))
    doctor.main([])
    said = capsys.readouterr().out
    assert f"warning  {tmp_path}/config.toml: locked: there is no hang-timout, so this" in said
    assert "-> did you mean hang-timeout?" in said


def test_site_values_in_lists_and_tables_become_text(tmp_path: Path) -> None:
    known = [Option("exclude", list, None, ""), Option("labels", dict, None, ""),
             Option("partition", str, None, "")]  # fmt: skip

    def resolved(text: str) -> dict[str, object]:
        site = sites.load(written(tmp_path, f"[schedulers.x]\n{text}\n"))
        of_site = SiteOptions(site.schedulers["x"], (), site.path)
        return options.resolve("x", known, {}, site=of_site)[0]

    found = resolved("exclude = [1, 'b']\nlabels = {a = 1, b = true}")
    assert found["exclude"] == ["1", "b"]
    assert found["labels"] == {"a": "1", "b": "true"}
    for wrong in ("partition = ['a', 'b']", "exclude = [['a']]"):
        with pytest.raises(UsageError, match=r"config.toml: .*: expected "):
            resolved(wrong)
