"""Which files in a working directory are copied for a job, and the directory's git state."""

import io
import os
import re
import shutil
import socket
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from relight.base.errors import MachineError, UsageError
from relight.job import patterns, workspaces

ALONE = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}


def git(directory: Path, *arguments: str, stdin: str = "") -> str:
    who = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", *who, *arguments],
        cwd=directory,
        input=stdin,
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"], **ALONE},
    ).stdout


def tree(directory: Path) -> set[str]:
    """Return the paths of all files and links below a directory."""
    return {
        str(path.relative_to(directory))
        for path in directory.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }


def fill(directory: Path, *paths: str) -> None:
    for path in paths:
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(path)


def packed(directory: Path, destination: Path) -> set[str]:
    workspaces.pack(str(directory), str(destination))
    return tree(destination)


def test_job_records_and_token_are_excluded_from_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their directory may be known by any name."""
    here = tmp_path / "here"
    fill(here, "main.py", "state/token", "state/jobs/a-1/job.json", "jobs/mine", "token")
    (tmp_path / "link").symlink_to(here)
    monkeypatch.setenv("RELIGHT_STATE_DIR", str(tmp_path / "link" / "state"))
    assert packed(here, tmp_path / "there") == {"main.py", "jobs/mine", "token"}
    monkeypatch.setenv("RELIGHT_STATE_DIR", str(here))
    archive = io.BytesIO()
    workspaces.archive(str(here), archive)
    archive.seek(0)
    names = tarfile.open(fileobj=archive).getnames()
    assert "main.py" in names
    assert not [name for name in names if name.startswith(("jobs", "token"))]


def test_workspace_copy_preserves_file_contents_and_modes(tmp_path: Path) -> None:
    """Even times, empty directories and links are preserved."""
    here, there = tmp_path / "here", tmp_path / "there"
    fill(here, "main.py", "deep/er/data.bin", "locked/file")
    (here / "empty").mkdir()
    (here / "main.py").chmod(0o755)
    os.utime(here / "main.py", (1e9, 1e9))
    (here / "link").symlink_to("main.py")
    (here / "dangling").symlink_to("/nowhere/at/all")
    (here / "locked").chmod(0o555)
    found = packed(here, there)
    assert found == {"main.py", "deep/er/data.bin", "locked/file", "link", "dangling"}
    assert (there / "empty").is_dir()
    assert (there / "deep/er/data.bin").read_text() == "deep/er/data.bin"
    status = (there / "main.py").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_mtime) == (0o755, 1e9)
    assert stat.S_IMODE((there / "locked").stat().st_mode) == 0o555
    assert os.readlink(there / "link") == "main.py"
    assert os.readlink(there / "dangling") == "/nowhere/at/all"


def test_pipes_and_sockets_are_excluded_from_workspace(tmp_path: Path) -> None:
    """Opening a pipe would block, and a socket can't be copied."""
    here = tmp_path / "here"
    fill(here, "main.py")
    os.mkfifo(here / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(here / "s"))
        assert packed(here, tmp_path / "there") == {"main.py"}


def test_destination_inside_workspace_is_not_copied_into_itself(tmp_path: Path) -> None:
    fill(tmp_path, "main.py", "jobs/old/x")
    assert packed(tmp_path, tmp_path / "jobs" / "new") == {"main.py", "jobs/old/x"}


def test_second_workspace_copy_replaces_first(tmp_path: Path) -> None:
    """Links in the copy aren't followed."""
    here, there = tmp_path / "here", tmp_path / "there"
    fill(here, "a")
    fill(tmp_path, "precious")
    there.mkdir()
    (there / "a").symlink_to(tmp_path / "precious")
    assert packed(here, there) == {"a"}
    assert (there / "a").read_text() == "a"
    assert (tmp_path / "precious").read_text() == "precious"


def test_ignore_file_excludes_matching_paths(tmp_path: Path) -> None:
    """`!` includes them again."""
    name = ".relightignore"
    here = tmp_path / "here"
    fill(here, "main.py", "data/big.bin", "data/small.csv", "a.log", "keep.log", "x/y/b.log")
    (here / name).write_text("# what stays behind\n*.log\n!keep.log\n\ndata/*\n!data/*.csv\n")
    found = packed(here, tmp_path / "there")
    assert found == {"main.py", "data/small.csv", "keep.log", name}


