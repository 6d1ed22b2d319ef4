"""Neither garbage in the memory shared by agent and workers nor a full disk crashes either side."""

import errno
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import relight.worker
from relight.core.workers import shared_words as words
from relight.host.loop import Loop
from relight.processes import shared_page
from relight.processes.shared_pages import WorkerMemory
from relight.worker import shared_words_writer

MAX = 2**64 - 1
IN_USE = (words.LIMIT, words.AGREED, words.DEADLINE, words.CALLS, words.STEP, words.STEP_AT,
          words.FIRST_AT)  # fmt: skip


def page_with(values: dict[int, int]) -> bytes:
    """Return a page with these words."""
    return struct.pack(f"{words.SIZE // 8}Q", *(values.get(n, 0) for n in range(words.SIZE // 8)))


NONSENSE = st.one_of(
    st.dictionaries(
        st.sampled_from(IN_USE),
        st.one_of(
            st.integers(0, MAX),
            st.sampled_from([1, 2**53, 2**60, 2**62, 2**63, MAX]),
            st.builds(lambda off: time.monotonic_ns() + off, st.integers(-(10**10), 10**10)),
        ),
    ).map(page_with),
    st.binary(max_size=words.SIZE).map(lambda data: data.ljust(words.SIZE, b"\0")),
)


def share_memory(
    folder: Path, content: bytes, began: float = 0.0, workers: int = 1
) -> tuple[WorkerMemory, list[str]]:
    """Return the agent's side of shared files, the first one with this content, and its notes."""
    said: list[str] = []
    paths = {rank: str(folder / f"{rank}.error.json") for rank in range(workers)}
    (folder / f"0.error.json{words.SUFFIX}").write_bytes(content)
    return WorkerMemory(Loop(), paths, began, said.append), said


@given(NONSENSE)
@example(b"\xff" * words.SIZE)
def test_agent_does_not_report_garbage_from_shared_memory(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    began = time.monotonic() - 5.0
    found, _ = share_memory(tmp_path_factory.mktemp("page"), data, began)
    for local_rank, (step, at) in found.progress().items():
        assert local_rank == 0
        assert 0 <= step <= words.MAX_STEP
        assert began <= at <= time.monotonic()
    assert set(found.steps().values()) == ({found.step()} - {None})
    span = found.span()
    assert span is None or began <= span[0] <= span[1] <= time.monotonic()
    assert 0 <= found.calls() <= words.MAX_CALLS
    answers: list[int] = []
    found.limit(7, answers.append)
    found._loop.run_until(lambda: bool(answers))
    assert answers == [found.calls()]
    found.agree(9, 1e30)
    found.release()
    found.close()
    found._loop.close()


def test_last_reported_step_is_kept_after_files_are_removed(tmp_path: Path) -> None:
    now = time.monotonic_ns()
    page = page_with({words.STEP: 39, words.STEP_AT: now, words.TOTAL: 40})
    memory, _ = share_memory(tmp_path, page)
    memory.close()
    assert list(tmp_path.iterdir()) == []
    assert (memory.progress(), memory.totals()) == ({0: (39, now / 1e9)}, {0: 40})
    memory._loop.close()


@given(NONSENSE)
@example(b"\xff" * words.SIZE)
def test_worker_survives_garbage_in_shared_memory(data: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        page = memoryview(bytearray(data)).cast("Q")
        patch.setattr(relight.worker, "_page", page)
        left = relight.worker.deadline()
        assert left is None or abs(left) <= words.MAX_LEFT_S
        relight.worker.progress(words.MAX_STEP)
        if not page[words.AGREED]:
            page[words.LIMIT] = 0  # otherwise it would be held until the agent answers, as intended
        assert relight.worker.should_checkpoint() in (True, False)
        assert 1 <= words.calls(page) <= words.MAX_CALLS


def test_agent_reads_worker_reports_from_shared_memory(tmp_path: Path) -> None:
    """Valid values are within the bounds."""
    began = time.monotonic()
    found, said = share_memory(tmp_path, b"", began)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "0.error.json"))
        patch.setattr(relight.worker, "_page", shared_words_writer.open_page())
        relight.worker.progress(3)
        relight.worker.progress(words.MAX_STEP)
        assert not relight.worker.should_checkpoint()
        assert found.steps() == {0: words.MAX_STEP}
        assert found.calls() == 1
        found.agree(2, time.monotonic() + 60)
        assert relight.worker.should_checkpoint()
        left = relight.worker.deadline()
    assert left is not None and 0 < left <= 60
    assert said == []
    found._loop.close()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("report(loss='high')", "report(loss='high'): expected a number"),
        ("report(loss=None)", "report(loss=None): expected a number"),
        ("progress('3')", "progress(step='3'): expected an integer"),
        ("progress(3.0)", "progress(step=3.0): expected an integer"),
        ("progress(3, total='9')", "progress(total='9'): expected an integer"),
        ("progress(-1)", "progress(step=-1): expected a number from 0 to 2**62"),
    ],
)
def test_invalid_report_is_rejected_with_its_argument(call: str, message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        eval(call, vars(relight.worker))
    assert str(caught.value) == message


class FailingTensor:
    """A tensor whose conversion to a number fails. Printing it fails as well."""

    def __init__(self, size: int) -> None:
        self.numel = lambda: size

    def __float__(self) -> float:
        raise RuntimeError("CUDA error: device-side assert triggered")

    def __repr__(self) -> str:
        raise AssertionError


def test_report_passes_on_the_error_of_a_device() -> None:
    with pytest.raises(RuntimeError, match="device-side assert"):
        relight.worker.report(loss=FailingTensor(1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"report\(loss=…\): expected a number, got 3 of them"):
        relight.worker.report(loss=FailingTensor(3))  # type: ignore[arg-type]


def test_other_workers_are_unaffected_if_one_overwrites_checkpoint_agreement(
    tmp_path: Path,
) -> None:
    found, _ = share_memory(tmp_path, page_with({words.AGREED: 77}), workers=2)
    found.agree(5, time.monotonic())
    other = tmp_path / f"1.error.json{words.SUFFIX}"
    assert struct.unpack_from("Q", other.read_bytes(), 8 * words.AGREED) == (5,)
    found._loop.close()


def test_excessive_checkpoint_deadline_is_clamped(tmp_path: Path) -> None:
    """A peer's message may contain one."""
    found, _ = share_memory(tmp_path, b"")
    found.agree(1, float("inf"))
    page = shared_page.mapped(str(tmp_path / f"0.error.json{words.SUFFIX}"), make=False)
    left = words.left_s(page, time.monotonic())
    assert left is not None and left <= words.MAX_LEFT_S
    found._loop.close()


def test_nothing_is_read_from_truncated_shared_file(tmp_path: Path) -> None:
    """The agent doesn't map the file, so no access can ever cause SIGBUS."""
    found, said = share_memory(tmp_path, page_with({words.CALLS: 3, words.STEP_AT: 1}))
    assert (found.calls(), found.step()) == (3, 0)
    path = tmp_path / f"0.error.json{words.SUFFIX}"
    os.truncate(path, 0)
    assert (found.calls(), found.step(), found.span()) == (0, None, None)
    found.limit(1, lambda _: None)
    found.agree(1, time.monotonic())
    found.release()
    assert str(path) not in Path("/proc/self/maps").read_text()
    assert said == []
    found._loop.close()


def test_blocks_of_sparse_shared_file_are_allocated(tmp_path: Path) -> None:
    path = tmp_path / "page"
    path.touch()
    os.truncate(path, words.SIZE)
    assert path.stat().st_blocks == 0
    shared_page.mapped(str(path), make=False)
    assert path.stat().st_blocks * 512 >= words.SIZE


def test_blocks_are_allocated_by_writing_if_fallocate_is_unsupported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With musl, some file systems don't support it. Words written by the other side are kept."""

    def refuse(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    content = page_with(dict.fromkeys(IN_USE, MAX))
    for removed in (False, True):
        path = tmp_path / f"page{removed}"
        path.write_bytes(content[:96])
        if removed:
            monkeypatch.delattr(os, "posix_fallocate")
        else:
            monkeypatch.setattr(os, "posix_fallocate", refuse)
        page = shared_page.mapped(str(path), make=False)
        assert page.tobytes() == content
        assert path.stat().st_blocks * 512 >= words.SIZE


def test_missing_shared_memory_is_reported_once(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / f"1.error.json{words.SUFFIX}").mkdir()
    paths = {rank: str(tmp_path / f"{rank}.error.json") for rank in range(2)}
    found = WorkerMemory(Loop(), paths, 0.0, said.append)
    for _ in range(2):
        assert (found.calls(), found.steps(), found.span()) == (0, {}, None)
        found.agree(1, time.monotonic())
    assert said == [
        f"can't share {paths[1]}{words.SUFFIX} with local rank 1: Is a directory; its steps are "
        "unknown, and it can't be told to save a checkpoint"
    ]
    found._loop.close()


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no file on disk get a block."""

    def but_on_disk(function: Callable[..., object]) -> Callable[..., object]:
        def call(fd: int, *arguments: object) -> object:
            if not os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return function(fd, *arguments)

        return call

    for name in ("posix_fallocate", "pwrite"):
        monkeypatch.setattr(os, name, but_on_disk(getattr(os, name)))


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize("first", ["agent", "worker"])
def test_full_disk_does_not_prevent_sharing_memory(tmp_path: Path, first: str) -> None:
    """Either side may come first. The descriptor is closed along with the memory."""
    before = len(os.listdir("/proc/self/fd"))
    path = tmp_path / f"0.error.json{words.SUFFIX}"
    found = WorkerMemory(Loop(), {0: str(tmp_path / "0.error.json")}, 0.0, pytest.fail)
    if first == "agent":
        found.agree(1, time.monotonic())
    page = shared_page.mapped(str(path), make=True)
    assert path.is_symlink()
    page[words.CALLS] = 3
    found.agree(1, time.monotonic())
    assert (page[words.AGREED], found.calls()) == (1, 3)
    found.close()
    assert not path.is_symlink()
    found._loop.close()
    del page
    assert len(os.listdir("/proc/self/fd")) == before


def test_link_to_process_with_reused_pid_is_not_followed(tmp_path: Path) -> None:
    """The linked process has exited, and another process has the same pid now."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    path = tmp_path / f"0.error.json{words.SUFFIX}"
    with victim.open("r+b") as file:
        path.symlink_to(f"/proc/{os.getpid()}/fd/{file.fileno()}")
        found = WorkerMemory(Loop(), {0: str(tmp_path / "0.error.json")}, 0.0, pytest.fail)
        assert found.calls() == 0
        found.agree(1, time.monotonic())
    assert victim.read_text() == "mine"
    assert found.calls() == 0  # nor if its target no longer exists
    found._loop.close()
