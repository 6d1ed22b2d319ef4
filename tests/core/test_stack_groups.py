"""Where ranks are: summarising their stacks in a few lines."""

import pytest

from relight.core.diagnosis.stack_text import (
    CodePlace,
    Frame,
    Handled,
    ProcessStack,
    ThreadStack,
    child_at_work,
    doing,
    few_or_many,
    groups,
    place,
    render,
    runs_program,
    stuck_loader,
    traceback_lines,
    waits_for_children,
    with_native,
)

LIB = "/usr/lib/python3.11"
SITE = "/env/lib/python3.11/site-packages"
TORCH = f"{SITE}/torch"
MAIN = Frame("/home/u/train.py", 88, "main")
MODULE = Frame("/home/u/train.py", 99, "<module>")
REDUCE = (
    Frame(f"{TORCH}/distributed/distributed_c10d.py", 2800, "all_reduce"),
    Frame(f"{TORCH}/distributed/c10d_logger.py", 81, "_exception_logger.<locals>.wrapper"),
    MAIN,
    MODULE,
)
READ = (Frame("/home/u/data.py", 41, "Loader.read"), MAIN, MODULE)


def process(
    *frames: Frame, state: str = "S", waits_in: str = "futex", pid: int = 1
) -> ProcessStack:
    return ProcessStack(pid, state, (ThreadStack(pid, "python", waits_in, True, frames),))


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        (REDUCE, CodePlace("all_reduce", MAIN)),
        (READ, CodePlace("read", READ[0])),
        (
            (
                Frame(f"{TORCH}/autograd/graph.py", 824, "_engine_run_backward"),
                Frame(f"{TORCH}/autograd/__init__.py", 347, "backward"),
                Frame(f"{TORCH}/_tensor.py", 581, "Tensor.backward"),
                MAIN,
            ),
            CodePlace("backward", MAIN),
        ),
        (
            (
                Frame(f"{LIB}/selectors.py", 416, "_PollLikeSelector.select"),
                Frame(f"{LIB}/multiprocessing/connection.py", 948, "wait"),
                Frame(f"{TORCH}/utils/data/dataloader.py", 1300, "_X._try_get_data"),
                Frame(f"{TORCH}/utils/data/dataloader.py", 733, "_BaseDataLoaderIter.__next__"),
                MAIN,
            ),
            CodePlace("__next__", MAIN),
        ),
        (
            (Frame(f"{LIB}/threading.py", 320, "Condition.wait"), MAIN),
            CodePlace("wait", MAIN),
        ),
        (
            (
                Frame("/home/u/model.py", 12, "Net.forward"),
                Frame(f"{TORCH}/nn/modules/module.py", 1500, "Module._call_impl"),
                MAIN,
            ),
            CodePlace("forward", Frame("/home/u/model.py", 12, "Net.forward")),
        ),
        (
            (Frame(f"{SITE}/mine/cli.py", 3, "run"), Frame("<frozen runpy>", 88, "_run_code")),
            CodePlace("run", Frame(f"{SITE}/mine/cli.py", 3, "run")),
        ),
        ((Frame(f"{LIB}/x.py", 3, "_f"), MAIN), CodePlace("_f", MAIN)),
        ((MODULE,), CodePlace("<module>", MODULE)),
        (
            (MAIN, Frame("/src/relight/worker/run_path.py", 3, "run"), Frame("<string>", 1, "x")),
            CodePlace("main", MAIN),
        ),
    ],
    ids=["collective", "own function", "backward", "data loader", "standard library",
         "user code called by torch", "no user code", "no public name", "module",
         "started by relight"],
)  # fmt: skip
def test_stack_location_is_innermost_user_line_and_the_function_it_calls(
    frames: tuple[Frame, ...], expected: CodePlace
) -> None:
    assert place(frames) == expected


def test_outlier_rank_is_listed_first() -> None:
    stacks = {rank: process(*REDUCE, pid=rank) for rank in range(32) if rank != 5}
    assert render(groups({**stacks, 5: process(*READ)})) == [
        "rank 5 in read (data.py:41)",
        "ranks 0-4, 6-31 in all_reduce (train.py:88)",
    ]