# The files that TorchX's own walk of a workspace includes (nightly 2026-10).
THERE = (
    "data/a",
    "x/data/b",
    "a.log",
    "x/b.log",
    "keep.log",
    "x/keep.log",
    "in dented",
    "deep/k/l",
)
TORCHX = {
    "data\n": {"x/data/b", "a.log", "x/b.log", "keep.log", "x/keep.log", "in dented", "deep/k/l"},
    "*.log  # of runs\n!keep.log\n": {"data/a", "x/data/b", "keep.log", "in dented", "deep/k/l"},
    "   in dented\n\tdeep/*\n": {*THERE} - {"in dented", "deep/k/l"},
    "data/\n/a.log\n": {*THERE},
    "x\n!x/keep.log\n": {*THERE} - {"x/data/b", "x/b.log", "x/keep.log"},
    "*\n!deep\n!deep/*\n": {"deep/k/l"},
}


# The files that docker build includes (examples from docs.docker.com, moby's pattern matcher).
DOCKER = {
    "data\n": {*THERE} - {"data/a"},
    "/data/\n": {*THERE} - {"data/a"},
    "*.log\n# no comment\n!keep.log\n": {*THERE} - {"a.log"},
    "**/*.log\n!x/keep.log\n": {*THERE} - {"a.log", "x/b.log", "keep.log"},
    "x\n!x/keep.log\n": {*THERE} - {"x/data/b", "x/b.log"},
    "deep/*/l\n  in dented  \n": {*THERE} - {"deep/k/l", "in dented"},
    "*/data\n": {*THERE} - {"x/data/b"},
    "*\n!deep\n": {"deep/k/l"},
    "*\n!**/keep.log\n": {"keep.log", "x/keep.log"},
    "!keep.log\nkeep.log\n": {*THERE} - {"keep.log"},
}


@pytest.mark.parametrize(("text", "expected"), DOCKER.items())
def test_dockerignore_patterns_match_as_in_docker(
    tmp_path: Path, text: str, expected: set[str]
) -> None:
    """They match the whole path."""
    here = tmp_path / "here"
    fill(here, *THERE)
    (here / ".dockerignore").write_text(text)
    assert packed(here, tmp_path / "there") - {".dockerignore"} == expected


def test_git_history_is_excluded_unless_dockerignore_includes_it(tmp_path: Path) -> None:
    here = tmp_path / "here"
    fill(here, ".git/HEAD", "x/__pycache__/a.pyc", "main.py")
    (here / ".dockerignore").write_text("data\n")
    assert packed(here, tmp_path / "one") == {"main.py", ".dockerignore"}
    (here / ".dockerignore").write_text("!.git\n")
    assert packed(here, tmp_path / "two") == {"main.py", ".dockerignore", ".git/HEAD"}


@pytest.mark.parametrize(("text", "expected"), TORCHX.items())
def test_torchxignore_patterns_match_as_in_torchx(
    tmp_path: Path, text: str, expected: set[str]
) -> None:
    """They match the whole path, unlike git's rules in .relightignore."""
    here = tmp_path / "here"
    fill(here, *THERE)
    (here / ".torchxignore").write_text(text)
    assert packed(here, tmp_path / "there") - {".torchxignore"} == expected


