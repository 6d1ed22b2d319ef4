"""Tests that can't pass without Linux, each with the reason. `make portable` skips them.

Each name is a file, a test, or a test with its parameters. docs/macos.md tells users the same.
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

SAME = "differential/test_command_lines.py::test_command_line_has_the_same_effect_as_under_torchrun"
REASONS = {
    "test_survivors.py::test_child_processes_of_failed_rank_end": DAEMON,
    "test_survivors.py::test_replacement_rank_is_forked_from_warm_process": PRELOAD,
    "test_survivors.py::test_losses_on_two_nodes_equal_those_of_uninterrupted_run": SEVERAL_NODES,
    "test_survivors_on_nodes.py": SEVERAL_NODES,
    "test_startup.py": LAUNCH_PATH,
    "test_teardown.py::test_teardown_does_not_wait_for_workers_without_handler[ignores SIGTERM]": (
        HANDLERS
    ),
    "test_signals.py::test_user_signals_reach_workers_with_a_handler": HANDLERS,
    "test_internal_errors.py::test_exception_in_coordinator_gives_exit_code_70": SEVERAL_NODES,
    "test_internal_errors.py::test_error_names_missing_proc_file_system": NO_NEED,
    "test_helpers.py::test_killed_agent_leaves_no_helper_process[py-spy]": HANGS,
    "test_helpers.py::test_unkillable_helper_process_does_not_block_agent": GUARD,
    "test_unkillable.py": GUARD,
    "test_orphans.py::test_job_directory_is_always_removed": BOOT_ID,
    "test_function.py::test_no_process_or_directory_outlives_caller[9]": BOOT_ID,
    "test_orphans.py::test_waiting_agent_has_no_job_directory": SEVERAL_NODES,
    "test_restarts.py::test_gloo_job_survives_repeated_kills[warm]": PRELOAD,
    "test_secrets.py::test_workers_cannot_see_job_token[warm]": PRELOAD,
    "test_full_disk.py::test_workers_start_warm_even_if_runtime_directory_is_full": PRELOAD,
    "host/test_watched_worker.py": PRELOAD,
    "test_failures_on_nodes.py": SEVERAL_NODES,
    "test_function.py::test_torch_workers_on_two_agents_form_one_group": SEVERAL_NODES,
    "test_embedding.py::test_job_result_has_exit_codes_restarts_and_cause[in process]": IN_PROCESS,
    "test_embedding.py::test_job_leaves_nothing_behind_in_calling_program": PROC,
    "test_embedding.py::test_signal_handler_of_caller_runs_after_job_has_stopped": IN_PROCESS,
    "test_embedding.py::test_in_process_job_is_rejected_when_unsafe": IN_PROCESS,
    "test_embedding.py::test_two_threads_can_run_two_nodes_of_one_job": SEVERAL_NODES,
    f"{SAME}[one node, nproc-per-node=cpu]": AFFINITY,
    f"{SAME}[master-addr alone, nproc-per-node=auto]": AFFINITY,
    "differential/test_differences.py::test_c10d_file_store_is_a_directory": SEVERAL_NODES,
    "differential/test_differences.py::test_endpoint_without_coordinator_times_out": SEVERAL_NODES,
    "differential/test_differences.py::test_worker_in_uninterruptible_call_fails_job": STUCK,
    "schedulers/test_local_ends.py::test_attached_job_ends_when_submitter_is_killed": DAEMON,
    "schedulers/test_local_ends.py::test_cancel_returns_once_job_has_ended": DAEMON,
    "schedulers/test_local.py::test_all_replicas_are_stopped_when_one_fails": DAEMON,
    "host/test_agents.py": PROC,
    "host/test_stacks.py": PROC,
    "cli_jobs/test_stacks_command.py": PROC,
    "host/test_arrivals.py": PROC,
    "test_hangs.py": PROC,
    "test_sandbox.py": SEVERAL_NODES,
    "test_waiting_terminal.py::test_status_line_is_updated_while_agent_waits": SEVERAL_NODES,
    "test_waiting_terminal.py::test_wait_reason_is_plain_text_without_terminal[a pipe]": (
        SEVERAL_NODES
    ),
    "test_waiting_terminal.py::test_wait_reason_is_plain_text_without_terminal[a dumb terminal]": (
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
    "host/test_devices.py::test_integrated_intel_gpu_is_counted_only_without_other_gpus": AFFINITY,
    "host/test_devices.py::test_auto_prefers_accelerators": AFFINITY,
    "host/test_devices.py::test_cpu_count_is_limited_by_affinity_mask_and_quota": AFFINITY,
    "host/test_memory.py::test_oom_killed_worker_is_reported_with_memory_limit": OOM,
    "host/test_numa.py": NUMA,
    "host/test_spawner.py::test_freeze_and_thaw_cover_all_descendants": SEVERAL_NODES,
    "host/test_spawner.py::test_freeze_is_not_ended_by_sigcont_from_elsewhere": SEVERAL_NODES,
    "host/test_readers.py::test_output_file_is_shown_while_it_is_being_written": INOTIFY,
    "host/test_tls.py": SEVERAL_NODES,
}

NO_DIFFERENCE = {"parent-death-signal": r"workers .* parent death signal"}
"""Differences from torchrun that don't exist there and aren't compared."""


def reason(nodeid: str) -> str:
    """Return why a test can't pass, or an empty string.

    Args:
        nodeid: pytest's node ID, with or without `tests/`.
    """
    name = nodeid.removeprefix("tests/")
    return (
        REASONS.get(name)
        or REASONS.get(name.partition("[")[0])
        or REASONS.get(name.partition("::")[0], "")
    )
