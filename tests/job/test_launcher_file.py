"""The launcher as a single file: small, reproducible, complete, and runnable by any Python."""

import ast
import io
import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import LIMIT_S, long

import relight
from relight.job import launcher_file
from relight.job.app import Role

TOP = Path(relight.__file__).parent
MISSING_IS_FINE = {
    "relight.cli.doctor",
    "relight.job.components.dist",  # for errors from `relight submit`
    "relight.api.embedding",  # `relight.run` needs an installation
    "relight.api.function",  # `relight.launch`, likewise
    "relight.api.futures",  # `relight.attach`, likewise
    "relight.job.workspaces",  # for components that convert or copy a workspace
    "relight.api.submission",  # `relight.submit` and `relight.map`, likewise
}
"""Modules that others import only for things that the file isn't meant for."""


@pytest.fixture
def launcher(tmp_path: Path) -> Path:
    """Build the file in a directory other than the working directory."""
    path = tmp_path / "bin" / "relight"
    path.parent.mkdir()
    path.write_bytes(launcher_file.build())
    path.chmod(0o555)
    return path


def run(launcher: Path, *words: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run the file with a PATH on which python3 is the tests' interpreter."""
    programs = launcher.parent / "programs"
    programs.mkdir(exist_ok=True)
    if not (programs / "python3").exists():
        (programs / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} -I "$@"\n')
        (programs / "python3").chmod(0o755)
    places = f"{programs}:/usr/bin:/bin" if path is None else path
    return subprocess.run(
        [launcher, *words],
        env={**os.environ, "PATH": places, "OMP_NUM_THREADS": "1"},
        cwd=launcher.parent.parent,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_launcher_file_is_small() -> None:
    """Its size in base64, as sent to clusters."""
    assert len(launcher_file.build()) * 4 / 3 < 500 * 1024


def test_groups_of_split_launcher_respect_size_limit() -> None:
    groups = launcher_file.split(50_000)
    assert len(groups) > 3
    assert all(sum(map(len, files.values())) <= 50_000 for files in groups)


@pytest.mark.processes
def test_split_launcher_runs_workers(launcher: Path, tmp_path: Path) -> None:
    """The parts are in the same directory."""
    for files in launcher_file.split(50_000):
        for name, content in files.items():
            (launcher.parent / name).unlink(missing_ok=True)
            (launcher.parent / name).write_bytes(content)
    launcher.chmod(0o555)
    (tmp_path / "train.py").write_text("import os\nprint('rank', os.environ['RANK'])\n")
    done = run(launcher, "run", "train.py")
    assert (done.returncode, done.stdout) == (0, "rank 0\n"), done.stderr


COMMENTED = '''"""Document."""
# comment

NAME = """
# no comment
"""
"""Of the name."""


class A(Exception):
    """Only a document."""


class Record(NamedTuple):
    size: int = 1


if TYPE_CHECKING:
    from somewhere import Something


def f(
    a: "Something",
    *rest: dict[
        str, int
    ],
    hash_sign: str = "# no comment",
) -> "Something":
    """Document
    of lines.
    """
    # comment
    number: int = 3
    text = f"""{NAME}
    # no comment
    """
    raise A(text, number, a, rest, hash_sign)  # a comment after code
'''


def test_launcher_file_has_no_docstrings_comments_or_annotations() -> None:
    found = launcher_file.stripped(COMMENTED)
    assert "ocument" not in found
    assert found.count(" comment") == found.count("# no comment") == 3
    assert "omething" not in found
    assert "dict" not in found
    assert ": int" in found.partition("def f")[0]  # annotations in the record


def test_stripped_module_behaves_like_the_original() -> None:
    """It has a multi-line string and default values."""

    def raised(source: str) -> tuple[int, str]:
        names: dict[str, Any] = {"NamedTuple": NamedTuple, "TYPE_CHECKING": False, "__name__": "a"}
        exec(compile(source, "a", "exec", dont_inherit=True), names)
        with pytest.raises(names["A"]) as caught:
            names["f"](1, {})
        return caught.tb.tb_next.tb_lineno, repr(caught.value)  # type: ignore[union-attr]

    assert raised(launcher_file.stripped(COMMENTED)) == raised(COMMENTED)


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Program(ast.NodeTransformer):
    """Removes everything from a module that `stripped` may remove."""

    def __init__(self) -> None:
        self.in_classes = set[ast.stmt]()

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.ClassDef):
            self.in_classes.update(node.body)
        super().generic_visit(node)
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)):
            node.body = [each for each in node.body if not is_removed(each)]
        if isinstance(node, FUNCTIONS):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, ast.AnnAssign) and node.value and node not in self.in_classes:
            return ast.copy_location(ast.Assign([node.target], node.value), node)
        return node


def is_removed(statement: ast.stmt) -> bool:
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    is_for_types = isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"
    return is_text or isinstance(statement, ast.Pass) or is_for_types


