"""A pool of hosts that share a directory, and a relight scheduler for it.

Each host runs `python -m relight_pool.host DIRECTORY` and takes replicas from there. Each job is a
subdirectory:

    job.json            its description, readable only by its user, as it contains secrets
    relight             the launcher, if a role needs it
    ROLE.N.todo         a replica that no host has taken; contains its number of earlier starts
    ROLE.N.taken        a replica taken by a host; contains the host's name
    ROLE.N.done         a replica that has ended; contains its exit code
    ROLE.N.log          its output
    torchelastic        the individual workers' logs
    rank0               the address of the first replica's host
    cancelled, failed   markers that tell hosts to stop the job's replicas
"""
