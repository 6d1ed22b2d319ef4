"""Walks the memory of a Python process to find its interpreters, their threads, and each thread's
frames.

The process's memory isn't trusted. The process keeps running, so any pointer may be stale. For that
reason, the number of steps is limited, cycles are broken, and objects must have the expected type.
A thread's frames are read until two consecutive reads match.
"""

import time
from typing import NamedTuple

from relight.core.diagnosis.stack_text import Frame
from relight.stacks.layouts import Layout
from relight.stacks.line_table import line_number
from relight.stacks.process_memory import MAX_BYTES, Memory, StackError, word_at

MAX_INTERPRETERS, MAX_THREADS, MAX_FRAMES, MAX_CHARACTERS = 100, 1000, 500, 1000
_ATTEMPTS = 5
_PAUSE_S = 0.001
_BY_GENERATOR, _BY_C = 1, 3
"""Owners of a frame (pycore_frame.h). Values from `_BY_C` on mark an entry from C, without any
code. These are FRAME_OWNED_BY_CSTACK in 3.12 and 3.13, and FRAME_OWNED_BY_INTERPRETER and
FRAME_OWNED_BY_CSTACK in 3.14.
"""
UNTAGGED = ~7
"""In 3.14, the lowest bits of an object reference form a tag (pycore_stackref.h)."""
_FIRST_TRACEABLE = 16
"""The number of bytes from `_co_firsttraceable` to the first instruction (cpython/code.h)."""
OB_TYPE, OB_SIZE, _BYTES = 8, 16, 32
_STR_LENGTH, _STR_STATE = 16, 32
_ENCODINGS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}


class Thread(NamedTuple):
    """A thread that CPython knows, with its system thread id and its frames, innermost first."""

    native_id: int
    frames: tuple[Frame, ...]


class _Code(NamedTuple):
    """Data that all frames of a code object share. `traceable` is the address of the first
    instruction in the function's body.
    """

    file: str
    function: str
    first_line: int
    table: bytes
    start: int
    traceable: int


class _RawFrame(NamedTuple):
    address: int
    code: int
    instruction: int
    owner: int