@pytest.mark.parametrize("every", [7, long(1)])
def test_stripped_modules_are_equivalent_programs(every: int) -> None:
    """Statements keep their line numbers, so that a traceback leads to the right line in the
    package.
    """

    def statements(source: str) -> tuple[str, list[tuple[int, str]]]:
        tree = Program().visit(ast.parse(source))
        found = [each for each in ast.walk(tree) if isinstance(each, ast.stmt)]
        return ast.dump(tree), [(each.lineno, type(each).__name__) for each in found]

    paths = [*launcher_file.modules()][::every]
    for source in (COMMENTED, *((TOP / path).read_text() for path in paths)):
        assert statements(launcher_file.stripped(source)) == statements(source)


@pytest.mark.processes
def test_traceback_shows_source_line_from_packed_module(launcher: Path) -> None:
    script = (
        f"import sys, traceback; sys.path.insert(0, {str(launcher)!r})\n"
        "from relight.base import errors\n"
        "try: errors.format_exception_oneline(None)\n"
        "except AttributeError: traceback.print_exc()\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", script],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    lines = (TOP / "base/errors.py").read_text().split("\n")
    line = next(each for each in lines if "error.__traceback__" in each)
    place = f'{launcher}/relight/base/errors.py", line {lines.index(line) + 1}, in '
    assert place in done.stderr, done.stderr
    assert line.strip() in done.stderr


@pytest.mark.processes
def test_import_finders_installed_by_interpreter_are_kept(launcher: Path) -> None:
    """A worker forked from a warm process inherits them."""
    script = (
        "import sys\n"
        f"sys.path.insert(0, {str(launcher)!r})\n"
        "before = sys.meta_path[:], sys.path_hooks[:]\n"
        "from relight.agent import agent\n"
        "assert before == (sys.meta_path, sys.path_hooks)\n"
    )
    subprocess.run([sys.executable, "-I", "-c", script], timeout=LIMIT_S, check=True)


