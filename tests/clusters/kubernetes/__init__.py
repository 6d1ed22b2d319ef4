"""A stand-in for a Kubernetes cluster, as none can be installed here.

    with ApiServer(directory) as server:
        server.kubeconfig   # for the variable KUBECONFIG

Its rules are those of the real server and controllers, read in their sources; each says where it is
from. Whoever changes one looks there, not into relight.

| file | what |
|---|---|
| `server` | HTTP: verbs, selectors, patches, dry runs, logs |
| `state` | objects, owners, deletion, the queue of controllers |
| `validation`, `admission` | refusals, defaults and quotas of the API server |
| `jobs`, `jobsets`, `volcano` | controllers |
| `dns` | which host names resolve |
| `kubelet` | scheduling, and pods as processes |
| `apply` | requests of kubectl apply |

It does not check all of a schema (`kubernetes_validate` does) and keeps no roles and no nodes. What
takes minutes on a cluster (back-off, expiry, evictions) is immediate here, or on request of a test.
"""

from clusters.kubernetes.server import ApiServer, free_port, until

__all__ = ["ApiServer", "free_port", "until"]
