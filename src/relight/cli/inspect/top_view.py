"""The live view of `relight top`, a textual application with a table of ranks and keys for actions.

The rows are built by inspect/top_rows.
"""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, RichLog, Static

from relight.base.errors import EXIT_SIGNAL_BASE, RelightError
from relight.base.fields import printable
from relight.inspect import top_rows
from relight.inspect.gpus import Gpus, gpu_use
from relight.inspect.top_rows import JobLook, Row, SampleHistory
from relight.job import handles

_LIMIT_S = 60.0
"""The time limit for a command whose output is displayed."""
_LINES = 500
_LOOKING = "reading the state of the jobs …"
_HEADS = {"rank": "REPLICA", "host": "HOST", "state": "STATE", "step": "STEP", "rate": "STEP/S",
          "cpu": "CPU", "memory": "MEMORY"}  # fmt: skip
"""The columns by which rows can be sorted, keyed by their names in top.ORDERS."""
_ENDS_TELL = ("JOB", "REPLICA")
"""Columns whose text is shortened in the middle, such as `train-2711` or `default/17`."""
_PART = 4
"""The minimum pause after a sample, as a multiple of the time that the sample took, so that a slow
cluster is queried less often.
"""


class Found(Message):
    """A result computed in a thread.

    Args:
        show: displays the result.
    """

    def __init__(self, show: Callable[[], None]) -> None:
        super().__init__()
        self.show, self.is_shown = show, threading.Event()


