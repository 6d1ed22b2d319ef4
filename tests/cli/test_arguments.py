"""The command line: torchrun's grammar, PET_ variables, and precise errors."""

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.base.env import Environment
from relight.base.errors import UsageError
from relight.base.values import (
    BuiltinCheck,
    Endpoint,
    HangTimeout,
    HealthCheck,
    Nodes,
    PageAddress,
    RankOrder,
    RestartBudget,
    StreamChoice,
)
from relight.flags import suggestions
from relight.flags.arguments import parse, to_spec
from relight.flags.spec import FLAGS, LaunchSpec, check


def spec_of(*argv: str, **variables: str) -> LaunchSpec:
    return to_spec(parse(list(argv), Environment(variables)))


def notes_of(*argv: str) -> list[str]:
    parsed = parse(list(argv), Environment({}))
    return check(to_spec(parsed), parsed.given)


@pytest.mark.parametrize(
    ("argv", "field", "value"),
    [
        (["--nnodes=2:4"], "nnodes", Nodes(2, 4)),
        (["--nnodes", "3"], "nnodes", Nodes(3, 3)),
        (["--nproc-per-node=1_0"], "nproc_per_node", "10"),
        (["--nproc_per_node", "gpu"], "nproc_per_node", "gpu"),
        (["--nproc=4"], "nproc_per_node", "4"),
        (["--max-r=2"], "max_restarts", RestartBudget(2)),
        (["--max_restarts", "2"], "max_restarts", RestartBudget(2)),
        (["--stand"], "standalone", True),
        (["-m"], "module", True),
        (["-mr3"], "redirects", StreamChoice(3)),
        (["-r3"], "redirects", StreamChoice(3)),
        (["-r", "3"], "redirects", StreamChoice(3)),
        (["-t=1"], "tee", StreamChoice(1)),
        (["--tee", "0:3,12:1"], "tee", StreamChoice(0, ((0, 3), (12, 1)))),
        (["--rdzv-endpoint=host:29400"], "rdzv_endpoint", Endpoint("host", 29400)),
        (["--rdzv-endpoint=[::1]:1"], "rdzv_endpoint", Endpoint("::1", 1)),
        (["--rdzv-endpoint=[fe80::1]"], "rdzv_endpoint", Endpoint("fe80::1", None)),
        (["--rdzv-endpoint=fe80::1"], "rdzv_endpoint", Endpoint("fe80::1", None)),
        (["--rdzv-endpoint=fe80::1:29500"], "rdzv_endpoint", Endpoint("fe80::1", 29500)),
        (["--rdzv-endpoint=localhost:0"], "rdzv_endpoint", Endpoint("localhost", 0)),
        (["--rdzv-conf=a=1, b=2=3"], "rdzv_conf", (("a", "1"), ("b", "2=3"))),
        (["--local-ranks-filter=0,2"], "local_ranks_filter", (0, 2)),
        (["--duplicate-stdout-filters=a,,b,c"], "duplicate_stdout_filters", ("a,b", "c")),
        (["--signals-to-handle=SIGUSR1,SIGTERM"], "signals_to_handle", (10, 15)),
        (["--shutdown-timeout=0"], "shutdown_timeout", 0.0),
        (["--role", ""], "role", ""),
        (["--role=a=b"], "role", "a=b"),
        (["--role", "-1"], "role", "-1"),
        (["--max-restarts=1", "--max-restarts=2"], "max_restarts", RestartBudget(2)),
        (["--max-restarts=3/1h"], "max_restarts", RestartBudget(3, 3600.0, "/1h")),
        (["--max-restarts=3/h"], "max_restarts", RestartBudget(3, 3600.0, "/h")),
        (["--max-restarts=1/90s"], "max_restarts", RestartBudget(1, 90.0, "/90s")),
        (["--hang-timeout=60"], "hang_timeout", HangTimeout(60.0, 60.0, False)),
        (["--watch-slow-ranks"], "watch_slow_ranks", 120.0),
        (["--watch-slow-ranks=30"], "watch_slow_ranks", 30.0),
        (["--watch-slow-ranks=off"], "watch_slow_ranks", None),
        (
            ["--health-check=disk=10G,gpu"],
            "health_check",
            HealthCheck("", (BuiltinCheck("disk", 10 << 30), BuiltinCheck("gpu", 0))),
        ),
        (["--health-check=./a b"], "health_check", HealthCheck("./a b")),
        (["--rank-order=topology"], "rank_order", RankOrder(by_topology=True)),
        (["--rank-order=topology=/t"], "rank_order", RankOrder(by_topology=True, file="/t")),
        (["--rank-order=host"], "rank_order", RankOrder()),
        (["--restart-policy=smart"], "restart_policy", "smart"),
        (["--restart-on=75, SIGKILL,75"], "restart_on", (75, 137)),
        (["--fail-on=2,SIGXCPU"], "fail_on", (2, 152)),
        (["--fail-on="], "fail_on", ()),
        (["--checkpoints=/ckpt/*.pt"], "checkpoints", "/ckpt/*.pt"),
        (["--name=my.job-1"], "name", "my.job-1"),
        (["--status=8080"], "status", PageAddress(Endpoint("127.0.0.1", 8080))),
        (["--status=[::]:0"], "status", PageAddress(Endpoint("::", 0))),
        (["--status=public"], "status", PageAddress(Endpoint("127.0.0.1", 0), True)),
        (["--status=[::]:1,public"], "status", PageAddress(Endpoint("::", 1), True)),
        (["--failure-report=/tmp/f.json"], "failure_report", "/tmp/f.json"),
        (["--repeated-lines=all"], "repeated_lines", "all"),
        (["--re=3"], "redirects", StreamChoice(3)),
    ],
)
def test_all_torchrun_spellings_of_a_flag_are_equivalent(
    argv: list[str], field: str, value: object
) -> None:
    assert getattr(spec_of(*argv, "train.py"), field) == value


