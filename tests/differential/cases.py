"""The command lines that are run with both launchers."""

from collections.abc import Mapping
from typing import Any, NamedTuple

Word = str | bytes

# Differs in every run. Cases add to this, or leave out what their flags rule out.
ADDRESS = frozenset({"master-addr"})
COMMON = ADDRESS | {
    "breakpoint", "faulthandler", "output-through-agent", "parent-death-signal",
    "temporary-directory",
}  # fmt: skip
LOGGED = COMMON - {"temporary-directory"} | {"absolute-error-file", "event-log"}
FILES_ONLY = LOGGED - {"output-through-agent"}
NO_PYTHON = COMMON - {"faulthandler"}  # torchrun also enables it for --run-path
RUN_PATH = NO_PYTHON | {"run-path-process", "run-path-unbuffered"}


class Case(NamedTuple):
    """One command line and its expected differences.

    Arguments may contain `{work}` (the fresh directory that it runs in), `{python}`, and `{port}`
    (a free one). `workers` are the workers that write a record, as `RESTART.RANK`; `signal` is sent
    to the launcher once all of them have. `console` is the kind of the launcher's stdout and
    stderr: `pipes`, one `pipe`, a `file`, or a `terminal`. `under` is for `under.py`. `differs`
    names exactly the documented differences that must occur; `notes` are parts of the lines that
    relight prints, one per line. `is_long` leaves a case to `make long`, because other cases cover
    most of its checks.
    """

    name: str
    flags: tuple[Word, ...] = ()
    script: tuple[Word, ...] = ("probe.py",)
    args: tuple[Word, ...] = ()
    variables: Mapping[str, Word] = {}
    command: str = "run"
    workers: tuple[str, ...] = ("0.0",)
    stdin: bytes = b""
    signal: str = ""
    console: str = "pipes"
    under: Mapping[str, Any] = {}
    differs: frozenset[str] = COMMON
    notes: tuple[str, ...] = ()
    is_long: bool = False


TWO = ("0.0", "0.1")
THREADS = ("OMP_NUM_THREADS is not set; using 1 thread per worker",)


def two(name: str, *flags: Word, notes: tuple[str, ...] = (), **rest: Any) -> Case:
    """Return a case with two workers and the note that is printed for them."""
    flags = ("--nproc-per-node=2", *flags)
    differs = rest.pop("differs", COMMON) | {"threads-note"}
    return Case(name, flags, **{"workers": TWO, **rest}, differs=differs, notes=(*notes, *THREADS))


def logged(name: str, *flags: Word, differs: frozenset[str] = LOGGED, **rest: Any) -> Case:
    """Return a case with two workers and a log directory."""
    return two(name, "--log-dir=logs", *flags, differs=differs, **rest)


SIZES = (
    Case("default"),
    Case("one node, nproc-per-node=cpu", ("--nproc-per-node", "cpu", "--nnodes=1:1", "--standalone",
         "--node-rank=0", "--rdzv-id", "-1"), under={"cpus": 1}, differs=COMMON | {"run-id"}),
    two("c10d", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:{port}", "--rdzv-id=job7",
        "--rdzv-conf=join_timeout=60, last_call_timeout=1,read_timeout=9"),
    Case("quotes in rdzv-conf", ("--rdzv-conf='join_timeout=60,last_call_timeout=1'",),
         differs=frozenset({"quoted-conf"})),
    Case("master-port=0", ("--master_port=0",), differs=COMMON - ADDRESS | {"master-port-0"}),
    Case("static endpoint", ("--rdzv-endpoint", "localhost:{port}", "--rdzv-id=job7"),
         differs=COMMON - ADDRESS),
    two("static", "--nnodes=1", "--node-rank=0", "--master-addr=127.0.0.1",
        "--master-port={port}", "--rdzv-id=s", differs=COMMON - ADDRESS),
    Case("master-addr alone, nproc-per-node=auto", ("--master-addr=localhost",
         "--nproc-per-node=auto"), under={"cpus": 1}, variables={"CUDA_VISIBLE_DEVICES": ""},
         notes=("--master-addr has no effect without --master-port",)),
    Case("rdzv-id, local-addr", ("--rdzv-id=job7", "--local-addr=localhost"),
         differs=COMMON - ADDRESS | {"run-id"}),
    Case("process flags", ("--max-restarts=3", "--monitor-interval=0.05", "--start-method=fork",
         "--role=a", "--role=trainer", "--signals-to-handle=SIGUSR1, SIGTERM",
         "--shutdown-timeout=5", "--logs-specs=default", "--event-log-handler=dynamic_rendezvous"),
         differs=COMMON | {"signal-names", "survivors"}),
    two("virtual-local-rank, devices given", "--virtual-local-rank",
        variables={"CUDA_VISIBLE_DEVICES": "5,3"}),
)  # fmt: skip

