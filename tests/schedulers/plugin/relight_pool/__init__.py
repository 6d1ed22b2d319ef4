"""A pool of hosts that share a directory, and a scheduler of relight for it.

Each host runs `python -m relight_pool.host DIRECTORY` and takes replicas from there. A job is a
directory below it:

    job.json            what it is, readable by its user alone: there are secrets in it
    relight             the launcher, if a role needs it
    ROLE.N.todo         a replica that no host has taken; holds how often it was started before
    ROLE.N.taken        one that a host has; holds its name
    ROLE.N.done         one that has ended; holds its exit code
    ROLE.N.log          its output
    torchelastic        the logs of single workers
    rank0               the address of the first replica's host
    cancelled, failed   marks: hosts stop its replicas
"""