@pytest.mark.parametrize(
    ("argv", "script", "script_args"),
    [
        (["train.py"], "train.py", ()),
        (["train.py", "--nnodes=2", "-m"], "train.py", ("--nnodes=2", "-m")),
        (["train.py", "--", "a", "--"], "train.py", ("a", "--")),
        (["train.py", "--", "--", "a"], "train.py", ("--", "a")),
        (["train.py", "a", "--", "b"], "train.py", ("a", "--", "b")),
        (["-m", "pkg.train", "--", "--depth=24"], "pkg.train", ("--depth=24",)),
        (["train.py", "--"], "train.py", ()),
        (["--", "train.py", "--", "a"], "train.py", ("--", "a")),
        (["--", "--odd-name", "a"], "--odd-name", ("a",)),
        (["-m", "pkg.train", "--help"], "pkg.train", ("--help",)),
        (["-", "a"], "-", ("a",)),
        (["train.py", "", "$$", "${local_rank}"], "train.py", ("", "$$", "${local_rank}")),
    ],
)
def test_arguments_after_the_script_are_passed_to_the_script(
    argv: list[str], script: str, script_args: tuple[str, ...]
) -> None:
    """The only exception is a `--` directly after the script."""
    spec = spec_of(*argv)
    assert (spec.script, spec.script_args) == (script, script_args)


@given(
    st.sampled_from([[], ["--nnodes=1"], ["-m"], ["--nproc-per-node", "2"]]),
    st.booleans(),
    st.sampled_from(["train.py", "-"]),
    st.lists(st.sampled_from(["--", "a", "-", "--x", "-m", "--nnodes=2", "--nnodes"])),
)
def test_script_arguments_are_the_same_as_under_torchrun(
    flags: list[str], dashes: bool, script: str, arguments: list[str]
) -> None:
    """Wherever `--` is, the script gets the same arguments as from torchrun's argparse parser."""
    torchrun = argparse.ArgumentParser()
    torchrun.add_argument("--nnodes")
    torchrun.add_argument("--nproc-per-node", "--nproc_per_node")
    torchrun.add_argument("-m", "--module", action="store_true")
    torchrun.add_argument("script")
    torchrun.add_argument("script_args", nargs=argparse.REMAINDER)
    argv = [*flags, *["--"] * dashes, script, *arguments]
    theirs, ours = torchrun.parse_args(argv), spec_of(*argv)
    assert (ours.script, list(ours.script_args)) == (theirs.script, theirs.script_args)


