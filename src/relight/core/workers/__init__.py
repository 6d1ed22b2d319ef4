"""The workers of one node in one generation.

`supervision` is the state machine: an exit, a signal or a deadline comes in, signals to workers and
timers go out. `hang_detector` decides whether workers are idle, `worker_command` builds the command
line and the environment of one worker. `held_traceback`, `traceback_groups`, `status_text` and
`colours` shape the terminal output; `shared_words` is the layout of the memory that agent and
worker share.

The drivers are processes/supervisor.py, agent/watchdogs.py and output/.
"""
