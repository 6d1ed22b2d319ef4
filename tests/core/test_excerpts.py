"""Shortening an exception's first line, and long text, without losing the reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.core.diagnosis.excerpts import cut, excerpt, headline
from relight.core.failure import ErrorReport, FailureKind

IN_USE = (
    "The server socket has failed to listen on any local network address. port: 29777, "
    "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
)
NO_HOST = (
    "The client socket has timed out after 3000ms while trying to connect to "
    "(gpu-node-17.cluster.invalid, 29511). Check the address and the port of the peer."
)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("bad batch\nin shard 3", "bad batch"),
        ("", ""),
        ("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer",
         "Connection closed by peer"),
        ("[../third_party/gloo/gloo/transport/tcp/pair.cc:598] Read error [127.0.0.1]:4705",
         "Read error [127.0.0.1]:4705"),
        ("[/x/pair.cc:553] Connection closed by peer [127.0.0.1]:4705. This is typically caused by "
         "a remote worker crashing. Check the logs of the remote worker before reporting an error.",
         "Connection closed by peer [127.0.0.1]:4705."),
        ("Read error [127.0.0.1]:4705: Connection reset by peer. This is typically caused by a "
         "remote worker hanging or bugs in the application. Check the logs of the remote worker.",
         "Read error [127.0.0.1]:4705: Connection reset by peer."),
        ("[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598",
         "unexpected pos 704 vs 598"),
        ("[enforce fail at alloc_cpu.cpp:127] err == 0. can't allocate memory",
         "can't allocate memory"),
        ("[enforce fail at pair.cc:466] op.preamble.length <= op.nbytes. 64 vs 4",
         "op.preamble.length <= op.nbytes. 64 vs 4"),
        ("NCCL error in: /pytorch/ProcessGroupNCCL.cpp:1970, unhandled system error",
         "NCCL error, unhandled system error"),
        ('n == 1 INTERNAL ASSERT FAILED at "/c10/x.cpp":123, please report a bug to PyTorch. Gone',
         "Gone"),
        ('Error(s) in loading state_dict for Net:\n\n\tMissing key(s): "a".\n\tUnexpected: "b"',
         'Error(s) in loading state_dict for Net: Missing key(s): "a".'),
        ("checkpoint does not fit:", "checkpoint does not fit:"),
        ("while scanning for the next token\nfound character '\\t' that cannot start any token\n"
         '  in "train.yaml", line 2, column 1',
         "while scanning for the next token, found character '\\t' that cannot start any token "
         'in "train.yaml", line 2, column 1'),
        ('while parsing a block mapping\n  in "a.yaml", line 1, column 1:\n    lr: 1\n    ^\n'
         "expected <block end>, but found ','\n  in \"a.yaml\", line 2, column 3:\n    , b\n    ^",
         "while parsing a block mapping, expected <block end>, but found ',' "
         'in "a.yaml", line 2, column 3'),
        ("2 validation errors for Config\nlr\n  Input should be a valid number\nsteps\n  Missing",
         "2 validation errors for Config: lr Input should be a valid number"),
        ("while parsing a block mapping", "while parsing a block mapping"),
        ("[Rank 1] Watchdog caught a timeout", "[Rank 1] Watchdog caught a timeout"),
    ],
)  # fmt: skip
def test_exception_headline_keeps_the_reason(message: str, expected: str) -> None:
    report = ErrorReport(FailureKind.RAISED, "RuntimeError", message, "", "", ())
    assert headline(report, 120) == expected


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (IN_USE, "port: 29777"),
        (NO_HOST, "(gpu-node-17.cluster.invalid, 29511)"),
        ("A long sentence that tells of nothing at all. Then " * 3 + "[127.0.0.1]:4705", "]:4705"),
        ("One long sentence that does not tell much of " * 3 + "db.internal:6379 gone", ":6379"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [60, 80, 100, 120])
def test_shortened_text_keeps_the_network_address(text: str, address: str, size: int) -> None:
    assert address in cut(text, size)


@given(st.text(" .:;,[]()12ab-", max_size=300), st.integers(3, 200))
def test_shortened_text_respects_the_size_limit(text: str, size: int) -> None:
    shown = cut(text, size)
    assert len(shown) <= size
    assert shown == text or "…" in shown


def test_short_excerpt_keeps_first_error_of_exception_chain() -> None:
    header = "Traceback (most recent call last):"
    places = [[f'  File "a.py", line {n}, in f{n}', f"    call({n})"] for n in range(4)]
    lines = [header, *places[0], *places[1], "E: 0"]
    for number in range(1, 9):
        lines += ["", "The above exception was the direct cause of the following exception:", ""]
        lines += [header, *places[2], *places[3], f"E: {number}"]
    shown = excerpt(lines, 12)
    assert shown[:5] == [
        "  … 1 frame …",
        *places[1],
        "E: 0",
        "  … 7 more exceptions and 14 frames …",
    ]
    assert shown[-4:] == ["  … 1 frame …", *places[3], "E: 8"]
    assert excerpt(lines, 10)[:2] == ["  … 2 frames …", "E: 0"]


def test_short_excerpt_keeps_first_exception_of_exception_group() -> None:
    lines = [
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "/srv/job/train.py", line 20, in <module>',
        '  |     raise ExceptionGroup("2 shards failed", errors)',
        "  | ExceptionGroup: 2 shards failed (2 sub-exceptions)",
        "  +-+---------------- 1 ----------------",
    ]
    for number in (1, 2):
        lines += [
            "    | Traceback (most recent call last):",
            f'    |   File "/srv/job/train.py", line 1{number}, in verify',
            "    |     raise error",
            f"    | ValueError: shard {number}",
            "    +---------------- 2 ----------------",
        ]
    shown = excerpt(lines, 11)
    assert lines[3] in shown
    assert "    | ValueError: shard 1" in shown
    assert "    | ValueError: shard 2" not in shown


def test_short_excerpt_omits_the_cleanup_of_cancelled_tasks_first() -> None:
    lines = [
        "  + Exception Group Traceback (most recent call last):",
        "  | ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)",
        "  +-+---------------- 1 ----------------",
        "    | Traceback (most recent call last):",
        '    |   File "/srv/job/train.py", line 16, in heartbeat',
        "    | asyncio.exceptions.CancelledError",
        "    |",
        "    | During handling of the above exception, another exception occurred:",
        "    |",
        "    | Traceback (most recent call last):",
        '    |   File "/srv/job/train.py", line 18, in heartbeat',
        "    | ConnectionError: could not deregister",
        "    +---------------- 2 ----------------",
        "    | Traceback (most recent call last):",
        '    |   File "/srv/job/train.py", line 11, in fetch',
        "    | ValueError: negative length -7",
        "    +------------------------------------",
    ]
    shown = excerpt(lines, 9)
    assert "    | ValueError: negative length -7" in shown
    assert "    | ConnectionError: could not deregister" not in shown


def test_frames_of_a_recursion_are_counted() -> None:
    frame = ['  File "/srv/a.py", line 4, in f', "    return f(n)"]
    lines = ["Traceback (most recent call last):", *frame * 3]
    lines += ["  [Previous line repeated 989 more times]", *frame * 20, "RecursionError: too deep"]
    (mark,) = [line for line in excerpt(lines, 5) if "…" in line]
    assert mark == "  … 1,011 frames …"


def test_end_of_a_failed_command_is_kept() -> None:
    """The exit code is at the end of the message, after the whole command."""
    command = f"['python', '-c', '\\nimport sys\\n{'x' * 500}']"
    message = f"Command '{command}' returned non-zero exit status 9."
    report = ErrorReport(FailureKind.RAISED, "CalledProcessError", message, "", "", ())
    assert headline(report, 100) == (
        "Command '['python', '-c', ' import sys …' returned non-zero exit status 9."
    )


@pytest.mark.parametrize("rows", [10, 54, 55, 70])
def test_consecutive_omitted_lines_are_counted_together(rows: int) -> None:
    lines = ["Traceback (most recent call last):", '  File "a.py", line 4, in f', "E: bad:"]
    lines += [*(f"tensor {n}" for n in range(50)), "  … 14,950 more lines …"]
    lines += [f"tensor {n}" for n in range(15_000, 15_050)]
    shown = excerpt(lines, rows)
    marks = [line for line in shown if "…" in line]
    left_out = [int(mark.split()[1].replace(",", "")) for mark in marks]
    assert sum(left_out) + sum("tensor" in line for line in shown) == 15_050
    assert len(marks) == (2 if rows == 70 else 1)