@given(st.lists(st.text(alphabet=st.characters(codec="utf-8")), max_size=6))
def test_script_arguments_pass_through_unchanged(arguments: list[str]) -> None:
    """No text in the script's arguments is mistaken for a relight flag."""
    assert spec_of("train.py", "a", *arguments).script_args == ("a", *arguments)


@pytest.mark.parametrize(
    ("variables", "argv", "field", "value"),
    [
        ({"PET_NNODES": "2:3"}, [], "nnodes", Nodes(2, 3)),
        ({"PET_NPROC_PER_NODE": "4"}, ["--nproc-per-node=2"], "nproc_per_node", "2"),
        ({"PET_STANDALONE": "1"}, [], "standalone", True),
        ({"PET_STANDALONE": "0"}, [], "standalone", False),
        ({"PET_STANDALONE": "true"}, [], "standalone", True),
        ({"PET_LOG_DIR": "/x"}, [], "log_dir", "/x"),
        ({"PET_NUMA_BINDING": "node"}, [], "numa_binding", ""),  # torchrun has no variable for it
    ],
)
def test_command_line_overrides_pet_variables(
    variables: dict[str, str], argv: list[str], field: str, value: object
) -> None:
    assert getattr(spec_of(*argv, "train.py", **variables), field) == value


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "no training script"),
        (["--bogus", "x.py"], "unknown flag: --bogus"),
        (["-x", "x.py"], "unknown flag: -x"),
        (["--rdzv=x", "x.py"], "--rdzv is ambiguous: --rdzv-backend, --rdzv-endpoint"),
        (["--max-restarts"], "--max-restarts needs a value"),
        (["--max-restarts", "--tee", "x.py"], "--max-restarts needs a value"),
        (["--standalone=yes", "x.py"], "--standalone does not take a value"),
        (["--max-restarts=x", "x.py"], "--max-restarts=x: expected a whole number"),
        (["--max-restarts=-1", "x.py"], "--max-restarts=-1: the number can't be negative"),
        (["--nnodes=0", "x.py"], "at least 1 node"),
        (["--nnodes=4:2", "x.py"], "the minimum, 4, is above the maximum, 2"),
        (["--nnodes=1:2:3", "x.py"], "expected N or MIN:MAX"),
        (["--nproc-per-node=0", "x.py"], "at least 1 worker"),
        (["--nproc-per-node=gpus", "x.py"], "auto, cpu, gpu, xpu"),
        (["--rdzv-backend=", "x.py"], "'' is not one of static, c10d, etcd, etcd-v2, file"),
        (["--rdzv-backend=a b", "x.py"], "is not one of static, c10d, etcd, etcd-v2, file"),
        (["--rdzv-endpoint=host:x", "x.py"], "'x' is not a port number"),
        (["--rdzv-endpoint=host:70000", "x.py"], "0 to 65535"),
        (["--rdzv-endpoint=host:", "x.py"], "there is no port after the colon"),
        (["--rdzv-conf=a", "x.py"], "'a' is not a pair"),
        (["--rdzv-conf=a=1,,b=2", "x.py"], "is not a pair"),
        (["--master-port=99999", "x.py"], "0 to 65535"),
        (["--monitor-interval=0", "x.py"], "above 0"),
        (["--monitor-interval=nan", "x.py"], "finite"),
        (["--shutdown-timeout=1e300", "x.py"], "at most 2000000"),
        (["--nnodes=99999999999999999999", "x.py"], "at most 1000000 nodes"),
        (["--local-addr=a\nb", "x.py"], "expected a host name or address"),
        (["--master-addr=/etc", "x.py"], "expected a host name or address"),
        (["--rdzv-endpoint=a\x1b[1m:1", "x.py"], "expected HOST or HOST:PORT"),
        (["--shutdown-timeout=-1", "x.py"], "can't be negative"),
        (["--start-method=thread", "x.py"], "thread is not one of spawn, fork, forkserver"),
        (["--signals-to-handle=SIGTREM", "x.py"], "did you mean SIGTERM?"),
        (["--signals-to-handle=SIGKILL", "x.py"], "SIGKILL can't be handled"),
        (["--signals-to-handle=", "x.py"], "'' is not one of"),
        (["--redirects=4", "x.py"], "expected 0, 1, 2 or 3"),
        (["--tee=0:4", "x.py"], "expected 0, 1, 2 or 3"),
        (["--local-ranks-filter=0,", "x.py"], "comma-separated list of local ranks"),
        (["--numa-binding=core", "x.py"], "core is not one of"),
        (["--fail-on=SIGXCPUS", "x.py"], "SIGXCPUS is neither an exit code from 1 to 255 nor a "),
        (["--fail-on=KILL", "x.py"], "did you mean SIGKILL?"),
        (["--rank-order=rack", "x.py"], "expected host, topology or topology=FILE"),
        (["--rank-order=topology=", "x.py"], "expected host, topology or topology=FILE"),
        (["--segment=0", "x.py"], "at least 1 node in a segment"),
        (["--restart-on=0", "x.py"], "expected a list such as 2,SIGXCPU"),
        (["--restart-on=75,", "x.py"], "'' is neither"),
        (["--event-log-handler=a b", "x.py"], "a b is not one of null, console"),
    ],
)
def test_usage_error_lists_valid_choices(argv: list[str], message: str) -> None:
    """The error names the invalid value and either all valid ones or the closest one."""
    with pytest.raises(UsageError) as caught:
        spec_of(*argv)
    assert message in f"{caught.value.message}\n{caught.value.hint}"


