"""relight installed apart from torch: workers run the Python that the user means."""

import subprocess
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from conftest import LIMIT_S, clean_environment

import relight

SOURCES = str(Path(relight.__file__).resolve().parent.parent)
SAY = "import sys, torch; print(sys.prefix, torch.__file__)"
PROGRAM = "import sys; from relight.cli.main import entry; sys.exit(entry())"


class Machine:
    """Virtual environments: `tool` has relight, `mine` and `other` a torch, `bare` nothing."""

    def __init__(self, place: Path) -> None:
        self.place = place
        for name in ("tool", "mine", "other", "bare"):
            venv.create(place / name, symlinks=True)
        (self._packages("tool") / "relight.pth").write_text(SOURCES)
        for name in ("mine", "other"):
            self.give_torch(name)
        program = place / "tool" / "bin" / "relight"
        program.write_text(f"#!{program.parent}/python\n{PROGRAM}")
        program.chmod(0o755)
        (place / "train.py").write_text(SAY)

    def _packages(self, name: str) -> Path:
        (found,) = (self.place / name / "lib").glob("python3*/site-packages")
        return found

    def give_torch(self, name: str) -> None:
        (self._packages(name) / "torch").mkdir()
        (self._packages(name) / "torch" / "__init__.py").write_text("")

    def run(
        self,
        *flags: str,
        path: str = "",
        command: tuple[str, ...] = ("{tool}/bin/relight",),
        **variables: str,
    ) -> "subprocess.CompletedProcess[str]":
        """Run train.py; `{mine}` and the like stand for the environments."""
        names = {each.name: str(each) for each in self.place.iterdir()}
        environment = clean_environment(**{k: v.format(**names) for k, v in variables.items()})
        for name in {"VIRTUAL_ENV", "CONDA_PREFIX", "PYTHON_EXEC", "PYTHONPATH"} - set(variables):
            environment.pop(name, None)
        environment["PATH"] = path.format(**names) + ":/usr/bin:/bin"
        return subprocess.run(
            [*(word.format(**names) for word in command), "run", *flags, "train.py"],
            env=environment,
            cwd=self.place,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def where(self, *flags: str, **variables: str) -> str:
        """Return the name of the environment whose Python the worker was."""
        done = self.run(*flags, **variables)
        assert done.returncode == 0, done.stderr
        prefix, torch = done.stdout.split()
        assert torch.startswith(prefix)
        return Path(prefix).name


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    yield Machine(tmp_path_factory.mktemp("machine"))


@pytest.mark.parametrize(
    ("variables", "path", "expected"),
    [
        ({"VIRTUAL_ENV": "{mine}"}, "", "mine"),
        ({"CONDA_PREFIX": "{mine}"}, "", "mine"),
        ({"VIRTUAL_ENV": "{mine}", "CONDA_PREFIX": "{other}"}, "", "mine"),
        (
            {"VIRTUAL_ENV": "{mine}", "CONDA_PREFIX": "{other}"},
            "{other}/bin:{mine}/bin",
            "other",
        ),
        ({"VIRTUAL_ENV": "{mine}", "PYTHON_EXEC": "{other}/bin/python"}, "", "other"),
        ({"VIRTUAL_ENV": "/gone", "CONDA_PREFIX": "{mine}"}, "", "mine"),
    ],
)
def test_workers_run_python_exec_or_the_active_environment(
    machine: Machine, variables: Mapping[str, str], path: str, expected: str
) -> None:
    """PYTHON_EXEC, then the environment that is active; of two, the one first on PATH."""
    assert machine.where(path=path, **variables) == expected


def test_warm_workers_run_the_same_python(machine: Machine) -> None:
    """With --preload the same Python imports and forks."""
    assert machine.where("--preload=json", VIRTUAL_ENV="{mine}") == "mine"


def test_verbose_tells_which_python_workers_run(machine: Machine) -> None:
    """-v says which Python the workers run, and from where that is known; without it, nothing."""
    place = machine.place
    done = machine.run("-v", VIRTUAL_ENV="{mine}")
    note = f"note: workers run {place}/mine/bin/python (from the active environment)"
    assert note in done.stderr
    assert "note" not in machine.run(VIRTUAL_ENV="{mine}").stderr


def test_relight_installed_beside_torch_runs_its_own_python(tmp_path: Path) -> None:
    """Where torch is installed beside relight, its own Python runs, as under torchrun, whatever is
    active; so it does where it was named by `python -m relight`.
    """
    machine = Machine(tmp_path)
    (tmp_path / "train.py").write_text("import sys; print(sys.prefix)")
    named = ("{tool}/bin/python", "-m", "relight")
    done = machine.run(command=named, VIRTUAL_ENV="{mine}")
    assert done.stdout.strip() == str(tmp_path / "tool")
    machine.give_torch("tool")
    done = machine.run("-v", VIRTUAL_ENV="{mine}")
    assert done.stdout.strip() == str(tmp_path / "tool")
    assert "workers run relight's own Python, not that of" in done.stderr


def test_a_missing_module_is_reported_with_the_python_that_lacks_it(machine: Machine) -> None:
    """A module that the workers' Python lacks: the report says which Python that was, and how to
    choose another one; nothing of it where it is the one that the shell has, too.
    """
    place = machine.place
    done = machine.run(path="{mine}/bin")
    assert "No module named 'torch'" in done.stderr
    has_it = f"{place}/mine/bin/python has it: activate its environment, or set PYTHON_EXEC"
    assert f"  workers ran {place}/tool/bin/python; {has_it}\n" in done.stderr
    done = machine.run(path="{bare}/bin", VIRTUAL_ENV="{bare}")
    assert "No module named 'torch'" in done.stderr
    assert "PYTHON_EXEC" not in done.stderr


def test_relight_launch_keeps_the_callers_interpreter(machine: Machine) -> None:
    """`relight.launch` calls the function by the Python that called it, whatever is active."""
    text = "import relight, sysconfig; print(*relight.launch(sysconfig.get_path, 'data'))"
    done = subprocess.run(
        [machine.place / "tool" / "bin" / "python", "-c", text],
        env=clean_environment(VIRTUAL_ENV=str(machine.place / "mine")),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.stdout.strip() == str(machine.place / "tool"), done.stderr
