"""Tracebacks with which workers exit: each shown once, with its ranks, unless the report has it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.core.diagnosis.excerpts import excerpt
from relight.core.diagnosis.traceback_lines import omitted
from relight.core.workers.traceback_groups import grouped, split

SAMPLES = Path(__file__).parent / "samples"
TORCH = "/env/lib/python3.11/site-packages/torch"
HEADER = "Traceback (most recent call last):"
AT_EXIT = (
    b"[rank0]:[W1124 09:00:00.1 ProcessGroupNCCL.cpp:1496] Warning: WARNING: "
    b"destroy_process_group() was not called before program exit (function operator())\n"
)
IGNORED = (
    b"Exception ignored in: <function Loader.__del__ at 0x7f1c>\n"
    b'Traceback (most recent call last):\n  File "/srv/job/data.py", line 9, in __del__\n'
    b"AttributeError: 'Loader' object has no attribute 'pool'\n"
)


def traceback(message: str, line: int = 5, frames: int = 0) -> list[str]:
    torch = [
        f'  File "{TORCH}/nn/modules/module.py", line 1553, in _wrapped_call_impl',
        "    return self._call_impl(*args, **kwargs)",
        "           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
    ]
    return [
        HEADER,
        '  File "/srv/job/train.py", line 9, in <module>',
        "    step()",
        *torch * frames,
        f'  File "/srv/job/train.py", line {line}, in step',
        "    raise ValueError(text)",
        message,
    ]


def as_printed(lines: list[str], prefix: str = "") -> bytes:
    return "".join(f"{prefix}{line}\n" for line in lines).encode()


def test_identical_tracebacks_are_shown_once_with_their_ranks() -> None:
    same = traceback("ValueError: nan")
    other = traceback("KeyError: 'a'", line=7)
    texts = grouped({5: same, 0: same, 2: other, 1: same, 3: same}, "")
    assert texts == [
        "\n".join(["traceback of rank 0; ranks 1, 3, 5: the same", *same]),
        "\n".join(["traceback of rank 2", *other]),
    ]


def test_tracebacks_that_differ_only_in_numbers_are_grouped() -> None:
    """The first traceback is shown as printed, with a note that the others differ."""
    tracebacks = {
        rank: traceback(f"RuntimeError: closed by [::1]:{4000 + rank}") for rank in (3, 4)
    }
    (text,) = grouped(tracebacks, "")
    first, *lines = text.split("\n")
    assert first == "traceback of rank 3; rank 4: the same except for numbers"
    assert lines == tracebacks[3]


def test_tracebacks_from_different_lines_are_shown_separately() -> None:
    found = grouped({0: traceback("ValueError: x", 5), 1: traceback("ValueError: x", 6)}, "")
    assert len(found) == 2


@pytest.mark.parametrize("rows", [30, 12])
def test_traceback_in_the_failure_report_is_not_repeated(rows: int) -> None:
    """The report may replace torch's frames with their number."""
    lines = traceback("ValueError: nan in batch 3", frames=6)
    report = "\n".join(["rank 2 raised ValueError", "", *excerpt(lines, rows), "", "exit code 1"])
    others = {0: traceback("ValueError: nan in batch 4", frames=6), 2: lines}
    assert grouped(others, report) == []


@pytest.mark.parametrize(
    "lines",
    [
        [*traceback("ValueError: a"), *(f"reason {n}" for n in "abcdefghij")],
        [*traceback("KeyError: 'a'"), "", "During handling of the above exception, another "
         "exception occurred:", "", *traceback("ValueError: b", line=6)],
        traceback("ValueError: " + "a long text " * 50),
        [HEADER, *(line for n in range(9) for line in
                   (f'  File "/srv/job/train.py", line {n}, in f{n}', f"    f{n}()")), "E: x"],
    ],
    ids=["message", "chain", "long line", "user's frames"],
)  # fmt: skip
def test_traceback_shortened_in_the_failure_report_is_shown_in_full(lines: list[str]) -> None:
    report = "\n".join(excerpt(lines, 8))
    assert report != "\n".join(lines)
    assert grouped({1: lines}, report) == ["\n".join(["traceback of rank 1", *lines])]


def test_long_traceback_omits_torch_frames() -> None:
    """The innermost one stays, as do all lines from the message and the user's code."""
    lines = traceback("ValueError: x", frames=12)
    (text,) = grouped({0: lines}, "")
    assert text.split("\n")[1:] == [
        *lines[:3],
        "  … 11 frames of torch …",
        *traceback("ValueError: x", frames=1)[3:],
    ]
    (short,) = grouped({0: traceback("ValueError: x", frames=2)}, "")
    assert short.count("module.py") == 2


def test_interpreter_startup_frames_are_omitted() -> None:
    lines = traceback("ValueError: x")
    started = [HEADER, '  File "<frozen runpy>", line 198, in _run_module_as_main', *lines[1:]]
    assert grouped({0: started}, "") == ["\n".join(["traceback of rank 0", *lines])]


@pytest.mark.parametrize("after", [b"", AT_EXIT, IGNORED, AT_EXIT + IGNORED, b"half a line"])
@pytest.mark.parametrize("prefix", ["", "[rank7]: "])
def test_output_after_a_traceback_is_split_off(prefix: str, after: bytes) -> None:
    lines = traceback("ValueError: bad batch\nin shard 3")
    lines = "\n".join(lines).split("\n")
    if after == b"half a line":  # it may be part of the message
        lines, after = [*lines, "half a line"], b""
        held = as_printed(lines, prefix).removesuffix(b"\n")
    else:
        held = as_printed(lines, prefix) + after
    found, rest = split(held)
    assert list(found) == lines
    assert rest == after


def test_multiline_message_does_not_end_exception_group_traceback() -> None:
    """Python draws no box around the message's second line."""
    lines = (SAMPLES / "group-3.13.txt").read_text().replace("TypeError: t", "TypeError: t\nu\nv")
    found, rest = split(lines.encode() + AT_EXIT)
    assert "\n".join(found) + "\n" == lines
    assert rest == AT_EXIT


def test_crlf_and_colours_in_tracebacks_are_ignored() -> None:
    data = (SAMPLES / "colour-3.13.txt").read_bytes()
    found, rest = split(data.replace(b"\n", b"\r\n") + AT_EXIT)
    assert found == split(data)[0]
    assert not any("\x1b" in line or "\r" in line for line in found)
    assert rest == AT_EXIT


@pytest.mark.parametrize(
    "held",
    [
        b"",
        b"Traceback (most recent call last):\n",
        b'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    x = 1\n',
        b"Traceback (most recent call last):\nEpoch 3: loss 0.2\n",
    ],
)
def test_incomplete_traceback_is_treated_as_plain_output(held: bytes) -> None:
    """The process was killed while printing the traceback."""
    assert split(held) == ((), held)


@given(before=st.sampled_from([b"", as_printed(traceback("ValueError: x"))]), after=st.binary())
def test_output_after_a_traceback_is_never_lost(before: bytes, after: bytes) -> None:
    held = before + after
    lines, rest = split(held)
    assert held.endswith(rest) or not rest.strip()
    if not lines:
        assert rest == held
    else:
        assert held.count(b"\n") >= rest.count(b"\n") + len(lines) - 1


def test_single_omitted_line_is_shown_instead_of_counted() -> None:
    assert omitted(["--- rank 1 ---"]) == ["--- rank 1 ---"]
    assert omitted(["--- rank 1 ---", "loss=2"]) == ["  … 2 more lines …"]
