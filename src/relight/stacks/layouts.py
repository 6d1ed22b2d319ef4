"""Contains the byte offsets of fields in the CPython structures that make up a stack.

Python 3.11 and 3.12 define these offsets only in their headers: Include/cpython/pystate.h (`_ts`,
`_PyCFrame`), Include/internal/pycore_interp.h, pycore_runtime.h, pycore_frame.h and
Include/cpython/code.h. They are the same in all releases of a minor version on 64-bit Linux. Since
3.13, `_PyRuntime` begins with a table of offsets, `_Py_DebugOffsets` (pycore_runtime.h; in 3.14
pycore_debug_offsets.h), whose format is the same in all releases of a minor version. The table does
not include `exc_info`. In `_ts`, this field is five pointers after the field that follows
`current_frame`.

Free-threaded builds are rejected, because their objects are larger and each thread has its own copy
of the bytecode.
"""

import struct
from typing import NamedTuple

from relight.stacks.elf import RUNTIME
from relight.stacks.process_memory import Memory, StackError, word_at

COOKIE = b"xdebugpy"
_LARGEST = 1 << 20
"""A size that is larger than any of the structures."""
_OLDEST, _NEWEST = (3, 11), (3, 14)


class Layout(NamedTuple):
    """The offsets for one minor version of CPython.

    A thread's field `thread_frame` contains the address of the thread's innermost frame. In 3.11
    and 3.12, this field instead points to a structure that contains the frame's address at
    `frame_in_cframe`. In other versions, `frame_in_cframe` is -1. The `code_start` field is the
    offset of the first instruction, `ascii_size` and `compact_size` are the offsets of the
    characters in a str, and `tuple_items` is the offset of a tuple's first item. A thread's field
    `exc_info` points to the exceptions that the thread is handling. The `finalizing` field points
    to the thread that is shutting down Python, or is 0.
    """

    finalizing: int
    interpreters: int
    next_interpreter: int
    threads: int
    next_thread: int
    thread_frame: int
    frame_in_cframe: int
    native_id: int
    frame_code: int
    frame_previous: int
    frame_instruction: int
    frame_owner: int
    code_file: int
    code_function: int
    code_table: int
    code_line: int
    code_start: int
    ascii_size: int
    compact_size: int
    tuple_items: int
    exc_info: int


_PYTHON_3_11 = Layout(
    finalizing=24,
    interpreters=40,
    next_interpreter=0,
    threads=16,
    next_thread=8,
    thread_frame=56,
    frame_in_cframe=8,
    native_id=160,
    frame_code=32,
    frame_previous=48,
    frame_instruction=56,
    frame_owner=69,
    code_file=112,
    code_function=128,
    code_table=136,
    code_line=72,
    code_start=184,
    ascii_size=48,
    compact_size=72,
    tuple_items=24,
    exc_info=120,
)
_TABLES = {
    (3, 11): _PYTHON_3_11,
    (3, 12): _PYTHON_3_11._replace(
        threads=72,
        frame_in_cframe=0,
        native_id=144,
        frame_code=0,
        frame_previous=8,
        frame_owner=70,
        code_line=68,
        code_start=192,
        ascii_size=40,
        compact_size=56,
        exc_info=104,
    ),
}

_RUNTIME = ("size", "finalizing", "interpreters_head")
_INTERPRETER = ("size", "id", "next", "threads_head")
_REST_3_13 = ("gc", "imports_modules", "sysdict", "builtins", "ceval_gil", "gil_runtime_state",
              "gil_runtime_state_enabled", "gil_runtime_state_locked",
              "gil_runtime_state_holder")  # fmt: skip
_REST_3_14 = ("threads_main", *_REST_3_13, "code_object_generation", "tlbc_generation")
_THREAD = ("size", "prev", "next", "interp", "current_frame", "thread_id", "native_thread_id",
           "datastack_chunk", "status")  # fmt: skip
_FRAME = ("size", "previous", "executable", "instr_ptr", "localsplus", "owner")
_CODE = ("size", "filename", "name", "qualname", "linetable", "firstlineno", "argcount",
         "localsplusnames", "localspluskinds", "co_code_adaptive")  # fmt: skip