def test_launcher_file_build_is_reproducible(monkeypatch: pytest.MonkeyPatch) -> None:
    first = launcher_file.build()
    monkeypatch.setattr(launcher_file, "_cached", lambda *_: None)
    assert launcher_file.build.__wrapped__() == first


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[bytes]:
    """Record all builds. The test has its own cache, and its launchers are quickly built."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    builds = list[bytes]()

    def build(sources: dict[str, bytes]) -> bytes:
        builds.append(b"".join(sources.values()))
        return builds[-1]

    monkeypatch.setattr(launcher_file, "_built", build)
    return builds


def rebuild() -> bytes:
    """Build the file like a new process."""
    return launcher_file.build.__wrapped__()


def test_launcher_file_is_built_once_per_user(builds: list[bytes]) -> None:
    assert rebuild() == rebuild()
    assert len(builds) == 1


def test_damaged_launcher_in_cache_is_replaced(builds: list[bytes], tmp_path: Path) -> None:
    first = rebuild()
    path = tmp_path / "relight" / "launcher"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    assert rebuild() == first
    assert len(builds) == 2
    assert path.read_bytes() == content


def test_cached_launcher_that_others_could_have_written_is_not_used(
    builds: list[bytes], tmp_path: Path
) -> None:
    rebuild()
    (tmp_path / "relight" / "launcher").chmod(0o666)
    rebuild()
    assert len(builds) == 2


def test_launcher_of_another_version_in_cache_is_replaced(
    builds: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, read = rebuild(), launcher_file._read
    monkeypatch.setattr(
        launcher_file, "_read", lambda path: read(path) + b"x = 1\n" * path.endswith("/run.py")
    )
    assert rebuild() == builds[-1] != first


@pytest.mark.parametrize(("cache", "home"), [("/dev/null", "/"), ("", "")])
def test_launcher_file_is_built_without_a_cache(
    builds: list[bytes], monkeypatch: pytest.MonkeyPatch, cache: str, home: str
) -> None:
    """The home directory may be read-only or missing."""
    monkeypatch.setenv("XDG_CACHE_HOME", cache)
    monkeypatch.setenv("HOME", home)
    assert rebuild() == rebuild()
    assert len(builds) == 2


def test_archive_entries_do_not_depend_on_local_file_times_or_modes() -> None:
    with zipfile.ZipFile(io.BytesIO(launcher_file.build())) as archive:
        for entry in archive.infolist():
            assert entry.date_time == (1980, 1, 1, 0, 0, 0)
            assert entry.external_attr >> 16 == 0o644


def test_launcher_file_contains_every_module_it_imports() -> None:
    """Imports inside functions also count."""
    inside = {name_of(path) for path in launcher_file.modules()}
    for path in launcher_file.modules():
        if path == "job/__init__.py":  # it imports what components request
            continue
        for node in ast.walk(ast.parse((TOP / path).read_text())):
            names = set()
            if isinstance(node, ast.Import):
                names = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                both = {f"{node.module}.{alias.name}" for alias in node.names}
                names = {name for name in both if exists(name)} | {node.module}
            ours = {name for name in names if name.partition(".")[0] == "relight"}
            assert ours <= inside | MISSING_IS_FINE, f"{path} imports {ours - inside}"


def name_of(path: str) -> str:
    return "relight." + path.removesuffix(".py").replace(os.sep, ".") if "__init__" not in path \
        else ".".join(["relight", *Path(path).parts[:-1]])  # fmt: skip


def exists(name: str) -> bool:
    path = TOP.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


@pytest.mark.processes
def test_launcher_file_runs_workers_without_relight_installed(
    launcher: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(
        "import os, sys\nprint(os.environ['RANK'], *sys.argv[1:], 'relight' in sys.modules)\n"
    )
    done = run(launcher, "run", "--nproc-per-node=2", "train.py", "x")
    assert sorted(done.stdout.split("\n")) == ["", "0 x False", "1 x False"], done.stderr
    assert done.returncode == 0


@pytest.mark.processes
@pytest.mark.parametrize("flags", [["--run-path"], ["--preload=json"], ["--preload=auto"], []])
def test_launcher_file_handles_restarts_like_installed_relight(
    launcher: Path, tmp_path: Path, flags: list[str]
) -> None:
    (tmp_path / "train.py").write_text(
        "import json, os\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n    raise KeyError('first')\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '2':\n    raise KeyError('last')\n"
        "raise ValueError('middle')\n"
    )
    done = run(launcher, "run", "--max-restarts=2", "--nproc-per-node=1", *flags, "train.py")
    assert done.returncode == 1, done.stderr
    assert "KeyError: 'last'" in done.stderr
    assert "train.py" in done.stderr
    assert "internal error" not in done.stderr


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="warm processes are for Linux")
def test_workers_are_forked_from_process_with_preloaded_modules(
    launcher: Path, tmp_path: Path
) -> None:
    """The warm spawner imports its own modules from the file."""
    (tmp_path / "train.py").write_text("import colorsys\nprint(colorsys.__name__)\n")
    words = ("--preload=colorsys", "-v", "--max-restarts=0", "--nproc-per-node=3", "train.py")
    done = run(launcher, "run", *words)
    assert done.stdout.split() == ["colorsys"] * 3, done.stderr


@pytest.mark.processes
@pytest.mark.parametrize(
    ("python3", "found"),
    [(None, "here is no Python"), ("#!/bin/sh\necho Python 3.8.10; exit $#\n", "Python 3.8.10")],
)
def test_image_without_recent_python_yields_clear_error(
    launcher: Path, tmp_path: Path, python3: str | None, found: str
) -> None:
    programs = tmp_path / "old"
    programs.mkdir()
    if python3:
        (programs / "python3").write_text(python3.replace("exit $#", '[ "$1" = --version ]'))
        (programs / "python3").chmod(0o755)
    done = run(launcher, "run", "train.py", path=str(programs))
    assert done.returncode == 4
    error, hint = done.stderr.splitlines()
    assert error.startswith("relight: error: the launcher needs Python 3.11 or newer")
    assert found in error
    assert "--launcher=torchrun" in hint


@pytest.mark.processes
def test_missing_command_is_reported_on_one_line(launcher: Path) -> None:
    done = run(launcher, "submit", "utils.echo")
    assert done.returncode == 2
    assert "relight submit" in done.stderr
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        (Role("a", "i", entrypoint="bash", args=["-c", "relight run a.py"]), True),
        (Role("a", "i", entrypoint="bash", args=["-c", "cd /x && relight run a.py"]), True),
        (Role("a", "i", entrypoint="relight", args=["run", "a.py"]), True),
        (Role("a", "i", entrypoint="bash", args=["-c", "torchrun a.py"]), False),
        (Role("a", "i", entrypoint="echo", args=["my-relight runs"]), False),
    ],
)
def test_only_roles_that_run_relight_need_launcher(role: Role, expected: bool) -> None:
    assert launcher_file.needed(role) is expected
    role.env[launcher_file.VARIABLE] = "installed"
    assert not launcher_file.needed(role)


@pytest.mark.processes
@pytest.mark.parametrize(("mode", "expected"), [("auto", "of the image"), ("travels", "travels")])
def test_launcher_in_image_is_preferred_by_default(
    tmp_path: Path, mode: str, expected: str
) -> None:
    role = Role("a", "i", entrypoint="bash", args=["-c", "relight run a.py $0", "a b"])
    role.env[launcher_file.VARIABLE] = mode
    for folder, text in (("image", "of the image"), ("sent", "travels")):
        path = tmp_path / folder / "relight"
        path.parent.mkdir()
        path.write_text(f'#!/bin/sh\necho "{text} $3"\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    wrapped = launcher_file.wrapped(role, str(tmp_path / "sent"))
    done = subprocess.run(
        [wrapped.entrypoint, *wrapped.args],
        env={"PATH": f"{tmp_path}/image:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert done.stdout == f"{expected} a\n"