SPELLINGS = (
    Case("underscores: size", ("--nproc_per_node=2", "--rdzv_backend", "static", "--rdzv_id=x",
         "--master_addr=127.0.0.1", "--master_port", "{port}", "--node_rank=0"), workers=TWO,
         differs=COMMON - ADDRESS | {"threads-note"}, notes=THREADS),
    Case("underscores: processes", ("--max_restarts", "2", "--monitor_interval=0.2",
         "--start_method=forkserver", "--signals_to_handle=SIGINT", "--shutdown_timeout=3",
         "--local_addr=127.0.0.1", "--event_log_handler=null", "--logs_specs=default",
         "--rdzv_conf=timeout=30", "--rdzv_endpoint=127.0.0.1:{port}"),
         differs=COMMON - ADDRESS | {"survivors"},
         notes=("--local-addr has no effect",)),
    two("underscores: logs", "--log_dir=logs", "--tee=1", "--local_ranks_filter=0",
        "--duplicate_stdout_filters=out", "--duplicate_stderr_filters=err",
        differs=LOGGED | {"filtered-stderr"},
        notes=("--duplicate-stderr-filters has no effect",)),
    Case("underscores: switches", ("--no_python", "--virtual_local_rank"), script=("./program",),
         variables={"PYTHON_EXEC": "{work}/python"}, differs=NO_PYTHON),
    Case("beginnings of flags", ("--stand", "--nn", "1", "--max-r=2", "--ro=x", "--nproc-per=1",
         "--log-d=logs", "--red=2", "--te=1"), differs=FILES_ONLY | {"survivors"}),
    Case("a beginning of both spellings", ("--nproc=2",), workers=TWO,
         differs=frozenset({"ambiguous-beginning"}), notes=THREADS),
    Case("short flags together", ("-mr1", "-t", "2", "-t=3", "--log-dir=logs"), script=("probe",),
         differs=FILES_ONLY),
)  # fmt: skip

