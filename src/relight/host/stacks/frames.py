"""The frames of a Python process, read from its memory.

Every loop and every length is bounded, and every pointer may be wrong: the process runs meanwhile.
"""

from relight.core.stacks import Frame
from relight.host.stacks.layouts import Layout
from relight.host.stacks.memory import Memory, StackError

_MOST_INTERPRETERS, _MOST_THREADS, _MOST_FRAMES = 16, 1000, 500
_MOST_CHARACTERS = 1000
_MOST_TABLE = 1 << 18
_ENCODINGS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}


def threads(memory: Memory, layout: Layout, interpreter: int) -> dict[int, tuple[Frame, ...]]:
    """Return the frames of each thread, innermost first, by its native id.

    Raises:
        StackError: nothing could be read. A thread whose stack is damaged ends where it is.
    """
    found: dict[int, tuple[Frame, ...]] = {}
    for _ in range(_MOST_INTERPRETERS):
        thread = memory.word(interpreter + layout.threads)
        while thread and len(found) < _MOST_THREADS:
            native_id = memory.word(thread + layout.native_id)
            if native_id in found:
                break  # a circle
            found[native_id] = _frames(memory, layout, thread)
            thread = memory.word(thread + layout.thread_next)
        interpreter = memory.word(interpreter + layout.interpreter_next)
        if not interpreter:
            break
    return found


def _frames(memory: Memory, layout: Layout, thread: int) -> tuple[Frame, ...]:
    frames: list[Frame] = []
    try:
        if layout.cframe is not None:
            thread = memory.word(thread + layout.cframe)
        frame = memory.word(thread + layout.current_frame)
        for _ in range(_MOST_FRAMES):
            if not frame:
                break
            if memory.read(frame + layout.owner, 1)[0] < layout.from_owner:
                frames.append(_frame(memory, layout, frame))
            frame = memory.word(frame + layout.previous)
    except StackError:
        if not frames:
            raise
    return tuple(frames)


def _frame(memory: Memory, layout: Layout, frame: int) -> Frame:
    code = memory.word(frame + layout.code)
    offset = memory.word(frame + layout.instruction) - (code + layout.bytecode)
    first_line = memory.number(code + layout.first_line)
    table = _bytes(memory, memory.word(code + layout.linetable))
    return Frame(
        file=_text(memory, layout, memory.word(code + layout.filename)),
        line=line_of(table, first_line, max(offset, 0)),
        function=_text(memory, layout, memory.word(code + layout.qualname)),
    )


def _bytes(memory: Memory, address: int) -> bytes:
    size = memory.word(address + 16)
    if size > _MOST_TABLE:
        raise StackError(f"there is no bytes object at {address:#x}")
    return memory.read(address + 32, size)


def _text(memory: Memory, layout: Layout, address: int) -> str:
    """Return a str object (Include/cpython/unicodeobject.h): compact, of 1, 2 or 4 bytes a
    character.
    """
    length = min(memory.word(address + 16), _MOST_CHARACTERS)
    state = memory.number(address + 32)
    kind, is_compact, is_ascii = state >> 2 & 7, state >> 5 & 1, state >> 6 & 1
    if kind not in _ENCODINGS or not is_compact:
        raise StackError(f"there is no text at {address:#x}")
    begin = address + (layout.ascii_text if is_ascii else layout.other_text)
    return memory.read(begin, length * kind).decode(_ENCODINGS[kind], errors="replace")


def line_of(table: bytes, first_line: int, offset: int) -> int:
    """Return the line of an instruction, 0 for none (CPython, Objects/locations.md).

    Args:
        table: co_linetable.
        first_line: co_firstlineno.
        offset: of the instruction in the bytecode, in bytes.
    """
    line, at, end = first_line, 0, 0
    while at < len(table):
        head = table[at]
        code = head >> 3 & 15
        at += 1
        has_line = code != 15
        if code in (13, 14):  # 13: no column, 14: long form; both begin with a signed line delta
            delta, at = _signed(table, at)
            line += delta
        elif code in (10, 11, 12):
            line += code - 10
        while at < len(table) and not table[at] & 128:  # the rest are columns
            at += 1
        end += ((head & 7) + 1) * 2
        if end > offset:
            return line if has_line else 0
    return 0


def _signed(table: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while at < len(table):
        byte = table[at]
        at += 1
        value |= (byte & 63) << shift
        shift += 6
        if not byte & 64 or shift > 60:
            break
    return (-(value >> 1) if value & 1 else value >> 1), at
