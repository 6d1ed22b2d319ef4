"""Commands that list the available features: help, components, schedulers, configure."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import LIMIT_S

from relight.cli.main import COMMANDS, JOB_COMMANDS
from relight.job import components
from relight.schedulers import registry

from .conftest import Command


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize("command", JOB_COMMANDS)
def test_command_help_fits_on_one_screen(here: Command, command: str, flag: str) -> None:
    """The help has the usage, flags and examples."""
    found = here(command, flag)
    assert (found.returncode, found.stderr) == (0, "")
    lines = found.stdout.splitlines()
    assert lines[0].startswith(f"usage: relight {command}")
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    at = lines.index("examples:")
    assert lines[at + 1].startswith("  ") and f"relight {command}" in "\n".join(lines[at:])


@pytest.mark.parametrize("name", components.names())
def test_submit_help_for_component_matches_components_page(here: Command, name: str) -> None:
    """`submit COMPONENT --help` prints the same page as `components COMPONENT`."""
    found = here("submit", name, "--help")
    assert (found.returncode, found.stderr) == (0, "")
    assert here("components", name).stdout == found.stdout
    lines = found.stdout.splitlines()
    assert lines[0].startswith(f"usage: relight submit [flags] {name} [flags]")
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100


def test_submit_help_explains_when_the_command_exits(here: Command) -> None:
    """A local job ends with the command unless it is detached."""
    text = " ".join(here("submit", "--help").stdout.split())
    assert (
        "With local and ssh, the command shows the job's output and exits when the job ends" in text
    )
    assert "-cfg detach=true" in text


def test_main_help_lists_all_commands(here: Command) -> None:
    text = here("--help").stdout
    assert all(f"\n  {command:13}" in text for command in COMMANDS)


def test_components_command_prints_table_json_flags_and_source(here: Command, place: Path) -> None:
    rows = here("components").stdout.splitlines()
    assert [row.split()[0] for row in rows] == ["COMPONENT", *components.names()]
    shown = json.loads(here("components", "--json").stdout)
    assert [each["name"] for each in shown] == components.names()
    one = json.loads(here("components", "--json", "utils.echo").stdout)
    assert one == next(each for each in shown if each["name"] == "utils.echo")
    assert one["parameters"][0] == {
        "name": "msg", "flags": ["--msg"], "type": "str", "required": False,
        "default": "hello world", "help": "the message",
    }  # fmt: skip
    source = here("components", "--print", "utils.touch").stdout
    assert source.count("def ") == 1
    (place / "mine.py").write_text(source)
    assert "mine.py:touch" in here("components", "mine.py:touch").stdout


@pytest.mark.processes
def test_schedulers_command_prints_table_json_and_options(here: Command) -> None:
    """A single scheduler is found by either of its names."""
    rows = here("schedulers").stdout.splitlines()
    assert [row.split()[0] for row in rows] == ["SCHEDULER", *registry.names()]
    assert here("schedulers", "local").stdout == here("schedulers", "local_cwd").stdout
    shown = json.loads(here("schedulers", "--json").stdout)
    assert [each["name"] for each in shown] == registry.names()
    one = json.loads(here("schedulers", "--json", "local").stdout)
    assert one == shown[0]
    assert one["options"][0]["name"] == "log_dir"
    text = here("schedulers", "local").stdout
    assert here("submit", "-s", "local", "-cfg", "help", "utils.echo").stdout == text
    assert all(option["name"] in text for option in one["options"])


def test_configure_writes_one_section_per_scheduler(here: Command, place: Path) -> None:
    """The file can be loaded as written, and a second run adds nothing."""
    found = here("configure", "--all")
    assert (found.returncode, found.stdout) == (0, "")
    text = (place / ".relightconfig").read_text()
    assert [line for line in text.splitlines() if line.startswith("[")] == [
        f"[{name}]" for name in registry.names()
    ]
    plain = json.loads(here("submit", "--dryrun", "--json", "utils.echo",
                               RELIGHTCONFIG="").stdout)  # fmt: skip
    found = here("submit", "--dryrun", "--json", "utils.echo")
    assert found.stderr == ""
    assert json.loads(found.stdout)["cfg"] == plain["cfg"]
    assert here("configure", "--all").returncode == 0
    assert (place / ".relightconfig").read_text().count("[local]") == 1


@pytest.mark.processes
def test_configure_preserves_existing_content(here: Command, place: Path) -> None:
    """An existing section isn't written again."""
    file = place / ".relightconfig"
    file.write_text("[local]\nlog_dir = /mine\n")
    assert here("configure", "-s", "slurm").returncode == 0
    text = file.read_text()
    assert text.startswith("[local]\nlog_dir = /mine\n\n[slurm]\n# ")
    assert "\n# the partition, or several: p1;p2\n#partition =\n" in text
    assert "\n#requeue = true\n" in text
    assert here("submit", "-s", "slurm", "--dryrun", "utils.echo").stderr == ""
    found = here("configure", "-s", "local")
    assert (found.returncode, found.stdout) == (2, "")
    assert "has a section [local]" in found.stderr
    assert file.read_text() == text