VARIABLES = (
    Case("PET_: size", variables={"PET_NNODES": "1:1", "PET_NPROC_PER_NODE": "2",
         "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "localhost:0", "PET_RDZV_ID": "",
         "PET_RDZV_CONF": "last_call_timeout=1"}, workers=TWO, notes=THREADS,
         differs=COMMON | {"threads-note", "random-run-id"}),
    Case("PET_: static", variables={"PET_MASTER_ADDR": "localhost", "PET_MASTER_PORT": "{port}",
         "PET_NODE_RANK": "0", "PET_LOCAL_ADDR": "127.0.0.1", "PET_STANDALONE": "0"},
         differs=COMMON - ADDRESS, notes=("--local-addr has no effect",)),
    Case("PET_: processes", variables={"PET_MAX_RESTARTS": "2", "PET_MONITOR_INTERVAL": "0.2",
         "PET_START_METHOD": "fork", "PET_ROLE": "pet", "PET_SIGNALS_TO_HANDLE": "SIGINT",
         "PET_SHUTDOWN_TIMEOUT": "3", "PET_EVENT_LOG_HANDLER": "null", "PET_NO_PYTHON": "1"},
         script=("./program",), differs=NO_PYTHON | {"survivors"}),
    Case("PET_: logs", variables={"PET_LOG_DIR": "logs", "PET_REDIRECTS": "2", "PET_TEE": "1",
         "PET_LOCAL_RANKS_FILTER": "1", "PET_NPROC_PER_NODE": "2",
         "PET_DUPLICATE_STDOUT_FILTERS": "0.1", "PET_DUPLICATE_STDERR_FILTERS": "err"},
         workers=TWO, differs=FILES_ONLY | {"threads-note"},
         notes=("--duplicate-stderr-filters has no effect", *THREADS)),
    Case("PET_: switches", variables={"PET_STANDALONE": "1", "PET_MODULE": "1",
         "PET_VIRTUAL_LOCAL_RANK": "1", "PET_NO_PYTHON": "0", "PET_RUN_PATH": "0"},
         script=("probe",)),
    two("PET_: the command line wins", "--role=line", "--max-restarts=4",
        variables={"PET_NPROC_PER_NODE": "1", "PET_ROLE": "pet", "PET_MAX_RESTARTS": "2"},
        differs=COMMON | {"survivors"}),
    Case("PET_: of nothing, and of flags without one", variables={
         "PET_ROLE": "", "PET_RDZV_ID": "", "PET_LOG_DIR": "", "PET_RDZV_ENDPOINT": "",
         "PET_RDZV_CONF": "", "PET_LOCAL_RANKS_FILTER": "", "PET_LOGS_SPECS": "x",
         "PET_NUMA_BINDING": "x", "PET_USE_ENV": "x"}),
    Case("PET_VIRTUAL_LOCAL_RANK=2", variables={"PET_VIRTUAL_LOCAL_RANK": "2"},
         differs=frozenset({"switch-variable-strict"}), notes=("expected 1 or 0",)),
    Case("PET_START_METHOD=bogus", variables={"PET_START_METHOD": "bogus"},
         differs=frozenset({"choice-variable-strict"}), notes=("bogus is not one of spawn",)),
    Case("PET_STANDALONE=true", variables={"PET_STANDALONE": "true"},
         differs=frozenset({"switch-variable-words"})),
)  # fmt: skip

# Python ignores SIGPIPE and SIGXFSZ itself, so another program has to show their dispositions.
SHELL = ("sh", "-c", """grep -E 'Sig(Blk|Ign)' /proc/self/status; exec {python} probe.py "$@" """)

ARGUMENTS = (
    Case("arguments of all kinds", args=("--nproc-per-node=4", "--standalone", "-m", "-r", "3",
         "--help", "-h", "--role", "--local-rank=7", "--", "a b", "'q'", '"dq"', "line\nline", "",
         "\t", "\\", "*", "$HOME", "`id`", "é漢🔥", b"caf\xe9-\xff\xfe", "x" * 100_000,
         *("",) * 2000), variables={"LATIN": b"caf\xe9", "EMPTY": "", "LINES": "a\nb"},
         notes=("--nproc-per-node=4, --standalone: passed to probe.py",)),
    Case("-- before and after", ("--nproc-per-node=1", "--"), args=("--", "b")),
    Case("-- after the script", args=("--", "a", "--", "--nproc-per-node=2")),
    Case("-- after a module, twice", ("-m",), script=("probe",), args=("--", "--", "--depth=24")),
    Case("the C locale", variables={"LANG": "", "LC_ALL": "C", "LATIN": b"\xff"}, args=(b"\xe9",)),
    two("dollars", args=("$$", "${local_rank}", "$local_rank", "a$$b", "${other}", "$",
        "--device=cuda:${local_rank}/${local_rank}", "$${local_rank}"),
        differs=COMMON | {"dollars"}),
    Case("script in a folder", script=("folder/imports.py",), variables={"PYTHONPATH": "{work}"}),
    Case("script that is a directory", script=("app",), args=("a",)),
    Case("script on stdin", script=("-",), args=("a",),
         stdin=b"import probe; __file__ = 'stdin'; probe.main()"),
    two("a program that is in PATH", "--no-python", script=SHELL, args=("0", "x", "y"),
        differs=NO_PYTHON),
    two("--run-path", "--run-path", args=("a", "b c"), differs=RUN_PATH, is_long=True),
    Case("--run-path in a folder", ("--run_path",), script=("folder/imports.py",),
         args=("a", "b c"), variables={"PYTHONPATH": "{work}:{work}/folder"},
         differs=RUN_PATH | {"run-path-beside"}),
    Case("PET_RUN_PATH of an archive", ("--no-python",), variables={"PET_RUN_PATH": "1"},
         script=("app.zip",), differs=RUN_PATH, notes=("--no-python has no effect",),
         is_long=True),
    Case("PYTHON_EXEC and a package", ("--module",), script=("app",), args=("-m", "a"),
         variables={"PYTHON_EXEC": "./python"}),
    Case("PYTHON_EXEC of nothing", variables={"PYTHON_EXEC": ""},
         differs=frozenset({"empty-python-exec"})),
)  # fmt: skip

