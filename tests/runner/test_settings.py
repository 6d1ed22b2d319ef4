"""Settings files: which ones are read, which take precedence, and how errors are reported."""

from pathlib import Path

import pytest

from relight.base.env import Environment
from relight.base.errors import UsageError
from relight.runner import settings
from relight.runner.settings import NAMES, load

OURS, THEIRS = NAMES


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home directory given in the environment."""
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def loaded(home: Path, **variables: str) -> settings.ConfigFile:
    return load(Environment({"HOME": str(home), **variables}))


def test_sections_are_empty_without_settings_files(home: Path) -> None:
    found = loaded(home)
    assert (dict(found.sections), found.files) == ({}, ())
    assert found.section("local") == {}
    assert found.command("scheduler") == ""


def test_project_settings_override_individual_home_settings(place: Path, home: Path) -> None:
    """Among the four files, the first one with a value wins; sections are merged."""
    files = [place / OURS, place / THEIRS, home / OURS, home / THEIRS]
    files[0].write_text("[local]\na = 0\n")
    files[1].write_text("[local]\nb = 1\na = 1\n")
    files[2].write_text("[local]\na = 2\nb = 2\nc = 2\n")
    files[3].write_text("[local]\na = 3\nb = 3\nc = 3\nd = 3\n[more]\nx = 3\n")
    found = loaded(home)
    assert found.section("local") == {"a": "0", "b": "1", "c": "2", "d": "3"}
    assert set(found.sections) == {"local", "more"}
    assert list(found.files) == [str(path) for path in files]


def test_home_settings_are_read_once_from_home_directory(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    (home / OURS).write_text("[local]\na = 1\n")
    assert loaded(home).files == (str(home / OURS),)


@pytest.mark.parametrize("variable", ["RELIGHTCONFIG", "TORCHXCONFIG"])
def test_environment_variable_selects_a_single_settings_file(
    place: Path, home: Path, variable: str
) -> None:
    """An empty value disables all files."""
    (place / OURS).write_text("[local]\na = here\nb = here\n")
    (place / "own.ini").write_text("[local]\na = own\n")
    assert loaded(home, **{variable: "own.ini"}).section("local") == {"a": "own"}
    assert loaded(home, **{variable: ""}).sections == {}


def test_relightconfig_overrides_torchxconfig(place: Path, home: Path) -> None:
    """Even an empty .relightconfig takes precedence."""
    (place / "ours.ini").write_text("[local]\na = ours\n")
    (place / "theirs.ini").write_text("[local]\na = theirs\n")
    both = {"RELIGHTCONFIG": "ours.ini", "TORCHXCONFIG": "theirs.ini"}
    assert loaded(home, **both).section("local") == {"a": "ours"}
    assert loaded(home, **{**both, "RELIGHTCONFIG": ""}).sections == {}


@pytest.mark.parametrize("variable", ["RELIGHTCONFIG", "TORCHXCONFIG"])
def test_environment_variable_naming_missing_file_is_an_error(home: Path, variable: str) -> None:
    with pytest.raises(UsageError, match=f"^{variable}=none.ini: no such file$"):
        loaded(home, **{variable: "none.ini"})


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"a = 1\n", "no section headers"),
        (b"[local]\na = 1\na = 2\n", "option 'a' in section 'local' already exists"),
        (b"[local]\n[local]\n", "section 'local' already exists"),
        (b"[local]\nnovalue\n", "novalue"),
        (b"[local\na = 1\n", "no section headers"),
        (b"[local]\na = \xff\n", "invalid start byte"),
    ],
)
def test_invalid_settings_file_is_reported_in_one_line(
    place: Path, home: Path, content: bytes, what: str
) -> None:
    """The line names the file and the problem."""
    (place / OURS).write_bytes(content)
    with pytest.raises(UsageError) as caught:
        loaded(home)
    assert caught.value.message.startswith(f"can't read {place / OURS}: ")
    assert what in caught.value.message
    assert "\n" not in caught.value.message


def test_unreadable_settings_file_is_an_error(home: Path) -> None:
    """An unreadable file must not be treated as empty."""
    with pytest.raises(UsageError, match=r"^can't read /proc/self/mem: Input/output error$"):
        loaded(home, RELIGHTCONFIG="/proc/self/mem")


def test_directory_is_not_read_as_settings_file(place: Path, home: Path) -> None:
    (place / OURS).mkdir()
    assert loaded(home).files == ()


def test_settings_values_are_read_verbatim(place: Path, home: Path) -> None:
    """Keys keep their case, and values their `%`, `:`, `=`, `#`; only TorchX's file doubles `%`."""
    text = (
        "[local]\nlogDir = /a%b:c=d;e #f\nempty =\nfold = a\n  b\n[component:dist.ddp]\nj = 1x8\n"
    )
    (place / OURS).write_text(text)
    found = loaded(home)
    assert found.section("local") == {"logDir": "/a%b:c=d;e #f", "empty": "", "fold": "a\nb"}
    assert found.section("component:dist.ddp") == {"j": "1x8"}
    (place / OURS).unlink()
    (place / THEIRS).write_text("[local]\na = 50%%\n")
    assert loaded(home).section("local") == {"a": "50%"}


def test_cli_submit_section_overrides_cli_run(place: Path, home: Path) -> None:
    (place / THEIRS).write_text("[cli:run]\nscheduler = slurm\ncomponent = utils.echo\n")
    (place / OURS).write_text("[cli:submit]\nscheduler = docker\n")
    found = loaded(home)
    assert (found.command("scheduler"), found.command("component")) == ("docker", "utils.echo")


def test_sections_keep_the_order_of_the_file(place: Path) -> None:
    """`section_names` returns their names."""
    (place / OURS).write_text("[tracker:a]\nconfig = 1\n[tracker:b]\nconfig = 2\n[local]\n")
    assert settings.section_names(str(place / OURS)) == ["tracker:a", "tracker:b", "local"]
