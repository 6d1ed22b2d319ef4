"""Reads the Python stacks of a running process from the outside, without the process's cooperation.

This works even if the process is stopped, deadlocked or blocked in C code, because only the
process's memory is read (/proc/PID/mem, proc(5)). The process keeps running, and no code is
executed in it.

    dump.py             the stacks of one process, or of all ranks
    process_memory.py   bounded reads of another process's memory; the error of this package
    elf.py              addresses of interpreter symbols
    layouts.py          structure offsets of CPython 3.11 to 3.14
    frames.py           interpreters -> threads -> frames
    line_table.py       maps instructions to lines
    threads.py          the system's view of threads
    py_spy.py           py-spy, for interpreters that this package does not support
    rank_processes.py   finds rank processes
    worker_state.py     stacks of workers before they are stopped, or on request
    exceptions.py       the exception that a thread is handling
    sampler.py, wait_sampler.py   repeated samples, for progress and for stragglers
    exit_evidence.py    evidence on this machine of why a worker ended
    flight_recorder.py  dumps of torch's flight recorder
"""