LAUNCHED = COMMON | {"launch-deprecation"}

LAUNCH = (
    Case("launch --use-env", ("--use-env", "--virtual-local-rank"), args=("a",), command="launch",
         differs=LAUNCHED),
    Case("launch --use_env --no-python", ("--use_env", "--no-python"), script=("./program",),
         command="launch",
         differs=LAUNCHED - {"faulthandler"}),
    Case("launch -m, --use-env after the script", ("-m",), script=("probe",),
         args=("--", "a", "--use-env"), command="launch",
         differs=LAUNCHED),
    two("launch --virtual-local-rank", "--virtual-local-rank", command="launch",
         differs=LAUNCHED),
    Case("launch, the old way", ("--nproc_per_node=2", "--nnodes=1", "--node_rank=0",
         "--master_addr=127.0.0.1", "--master_port={port}"), args=("a",), command="launch",
         workers=TWO, differs=LAUNCHED - ADDRESS | {"threads-note"}, notes=THREADS),
)  # fmt: skip

SURROUNDINGS = (
    Case("variables of nothing", ("--nproc-per-node=2",), workers=TWO,
         variables={"OMP_NUM_THREADS": "", "TORCH_NCCL_ASYNC_ERROR_HANDLING": ""}),
    Case("stdin, no store of the agent, a timer file", script=("{work}/probe.py",),
         stdin=b"some\x00 input\xff\n" * 100, variables={"PROBE_READ": "1",
         "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "TORCHELASTIC_TIMER_FILE": "{work}/timer"}),
    Case("variables of an outer job", ("--nproc-per-node=2",), workers=TWO, variables={
         "OMP_NUM_THREADS": "3",
         "RANK": "5", "LOCAL_RANK": "4", "WORLD_SIZE": "9", "GROUP_RANK": "3", "ROLE_NAME": "old",
         "MASTER_ADDR": "elsewhere", "MASTER_PORT": "1", "TORCHELASTIC_RESTART_COUNT": "8",
         "TORCHELASTIC_MAX_RESTARTS": "8", "TORCHELASTIC_RUN_ID": "old",
         "TORCHELASTIC_USE_AGENT_STORE": "old", "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGINT",
         "TORCHELASTIC_ERROR_FILE": "{work}/outer.json", "CUDA_VISIBLE_DEVICES": "1",
         "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}),
    Case("umask, limits, priority, descriptors", ("-r3", "--log-dir=logs"), differs=FILES_ONLY,
         under={"umask": 0o077, "nice": 3, "fds": [7, 30],
                "limits": {"RLIMIT_NOFILE": 200, "RLIMIT_CORE": 0, "RLIMIT_STACK": 4 << 20}}),
    Case("a signal mask", under={"block": ["SIGUSR1", "SIGUSR2", "SIGCHLD"]}),
    Case("an ignored SIGCHLD", under={"ignore": ["SIGCHLD"]},
         differs=COMMON | {"ignored-sigchld"}),
    Case("ignored signals", ("--no-python",), script=SHELL, args=("0",), differs=NO_PYTHON,
         under={"ignore": ["SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGALRM", "SIGPIPE", "SIGXFSZ",
                           "SIGINT", "SIGQUIT"]}),
    Case("nohup, no stdin", under={"ignore": ["SIGHUP"], "close": [0]},
         differs=COMMON | {"nohup", "closed-stdin"}),
    two("console: one pipe", console="pipe"),
    two("console: a file", console="file"),
    two("console: a terminal", console="terminal"),
)  # fmt: skip

LOGS = (
    Case("log-dir, absolute and deep", ("--log-dir={work}/a/b/c", "--redirects", "3"),
         differs=FILES_ONLY - {"absolute-error-file"}),
    two("log-dir=/dev/null", "--log-dir=/dev/null", "-r3", "-t3",
        differs=COMMON - {"temporary-directory"}, notes=("--redirects and --tee have no effect",)),
    Case("redirects without log-dir", ("--redirects=3",), notes=("writing logs to",),
         differs=COMMON - {"temporary-directory", "output-through-agent"} | {"kept-logs"}),
    logged("redirects=0 and a job id", "--redirects=0", "--rdzv-id=job7", "--master-port={port}",
           differs=LOGGED - ADDRESS),
    logged("redirects by rank", "--redirects=1:1,0:2,5:3",
           notes=("--redirects names local rank 5",)),
    logged("tee by rank, and redirects", "-r", "1:3", "-t", "0:3,1:2", differs=FILES_ONLY),
    Case("redirects of rank 10", ("--log-dir=logs", "--redirects=10:3,0:1"),
         differs=frozenset({"ranks-above-9"}), notes=("--redirects names local rank 10",)),
    logged("local-ranks-filter", "--local-ranks-filter=1", differs=LOGGED | {"filtered-stderr"}),
    logged("local-ranks-filter of nobody", "-t1", "--local-ranks-filter=7",
           differs=FILES_ONLY | {"filtered-stderr"},
           notes=("--local-ranks-filter names local rank 7",)),
    logged("filters", "-t3", "--duplicate-stdout-filters=out 0.1,a,,b", "--role=tr",
           "--duplicate-stderr-filters=err", differs=FILES_ONLY,
           variables={"PROBE_WRITE": "has a,b inside\nnothing\n",
                      "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": ""}),
    logged("filters without tee", "-r3", "--duplicate-stdout-filters=out", differs=FILES_ONLY,
           notes=("--duplicate-stdout-filters has no effect",)),
    logged("prefix", "-t3", "--role=tr", "--virtual-local-rank", differs=FILES_ONLY, variables={
           "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${role_name}|${rank}|${local_rank}|$$|$x> "}),
    Case("prefix without tee, any bytes", variables={"PROBE_WRITE": "\xe9\xff 1%\r2%\r\nno end",
         "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${rank} "}),
    Case("a long line, other bytes, no end", ("-t1", "--log-dir=logs"),
         differs=LOGGED | {"tee-bytes"},
         variables={"PROBE_WRITE": "y" * 50_000 + "\n\xe9\xff\nno end"}),
    Case("a progress bar", ("-t1", "--log-dir=logs"), differs=LOGGED | {"tee-carriage-return"},
         variables={"PROBE_WRITE": "1%\r2%\r\n3%\n"}),
)  # fmt: skip

REPORT = frozenset({"failure-report", "own-traceback"})
EXIT = COMMON | REPORT | {"exit-code"}
SIGNALLED = COMMON | REPORT | {"exit-code-of-signal"}
LAUNCHER_SIGNALLED = COMMON | {"own-traceback", "exit-code-of-launcher"}
FAILED = ("exited with code",)
ERROR_FILE = {"TORCHELASTIC_ERROR_FILE": "{work}/outer.json"}

ENDS = (
    Case("an exception", variables={"PROBE_END": "0.0=raise"},
         differs=COMMON | REPORT, notes=("raised RuntimeError",)),
    *(Case(f"killed by signal {n}", variables={"PROBE_END": f"0.0=kill {n}"}, differs=SIGNALLED,
           notes=("was killed by",)) for n in (9, 35)),
    logged("one restart", "--max-restarts=1", "-r3", variables={"PROBE_END": "0.1=7"},
           workers=(*TWO, "1.0", "1.1"), differs=FILES_ONLY | {"fresh-store", "survivors"},
           notes=("restart 1 of 1",)),
    two("two restarts", "--max-restarts=3", variables={"PROBE_END": "0.0=3,1.1=kill 9"},
        workers=(*TWO, "1.0", "1.1", "2.0", "2.1"), differs=COMMON | {"fresh-store", "survivors"},
        notes=("restart 1 of 3", "restart 2 of 3")),
    Case("no restart left, on a fixed port", ("--max-restarts=1", "--master-port={port}"),
         variables={"PROBE_END": "0.0=3,1.0=4"}, workers=("0.0", "1.0"),
         differs=EXIT - ADDRESS | {"survivors"},
         notes=("restart 1 of 1", "exited with code 4")),
    *(two(f"{name} to the launcher", signal=name, differs=LAUNCHER_SIGNALLED,
          variables={"PROBE_END": "0.0=wait,0.1=wait"}, notes=(f"got {name}",))
      for name in ("SIGTERM", "SIGINT")),
    Case("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", signal="SIGTERM", differs=LAUNCHER_SIGNALLED,
         variables={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "1", "PROBE_END": "0.0=stay"},
         notes=("killed in 1 s",)),
    Case("SIGUSR1 to handle", ("--signals-to-handle=SIGUSR1",), signal="SIGUSR1",
         variables={"PROBE_END": "0.0=wait"}, differs=LAUNCHER_SIGNALLED, notes=("got SIGUSR1",)),
    Case("a timer is released in time", variables={"TORCHELASTIC_ENABLE_FILE_TIMER": "1",
         "PROBE_END": "0.0=released"}),
    Case("a port for a health check", variables={"TORCHELASTIC_HEALTH_CHECK_PORT": "{port}"},
         notes=("TORCHELASTIC_HEALTH_CHECK_PORT has no effect",)),
    Case("an invalid port for the health check", variables={
         "TORCHELASTIC_HEALTH_CHECK_PORT": "http"},
         notes=("TORCHELASTIC_HEALTH_CHECK_PORT has no effect",)),
    Case("a timer runs out", variables={"TORCHELASTIC_ENABLE_FILE_TIMER": "1",
         "PROBE_END": "0.0=timer"}, differs=COMMON | {"late-worker"}, notes=("its timer",)),
    two("exit 7, an error file of the launcher",
         variables={"PROBE_END": "0.1=7", **ERROR_FILE}, differs=EXIT | {"error-file-always"},
         notes=FAILED),
    Case("an error file of --run-path", ("--run-path", "--log-dir=logs"),
         variables={"PROBE_END": "0.0=raise", **ERROR_FILE},
         differs=RUN_PATH - {"temporary-directory"}
         | {"absolute-error-file", "event-log", "run-path-error-file"} | REPORT,
         notes=("raised RuntimeError",)),
    Case("@record", ("--log-dir=logs",), script=("recorded.py",), differs=LOGGED | REPORT,
         variables={"PROBE_END": "0.0=raise", **ERROR_FILE}, notes=("raised RuntimeError",)),
    two("gloo", script=("gloo.py",), is_long=True),
)  # fmt: skip

REFUSED = (
    Case("a bad map of ranks", ("--redirects=4",), workers=(),
         differs=frozenset({"usage-exit-code", "own-traceback"}), notes=("--redirects=4",)),
    Case("a script that does not exist", script=("probee.py",), workers=(),
         differs=frozenset({"missing-script"}), notes=("no such file: probee.py",)),
    Case("a signal that does not exist", ("--signals-to-handle=SIGFOO",),
         differs=frozenset({"unknown-signal"}), notes=("SIGFOO is not one of",)),
    Case("--standalone and node-rank", ("--standalone", "--node-rank=1"),
         differs=frozenset({"standalone-contradiction"}),
         notes=("--standalone contradicts --node-rank=1",)),
)  # fmt: skip

REPEATED = {
    "-- after a module, twice", "-- after the script", "PET_: logs", "PET_: processes",
    "PET_: static", "PET_: switches", "SIGINT to the launcher",
    "an invalid port for the health check", "console: a file", "filters without tee",
    "killed by signal 35", "launch --use_env --no-python", "launch --virtual-local-rank",
    "launch -m, --use-env after the script", "local-ranks-filter of nobody",
    "log-dir, absolute and deep", "no restart left, on a fixed port",
    "prefix without tee, any bytes", "redirects=0 and a job id", "script in a folder",
    "script that is a directory", "static endpoint", "two restarts", "underscores: logs",
    "underscores: processes", "underscores: size", "variables of nothing",
}  # fmt: skip
"""Others have the same flags, variables or ends in another spelling: left to `make long`."""

ALL = SIZES + SPELLINGS + VARIABLES + ARGUMENTS + LAUNCH + SURROUNDINGS + LOGS + ENDS + REFUSED
CASES = tuple(x._replace(is_long=x.is_long or x.name in REPEATED) for x in ALL)
