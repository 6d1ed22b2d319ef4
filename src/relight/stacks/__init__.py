"""Takes the Python stacks of a running process from outside, without its cooperation.

The process may be stopped, deadlocked or blocked in C: its memory is read (/proc/PID/mem, proc(5)),
and nothing in it runs for that. It is not stopped either.

    dump.py             the stacks of one process, or of all ranks
    process_memory.py   bounded reads of another process's memory; the error of this package
    elf.py              addresses of the symbols of its interpreter
    layouts.py          where CPython keeps what: 3.11 to 3.14
    frames.py           interpreters -> threads -> frames
    line_table.py       an instruction -> its line
    threads.py          what the system shows of threads
    py_spy.py           py-spy, for what this package does not know
    rank_processes.py   which processes are ranks
    worker_state.py     what workers do before they are stopped, or when somebody asks
    exceptions.py       the exception that a thread handles
    sampler.py, wait_sampler.py   repeated looks, for progress and for stragglers
    exit_evidence.py    what the machine knows of how a worker ended
    flight_recorder.py  dumps of torch's flight recorder
"""
