"""Takes the Python stacks of a running process from outside, without its cooperation.

The process may be stopped, deadlocked or blocked in C: its memory is read (/proc/PID/mem, proc(5)),
and nothing in it runs for that. It is not stopped either.

    take.py      the stacks of one process, or of all ranks
    memory.py    bounded reads of another process's memory; the error of this package
    elf.py       addresses of the symbols of its interpreter
    layouts.py   where CPython keeps what: 3.11 to 3.14
    frames.py    interpreters -> threads -> frames
    lines.py     an instruction -> its line
    threads.py   what the system shows of threads
    spy.py       py-spy, for what this package does not know
    workers.py   which processes are ranks
"""