def test_ranks_waiting_for_peers_are_listed_last() -> None:
    found = groups({0: process(*REDUCE), **{rank: process(*READ) for rank in (1, 2, 3)}})
    assert [group.ranks for group in found] == [(1, 2, 3), (0,)]


def test_rank_in_ddp_forward_waits_for_peers_only_while_copying_buffers() -> None:
    """Buffers such as BatchNorm's averages are copied from rank 0. The layers also run below
    `forward`.
    """
    forward = Frame(f"{TORCH}/nn/parallel/distributed.py", 1700, "DistributedDataParallel.forward")
    copies = Frame(forward.file, 2400, "DistributedDataParallel._default_broadcast_coalesced")
    layer = Frame(f"{TORCH}/nn/modules/linear.py", 134, "Linear.forward")
    found = [groups({0: process(inner, forward, MAIN)})[0] for inner in (copies, layer)]
    assert [group.expects_peers for group in found] == [True, False]


def test_groups_of_equal_size_are_sorted_by_lowest_rank() -> None:
    other = process(MAIN)
    found = groups({3: process(*READ), 0: other, 1: process(*READ), 2: other})
    assert [group.ranks for group in found] == [(0, 2), (1, 3)]


def test_folder_of_the_user_may_be_named_torch() -> None:
    own = Frame("/home/u/examples/torch/train.py", 7, "main")
    assert place([Frame(f"{LIB}/threading.py", 320, "Condition.wait"), own]) == CodePlace(
        "wait", own
    )
    for file in ("/src/pytorch/torch/nn/x.py", "/src/pytorch/torch/_ops.py"):
        assert place([Frame(file, 3, "forward"), own]) == CodePlace("forward", own)


def test_long_list_of_scattered_ranks_is_shown_as_a_count() -> None:
    assert few_or_many(range(0, 64, 2)) == "32 ranks"
    assert few_or_many([0, 1, 3]) == "ranks 0-1, 3"
    assert few_or_many([7]) == "rank 7"


def test_ranks_at_different_lines_or_files_form_different_groups() -> None:
    other = MAIN._replace(line=90)
    same_name = MAIN._replace(file="/home/u/other/train.py")
    found = groups({
        0: process(*REDUCE),
        1: process(*REDUCE[:2], other),
        2: process(*REDUCE[:2], same_name),
    })  # fmt: skip
    assert len(found) == 3


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        (process(*READ, state="T"), "rank 2 is stopped (SIGSTOP) in read (data.py:41)"),
        (process(*READ, state="t"), "rank 2 is stopped by a debugger in read (data.py:41)"),
        (
            process(*REDUCE, state="D", waits_in="write"),
            "rank 2 is uninterruptible (state D) in all_reduce (train.py:88), system call write",
        ),
        (process(state="T"), "rank 2 is stopped (SIGSTOP), without Python code"),
        (process(), "rank 2 runs no Python code"),
        (process()._replace(is_finalizing=True), "rank 2 runs no Python code any more"),
        (ProcessStack(1, "Z", ()), "rank 2 has ended (zombie)"),
        (process(*READ, waits_in="read"), "rank 2 in read (data.py:41), system call read"),
        (process(*READ, waits_in=""), "rank 2 in read (data.py:41)"),
        (process(*REDUCE, waits_in="read"), "rank 2 in all_reduce (train.py:88)"),
        ("process 7 has ended", "rank 2: no stack: process 7 has ended"),
        (
            process(Frame("/home/u/train.py", 0, "f")),
            "rank 2 in f (/home/u/train.py)",
        ),
    ],
)
def test_stack_group_line_includes_process_state(stack: ProcessStack | str, expected: str) -> None:
    assert render(groups({2: stack})) == [expected]


