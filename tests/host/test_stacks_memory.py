"""Reading an untrusted Python process's memory, possibly forged, damaged or endless."""

import random
import struct
from collections.abc import Mapping

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from relight.core.diagnosis.stack_text import Frame, Handled
from relight.stacks import frames, layouts
from relight.stacks.exceptions import handled
from relight.stacks.frames import MAX_CHARACTERS, MAX_FRAMES, MAX_THREADS, Thread, Walk
from relight.stacks.line_table import line_number
from relight.stacks.process_memory import Memory, StackError

BASE, SIZE = 0x10000, 0x10000
RUNTIME = BASE
PID = 4711


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_PAUSE_S", 0)


class Image:
    """64 KiB of a process's memory, in which objects are placed one after another."""

    def __init__(self) -> None:
        self.data = bytearray(SIZE)
        self._next = BASE + 0x2000

    def memory(self) -> Memory:
        def pread(size: int, address: int) -> bytes:
            if not BASE <= address < BASE + SIZE:
                raise OSError(5, "Input/output error")
            return bytes(self.data[address - BASE : address - BASE + size])

        return Memory(pread, PID)

    def room(self, size: int) -> int:
        place = self._next
        self._next += size + 15 & ~15
        assert self._next < BASE + SIZE
        return place

    def put(self, address: int, *words: int) -> None:
        struct.pack_into(f"<{len(words)}Q", self.data, address - BASE, *words)

    def put_bytes(self, address: int, data: bytes) -> None:
        self.data[address - BASE : address - BASE + len(data)] = data

    def text(self, text: str, type_: int) -> int:
        """Place a compact str (PEP 393), as laid out in 3.12 and later."""
        widest = max(map(ord, text), default=0)
        kind = 1 if widest < 256 else 2 if widest < 65536 else 4
        is_ascii = widest < 128
        data = text.encode({1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[kind])
        address = self.room(56 + len(data))
        self.put(address, 1, type_, len(text), 0, kind << 2 | 1 << 5 | is_ascii << 6)
        self.put_bytes(address + (40 if is_ascii else 56), data)
        return address

    def bytes_(self, data: bytes, type_: int) -> int:
        address = self.room(32 + len(data))
        self.put(address, 1, type_, len(data), 0)
        self.put_bytes(address + 32, data)
        return address


CODE_TYPE, TEXT_TYPE, BYTES_TYPE = BASE + 0x1000, BASE + 0x1100, BASE + 0x1200
SYMBOLS = {
    "_PyRuntime": RUNTIME,
    "PyCode_Type": CODE_TYPE,
    "PyUnicode_Type": TEXT_TYPE,
    "PyBytes_Type": BYTES_TYPE,
}
OFFSETS: Mapping[str, int] = {
    "interpreters_head": 800,
    "next": 7264,
    "threads_head": 7344,
    "thread_next": 8,
    "current_frame": 72,
    "native_thread_id": 160,
    "previous": 8,
    "executable": 0,
    "instr_ptr": 56,
    "localsplus": 80,
    "owner": 74,
    "filename": 112,
    "qualname": 128,
    "linetable": 136,
    "firstlineno": 68,
    "co_code_adaptive": 200,
}
"""Offsets of the fields in the image. All others are 0."""


def offsets(version: int, *, free_threaded: int = 0) -> bytes:
    """Return _Py_DebugOffsets for CPython 3.13 (pycore_runtime.h) or 3.14
    (pycore_debug_offsets.h).
    """
    later = version >> 16 & 255 >= 14
    interpreter = "id next threads_head"
    interpreter += " threads_main" if later else ""
    interpreter += " gc imports_modules sysdict builtins ceval_gil gil_runtime_state"
    interpreter += " gil_runtime_state_enabled gil_runtime_state_locked gil_runtime_state_holder"
    interpreter += " code_object_generation tlbc_generation" if later else ""
    frame = "previous executable instr_ptr localsplus owner"
    frame += " stackpointer tlbc_index" if later else ""
    sections = [
        ("finalizing interpreters_head", 5000),
        (interpreter, 300000),
        (
            "prev thread_next interp current_frame thread_id native_thread_id datastack_chunk"
            " status",
            400,
        ),
        (frame, 88),
        (
            "filename name qualname linetable firstlineno argcount localsplusnames"
            " localspluskinds co_code_adaptive",
            208,
        ),
    ]
    words = [version, free_threaded]
    for fields, size in sections:
        words += [size, *(OFFSETS.get(field, 0) for field in fields.split())]
    return b"xdebugpy" + struct.pack(f"<{len(words)}Q", *words)


FINAL_3_14 = 0x030E00F0


def image(version: int = FINAL_3_14) -> Image:
    """Return a process with one thread: `f` (line 12), an entry frame from C, and `<module>`."""
    made = Image()
    made.put_bytes(RUNTIME, offsets(version))
    interpreter, thread = made.room(8192), made.room(400)
    module, entry, inner = made.room(96), made.room(96), made.room(96)
    made.put(RUNTIME + 800, interpreter)
    made.put(interpreter + 7344, thread)
    made.put(thread + 72, inner)
    made.put(thread + 160, PID)
    tag = 1 if version >> 16 & 255 >= 14 else 0
    for frame, previous, name, owner in (
        (inner, entry, "f", 0),
        (entry, module, "", 3),
        (module, 0, "<module>", 0),
    ):
        code = made.room(256)
        made.put(code, 1, CODE_TYPE)
        made.put(code + 112, made.text("träin.py", TEXT_TYPE))
        made.put(code + 128, made.text(name, TEXT_TYPE))
        # One unit on the first line, then eight units two lines further down (locations.md).
        table = bytes([0x80 | 13 << 3 | 0, 0, 0x80 | 13 << 3 | 7, 4])
        made.put(code + 136, made.bytes_(table, BYTES_TYPE))
        struct.pack_into("<I", made.data, code + 68 - BASE, 10)
        struct.pack_into("<I", made.data, code + 184 - BASE, 1)
        made.put(frame, code | tag if name else tag, previous)
        made.put(frame + 56, code + 200 + 4)
        made.put_bytes(frame + 74, bytes([owner]))
    item, error, entry = made.room(16), made.room(104), made.room(40)
    frame, kind, tuple_kind, arguments = made.room(96), *(made.room(272) for _ in range(3))
    made.put(thread + 72 + 48, item)  # exc_info
    made.put(item, error, 0)
    made.put(error, 1, kind, 0, arguments, 0, entry)
    made.put(kind + 24, made.bytes_(b"ValueError\0", 0) + 32)
    made.put(kind + 168, 1 << 30)  # Py_TPFLAGS_BASE_EXC_SUBCLASS
    made.put(tuple_kind + 168, 1 << 26)
    made.put(TEXT_TYPE + 168, 1 << 28)
    made.put(arguments, 1, tuple_kind, 1)
    made.put(arguments + (32 if tag else 24), made.text("bad record", TEXT_TYPE))
    made.put(entry, 1, 0, 0, frame, 4)
    made.put(frame + 24, inner)
    return made


def handled_in(made: Image, symbols: Mapping[str, int] = SYMBOLS) -> list[Handled | None]:
    memory = made.memory()
    walk = Walk(memory, layouts.find_layout(memory, dict(symbols)), dict(symbols))
    walk.threads(RUNTIME)
    return [handled(walk, address) for address in walk.addresses.values()]


@pytest.mark.parametrize("version", [0x030D00F0, FINAL_3_14], ids=hex)
def test_handled_exception_has_type_message_and_location(version: int) -> None:
    frame = Frame("träin.py", 12, "f")
    assert handled_in(image(version)) == [Handled("ValueError", "bad record", (frame,))]


def test_reading_a_cyclic_traceback_terminates() -> None:
    made = image()
    item = made.memory().word(thread_of(made) + 120)
    entry = made.memory().word(made.memory().word(item) + 40)
    made.put(entry + 16, entry)
    (found,) = handled_in(made)
    assert found is not None
    assert len(found.frames) == 1


def test_object_that_is_not_an_exception_is_ignored() -> None:
    made = image()
    made.put(made.memory().word(thread_of(made) + 120), made.text("no exception", TEXT_TYPE))
    assert handled_in(made) == [None]


def read(made: Image) -> list[Thread]:
    memory = made.memory()
    return Walk(memory, layouts.find_layout(memory, SYMBOLS), SYMBOLS).threads(RUNTIME)


@pytest.mark.parametrize("version", [0x030D00F0, 0x030D08F0, FINAL_3_14, 0x030E03F0], ids=hex)
def test_offsets_are_taken_from_the_interpreters_own_table(version: int) -> None:
    expected = (Frame("träin.py", 12, "f"), Frame("träin.py", 12, "<module>"))
    assert read(image(version)) == [Thread(PID, expected)]


@pytest.mark.parametrize(
    ("version", "free_threaded", "what"),
    [
        (0x030C00F0, 0, r"runs Python 3\.12;"),
        (0x030F00F0, 0, r"runs Python 3\.15;"),
        (0x030E00A7, 0, "before its release"),
        (0x030D00F0, 1, r"3\.13 without the GIL"),
    ],
)
def test_error_states_unsupported_python_version(
    version: int, free_threaded: int, what: str
) -> None:
    made = image()
    made.put_bytes(RUNTIME, offsets(version, free_threaded=free_threaded))
    with pytest.raises(StackError, match=what) as raised:
        read(made)
    assert raised.value.unreadable


def test_malformed_offset_table_is_rejected() -> None:
    made = image()
    made.put_bytes(RUNTIME, offsets(0x030D00F0)[:8] + offsets(FINAL_3_14)[8:16])
    made.put(RUNTIME + 8 * 33, 1 << 15)
    with pytest.raises(StackError, match="does not have CPython's layout"):
        read(made)


@pytest.mark.parametrize("version", [0x030A00F0, 0x030D00F0, 0, 2**64 - 1], ids=hex)
def test_only_python_3_11_and_3_12_work_without_offset_table(version: int) -> None:
    made = image()
    made.put_bytes(RUNTIME, bytes(24))
    made.put(BASE + 0x1F00, version)
    memory = made.memory()
    with pytest.raises(StackError, match="runs Python"):
        layouts.find_layout(memory, {**SYMBOLS, "Py_Version": BASE + 0x1F00})


def thread_of(made: Image) -> int:
    interpreter = made.memory().word(RUNTIME + 800)
    return made.memory().word(interpreter + 7344)


def test_reading_a_cyclic_frame_list_terminates() -> None:
    made = image()
    inner = made.memory().word(thread_of(made) + 72)
    made.put(inner + 8, inner)
    assert read(made) == [Thread(PID, (Frame("träin.py", 12, "f"),))]


def test_reading_a_cyclic_thread_list_terminates() -> None:
    made = image()
    thread = thread_of(made)
    made.put(thread + 8, thread)
    assert len(read(made)) == 1


def test_incomplete_stack_frame_is_skipped() -> None:
    """The rule is CPython's `_PyFrame_IsIncomplete`."""
    made = image()
    inner = made.memory().word(thread_of(made) + 72)
    made.put(inner + 56, made.memory().word(inner) + 200 - 1)
    assert [frame.function for frame in read(made)[0].frames] == ["<module>"]


def test_object_of_unexpected_type_is_rejected() -> None:
    made = image()
    inner = made.memory().word(thread_of(made) + 72)
    made.put((made.memory().word(inner) & ~7) + 8, TEXT_TYPE)
    with pytest.raises(StackError):
        read(made)


def test_long_function_name_is_truncated() -> None:
    made = image()
    inner = made.memory().word(thread_of(made) + 72)
    made.put((made.memory().word(inner) & ~7) + 128, made.text("é" * 5000, TEXT_TYPE))
    assert read(made)[0].frames[0].function == "é" * MAX_CHARACTERS


def test_reading_endless_frame_and_thread_lists_terminates() -> None:
    """There is a frame at every address, and every thread has a next one."""

    def pread(size: int, address: int) -> bytes:
        data = bytearray(size)
        for at in range(-address % 8, size - 7, 8):
            struct.pack_into("<Q", data, at, address + at + 4096 & ~7)
        return bytes(data)

    memory = Memory(pread, PID)
    layout = layouts.find_layout(image().memory(), SYMBOLS)
    try:
        found = Walk(memory, layout, {"_PyRuntime": RUNTIME}).threads(RUNTIME)
    except StackError:
        return
    assert len(found) <= MAX_THREADS
    assert all(len(thread.frames) <= MAX_FRAMES for thread in found)


def test_reading_an_impossible_address_raises_stack_error() -> None:
    memory = Memory(lambda size, address: bytes(size), PID)
    for address in (0, -1, 2**63, 2**64 - 1, 2**200):
        with pytest.raises(StackError):
            memory.read(address, 8)
    with pytest.raises(StackError):
        memory.read(4096, -1)
    with pytest.raises(StackError):
        memory.read(4096, 1 << 40)


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 2**32), st.integers(1, 40))
@example(44, 7)  # instructions that start before the code object's other fields
def test_damaged_memory_yields_frames_or_stack_error(seed: int, damages: int) -> None:
    chance = random.Random(seed)
    made = image()
    values = [0, 1, 2**63, 2**64 - 1, BASE, CODE_TYPE, TEXT_TYPE, BYTES_TYPE]
    for _ in range(damages):
        at = chance.choice([chance.randrange(0, 0x400, 8), chance.randrange(0x2000, SIZE - 8, 8)])
        value = chance.choice(
            [*values, BASE + chance.randrange(0, SIZE, 8), chance.getrandbits(64)]
        )
        made.put(BASE + at, value)
    check(made)


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 2**32))
def test_random_memory_yields_frames_or_stack_error(seed: int) -> None:
    """Most of its words are addresses within it, so that the walk goes deep."""
    chance = random.Random(seed)
    made = Image()
    made.put(BASE, *(BASE + chance.randrange(0, SIZE, 8) for _ in range(SIZE // 8)))
    for _ in range(chance.randrange(500)):
        made.put(
            BASE + chance.randrange(0, SIZE - 8, 8), chance.getrandbits(chance.choice([3, 64]))
        )
    made.put_bytes(RUNTIME, offsets(chance.choice([0x030D00F0, FINAL_3_14])))
    check(made)
    check(made, {"_PyRuntime": RUNTIME})


def check(made: Image, symbols: dict[str, int] = SYMBOLS) -> None:
    memory = made.memory()
    walk = None
    try:
        walk = Walk(memory, layouts.find_layout(memory, symbols), symbols)
        found = walk.threads(RUNTIME)
    except StackError:
        found = []
    for address in walk.addresses.values() if walk else ():
        raised = handled(walk, address)
        assert raised is None or len(raised.frames) <= MAX_FRAMES
    assert len(found) <= MAX_THREADS
    for thread in found:
        assert len(thread.frames) <= MAX_FRAMES
        for frame in thread.frames:
            assert len(frame.file) <= MAX_CHARACTERS
            assert 0 <= frame.line < 1 << 31


@given(st.binary(max_size=200), st.integers(0, 2**32 - 1), st.integers(-(2**63), 2**63))
def test_any_line_table_yields_a_valid_line_number(table: bytes, first: int, offset: int) -> None:
    assert 0 <= line_number(table, first, offset) < 1 << 31


def test_line_numbers_match_python() -> None:
    """This covers all instructions in some modules of the standard library."""
    import dis
    import types
    from pathlib import Path

    def codes(code: types.CodeType) -> list[types.CodeType]:
        inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
        return [code, *(each for part in inner for each in codes(part))]

    checked = 0
    for module in (dis, random, struct):
        path = Path(str(module.__file__))
        for code in codes(compile(path.read_text(), str(path), "exec")):
            for start, end, line in code.co_lines():
                for offset in range(start, end, 2):
                    assert line_number(code.co_linetable, code.co_firstlineno, offset) == (
                        line or 0
                    )
                    checked += 1
    assert checked > 10_000
