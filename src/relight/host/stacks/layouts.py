"""Where CPython 3.11, 3.12 and 3.13 have what a stack consists of, in bytes.

3.13 says it itself, in a table at the begin of `_PyRuntime` (Include/internal/pycore_runtime.h,
`_Py_DebugOffsets`). For 3.11 and 3.12 the numbers are those of their headers: pycore_frame.h,
cpython/pystate.h, cpython/code.h, cpython/unicodeobject.h. Free-threaded builds are not supported.
"""

import struct

from relight.host.stacks.memory import Memory, StackError
from relight.typed import NamedTuple

_COOKIE = b"xdebugpy"
_HEAD_WITHIN = 128
"""The pointer to the first interpreter is in the first bytes of `_PyRuntime`; 3.12.1 moved it."""


class Layout(NamedTuple):
    """Offsets of fields. `cframe` leads from a thread to what points to its frame; None since
    3.13. `from_owner`: frames with an owner of this number or above are none of Python's.
    """

    interpreter_next: int
    threads: int
    thread_next: int
    native_id: int
    cframe: int | None
    current_frame: int
    code: int
    previous: int
    instruction: int
    owner: int
    from_owner: int
    filename: int
    qualname: int
    linetable: int
    first_line: int
    bytecode: int
    ascii_text: int
    other_text: int


_OF_ALL = {"interpreter_next": 0, "thread_next": 8, "filename": 112, "qualname": 128,
           "linetable": 136, "from_owner": 3}  # fmt: skip
_FIXED = {
    11: Layout(
        **_OF_ALL, threads=16, native_id=160, cframe=56, current_frame=8, code=32, previous=48,
        instruction=56, owner=69, first_line=72, bytecode=184, ascii_text=48, other_text=72,
    ),
    12: Layout(
        **_OF_ALL, threads=72, native_id=144, cframe=56, current_frame=0, code=0, previous=8,
        instruction=56, owner=70, first_line=68, bytecode=192, ascii_text=40, other_text=56,
    ),
}  # fmt: skip


def read(memory: Memory, runtime: int, version_at: int) -> tuple[Layout, int]:
    """Return the layout of a process, and the address of its first interpreter.

    Args:
        memory: of the process.
        runtime: the address of `_PyRuntime`.
        version_at: the address of `Py_Version`.

    Raises:
        StackError: its version is not supported.
    """
    major, minor = divmod(memory.word(version_at) >> 16 & 0xFFFF, 256)
    if (major, minor) == (3, 13):
        return _described(memory, runtime)
    if major != 3 or minor not in _FIXED:
        raise StackError(
            f"Python {major}.{minor} is not supported, only 3.11 to 3.13",
            hint="with py-spy on PATH, its stacks are shown as well",
        )
    layout = _FIXED[minor]
    # pythreads: next_unique_id, head, count, stacksize; then the pointer back to the runtime.
    back = layout.threads + 24
    for offset in range(0, _HEAD_WITHIN, 8):
        head = memory.word(runtime + offset)
        try:
            if head and memory.word(head + back) == runtime:
                return layout, head
        except StackError:
            continue
    raise StackError("Python has not begun yet, or has ended")


def _described(memory: Memory, runtime: int) -> tuple[Layout, int]:
    (cookie, _, is_free_threaded, *words) = struct.unpack("<8s47Q", memory.read(runtime, 384))
    if cookie != _COOKIE or is_free_threaded:
        raise StackError("free-threaded builds of Python are not supported")
    of_runtime, of_interpreter, of_thread = words[0:3], words[3:16], words[16:25]
    of_frame, of_code = words[25:31], words[31:41]
    if max(words[:41]) > 1 << 20:
        raise StackError("the table of its memory is damaged")
    layout = Layout(
        interpreter_next=of_interpreter[2],
        threads=of_interpreter[3],
        thread_next=of_thread[2],
        native_id=of_thread[6],
        cframe=None,
        current_frame=of_thread[4],
        code=of_frame[2],
        previous=of_frame[1],
        instruction=of_frame[3],
        owner=of_frame[5],
        from_owner=3,
        filename=of_code[1],
        qualname=of_code[3],
        linetable=of_code[4],
        first_line=of_code[5],
        bytecode=of_code[9],
        ascii_text=40,
        other_text=56,
    )
    return layout, memory.word(runtime + of_runtime[2])