def test_stopped_rank_is_listed_in_a_separate_group() -> None:
    found = groups({0: process(*REDUCE), 1: process(*REDUCE, state="T"), 2: process(*REDUCE)})
    assert [group.ranks for group in found] == [(1,), (0, 2)]


def test_missing_stacks_are_grouped_by_reason_ignoring_numbers() -> None:
    found = groups({0: "process 7 has ended", 1: "process 8 has ended", 2: "process 9 is of root"})
    assert render(found) == [
        "rank 2: no stack: process 9 is of root",
        "ranks 0-1: no stack: process 7 has ended",
    ]


def test_list_of_stack_groups_is_limited_and_counts_the_rest() -> None:
    stacks = {rank: process(Frame("/home/u/train.py", rank + 1, "f")) for rank in range(13)}
    lines = render(groups(stacks))
    assert lines[:1] == ["rank 0 in f (train.py:1)"]
    assert lines[10:] == ["… and 3 more groups"]
    assert render(groups({rank: stacks[rank] for rank in range(11)}))[10:] == ["… and 1 more group"]
    assert len(render(groups({rank: stacks[rank] for rank in range(10)}))) == 10


def test_long_function_name_or_reason_is_shortened() -> None:
    for stack in (process(Frame("/" + "x" * 5000, 1, "y" * 5000)), "z" * 5000):
        (line,) = render(groups({0: stack}))
        assert len(line) < 400


def test_line_about_several_ranks_uses_the_plural() -> None:
    stopped, ended = process(*READ, state="T"), ProcessStack(1, "Z", ())
    stacks = {0: stopped, 1: stopped, 2: ended, 3: ended, 4: process(), 5: process()}
    assert render(groups(stacks)) == [
        "ranks 0-1 are stopped (SIGSTOP) in read (data.py:41)",
        "ranks 2-3 have ended (zombie)",
        "ranks 4-5 run no Python code",
    ]


def test_first_thread_is_shown_if_the_main_thread_is_missing() -> None:
    thread = ThreadStack(0, "", "", False, READ)
    assert render(groups({0: ProcessStack(1, "S", (thread,))})) == ["rank 0 in read (data.py:41)"]


def test_stack_frames_are_printed_with_the_innermost_last() -> None:
    frames = [READ[0], MODULE._replace(line=0)]
    assert traceback_lines(frames) == [
        'File "/home/u/train.py", line ?, in <module>',
        'File "/home/u/data.py", line 41, in Loader.read',
    ]


SITE = Frame("<frozen site>", 1, "<module>")


@pytest.mark.parametrize(
    ("frames", "runs"),
    [
        (REDUCE, True),
        ((MODULE, Frame("<frozen runpy>", 198, "_run_module_as_main")), True),
        ((SITE, Frame("<frozen importlib._bootstrap>", 1176, "_find_and_load")), True),
        ((), False),
        ((Frame(f"{LIB}/threading.py", 1583, "_shutdown"),), False),
        (
            (Frame(f"{LIB}/weakref.py", 1, "finalize.__call__"), Frame("w.py", 2, "_exitfunc")),
            False,
        ),
        ((Frame(f"{TORCH}/distributed/distributed_c10d.py", 1, "_distributed_excepthook"),), False),
    ],
)
def test_program_counts_as_running_only_while_its_code_is_on_the_stack(
    frames: tuple[Frame, ...], runs: bool
) -> None:
    """Other threads may still be running while Python prints the last exception or shuts down.
    Before the program starts, Python imports `site`.
    """
    loader = ThreadStack(2, "loader", "futex", False, REDUCE)
    stack = process(*frames)
    assert runs_program(stack) is runs
    assert runs_program(stack._replace(threads=(*stack.threads, loader))) is runs


