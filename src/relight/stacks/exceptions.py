"""Reads from another process the exception that a thread is handling in an `except`, `finally` or
`with` block.

The offsets are valid for CPython 3.11 to 3.14 on 64-bit Linux. They are from
Include/cpython/pystate.h and pycore_interp_structs.h (`_err_stackitem`), Include/cpython/pyerrors.h
(`PyBaseExceptionObject`, `PyOSErrorObject`), Include/cpython/traceback.h (`PyTracebackObject`),
Include/internal/pycore_frame.h (`_frame`), Include/cpython/object.h (`_typeobject`), longintrepr.h.
As with frames, the data isn't trusted. Unexpected data is skipped, and the length of each chain is
limited.
"""

from collections import deque

from relight.core.diagnosis.stack_text import Frame, Handled
from relight.stacks.frames import OB_SIZE, OB_TYPE, UNTAGGED, Walk
from relight.stacks.process_memory import StackError, word_at

_ATTEMPTS = 3
_MAX_HANDLED, _MAX_BASES = 100, 30
_MAX_STEPS = 5000
"""The maximum number of traceback entries to follow. Only the innermost entries are kept."""
_KEPT = 50
_MAX_ARGUMENTS, _MAX_NAME = 5, 128
_EXC_VALUE, _PREVIOUS_ITEM = 0, 8
_ARGS, _TRACEBACK, _FILENAME = 24, 40, 88
_TB_NEXT, _TB_FRAME, _TB_LASTI, _TB_SIZE = 16, 24, 32, 40
_F_FRAME = 24
_TP_NAME, _TP_FLAGS, _TP_BASE, _TP_SIZE = 24, 168, 256, 264
_LONG, _TUPLE, _STR, _EXCEPTION = 1 << 24, 1 << 26, 1 << 28, 1 << 30
"""Type flags such as Py_TPFLAGS_LONG_SUBCLASS (Include/object.h)."""
_LONG_TAG, _LONG_DIGIT = 16, 24
_SIGNS = {0: 1, 1: 1, 2**64 - 1: -1, 8: 1, 12: 1, 10: -1, 14: -1}
"""The sign of an int with one 30-bit digit, by the stored value. Python 3.11 stores the number of
digits, negated for a negative int. Later versions store 8 times the number of digits, plus 1 for
zero, 2 for a negative int, and 4 for an immortal int.
"""
_PAGE = 4096


def handled(walk: Walk, thread: int) -> Handled | None:
    """Return the innermost exception that a thread is handling. Return None if the thread isn't
    handling an exception, or if the exception can't be read.

    Args:
        walk: the walk through the process's memory.
        thread: the address of the thread's state, as contained in `Walk.addresses`.
    """
    reader = _Reader(walk)
    for _ in range(_ATTEMPTS):
        try:
            address = reader.current(thread)
            found = reader.exception(address) if address else None
            if reader.current(thread) == address:
                return found
        except StackError:
            continue
    return None


class _Reader:
    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._memory = walk.memory

    def current(self, thread: int) -> int:
        """Return the address of the innermost exception that a thread is handling, or 0.

        Each running generator or coroutine adds an entry to the chain, which is often empty.
        """
        item = self._memory.word(thread + self._walk.layout.exc_info)
        for _ in range(_MAX_HANDLED):
            if not item:
                break
            data = self._memory.read(item, 16)
            value = word_at(data, _EXC_VALUE)
            if value and self._flags(value) & _EXCEPTION:  # otherwise, it is None
                return value
            item = word_at(data, _PREVIOUS_ITEM)
        return 0

    def exception(self, address: int) -> Handled:
        names = self._names(self._memory.word(address + OB_TYPE))
        try:
            message = self._message(address, names)
        except StackError:
            message = ""  # the type and the location are useful without it
        return Handled(names[0], message, self._frames(address))

    def _names(self, type_: int) -> list[str]:
        """Return the names of a type and its bases, without module names."""
        found: list[str] = []
        while type_ and len(found) < _MAX_BASES:
            data = self._memory.read(type_, _TP_SIZE)
            found.append(self._c_string(word_at(data, _TP_NAME)).rpartition(".")[2])
            type_ = word_at(data, _TP_BASE)
        if not found or not found[0].isidentifier():
            raise self._memory.broken()
        return found

    def _c_string(self, address: int) -> str:
        """Return a null-terminated string. A read doesn't cross a page boundary unless it has to,
        because the next page may be unmapped.
        """
        data = b""
        while b"\0" not in data and len(data) < _MAX_NAME:
            at = address + len(data)
            data += self._memory.read(at, min(_MAX_NAME, _PAGE - at % _PAGE))
        return data[:_MAX_NAME].partition(b"\0")[0].decode(errors="replace")

    def _message(self, address: int, names: list[str]) -> str:
        """Return `str()` of an exception whose class doesn't override `__str__`."""
        arguments = self._arguments(self._memory.word(address + _ARGS))
        texts = [self._value(each) for each in arguments]
        if "OSError" in names and len(texts) == 2:
            file = self._memory.word(address + _FILENAME)
            name = self._value(file, quoted=True) if file else ""
            return f"[Errno {texts[0]}] {texts[1]}" + (f": {name}" if name else "")
        if len(texts) == 1:
            return self._value(arguments[0], quoted="KeyError" in names)
        quoted = [self._value(each, quoted=True) or "…" for each in arguments]
        return f"({', '.join(quoted)})" if quoted else ""

    def _arguments(self, address: int) -> list[int]:
        if not self._flags(address) & _TUPLE:
            raise self._memory.broken()
        count = min(self._memory.word(address + OB_SIZE), _MAX_ARGUMENTS)
        data = self._memory.read(address + self._walk.layout.tuple_items, 8 * count)
        return [word_at(data, 8 * n) for n in range(count)]

    def _value(self, address: int, *, quoted: bool = False) -> str:
        """Return the text of a str or a small int, or an empty string for anything else."""
        flags = self._flags(address)
        if flags & _STR:
            text = self._walk.text(address)
            return repr(text) if quoted else text
        if not flags & _LONG:
            return ""
        tag, digit = (
            self._memory.word(address + _LONG_TAG),
            self._memory.word(address + _LONG_DIGIT),
        )
        sign = _SIGNS.get(tag)
        return str(sign * (digit & (1 << 30) - 1)) if sign else ""

    def _frames(self, exception: int) -> tuple[Frame, ...]:
        """Return the frames in an exception's traceback, innermost first."""
        entries: deque[tuple[int, int]] = deque(maxlen=_KEPT)
        seen: set[int] = set()
        address = self._memory.word(exception + _TRACEBACK)
        while address and address not in seen and len(seen) < _MAX_STEPS:
            seen.add(address)
            data = self._memory.read(address, _TB_SIZE)
            entries.append((word_at(data, _TB_FRAME), word_at(data, _TB_LASTI) & 0xFFFFFFFF))
            address = word_at(data, _TB_NEXT)
        return tuple(self._frame(*entry) for entry in reversed(entries))

    def _frame(self, frame: int, instruction: int) -> Frame:
        inner = self._memory.word(frame + _F_FRAME)
        code = self._memory.word(inner + self._walk.layout.frame_code) & UNTAGGED
        return self._walk.frame(code, instruction)

    def _flags(self, address: int) -> int:
        return self._memory.word(self._memory.word(address + OB_TYPE) + _TP_FLAGS)
