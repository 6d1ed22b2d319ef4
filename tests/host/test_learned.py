"""What --preload=auto has learned about a script, stored in the user's cache directory."""

import json
import os
from pathlib import Path

import pytest

from relight.warm import import_profile
from relight.warm.import_profile import LearnedFile
from relight.warm.worker_program import WorkerProgram

SCRIPT = "import torch\nfrom torch import nn\n\nprint(1)\n"


class Case:
    """A script, and a directory of installed packages."""

    def __init__(self, tmp_path: Path) -> None:
        self.script = tmp_path / "train.py"
        self.script.write_text(SCRIPT)
        self.packages = tmp_path / "site-packages"
        self.packages.mkdir()
        self.variables = {"HOME": str(tmp_path)}
        self.cache = tmp_path / ".cache" / "relight" / "learned"

    def file(self, *arguments: str, program: str = "/usr/bin/python3") -> LearnedFile:
        argv = (program, "-u", *(arguments or (str(self.script), "--lr=1")))
        return LearnedFile(WorkerProgram(program, argv, self.variables, (), 2))

    def learn(self, *arguments: str) -> None:
        file = self.file(*arguments)
        file.note_unfit("noisy", "noisy starts a thread", 0.5)
        modules = ["torch", "noisy", "noisy.sub", "csv"]
        file.write(modules, {"noisy": "noisy"}, [str(self.packages)])

    def knows(self, *arguments: str, program: str = "/usr/bin/python3") -> bool:
        return bool(self.file(*arguments, program=program).known.modules)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_profile_lists_modules_that_can_and_cannot_be_preloaded(case: Case) -> None:
    assert not case.knows()
    case.learn()
    known = case.file(str(case.script), "--lr=2").known
    assert known.fit == ["torch", "csv"]
    assert known.unfit == (("noisy", "noisy starts a thread", 0.5),)
    assert known.culprits == ("noisy",)


def test_profile_is_kept_if_edited_script_has_no_new_imports(case: Case) -> None:
    case.learn()
    case.script.write_text(SCRIPT.replace("print(1)", "print(2)"))
    assert case.knows()


def test_new_import_in_script_invalidates_profile(case: Case) -> None:
    case.learn()
    case.script.write_text(SCRIPT + "if True:\n    import numpy\n")
    assert not case.knows()


@pytest.mark.parametrize(
    "text",
    [("from . import layers\n", "import os, model as m\n"), ("", "from model import layers\n"),
     ("", "import model.layers\n"), ("from .layers import x\n", "from model import (\n")],
)  # fmt: skip
def test_new_import_in_local_module_invalidates_profile(
    case: Case, tmp_path: Path, text: tuple[str, str]
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "__init__.py").write_text(text[0])
    (tmp_path / "model" / "layers.py").write_text("import torch\n")
    case.script.write_text(text[1] + SCRIPT)
    case.learn()
    assert case.knows()
    (tmp_path / "model" / "layers.py").write_text("import torch\nx = 1\n")
    assert case.knows()
    (tmp_path / "model" / "layers.py").write_text("import torch\ntry: import numpy\nfinally: 1\n")
    assert not case.knows()


def test_possibly_transient_import_failure_is_not_recorded(case: Case) -> None:
    """The process was killed, or there was another file next to the script."""
    file = case.file()
    file.note_unfit("torch", "it ends the process", 0.5)
    file.write(["torch", "csv"], {}, [str(case.packages)])
    assert case.file().known.fit == ["torch", "csv"]


def test_module_whose_import_never_ends_is_skipped_next_time(case: Case) -> None:
    case.learn()
    file = case.file()
    file.note_endless("csv", "its import did not end in 2 min", 120.0)
    assert case.file().known.fit == ["torch", "csv"]
    file.add([], [])  # ends the job
    assert case.file().known.fit == ["torch"]
    assert case.file().known.culprits == ("noisy", "csv")


def test_slow_import_that_finishes_is_preloaded_next_time(case: Case) -> None:
    file = case.file()
    file.note_endless("csv", "its import did not end in 2 min", 120.0)
    file.write(["torch", "csv"], {}, [str(case.packages)])
    file.add([], [])
    assert case.file().known.fit == ["torch", "csv"]


def test_installing_a_package_invalidates_profile(case: Case) -> None:
    case.learn()
    (case.packages / "new-1.0.dist-info").mkdir()
    assert not case.knows()


def test_each_interpreter_and_script_has_its_own_profile(case: Case, tmp_path: Path) -> None:
    case.learn()
    (tmp_path / "other.py").write_text(SCRIPT)
    assert not case.knows(program="/usr/local/bin/python3")
    assert not case.knows(str(tmp_path / "other.py"))