def test_directories_are_merged_into_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`a;b:c`, or TorchX's mapping, puts b into the copy's directory c. Each directory has its own
    ignore file.
    """
    monkeypatch.chdir(tmp_path)
    fill(tmp_path, "a/main.py", "a/x", "b/lib.py", "b/x")
    (tmp_path / "b" / ".relightignore").write_text("x\n.relightignore\n")
    expected = {"main.py", "x", "c/d/lib.py"}
    for number, text in enumerate(("a;b:c/d", "{a: , b: c/d}", "{a: '', 'b': \"c/d\"}")):
        there = tmp_path / f"there{number}"
        workspaces.pack(text, str(there))
        assert tree(there) == expected
        buffer = io.BytesIO()
        workspaces.archive(text, buffer)
        buffer.seek(0)
        with tarfile.open(fileobj=buffer) as tar:
            assert {each.name for each in tar if each.isfile()} == expected
    assert workspaces.absolute("a;b:c") == f"{tmp_path}/a;{tmp_path}/b:c"
    assert workspaces.find("a;b:c", "c/lib.py") == f"{tmp_path}/b/lib.py"
    for text in ("\na:\nb: c", "a: ''\nb: 'c'  # more\n", "{\n  a: ,\n  b: c\n}"):
        assert workspaces.absolute(text) == f"{tmp_path}/a;{tmp_path}/b:c"
    for text in ("a;b:../c", "a;nope:c"):
        with pytest.raises(UsageError):
            workspaces.projects(text)


def test_workspace_can_be_a_single_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in TorchX, its target is its path in the copy, or a directory if it ends with a slash."""
    monkeypatch.chdir(tmp_path)
    fill(tmp_path, "a/main.py", "conf.yaml")
    (tmp_path / "conf.yaml").chmod(0o640)
    for number, (text, name) in enumerate({
        "conf.yaml": "conf.yaml", "a;conf.yaml": "conf.yaml", "a;conf.yaml:x/new.yaml":
        "x/new.yaml", "a;conf.yaml:x/": "x/conf.yaml",
    }.items()):  # fmt: skip
        there = tmp_path / f"there{number}"
        workspaces.pack(text, str(there))
        assert tree(there) == {name} | ({"main.py"} if "a;" in text else set())
        assert (there / name).stat().st_mode & 0o777 == 0o640
        buffer = io.BytesIO()
        workspaces.archive(text, buffer)
        assert workspaces.find(text, name) == str(tmp_path / "conf.yaml")
        assert workspaces.find(text, "nope") is None


def test_relightignore_overrides_dockerignore(tmp_path: Path) -> None:
    """.dockerignore may be intended for an image."""
    here = tmp_path / "here"
    fill(here, "a", "b")
    (here / ".dockerignore").write_text("a\n")
    (here / ".relightignore").write_text("b\n")
    assert packed(here, tmp_path / "there") == {"a", ".dockerignore", ".relightignore"}


def test_git_history_and_bytecode_are_excluded(tmp_path: Path) -> None:
    """Virtual environments are too, unless they are included explicitly."""
    here = tmp_path / "here"
    fill(here, "main.py", ".git/HEAD", ".venv/bin/python", "p/__pycache__/m.pyc", ".gitignore")
    assert packed(here, tmp_path / "there") == {"main.py", ".gitignore"}
    (here / ".relightignore").write_text("!.git\n")
    found = packed(here, tmp_path / "again")
    assert found == {"main.py", ".gitignore", ".git/HEAD", ".relightignore"}


def test_workspace_archive_has_same_files_as_copy(tmp_path: Path) -> None:
    """They are owned by root, and hard links are stored as regular files."""
    here, there = tmp_path / "here", tmp_path / "there"
    fill(here, "main.py", "sub/x", "a.log")
    os.link(here / "main.py", here / "other.py")
    (here / "link").symlink_to("sub")
    (here / ".relightignore").write_text("*.log\n")
    file = io.BytesIO()
    workspaces.archive(str(here), file, prefix="w")
    file.seek(0)
    with tarfile.open(fileobj=file) as tar:
        assert {(m.uid, m.gid, m.uname) for m in tar.getmembers()} == {(0, 0, "")}
        tar.extractall(there)
    assert tree(there / "w") == packed(here, tmp_path / "copy")
    assert (there / "w/other.py").read_text() == "main.py"
    assert os.readlink(there / "w/link") == "sub"


def test_archive_of_empty_workspace_contains_its_root_directory(tmp_path: Path) -> None:
    file = io.BytesIO()
    workspaces.archive(str(tmp_path), file, prefix="w")
    file.seek(0)
    with tarfile.open(fileobj=file) as tar:
        assert [(m.name, m.isdir()) for m in tar.getmembers()] == [("w", True)]


def test_invalid_workspace_directory_is_reported_on_one_line(tmp_path: Path) -> None:
    """A missing source is a usage error, and an impossible destination is a machine error."""
    with pytest.raises(UsageError, match="is not a directory"):
        workspaces.pack(str(tmp_path / "none"), str(tmp_path / "there"))
    fill(tmp_path, "here/x", "file")
    with pytest.raises(MachineError, match="can't copy") as caught:
        workspaces.pack(str(tmp_path / "here"), str(tmp_path / "file"))
    assert "\n" not in caught.value.message