class Walk:
    """Walks the memory of a process.

    Args:
        memory: the process's memory.
        layout: the layout of the process's interpreter.
        symbols: addresses, as returned by `elf.addresses`.
    """

    def __init__(self, memory: Memory, layout: Layout, symbols: dict[str, int]) -> None:
        self.memory = memory
        self.layout = layout
        self.addresses: dict[int, int] = {}
        """The address of each thread's state, by thread id."""
        self._symbols = symbols
        fields = (layout.frame_code, layout.frame_previous, layout.frame_instruction)
        self._frame_size = max(*fields, layout.frame_owner) + 8
        self._codes: dict[int, _Code] = {}

    def threads(self, runtime: int, only: int = 0) -> list[Thread]:
        """Return the threads of all interpreters in the process, in no particular order.

        Args:
            runtime: the address of `_PyRuntime`.
            only: the id of the thread to return, or 0 for all threads.

        Raises:
            StackError: if the memory doesn't have the expected content.
        """
        layout = self.layout
        interpreters = self._chain(
            runtime + layout.interpreters, layout.next_interpreter, MAX_INTERPRETERS
        )
        found: list[Thread] = []
        for interpreter in interpreters:
            left = MAX_THREADS - len(found)
            for address in self._chain(interpreter + layout.threads, layout.next_thread, left):
                native_id = self.memory.word(address + layout.native_id)
                if native_id < 1 << 31 and only in (0, native_id):  # otherwise, it has just ended
                    found.append(Thread(native_id, self._frames(address)))
                    self.addresses[native_id] = address
        return found

    def _chain(self, head: int, following: int, most: int) -> list[int]:
        """Return the address of each entry in a linked list, given the location that contains the
        address of the first entry.
        """
        found: dict[int, None] = {}
        address = self.memory.word(head)
        while address and address not in found and len(found) < most:
            found[address] = None
            address = self.memory.word(address + following)
        return list(found)

    def _frames(self, thread: int) -> tuple[Frame, ...]:
        """Return a thread's frames. If the thread keeps changing, the frames are from different
        moments, but each of them did belong to this thread.
        """
        last: list[_RawFrame] = []
        frames: tuple[Frame, ...] | None = None
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE_S)
            try:
                raw = self._raw_frames(thread)
                frames = tuple(filter(None, map(self._decode, raw)))
                last = self._raw_frames(thread)
            except StackError:
                self._codes.clear()  # there may be other objects at the addresses by now
                continue
            if [(f.address, f.code) for f in raw] == [(f.address, f.code) for f in last]:
                break
        if frames is None:
            raise self.memory.broken()
        return frames

    def _raw_frames(self, thread: int) -> list[_RawFrame]:
        layout = self.layout
        address = self.memory.word(thread + layout.thread_frame)
        if layout.frame_in_cframe >= 0 and address:
            address = self.memory.word(address + layout.frame_in_cframe)
        found: dict[int, _RawFrame] = {}
        steps = 0
        while address and address not in found and steps < 2 * MAX_FRAMES:
            steps += 1
            data = self.memory.read(address, self._frame_size)
            found[address] = _RawFrame(
                address,
                word_at(data, layout.frame_code) & UNTAGGED,
                word_at(data, layout.frame_instruction),
                data[layout.frame_owner],
            )
            address = word_at(data, layout.frame_previous)
        return [frame for frame in found.values() if frame.owner < _BY_C][:MAX_FRAMES]

    def _decode(self, raw: _RawFrame) -> Frame | None:
        """Decode a frame, or return None if the frame is not complete yet
        (`_PyFrame_IsIncomplete`).
        """
        code = self._cached_code(raw.code)
        if raw.owner != _BY_GENERATOR and raw.instruction < code.traceable:
            return None
        line = line_number(code.table, code.first_line, raw.instruction - code.start)
        return Frame(code.file, line, code.function)

    def frame(self, address: int, instruction: int) -> Frame:
        """Return a frame with the source line of an instruction in a code object.

        Args:
            address: the address of the code object.
            instruction: the instruction's offset in bytes from the code object's first instruction.

        Raises:
            StackError: if the address doesn't hold a code object.
        """
        code = self._cached_code(address)
        return Frame(
            code.file, line_number(code.table, code.first_line, instruction), code.function
        )

    def _cached_code(self, address: int) -> _Code:
        code = self._codes.get(address) or self._code(address)
        self._codes[address] = code
        return code

    def _code(self, address: int) -> _Code:
        layout, memory = self.layout, self.memory
        self._check_type(address, "PyCode_Type")
        data = memory.read(address, layout.code_start)
        start = address + layout.code_start
        traceable = _number(data, layout.code_start - _FIRST_TRACEABLE)
        return _Code(
            self.text(word_at(data, layout.code_file)),
            self.text(word_at(data, layout.code_function)),
            _number(data, layout.code_line),
            self._bytes(word_at(data, layout.code_table)),
            start,
            start + 2 * traceable,
        )

    def text(self, address: int) -> str:
        """Read a str object of up to 1000 characters (PEP 393, cpython/unicodeobject.h)."""
        self._check_type(address, "PyUnicode_Type")
        head = self.memory.read(address, 40)
        state = _number(head, _STR_STATE)
        kind, is_compact, is_ascii = state >> 2 & 7, state >> 5 & 1, state >> 6 & 1
        if not is_compact or kind not in _ENCODINGS:
            raise self.memory.broken()
        length = min(word_at(head, _STR_LENGTH), MAX_CHARACTERS)
        place = address + (self.layout.ascii_size if is_ascii else self.layout.compact_size)
        data = self.memory.read(place, length * kind)
        try:  # a file name that is not UTF-8 contains lone surrogates (PEP 383)
            return data.decode(_ENCODINGS[kind], "strict" if kind == 1 else "surrogatepass")
        except UnicodeDecodeError:
            raise self.memory.broken() from None

    def _bytes(self, address: int) -> bytes:
        self._check_type(address, "PyBytes_Type")
        size = min(self.memory.word(address + OB_SIZE), MAX_BYTES)
        return self.memory.read(address + _BYTES, size)

    def _check_type(self, address: int, name: str) -> None:
        """If the address of the expected type is known, check that an object has this type."""
        expected = self._symbols.get(name)
        if expected and self.memory.word(address + OB_TYPE) != expected:
            raise self.memory.broken()


def _number(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 4], "little")
