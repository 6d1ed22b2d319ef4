"""What `relight status` reports about imports made ahead of a restart."""

import pytest

from relight.core.status.preload_status import (
    IMPORTING,
    READY,
    UNUSABLE,
    WAITING,
    LeftOut,
    PreloadStatus,
    describe,
)


@pytest.mark.parametrize(
    ("status", "line"),
    [
        (
            PreloadStatus(WAITING, "the first worker has not taken an optimizer step yet"),
            "preload: restarts are cold: the first worker has not taken an optimizer step yet",
        ),
        (
            PreloadStatus(IMPORTING, "", 1843, 412, "torch._dynamo", 75.4),
            "preload: 412 of 1843 modules imported in 1 min 15 s, now torch._dynamo; restarts stay "
            "cold until all are imported",
        ),
        (PreloadStatus(READY, "", 1843, 1843), "preload: restarts are warm, 1843 modules imported"),
        (
            PreloadStatus(UNUSABLE, "it was killed by SIGKILL"),
            "preload: restarts are cold: it was killed by SIGKILL",
        ),
    ],
)
def test_preload_status_shows_import_progress(status: PreloadStatus, line: str) -> None:
    assert describe(status) == [line]


def test_preload_status_names_first_omitted_modules() -> None:
    left_out = tuple(LeftOut(f"m{number}", "it opens a socket") for number in range(7))
    lines = describe(PreloadStatus(READY, "", 9, 9, left_out=left_out))
    assert lines[1] == "preload: left out m0: it opens a socket"
    assert lines[-1] == "preload: left out 2 more modules"
    assert len(lines) == 7