def test_script_run_as_module_has_a_profile_per_directory(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    case.learn("-m", "package.train")
    assert case.knows("-m", "package.train")
    monkeypatch.chdir(case.packages)
    assert not case.knows("-m", "package.train")


def test_profile_with_unusual_paths_and_times_round_trips(case: Case, tmp_path: Path) -> None:
    case.script = tmp_path / os.fsdecode(b"tr\xffa\nin.py")
    case.script.write_text(SCRIPT)
    os.utime(case.packages, (-(10**9), -(10**9)))
    case.learn()
    assert case.knows()
    assert import_profile.forget(case.variables, str(case.script)) == [str(case.script)]


def test_removed_working_directory_causes_no_error(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    case.learn("-m", "package.train")
    assert not case.knows("-m", "package.train")


def test_no_profile_is_stored_for_stdin_or_if_there_is_no_home_directory(case: Case) -> None:
    case.learn("-")
    assert not case.knows("-")
    case.variables = {"HOME": "", "XDG_CACHE_HOME": "relative"}
    case.learn()
    assert not case.knows()
    assert not case.cache.exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"script": 1}', b"\xff", b'{"modules": "torch"}', b"[" * 100_000],
    ids=["empty", "truncated", "list", "types", "bytes", "text", "deep"],
)
def test_damaged_profile_is_ignored_and_replaced(case: Case, content: bytes) -> None:
    case.learn()
    (path,) = case.cache.iterdir()
    path.write_bytes(content)
    assert not case.knows()
    case.learn()
    assert case.knows()


def test_fifo_in_place_of_profile_does_not_block(case: Case) -> None:
    case.learn()
    (path,) = case.cache.iterdir()
    path.unlink()
    os.mkfifo(path)
    assert not case.knows()
    case.learn()  # doesn't write to it either


@pytest.mark.needs_root
def test_profile_owned_by_another_user_is_ignored(case: Case) -> None:
    case.learn()
    (path,) = case.cache.iterdir()
    os.chown(path, 12345, -1)
    assert not case.knows()


def test_unwritable_cache_causes_no_error(case: Case) -> None:
    case.cache.parent.parent.write_text("a file")
    case.learn()
    assert not case.knows()


def test_late_imports_are_added_to_profile(case: Case) -> None:
    case.learn()
    file = case.file()
    before = (case.cache / os.listdir(case.cache)[0]).stat().st_ino
    file.add(["csv", "torch"], [])
    assert (case.cache / os.listdir(case.cache)[0]).stat().st_ino == before  # not rewritten
    file.add(["csv", "tomllib"], ["OMP_NUM_THREADS"])
    assert case.file().known.fit == ["torch", "csv", "tomllib"]
    assert case.file().known.writes == ("OMP_NUM_THREADS",)  # names only: values may be secret
    case.file().add([], ["LANG"])
    assert case.file().known.writes == ("LANG", "OMP_NUM_THREADS")
    case.file().add(["csv"], [])  # a worker was traced, and set none
    assert case.file().known.writes == ()


def test_cache_evicts_least_recently_used_profiles(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_profile, "_MAX_FILES", 3)
    scripts = [str(tmp_path / f"{number}.py") for number in range(4)]
    for number, script in enumerate(scripts):
        Path(script).write_text(SCRIPT)
        if number == 3:
            assert case.knows(scripts[0])  # reading counts as a use
        case.learn(script)
        for path in case.cache.iterdir():  # distinct times, however coarse the clock is
            found = path.stat()
            os.utime(path, ns=(found.st_mtime_ns - 10**9,) * 2)
    assert [case.knows(script) for script in scripts] == [True, False, True, True]


def test_forget_removes_one_profile_or_all(case: Case, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(SCRIPT)
    case.learn()
    case.learn(str(other))
    assert import_profile.forget(case.variables, str(other)) == [str(other)]
    assert case.knows() and not case.knows(str(other))
    (case.cache / "damaged.json").write_text("{")
    assert import_profile.forget(case.variables) == sorted(
        [str(case.script), str(case.cache / "damaged.json")]
    )
    assert not case.knows()
    assert import_profile.forget(case.variables) == []


def test_forget_continues_after_file_that_cannot_be_deleted(case: Case) -> None:
    case.cache.mkdir(parents=True)
    for name in ("0.json", "z.json"):
        (case.cache / name).mkdir()
    case.learn()
    with pytest.raises(OSError, match="Is a directory"):
        import_profile.forget(case.variables)
    assert not case.knows()


def test_profile_is_stored_as_readable_json(case: Case) -> None:
    """The file is JSON with the field names shown here, so that people and other tools
    can read it.
    """
    case.learn()
    (path,) = case.cache.iterdir()
    stored = json.loads(path.read_text())
    assert stored["script"] == str(case.script)
    assert stored["modules"] == ["torch", "noisy", "noisy.sub", "csv"]
    assert path.stat().st_mode & 0o777 == 0o600
