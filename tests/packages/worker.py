"""The survey's script: lists the loaded modules, imports the rest, and describes their contents."""

import json
import os
import sys
from pathlib import Path


def process() -> dict[str, object]:
    """Return the process state that an import may change."""
    import logging
    import signal
    import warnings

    torch = sys.modules.get("torch")
    return {
        "variables": {k: v for k, v in os.environ.items() if not k.startswith(NOT_THE_SAME)},
        "signals": {n: str(signal.getsignal(n)).split(" at ")[0] for n in range(1, 32)},
        "warning filters": len(warnings.filters),
        "logging": [logging.root.level, len(logging.root.handlers)],
        "sys.path": sys.path,
        "import hooks": [len(sys.meta_path), len(sys.path_hooks)],
        "recursion limit": sys.getrecursionlimit(),
        "standard output": [type(sys.stdout).__name__, sys.stdout.isatty()],
        "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__],
        "threads of torch": torch and [torch.get_num_threads(), torch.get_num_interop_threads()],
    }


NOT_THE_SAME = ("MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "SURVEY_", "_")


def main() -> None:
    """Run as a worker for `survey.py`."""
    names = os.environ["SURVEY_MODULES"].split(",")
    # They are hidden in the first finder until they are imported.
    hidden = getattr(sys.meta_path[0], "_hidden", {})
    there = [name for name in names if name in hidden or name in sys.modules]
    for name in names:
        __import__(name)
    report = {"preloaded": there, "process": process(), "values": {}}
    if "SURVEY_VALUES" in os.environ:
        sys.path.append(os.environ["SURVEY_VALUES"])
        from draws import look

        report["values"] = look(names)
    Path(os.environ["SURVEY_RESULT"] + os.environ["RANK"]).write_text(json.dumps(report))


main()