LOADER = f"{TORCH}/utils/data/dataloader.py"
NEXT = process(
    Frame(f"{LIB}/selectors.py", 416, "_PollLikeSelector.select"),
    Frame(LOADER, 1300, "_MultiProcessingDataLoaderIter._try_get_data"),
    Frame(LOADER, 733, "_BaseDataLoaderIter.__next__"),
    MAIN,
)
FORKED = (
    Frame(f"{TORCH}/utils/data/_utils/worker.py", 374, "_worker_loop"),
    Frame(f"{LIB}/multiprocessing/process.py", 314, "BaseProcess._bootstrap"),
    Frame(LOADER, 1200, "_MultiProcessingDataLoaderIter.__init__"),
    MAIN,
)
FETCH = Frame(f"{TORCH}/utils/data/_utils/fetch.py", 54, "_MapDatasetFetcher.fetch")
ITEM = Frame("/home/u/train.py", 11, "Data.__getitem__")
NFS = ProcessStack(7, "D", (ThreadStack(7, "pt_data_worker", "pread64", True, ()),))


@pytest.mark.parametrize(
    ("child", "expected"),
    [
        (process(ITEM, FETCH, *FORKED), "whose loader process is in __getitem__ (train.py:11)"),
        (
            process(Frame(f"{SITE}/PIL/Image.py", 9, "open"), FETCH, *FORKED, state="T"),
            "whose loader process is stopped (SIGSTOP) in open (Image.py:9)",
        ),
        (NFS, "whose loader process is uninterruptible (state D), system call pread64"),
    ],
    ids=["user's dataset", "library's dataset", "state D"],
)
def test_line_for_rank_waiting_for_data_names_the_loader_process(
    child: ProcessStack, expected: str
) -> None:
    assert waits_for_children(NEXT)
    loader = child_at_work(child)
    assert loader is not None
    where = expected.removeprefix("whose loader process").removeprefix(" is")
    assert stuck_loader(loader) == f"its loader process {child.pid} was{where}"
    found = doing(NEXT, loader)
    assert found.place == f" in __next__ (train.py:88), {expected}"
    title = f"loader process {child.pid}:"
    assert title in found.stack
    own = found.stack[: found.stack.index(title)]
    shown = with_native(found.stack, ["poll"])  # the worker's own
    assert shown == (*own, "  in poll", *found.stack[len(own) :])


@pytest.mark.parametrize(
    "child",
    [
        process(Frame(f"{LIB}/multiprocessing/queues.py", 113, "Queue.get"), *FORKED),
        process(*READ),
        ProcessStack(7, "Z", ()),
    ],
    ids=["idle", "not from multiprocessing", "exited"],
)
def test_idle_child_process_is_not_named(child: ProcessStack) -> None:
    assert child_at_work(child) is None


def test_rank_in_a_collective_is_not_waiting_for_a_child_process() -> None:
    assert not waits_for_children(process(*REDUCE))


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ((MAIN, MODULE), False),
        ((Frame(f"{LIB}/subprocess.py", 264, "wait"), MAIN, MODULE), False),
        (READ, True),
        ((Frame(f"{LIB}/json.py", 3, "load"), *READ), True),
    ],
    ids=[
        "in the block",
        "library call in the block",
        "in a function",
        "library call in a function",
    ],
)
def test_function_called_in_an_except_block_is_recognised(
    frames: tuple[Frame, ...], expected: bool
) -> None:
    handled = Handled("OSError", "no cache", (Frame("/home/u/data.py", 3, "Cache.get"), MAIN))
    stack = process(*frames)
    thread = stack.threads[0]._replace(handled=handled)
    assert doing(stack._replace(threads=(thread,))).works_below is expected
    assert not doing(stack).works_below


def test_exception_handled_by_the_import_system_is_not_shown() -> None:
    """Python handles a KeyError for every directory that it searches for the first time."""
    search = Frame(
        "<frozen importlib._bootstrap_external>", 1437, "PathFinder._path_importer_cache"
    )
    for frames, expected in (
        ((search,), ""),
        ((search, MAIN), "KeyError: /srv/data"),
        ((), "KeyError: /srv/data"),
    ):
        handled = Handled("KeyError", "/srv/data", frames)
        stack = process(search, *READ)
        thread = stack.threads[0]._replace(handled=handled)
        assert doing(stack._replace(threads=(thread,))).handling == expected
