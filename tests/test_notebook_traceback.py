"""IPython's traceback of an error ends in the caller's own line.

IPython calls `_render_traceback_` of an exception that has it, and prints the lines it returns
(`InteractiveShell.showtraceback`). The tests call it too.
"""

import pickle
import sys
import traceback
from types import SimpleNamespace, TracebackType

import pytest

import relight
from relight.base import notebook_traceback
from relight.base.errors import UsageError

CELL = "def train():\n    relight.launch(print, nproc_per_node='x')\ntrain()\n"


@pytest.fixture(autouse=True)
def shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for IPython, which formats a traceback as one line per frame."""

    def lines(kind: type, error: BaseException, found: TracebackType | None) -> list[str]:
        assert kind is type(error)
        return [f"{each.filename}:{each.lineno}" for each in traceback.extract_tb(found)]

    formatter = SimpleNamespace(structured_traceback=lines)
    running = SimpleNamespace(get_ipython=lambda: SimpleNamespace(InteractiveTB=formatter))
    monkeypatch.setitem(sys.modules, "IPython", running)  # type: ignore[arg-type]


def test_error_of_relight_ends_in_callers_line() -> None:
    with pytest.raises(UsageError, match="nproc_per_node='x'") as raised:
        exec(compile(CELL, "cell", "exec"), {"relight": relight})
    assert raised.value._render_traceback_()[-2:] == ["cell:3", "cell:2"]


def test_error_of_the_users_function_is_rendered_and_can_be_pickled() -> None:
    error = ValueError("bad batch")
    notebook_traceback.attach(error)
    with pytest.raises(ValueError, match="bad batch"):
        raise error
    assert error._render_traceback_()[-1].startswith(__file__)  # type: ignore[attr-defined]
    assert repr(pickle.loads(pickle.dumps(error))) == "ValueError('bad batch')"


def test_error_without_a_caller_keeps_its_traceback() -> None:
    try:
        relight.launch(print, nproc_per_node="x")
    except UsageError as error:
        found = error.__traceback__
    assert found is not None
    assert notebook_traceback.callers_part(found.tb_next) is found.tb_next
