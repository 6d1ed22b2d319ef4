"""Writes docs/group.md, which shows the states of the group and their transitions.

python -m documentation.group
"""

from documentation.blocks import ROOT
from documentation.events import STATES
from relight.core.group.group_types import GroupState
from relight.core.group.transitions import TRANSITIONS

PAGE = ROOT / "docs" / "group.md"
_HEAD = """\
<!-- written by python -m documentation.group -->

# States of the group

The coordinator's state machine (`core/group/membership.py`) is in one of these states. The
transitions are a table in `core/group/transitions.py`; any other transition is an error.

"""


def drawing() -> str:
    """Return the states, each with its transitions below."""
    lines = []
    for state in GroupState:
        lines.append(f"{state.name:12}{STATES['membership'][state.value]}")
        lines += [
            f"  | {reason.value}\n  |   -> {after.name}"
            for (before, reason), after in TRANSITIONS.items()
            if before is state
        ]
    return "\n".join(lines)


def page() -> str:
    """Return the content of the page."""
    return f"{_HEAD}```text\n{drawing()}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page())
