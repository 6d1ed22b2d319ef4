"""A job's processes never wait for each other without a limit. Another process may be in an
uninterruptible call, stopped, or owned by another user. An agent waiting for it could neither
respond to its group nor handle a signal.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from test_layers import ROOT, file_of, imports, name_of, tree_of

BEGINS = (
    "relight.agent.agent",
    "relight.cli.run",
    "relight.preload.warm_fork",
    "relight.worker.hook",
)
"""The modules that run in an agent and in the processes below it."""
NOT_OF_A_JOB = ("relight.api.embedding", "relight.api.function", "relight.api.futures",
                "relight.api.submission")  # fmt: skip
"""The modules that wait for an agent, as long as its job takes."""
RUNS = ("run", "call", "check_call", "check_output")
"""Functions in subprocess that kill a program after a timeout, but then wait without one."""


REAPING = ("waitpid", "waitid", "wait3", "wait4")


def loaded() -> set[Path]:
    """Return the files that any of these modules may load, now or later."""
    found: set[Path] = set()
    left = [path for name in BEGINS if (path := file_of(name))]
    while left:
        path = left.pop()
        if path not in found and name_of(path) not in NOT_OF_A_JOB:
            found.add(path)
            left += [other for name in imports(path) if (other := file_of(name))]
    return found


def endless_waits(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name, of = node.func.attr, node.func.value
            module = of.id if isinstance(of, ast.Name) else ""
            is_bare = not node.args and not any(each.arg == "timeout" for each in node.keywords)
            if (
                (name in ("wait", "communicate", "join") and is_bare)
                or (name in REAPING and "WNOHANG" not in ast.unparse(node))
                or (module == "subprocess" and name in RUNS)
                or (module == "signal" and name in ("sigwait", "sigwaitinfo", "pause"))
            ):
                yield node


def test_code_search_finds_waits_without_timeout() -> None:
    for text in (
        "process.wait()", "process.wait(timeout=None or x)", "os.waitpid(pid, 0)", "os.wait()",
        "process.communicate()", "subprocess.run(command, timeout=3)", "thread.join()",
        "os.waitid(os.P_PID, pid, os.WEXITED)",
    ):  # fmt: skip
        expected = "timeout=None" not in text
        assert bool(list(endless_waits(ast.parse(text)))) == expected, text
    for text in ("process.wait(1)", "os.waitpid(pid, os.WNOHANG)", "', '.join(words)"):
        assert not list(endless_waits(ast.parse(text))), text


def test_code_loaded_by_jobs_never_waits_without_timeout() -> None:
    paths = loaded()
    agent = ROOT / "agent"
    assert {agent / "agent.py", agent / "health_check.py", ROOT / "host" / "linux.py"} <= paths
    found = [
        f"{path.relative_to(ROOT)}:{call.lineno}: {ast.unparse(call)}"
        for path in sorted(paths)
        for call in endless_waits(tree_of(path))
    ]
    assert not found, found
