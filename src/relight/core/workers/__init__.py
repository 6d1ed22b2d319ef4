"""The workers of one node through one generation.

`supervision` is the state machine: an exit, a signal or a deadline comes in, signals to workers and
timers go out. `hang_detector` decides whether workers are idle, `worker_command` makes the command
line and the variables of one worker. `held_traceback`, `traceback_groups`, `status_text` and
`colours` decide what a terminal shows; `shared_words` is the layout of the memory that agent and
worker share.

The drivers are processes/supervisor.py, agent/watchdogs.py and output/.
"""
