"""A stand-in for a Kubernetes cluster, because none can be installed here.

    with ApiServer(directory) as server:
        server.kubeconfig   # for the variable KUBECONFIG

It follows the rules of the real server and controllers, as read in their sources; each rule names
its source. To change a rule, check the source and not what relight expects.

| file | what |
|---|---|
| `server` | HTTP: verbs, selectors, patches, dry runs, logs |
| `state` | objects, owners, deletion, the controller queue |
| `validation`, `admission` | the API server's refusals, defaults, and quotas |
| `jobs`, `jobsets`, `volcano`, `kueue` | controllers |
| `dns` | which host names resolve |
| `kubelet` | scheduling, and pods as processes |
| `apply` | the requests made by kubectl apply |

It does not check a whole schema (`kubernetes_validate` does), and it lacks nodes.
What takes minutes on a cluster (back-off, expiry, evictions) happens immediately here, or when a
test requests it.
"""

from clusters.kubernetes.server import ApiServer, free_port, until

__all__ = ["ApiServer", "free_port", "until"]
