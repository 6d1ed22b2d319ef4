"""Runs jobs on a Kubernetes cluster.

    scheduler.py                 submits and cancels jobs, and reads their logs; read this first
    request.py, pods.py          the objects of an app, and the pod template of each role
    overrides.py                 the user's changes to the pod template
    kind.py, kinds.py            the differences between job.py, jobset.py, trainjob.py, volcano.py
    replicas.py, reasons.py      a job's status, and the reason why it is waiting
    store.py, cluster.py         requests to the API server, and their errors
    kueue.py                     cancels jobs that Kueue manages
    locks.py, pod_security.py    find what a site or a namespace forbids

To add a kind of object, implement `kind.Kind` and add the class to `kinds`. An option is a row in
the scheduler's `options`, and is used in `pods` or in a kind.
"""