@pytest.mark.processes
@pytest.mark.parametrize("before", ["", "[local]\n"])
def test_configure_on_full_disk_leaves_no_partial_file(place: Path, before: str) -> None:
    """Later commands would rely on it."""
    if before:
        (place / ".relightconfig").write_text(before)
    found = subprocess.run(
        ["bash", "-c", f'ulimit -f 1; exec "{sys.executable}" -m relight configure'],
        cwd=place, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert found.returncode == 4
    assert found.stderr.startswith("relight: error: can't write .relightconfig: File too large")
    assert [each.read_text() for each in place.glob(".relightconfig")] == [before] * bool(before)


def test_configure_with_print_flag_writes_no_file(here: Command, place: Path) -> None:
    found = here("configure", "--print", "--all", "-s", "local,slurm")
    assert found.stdout.startswith("[local]\nlog_dir = None\nprepend_cwd = false\n")
    assert "\n\n[slurm]\n" in found.stdout
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("name", components.names())
def test_printed_component_can_be_submitted_unchanged(
    here: Command, place: Path, name: str
) -> None:
    (place / "mine.py").write_text(here("components", "--print", name).stdout)
    words = {
        "dist.ddp": ("--script", "a.py"), "dist.spmd": ("--script", "a.py", "-j", "1x1"),
        "dist.torchrun": ("--script", "a.py"), "utils.sh": ("true",),
        "utils.touch": ("--file", "a"),
        "utils.python": ("-c", "1"), "utils.copy": ("--src", "a", "--dst", "b"),
        "utils.binary": ("--entrypoint", "true"), "utils.booth": ("--x1", "1", "--x2", "1"),
    }.get(name, ())  # fmt: skip
    (place / "a.py").touch()
    shown = []
    for address in ("mine.py:" + name.partition(".")[2], name):
        found = here("submit", "--dryrun", "--json", address, *words)
        assert (found.returncode, found.stderr) == (0, "")
        (role,) = json.loads(found.stdout)["app"]["roles"]
        shown.append({key: role[key] for key in ("name", "image", "args", "resource", "port_map")})
    assert shown[0] == shown[1]


@pytest.mark.processes
def test_configure_reports_and_skips_broken_plugin(
    relight: Command, place: Path, tmp_path: Path
) -> None:
    """If requested explicitly, a broken plug-in is an error."""
    info = tmp_path / "site" / "theirs-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[relight.schedulers]\nbroken = no_such_module\n")
    site = {"PYTHONPATH": str(tmp_path / "site")}
    found = relight("configure", "--print", **site)
    assert found.returncode == 0
    assert found.stderr.startswith(
        "relight: skipped broken: can't load the scheduler broken (no_such_module)"
    )
    assert "[local]" in found.stdout and "broken" not in found.stdout
    assert relight("configure", "--print", "-s", "broken", **site).returncode == 2


def test_values_written_by_configure_can_be_loaded(here: Command, place: Path) -> None:
    """Each scheduler's section has all of its options."""
    assert here("configure", "--all").returncode == 0
    assert "= none\n" not in (place / ".relightconfig").read_text()