@pytest.mark.parametrize(
    ("argv", "variables", "hint"),
    [
        (["--nproc-per-node=two"], {}, "for example: --nproc-per-node=8, --nproc-per-node=gpu"),
        (["--max-restarts=x"], {}, "for example: --max-restarts=3"),
        ([], {"PET_MAX_RESTARTS": "x"}, "for example: PET_MAX_RESTARTS=3"),
        (["--signals-to-handle=SIGKILL"], {}, "for example: --signals-to-handle=SIGTERM,SIGUSR1"),
        (
            ["--worker-store=rank1"],
            {},
            "--worker-store: which process serves MASTER_PORT: agent, or",
        ),
    ],
)
def test_hint_for_invalid_value_gives_a_valid_example(
    argv: list[str], variables: dict[str, str], hint: str
) -> None:
    """The hint is a working value, or the flag's purpose."""
    with pytest.raises(UsageError) as caught:
        spec_of(*argv, "x.py", **variables)
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize("name", suggestions.EXAMPLES)
def test_example_values_in_hints_are_valid(name: str) -> None:
    for value in suggestions.EXAMPLES[name]:
        assert spec_of(f"--{name}={value}", "x.py").script == "x.py"


def test_signal_suggestions_exclude_uncatchable_signals() -> None:
    """For a misspelt signal, the hint lists all signals except SIGKILL and SIGSTOP."""
    with pytest.raises(UsageError) as caught:
        spec_of("--signals-to-handle=FOO", "x.py")
    assert "SIGUSR2" in caught.value.message
    assert "SIGKILL" not in caught.value.message and "SIGSTOP" not in caught.value.message