NAMES = st.sampled_from(["a", "b", "ab", "a.c", "b-c", "[", "]", "#a", "!a", "a ", "-", "A", "*"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
PIECES = st.sampled_from(
    ["a", "b", "ab", "*", "**", "?", "/", "/", "**/", "/**", "/**/", "[ab]", "[!a]", "[^b]",
     "[]]", "[", "]", "\\", "\\*", "\\#", "#", "!", " ", "\\ ", ".", "-", "[[:alpha:]]", "[[:x:]]",
     "[c-a]", "[\\]]", "[a-]", "c", "[!]]", "[[:upper:]-]", "[[]", "[a-c]"]
)  # fmt: skip
# Contrary to its documentation, git treats the `**` in `a**/b` like one between slashes.
ODD = re.compile(r"[^/!]\*\*|.!\*\*|\*\*[^/]")
LINES = st.lists(PIECES, min_size=1, max_size=6).map("".join).filter(lambda s: not ODD.search(s))


@pytest.mark.needs_git
@given(paths=st.lists(PATHS, min_size=1, max_size=12), lines=st.lists(LINES, max_size=5))
@example(paths=["a/b/c", "a/c"], lines=["a/**/c"])
@example(paths=["a/b", "a/ab"], lines=["*", "!a", "!a/ab"])
@example(paths=["a/b"], lines=["a", "!a/b"])
@example(paths=["ab/a"], lines=["ab\r"])
@example(paths=["a.c", "a.b"], lines=["*[c-a]"])
@settings(max_examples=100)
def test_relightignore_patterns_match_as_in_git(
    paths: list[str], lines: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The copied files are the ones that git would add with the same ignore file."""
    directory = tmp_path_factory.mktemp("patterns")
    here = directory / "here"
    for path in paths:
        try:
            fill(here, path)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            pass  # another path has made it a file or a directory
    git(directory, "init", "-q", "--bare", "history")
    rules = directory / "rules"
    rules.write_text("\n".join([*workspaces.IGNORED_BY_DEFAULT, *lines]))
    where = ("--git-dir=../history", "--work-tree=.")
    asked = git(here, *where, "ls-files", "-z", "--others", f"--exclude-from={rules}")
    (here / ".relightignore").write_text("\n".join(lines))
    found = packed(here, directory / "there") - {".relightignore"}
    assert found == {path for path in asked.split("\0") if path}, lines
    shutil.rmtree(directory)


@pytest.mark.needs_git
def test_character_class_in_ignore_file_never_matches_slash(tmp_path: Path) -> None:
    rules = patterns.parse(["a[!b]c", "/x[^y]z"])
    assert not patterns.verdict(rules, "x/z", False)
    assert patterns.verdict(rules, "q/a-c", False)


@pytest.mark.needs_git
def test_git_state_includes_commit_branch_and_uncommitted_changes(tmp_path: Path) -> None:
    """It is the same from anywhere in the work tree."""
    fill(tmp_path, "sub/main.py")
    git(tmp_path, "init", "-q", "-b", "topic/x")
    assert workspaces.git_state(str(tmp_path)) == {"commit": "", "branch": "topic/x", "dirty": True}
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    commit = git(tmp_path, "rev-parse", "HEAD").strip()
    clean = {"commit": commit, "branch": "topic/x", "dirty": False}
    assert workspaces.git_state(str(tmp_path / "sub")) == clean
    fill(tmp_path, "new.py")
    assert workspaces.git_state(str(tmp_path)) == {**clean, "dirty": True}
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "two")
    git(tmp_path, "checkout", "-q", commit)
    assert workspaces.git_state(str(tmp_path)) == {**clean, "branch": ""}


def test_git_state_is_empty_without_git_or_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is also empty if git doesn't respond, and nothing fails."""
    assert workspaces.git_state(str(tmp_path)) == {}
    slow = tmp_path / "git"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(workspaces, "GIT_LIMIT_S", 0.1)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert workspaces.git_state(str(tmp_path)) == {}
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert workspaces.git_state(str(tmp_path)) == {}


@pytest.mark.needs_git
def test_reading_git_state_runs_no_command_configured_in_repository(tmp_path: Path) -> None:
    """The repository's configuration may set one for `git status`."""
    git(tmp_path, "init", "-q")
    git(tmp_path, "config", "core.fsmonitor", f"touch {tmp_path}/ran; true")
    assert workspaces.git_state(str(tmp_path))["commit"] == ""
    assert not (tmp_path / "ran").exists()