_FORMS = {
    (3, 13): (_INTERPRETER + _REST_3_13, _FRAME),
    (3, 14): (_INTERPRETER + _REST_3_14, (*_FRAME, "stackpointer", "tlbc_index")),
}
"""The debug offsets for interpreters and frames that differ between Python versions."""


def find_layout(memory: Memory, symbols: dict[str, int]) -> Layout:
    """Determine the layout of a process's interpreter.

    Args:
        memory: the process's memory.
        symbols: addresses, as returned by `elf.addresses`.

    Raises:
        StackError: if the interpreter's version is not supported, or if the memory can't be read.
    """
    runtime = symbols[RUNTIME]
    version = symbols.get("Py_Version")
    head = memory.read(runtime, 24)
    if head[:8] == COOKIE:
        return _from_offsets(memory, runtime)
    if version is None:
        raise _unknown(memory.pid, "older than 3.11")
    number = memory.word(version)
    release = (number >> 24 & 255, number >> 16 & 255)
    if release not in _TABLES:
        raise _unknown(memory.pid, f"{release[0]}.{release[1]}")
    return _TABLES[release]


def _from_offsets(memory: Memory, runtime: int) -> Layout:
    version, free_threaded = struct.unpack("<QQ", memory.read(runtime + 8, 16))
    release = (version >> 24 & 255, version >> 16 & 255)
    name = f"{release[0]}.{release[1]}"
    if free_threaded:
        raise _unknown(memory.pid, f"{name} without the GIL")
    if release not in _FORMS:
        raise _unknown(memory.pid, name)
    if version >> 4 & 15 != 15:  # PY_RELEASE_LEVEL_FINAL, patchlevel.h
        raise _unknown(memory.pid, f"{name}, a version before its release")
    interpreter, frame = _FORMS[release]
    at = runtime + 24
    values: list[dict[str, int]] = []
    for fields in (_RUNTIME, interpreter, _THREAD, frame, _CODE):
        data = memory.read(at, 8 * len(fields))
        values.append({field: word_at(data, 8 * n) for n, field in enumerate(fields)})
        at += len(data)
    if any(value > min(each["size"], _LARGEST) for each in values for value in each.values()):
        raise memory.broken()  # a field is outside its structure, so the format differs
    of_runtime, of_interpreter, of_thread, of_frame, of_code = values
    read = ("filename", "qualname", "linetable", "firstlineno")
    if max(of_code[field] for field in read) + 8 > of_code["co_code_adaptive"]:
        raise memory.broken()  # the instructions come last in a code object
    return Layout(
        finalizing=of_runtime["finalizing"],
        interpreters=of_runtime["interpreters_head"],
        next_interpreter=of_interpreter["next"],
        threads=of_interpreter["threads_head"],
        next_thread=of_thread["next"],
        thread_frame=of_thread["current_frame"],
        frame_in_cframe=-1,
        native_id=of_thread["native_thread_id"],
        frame_code=of_frame["executable"],
        frame_previous=of_frame["previous"],
        frame_instruction=of_frame["instr_ptr"],
        frame_owner=of_frame["owner"],
        code_file=of_code["filename"],
        code_function=of_code["qualname"],
        code_table=of_code["linetable"],
        code_line=of_code["firstlineno"],
        code_start=of_code["co_code_adaptive"],
        ascii_size=40,
        compact_size=56,
        tuple_items=24 if release < (3, 14) else 32,  # with the hash: cpython/tupleobject.h
        exc_info=of_thread["current_frame"] + 48,
    )


def _unknown(pid: int, version: str) -> StackError:
    newest = f"{_NEWEST[0]}.{_NEWEST[1]}"
    return StackError(
        f"process {pid} runs Python {version}; stacks can be read for {_OLDEST[0]}.{_OLDEST[1]} "
        f"to {newest}",
        hint="pip install py-spy, which is then used for other versions",
        unreadable=True,
    )