def test_misspelt_flag_suggests_closest_match() -> None:
    """The flag's name contains a typo."""
    with pytest.raises(UsageError) as caught:
        spec_of("--nproc-per-nod3=2", "x.py")
    assert caught.value.hint == "did you mean --nproc-per-node?"


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"PET_MAX_RESTARTS": "x"}, "PET_MAX_RESTARTS=x: expected a whole number"),
        ({"PET_NNODES": ""}, "PET_NNODES=: expected N or MIN:MAX"),
        ({"PET_STANDALONE": ""}, "PET_STANDALONE=: expected 1 or 0"),
    ],
)
def test_invalid_environment_variable_is_identified_in_the_error(
    variables: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        spec_of("x.py", **variables)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--standalone", "--nnodes=2"], "--standalone contradicts --nnodes=2"),
        (["--standalone", "--rdzv-backend=static"], "contradicts --rdzv-backend=static"),
        (["--standalone", "--rdzv-endpoint=far:1"], "contradicts --rdzv-endpoint=far"),
        (["--standalone", "--node-rank=1"], "contradicts --node-rank=1"),
        (["--node-rank=1"], "--node-rank=1 is not below --nnodes=1"),
        (["-m", "--no-python"], "-m and --no-python are mutually exclusive"),
        (["-m", "--run-path"], "-m and --run-path are mutually exclusive"),
        (["--rdzv-id=a/b"], "contains a slash"),
        (["--preload=off,json"], "leave out the names or off"),
        (["--rdzv-id=" + 101 * "é"], "--rdzv-id is longer than 200 bytes"),
        (["--nnodes=2", "--rdzv-id="], "--rdzv-id is empty"),
        (["--nnodes=3:8", "--segment=4"], "--nnodes=3:8 is not a multiple of --segment=4"),
        (["--nnodes=4:6", "--segment=4"], "--nnodes=4:6 is not a multiple of --segment=4"),
        (["--restart-on=137,1", "--fail-on=SIGKILL"], "--fail-on both list SIGKILL"),
    ],
)
def test_contradictory_flags_error_lists_the_flags(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        notes_of(*argv, "x.py")


@pytest.mark.parametrize(
    ("argv", "note"),
    [
        (["--standalone", "--master-port=1"], "--master-port: no effect with --standalone"),
        (["--standalone", "--rdzv-endpoint=localhost:29400"], "--rdzv-endpoint: no effect"),
        (["--run-path", "--no-python"], "--no-python has no effect"),
        (["--rdzv-backend=c10d", "--node-rank=1"], "--node-rank has no effect"),
        (["--rdzv-backend=c10d", "--master-port=1"], "have no effect with --rdzv-backend=c10d"),
        (["--master-addr=10.0.0.1"], "--master-addr has no effect without --master-port"),
        (
            ["--rank-order=topology", "--nnodes=2", "--master-addr=a"],
            "--rank-order=topology has no",
        ),
        (["--local-addr=::1", "--master-port=1"], "--local-addr has no effect"),
        (["--log-dir=/dev/null", "--tee=3"], "have no effect with --log-dir=/dev/null"),
        (["--log-dir=~/logs"], "--log-dir=~/logs is a directory below this one"),
        (["--duplicate-stdout-filters=a"], "no stdout is tee'd"),
        (["--duplicate-stderr-filters=a", "--tee=1"], "no stderr is tee'd"),
        (["--fail-on=2"], "no effect without --max-restarts: --fail-on"),
    ],
)
def test_flag_values_without_effect_print_a_note(argv: list[str], note: str) -> None:
    """One line says so where torchrun silently ignores them."""
    notes = notes_of(*argv, "x.py")
    assert len(notes) == 1
    assert note in notes[0]


@pytest.mark.parametrize(
    "argv",
    [
        ["--standalone", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--nnodes=1"],
        ["--standalone", "--rdzv-id=job7"],
        ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=job7"],
        ["--nnodes=1", "--node-rank=0", "--master-addr=127.0.0.1", "--master-port=29500"],
        ["--rdzv-id="],
    ],
)
def test_common_torchrun_command_lines_print_no_notes(argv: list[str]) -> None:
    """These are command lines that people use with torchrun."""
    assert notes_of(*argv, "x.py") == []


ANSWERED = ("help", "print-completion")
"""Flags handled before anything is checked."""


def test_every_flag_has_a_launch_spec_field() -> None:
    """The flag table and the record of values can't diverge."""
    fields = [flag.field for flag in FLAGS if flag.name not in ANSWERED]
    assert sorted([*fields, "script", "script_args", "conf_defaults"]) == sorted(LaunchSpec._fields)


@given(st.text(max_size=30), st.sampled_from([f for f in FLAGS if f.parse is not None]))
def test_arbitrary_text_parses_or_raises_usage_error(text: str, flag: object) -> None:
    """Nothing other than a UsageError is ever raised."""
    try:
        parse([f"--{flag.name}={text}", "x.py"], Environment({}))  # type: ignore[attr-defined]
    except UsageError as error:
        assert flag.name in error.message  # type: ignore[attr-defined]
        assert "\n" not in error.message or "\n" in text
