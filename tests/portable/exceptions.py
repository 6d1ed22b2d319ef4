"""The tests that can't hold without Linux, each with the reason; `make portable` skips them.

A name is that of a file, a test, or a test with its parameters. docs/macos.md says the same to
users.
"""

SEVERAL_NODES = "only jobs of one node run there"
HANDLERS = "the system does not tell which signals a process has handlers for"
PROC = "there is no /proc"
NUMA = "there is no --numa-binding"
OOM = "no counter tells what was killed for lack of memory"
AFFINITY = "a process can't be bound to CPUs, and there are no cgroups: all CPUs count"
INOTIFY = "files that are shown while they are written are looked at ten times a second"
LAUNCH_PATH = "the launch path there has the portable layer instead"
PRELOAD = "there is no --preload"
DAEMON = "who is in a session of its own is not found once its parent has ended"
STUCK = "to look for workers in an uninterruptible call would take a process each time"
IN_PROCESS = "an agent is always a process of its own"
HANGS = "there is no --hang-timeout"
GUARD = "there is no guard, and /proc does not tell the state of a process"
NO_NEED = "a job there does without /proc"
BOOT_ID = "without the machine's boot id, nobody sweeps what two killed processes have left"

SAME = (
    "differential/test_command_lines.py::test_a_command_line_has_the_same_effect_as_under_torchrun"
)
REASONS = {
    "test_startup.py": LAUNCH_PATH,
    "test_teardown.py::test_workers_with_nothing_to_save_are_not_waited_for[ignores SIGTERM]": (
        HANDLERS
    ),
    "test_signals.py::test_user_signals_reach_workers_that_want_them": HANDLERS,
    "test_internal_errors.py::test_an_unexpected_exception_ends_a_coordinator_with_70_and_a_line": (
        SEVERAL_NODES
    ),
    "test_internal_errors.py::test_without_proc_relight_says_that_this_is_missing": NO_NEED,
    "test_helpers.py::test_a_killed_agent_leaves_no_helper_behind[py-spy]": HANGS,
    "test_helpers.py::test_a_helper_that_can_not_be_killed_keeps_no_agent": GUARD,
    "test_unkillable.py": GUARD,
    "test_orphans.py::test_no_directory_of_a_job_is_left_behind": BOOT_ID,
    "test_orphans.py::test_an_agent_that_waits_for_nodes_has_no_directory": SEVERAL_NODES,
    "test_restarts.py::test_a_gloo_job_survives_every_kill[warm]": PRELOAD,
    "test_secrets.py::test_workers_do_not_have_the_token[warm]": PRELOAD,
    "test_full_disk.py::test_a_full_disk_of_the_sockets_keeps_no_job_from_a_warm_start": PRELOAD,
    "host/test_watched_worker.py": PRELOAD,
    "test_failures_on_nodes.py": SEVERAL_NODES,
    "test_function.py::test_torch_workers_of_two_agents_are_one_group": SEVERAL_NODES,
    "test_embedding.py::test_a_result_tells_exit_codes_restarts_and_the_cause[in process]": (
        IN_PROCESS
    ),
    "test_embedding.py::test_nothing_of_a_job_is_left_in_the_program": PROC,
    "test_embedding.py::test_a_signal_that_stops_the_job_reaches_the_program_afterwards": (
        IN_PROCESS
    ),
    "test_embedding.py::test_in_process_is_refused_where_it_would_do_harm": IN_PROCESS,
    "test_embedding.py::test_two_threads_of_a_program_run_two_nodes_of_a_job": SEVERAL_NODES,
    f"{SAME}[one node, nproc-per-node=cpu]": AFFINITY,
    f"{SAME}[master-addr alone, nproc-per-node=auto]": AFFINITY,
    "differential/test_differences.py::test_a_c10d_store_in_a_file_is_a_directory": SEVERAL_NODES,
    "differential/test_differences.py::test_an_endpoint_that_nobody_serves_is_given_up": (
        SEVERAL_NODES
    ),
    "differential/test_differences.py::test_a_worker_that_the_system_holds_fails_the_job": STUCK,
    "schedulers/test_local_ends.py::test_a_held_job_ends_with_its_submitter": DAEMON,
    "host/test_agents.py": PROC,
    "host/test_stacks.py": PROC,
    "cli_jobs/test_stacks_command.py": PROC,
    "host/test_arrivals.py": PROC,
    "test_hangs.py": PROC,
    "test_sandbox.py": SEVERAL_NODES,
    "test_waiting_terminal.py::test_while_a_node_waits_a_line_is_rewritten_until_work_goes_on": (
        SEVERAL_NODES
    ),
    "test_waiting_terminal.py::test_elsewhere_the_reason_is_a_line_as_ever[a pipe]": SEVERAL_NODES,
    "test_waiting_terminal.py::test_elsewhere_the_reason_is_a_line_as_ever[a dumb terminal]": (
        SEVERAL_NODES
    ),
    "test_tracebacks_once.py": PROC,
    "test_debug.py": PROC,
    "test_debug_without_a_breakpoint.py": PROC,
    "test_flight_recorder_in_reports.py": PROC,
    "host/test_native_frames.py": PROC,
    "test_watch_slow_ranks.py": PROC,
    "host/test_connection.py": SEVERAL_NODES,
    "host/test_connection_hostile.py": SEVERAL_NODES,
    "host/test_devices.py::test_integrated_intel_gpu_counts_only_alone": AFFINITY,
    "host/test_devices.py::test_auto_prefers_accelerators": AFFINITY,
    "host/test_devices.py::test_cpus_are_affinity_mask_or_quota": AFFINITY,
    "host/test_memory.py::test_oom_killed_worker_is_reported_with_limit": OOM,
    "host/test_numa.py": NUMA,
    "host/test_spawner.py::test_freeze_and_thaw_cover_all_descendants": SEVERAL_NODES,
    "host/test_spawner.py::test_foreign_sigcont_does_not_end_the_freeze": SEVERAL_NODES,
    "host/test_readers.py::test_file_is_shown_while_it_is_written": INOTIFY,
    "host/test_tls.py": SEVERAL_NODES,
}

NO_DIFFERENCE = {"parent-death-signal": r"workers .* parent death signal"}
"""Differences from torchrun that are none there, and what is not compared therefore."""


def reason(nodeid: str) -> str:
    """Return why a test can't hold, or nothing.

    Args:
        nodeid: pytest's name of it, with `tests/` or without.
    """
    name = nodeid.removeprefix("tests/")
    return (
        REASONS.get(name)
        or REASONS.get(name.partition("[")[0])
        or REASONS.get(name.partition("::")[0], "")
    )