class TopView(App[None]):
    """The application, which shows jobs until the user quits.

    Args:
        look: returns the state of the jobs; called in a separate thread.
        order: the sort order (`top.ORDERS`).
        words: show only rows that contain all of these words.
        every_s: seconds between two samples.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #summary { height: auto; max-height: 33%; }
    #filter { display: none; height: 1; border: none; }
    DataTable { height: 1fr; scrollbar-size-vertical: 1; }
    .box { width: 90%; height: 90%; border: round $primary; }
    .ask { width: 90%; max-width: 70; height: auto; border: round $error; padding: 1 2; }
    ModalScreen { align: center middle; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "stacks", "Stacks"),
        Binding("l", "logs", "Logs"),
        Binding("c", "cancel", "Cancel"),
        Binding("o", "order", "Order"),
        Binding("r", "reverse", "Reverse"),
        # This key has priority because the keys that immediately follow it, for example in pasted
        # text, must reach the filter field.
        Binding("slash", "filter", "Filter", key_display="/", priority=True),
        Binding("enter", "leave_filter", "Back to the table", priority=True),
        Binding("escape", "leave_filter", show=False, priority=True),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]

    def __init__(
        self, look: Callable[[], list[JobLook]], order: str, words: str, every_s: float
    ) -> None:
        super().__init__()
        self._look, self._every_s = look, every_s
        self._order, self._reverse, self._words = order, False, words
        self._jobs: dict[str, JobLook] = {}
        self._rows: list[Row] = []
        self._shown: list[Row] = []
        self._gpus = self._error = ""
        self._has_sampled = False
        self._again = threading.Event()
        """Set to request another sample immediately."""

    def compose(self) -> ComposeResult:
        """Return the widgets from top to bottom."""
        yield Static(_LOOKING, id="summary", markup=False)
        yield DataTable[Text](id="ranks", cursor_type="row", zebra_stripes=True)
        yield WordsInput(self._words, placeholder="words that rows must contain", id="filter")
        yield Footer()

    def on_mount(self) -> None:
        """Start sampling, and make sure that the terminal is restored if this process is
        terminated.
        """
        end = partial(self.exit, return_code=EXIT_SIGNAL_BASE + signal.SIGTERM)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        looks, gpus = SampleHistory(), Gpus()
        while True:
            began = time.monotonic()
            try:
                jobs, here = self._look(), gpus.look()
                rows = looks.rows(jobs, partial(gpu_use, here))
                show = partial(self._take, jobs, rows, top_rows.gpus_line(here))
            except RelightError as error:
                show = partial(self._fail, error.message)
            if not self._pass_on(show):
                return
            self._again.wait(max(self._every_s, _PART * (time.monotonic() - began)))
            self._again.clear()

    def _pass_on(self, show: Callable[[], None]) -> bool:
        """Have the application show a thread's result. Return False if the user has quit."""
        found = Found(show)
        try:
            return self.post_message(found) and found.is_shown.wait(_LIMIT_S)
        except RuntimeError:  # its event loop has closed
            return False

    def on_found(self, message: "Found") -> None:
        """Display the result from a thread, unless the user has just quit."""
        if self._is_there:
            message.show()
        message.is_shown.set()

    def _take(self, jobs: list[JobLook], rows: list[Row], gpus: str) -> None:
        self._gpus, self._has_sampled = gpus, True
        self._jobs, self._rows, self._error = {job.handle: job for job in jobs}, rows, ""
        self._show()

    def _fail(self, error: str) -> None:
        self._error = error  # keep showing the previous sample
        self._summarize()

    @property
    def _is_there(self) -> bool:
        """Whether the table still exists, given that messages may arrive after the user has
        quit.
        """
        return bool(self.query("#ranks"))

    def _show(self) -> None:
        """Fill the table, keeping the cursor on its row and the scroll position unchanged."""
        if not self._is_there:
            return
        ranks = self.query_one("#ranks", DataTable)
        key, place = self._key(), ranks.scroll_offset
        rows = top_rows.ordered(self._rows, self._order, reverse=self._reverse)
        self._shown = top_rows.matching(rows, self._words)
        heads, lines = top_rows.table(self._shown)
        ranks.clear(columns=True)
        beside = 2 * ranks.cell_padding
        room = self.size.width - ranks.styles.scrollbar_size_vertical
        widths = top_rows.widths(heads, lines, room, beside, _HEADS.get(self._order, ""))
        for number, width in widths.items():
            ranks.add_column(heads[number], width=width)
        for line in lines:
            ranks.add_row(*(_cell(heads[n], line[n], width) for n, width in widths.items()))
        at = next((n for n, row in enumerate(self._shown) if row.key == key), 0)
        ranks.move_cursor(row=at, scroll=False)
        ranks.scroll_to(place.x, place.y, animate=False)
        self._summarize()

    def on_data_table_row_highlighted(self) -> None:
        """Show the headline of the job under the cursor."""
        if self._is_there:
            self._summarize()

    def _summarize(self) -> None:
        sort = f"sorted by {self._order}{', reversed' if self._reverse else ''}"
        found = f", {len(self._shown)} with “{self._words}”" if self._words else ""
        lines = [f"{top_rows.totals(self._rows)}; {sort}{found}"]
        row = self._row()
        if self._gpus:
            lines.append(self._gpus)
        if self._error:
            lines.append(f"the last refresh failed: {self._error}")
        elif not self._jobs:
            lines.append("no jobs" if self._has_sampled else _LOOKING)
        elif row is not None:
            lines += top_rows.headline(self._jobs[row.handle])
        self.query_one("#summary", Static).update("\n".join(lines))

    def _row(self) -> Row | None:
        at = self.query_one("#ranks", DataTable).cursor_row
        return self._shown[at] if 0 <= at < len(self._shown) else None

    def _key(self) -> str:
        row = self._row()
        return "" if row is None else row.key

    # Key bindings.

    def action_order(self) -> None:
        """Sort by the next column."""
        self._order = top_rows.ORDERS[
            (top_rows.ORDERS.index(self._order) + 1) % len(top_rows.ORDERS)
        ]
        self._show()

    def action_reverse(self) -> None:
        """Reverse the sort order."""
        self._reverse = not self._reverse
        self._show()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return whether a key currently triggers an action. For example, / is an ordinary
        character in the filter field.
        """
        in_field = isinstance(self.focused, WordsInput)
        match action:
            case "filter":
                return not in_field and len(self.screen_stack) == 1
            case "leave_filter":
                return in_field
        return super().check_action(action, parameters)

    def action_filter(self) -> None:
        """Prompt for the words that rows must contain."""
        words = self.query_one("#filter", WordsInput)
        words.display = True
        self.screen.set_focus(words)  # immediate; `focus` would leave the next keys to the table

    def action_leave_filter(self) -> None:
        """Return to the table, keeping the filter words."""
        self.query_one("#filter", WordsInput).display = False
        self.screen.set_focus(self.query_one("#ranks", DataTable))

    def on_input_changed(self, event: Input.Changed) -> None:
        """Show only rows that contain all of the words."""
        self._words = event.value
        self._show()

    def on_resize(self) -> None:
        """Show the columns that fit the new width."""
        if self._jobs:
            self.call_after_refresh(self._show)  # the new size is only known then

    def action_stacks(self) -> None:
        """Show the stacks of the job's ranks."""
        row = self._row()
        if row is not None:
            self._show_output("stacks", row.handle)

    def action_logs(self) -> None:
        """Show the last lines of output from the rank or the job."""
        row = self._row()
        if row is not None:
            self._show_output("logs", f"--lines={_LINES}", row.key)

    def _show_output(self, *words: str) -> None:
        shown = OutputScreen(f"relight {' '.join(words)}")
        self.push_screen(shown)
        self._run(words, shown.fill)

    def action_cancel(self) -> None:
        """Cancel the job after the user confirms."""
        row = self._row()
        if row is None:
            return
        handle, hosts = row.handle, {each.host for each in self._rows if each.handle == row.handle}
        part = handles.to_handle(handle).scheduler == handles.RUN and len(hosts) > 1
        text = f"Cancel {handle}{' (only the part on this machine)' if part else ''}?"

        def answered(yes: bool | None) -> None:
            if yes:
                self.notify(f"relight cancel {handle} …", markup=False)
                self._run(("cancel", handle), lambda text: self.notify(text, markup=False))

        self.push_screen(ConfirmScreen(text), answered)

    def _run(self, words: tuple[str, ...], then: Callable[[str], None]) -> None:
        """Run a relight command in a thread, and pass its output to `then`."""

        def run() -> None:
            text = _command_output(words)
            self._again.set()
            self._pass_on(lambda: then(text))

        threading.Thread(target=run, daemon=True).start()


