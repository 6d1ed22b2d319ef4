"""One node's workers in one generation.

`supervision` is the state machine. Its inputs are exits, signals and deadlines, and its outputs are
signals to workers and timers. `hang_detector` determines whether workers are idle, and
`worker_command` builds one worker's command line and environment. `rank_recovery` determines
whether workers can keep their process, and `early_exits` which of them finished before others.
`held_traceback`, `repeated_lines`, `traceback_groups`, `status_text` and `colours` format the
terminal output. `shared_words` defines the layout of the memory shared by an agent and a worker.

The drivers are processes/supervisor.py, agent/watchdogs.py, agent/recovery.py and output/.
"""
