"""Host names that resolve, and their addresses: Service endpoints and CoreDNS records.

Sources: kubernetes/kubernetes, staging/src/k8s.io/endpointslice: util/controller_utils.go
(ShouldPodBeInEndpoints, ShouldSetHostname) and utils.go (podToEndpoint); coredns/coredns 1.12,
plugin/kubernetes (endpointHostname; endpoints that are not ready are left out); pods' own names:
pkg/kubelet/kubelet_pods.go, hostsFileContent. Records appear immediately here, whereas CoreDNS
caches answers, including negative ones, for up to 30 s.
"""

from clusters.kubernetes.state import Object, State, is_over

DOMAIN = "svc.cluster.local"


def endpoints(state: State, service: Object) -> list[Object]:
    """Return the pods that a headless Service publishes."""
    spec, namespace = service["spec"], service["metadata"]["namespace"]
    selector = spec.get("selector") or {}
    if spec.get("clusterIP") != "None" or not selector:
        return []
    return [
        pod
        for pod in state.of("pods")
        if pod["metadata"]["namespace"] == namespace
        and selector.items() <= (pod["metadata"].get("labels") or {}).items()
        and not is_over(pod)
        and pod["status"].get("podIP")
        and (spec.get("publishNotReadyAddresses") or _is_ready(pod))
    ]


def _is_ready(pod: Object) -> bool:
    """podToEndpoint: a pod that is being deleted is not ready."""
    conditions = pod["status"].get("conditions") or ()
    is_ready = any(x["type"] == "Ready" and x["status"] == "True" for x in conditions)
    return is_ready and "deletionTimestamp" not in pod["metadata"]


def records(state: State, namespace: str) -> dict[str, list[str]]:
    """Return the addresses of all names below SERVICE.NAMESPACE.svc, without that suffix.

    A pod has a name of its own if it has a host name and its subdomain is the Service's name.
    Otherwise its only name is derived from its address.
    """
    found: dict[str, list[str]] = {}
    for service in state.of("services"):
        name = service["metadata"]["name"]
        if service["metadata"]["namespace"] != namespace:
            continue
        for pod in endpoints(state, service):
            address = pod["status"]["podIP"]
            spec = pod["spec"]
            is_named = spec.get("hostname") and spec.get("subdomain") == name
            host = spec["hostname"] if is_named else address.replace(".", "-")
            for each in (f"{host}.{name}", name):
                found.setdefault(each, [])
                if address not in found[each]:
                    found[each].append(address)
    return found


def names(state: State, namespace: str) -> set[str]:
    """Return the names that pods have, or will have once they are running and ready."""
    found = set()
    for service in state.of("services"):
        meta, spec = service["metadata"], service["spec"]
        selector = spec.get("selector") or {}
        if meta["namespace"] != namespace or spec.get("clusterIP") != "None" or not selector:
            continue
        for pod in state.of("pods"):
            its, labels = pod["spec"], pod["metadata"].get("labels") or {}
            is_selected = pod["metadata"]["namespace"] == namespace and (
                selector.items() <= labels.items()
            )
            if is_selected and its.get("hostname") and its.get("subdomain") == meta["name"]:
                found.add(f"{its['hostname']}.{meta['name']}")
    return found


def hosts_file(state: State, pod: Object) -> str:
    """Return the names that a pod can resolve, in the format of /etc/hosts.

    Names are searched in the pod's namespace (pkg/kubelet/network/dns/dns.go).
    """
    namespace, spec = pod["metadata"]["namespace"], pod["spec"]
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
    own, address = hostname(pod), pod["status"].get("podIP", "127.0.0.1")
    full = f"{own}.{spec['subdomain']}.{namespace}.{DOMAIN} " if spec.get("subdomain") else ""
    lines.append(f"{address} {full}{own}")
    for name, addresses in records(state, namespace).items():
        names = [
            name,
            f"{name}.{namespace}",
            f"{name}.{namespace}.svc",
            f"{name}.{namespace}.{DOMAIN}",
        ]
        lines += [f"{each} {' '.join(names)}" for each in addresses]
    return "\n".join(lines) + "\n"


def hostname(pod: Object) -> str:
    """pkg/kubelet/kubelet_pods.go, GeneratePodHostNameAndDomain: the name, up to 63 characters."""
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])[:63].rstrip("-.")
