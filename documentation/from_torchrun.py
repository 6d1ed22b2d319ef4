"""Writes docs/from-torchrun.md, which lists every flag of `relight run` next to torchrun's.

    python -m documentation.from_torchrun

The flags come from the flag table of `relight run` and from torchrun's parser. The differences come
from docs/differences.md, kept complete by the tests in tests/differential.
"""

import ast
import re
from importlib.util import find_spec
from pathlib import Path

from documentation.blocks import ROOT
from relight.flags.spec import FLAGS, Flag
from relight.flags.usage import shown_default

PAGE = ROOT / "docs" / "from-torchrun.md"
DIFFERENCES = ROOT / "docs" / "differences.md"
_HEAD = """\
# From torchrun

<!-- written by python -m documentation.from_torchrun -->

Replace `torchrun` or `python -m torch.distributed.run` by `relight run`; the script, its arguments,
the `PET_…` variables and the workers' variables stay the same.

```bash
relight run --nproc-per-node=2 --max-restarts=3 train.py --lr 0.1
# torchrun's spellings: underscores, a space instead of =, abbreviated flags
relight run --nproc_per_node 2 --max-rest=3 train.py
PET_NPROC_PER_NODE=2 relight run train.py
```

[One document](differences.md), kept complete by tests, lists everything that behaves differently.
Most visible: the exit code is [that of the root cause](exit-codes.md), not 1; failures are reported
in a few lines, with the cause first; no worker outlives the launcher; and on a cluster, [no
rendezvous flags](zero-flags.md) are needed.

## Every flag

`relight run` has every flag of torchrun. `--monitor-interval` and `--start-method` have no effect.
Not supported: other values of `--logs-specs` than `default`, and [rendezvous plug-ins for
torch](differences.md#torch-plug-ins). Plug-ins for relight can handle events and provide rendezvous
backends.

"Default" applies if neither the flag nor its variable is set. "Differs" links to differences from
torchrun.

"""
_LATER = {"log-line-prefix-template", "print-completion"}
"""Flags that torch 2.14 has but the installed torch does not."""
_OWN = """
## Flags that torchrun does not have

"""
_ALL = """
## Every difference

"""


def page() -> str:
    """Return the content of the page."""
    theirs = of_torchrun() | _LATER
    missing = theirs - {flag.name for flag in FLAGS}
    assert not missing, f"flags of torchrun that relight run does not have: {sorted(missing)}"
    named = differences()
    common = [row(flag, named) for flag in FLAGS if flag.name in theirs]
    own = [row(flag, named) for flag in FLAGS if flag.name not in theirs]
    rule = "|---|---|---|---|---|"
    head = ("| flag | description | default | variable | differs |", rule)
    own_head = ("| flag | description | default | variable | see |", rule)
    tables = "\n".join((*head, *common)) + "\n" + _OWN + "\n".join((*own_head, *own)) + "\n"
    return _HEAD + tables + _ALL + "\n".join(all_differences()) + "\n"


def of_torchrun() -> set[str]:
    """Return the names of torchrun's flags, with dashes. Its parser is read from the source rather
    than run, because importing torch takes seconds.
    """
    torch = find_spec("torch")
    assert torch is not None and torch.origin is not None
    source = (Path(torch.origin).parent / "distributed" / "run.py").read_text()
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    words = [
        word.value
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"
        for word in call.args
        if isinstance(word, ast.Constant) and isinstance(word.value, str)
    ]
    return {word[2:].replace("_", "-") for word in words if word.startswith("--")} | {"help"}


def differences() -> dict[str, list[str]]:
    """Return, for each flag, the names of the differences that mention it."""
    found: dict[str, list[str]] = {}
    for part in re.split(r"^### ", DIFFERENCES.read_text(), flags=re.MULTILINE)[1:]:
        name = part.partition("\n")[0].strip("` ")
        body = part.partition("\n## ")[0]
        flags = {flag.name for flag in FLAGS if re.search(rf"--{flag.name}\b(?!-)", body)}
        flags |= {flag.name for flag in FLAGS if f"PET_{flag.field.upper()}" in body}
        flags |= {name} & {flag.name for flag in FLAGS}  # a section named after a flag
        for flag in sorted(flags):
            found.setdefault(flag, []).append(name)
    return found


def all_differences() -> list[str]:
    """Return a line for each group of differences."""
    lines = []
    for part in re.split(r"^## ", DIFFERENCES.read_text(), flags=re.MULTILINE)[1:]:
        names = re.findall(r"^### `(.+)`$", part, flags=re.MULTILINE)
        links = ", ".join(f"[{name}](differences.md#{name})" for name in names)
        if links:
            lines.append(f"- {part.partition(chr(10))[0]}: {links}")
    return lines


_PAGES = {
    "bad-nodes": "bad-nodes.md",
    "checkpoints": "restarts.md",
    "end-with-parent": "embedding.md",
    "failure-report": "failure-report.md",
    "hang-timeout": "hangs.md",
    "fail-on": "restarts.md",
    "health-check": "health-check.md",
    "health-check-timeout": "health-check.md",
    "keep-warm": "warm.md",
    "membership-change": "checkpoints.md",
    "name": "watching.md",
    "on-preempt": "checkpoints.md",
    "status": "status-page.md",
    "preload": "warm.md",
    "record-group": "watching.md",
    "repeated-lines": "console.md",
    "restart-on": "restarts.md",
    "rank-order": "topology.md",
    "segment": "topology.md",
    "restart-policy": "restarts.md",
    "tracker": "trackers.md",
    "watch-metric": "watching.md",
    "watch-slow-ranks": "slow-ranks.md",
    "worker-store": "decisions/0004-worker-store.md",
}
"""The pages with more information about flags that torchrun does not have."""


def row(flag: Flag, named: dict[str, list[str]]) -> str:
    """Return the table row for a flag."""
    # Markdown dialects disagree about a vertical bar within a code span in a table.
    value = " or ".join(f"`{each}`" for each in flag.metavar.split("|") if each)
    value = f" {value}{', or nothing' if flag.implied else ''}" if value else ""
    short = f", `-{flag.short}`" if flag.short else ""
    default = shown_default(flag)
    links = [f"[{name}](differences.md#{name})" for name in named.get(flag.name, ())]
    links += [f"[{_PAGES[flag.name]}]({_PAGES[flag.name]})"] if flag.name in _PAGES else []
    cells = (
        f"`--{flag.name}`{short}{value}",
        flag.help,
        f"`{default}`" if default else "",
        f"`{flag.source}`" if flag.source else "",
        ", ".join(links),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    PAGE.write_text(page())