class WordsInput(Input):
    """A one-line filter field that accepts pasted text with several lines."""

    def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()  # the base class keeps only the first line
        self.replace(" ".join(event.text.split()), *self.selection)


class OutputScreen(ModalScreen[None]):
    """A screen that shows a command's output.

    Args:
        title: the command.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "dismiss", "Back")]

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title

    def compose(self) -> ComposeResult:
        """Return the widgets."""
        box = RichLog(classes="box", wrap=True, markup=False, auto_scroll=False)
        box.border_title, box.border_subtitle = Text(self._title), "escape: back"
        yield box

    def fill(self, text: str) -> None:
        """Show the text. Logs are scrolled to the end, and all other text is scrolled to the
        start.
        """
        if not self.is_attached:
            return  # the user has already left the screen
        box = self.query_one(RichLog)
        box.write(Text(text))
        if self._title.startswith("relight logs"):
            box.scroll_end(animate=False)


class ConfirmScreen(ModalScreen[bool]):
    """A screen that asks for confirmation.

    Args:
        question: the question.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape,q", "answer(False)", "No"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """Return the widgets."""
        yield Static(f"{self._question}\n\ny: yes   n: no", classes="ask", markup=False)

    def action_answer(self, yes: bool) -> None:
        """Close the screen and return the user's choice."""
        self.dismiss(yes)


def _cell(head: str, text: str, width: int) -> Text:
    cut = top_rows.shortened(text, width) if head in _ENDS_TELL else text
    return Text(cut, no_wrap=True, overflow="ellipsis")


def _command_output(words: tuple[str, ...]) -> str:
    """Return the output of a relight command, including errors."""
    command = [sys.executable, "-m", "relight", *words]
    try:
        found = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=_LIMIT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no response within {_LIMIT_S:.0f} s"
    except OSError as error:
        return f"can't run {command[0]}: {error.strerror}"
    text = found.stdout.decode(errors="replace").expandtabs().rstrip()
    return printable(text) or "no output"
