"""Finds what the Pod Security Standard *restricted* forbids in a pod.

Source: the checks for the levels `baseline` and `restricted` in Kubernetes 1.33
(https://kubernetes.io/docs/concepts/security/pod-security-standards/).
"""

from collections.abc import Iterator, Mapping
from typing import Any

PERMITTED = "NET_BIND_SERVICE"
"""The only capability that may be added."""
_VOLUMES = {
    "name", "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image",
    "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip
_HOST = ("hostNetwork", "hostPID", "hostIPC")
_PROFILES = ("RuntimeDefault", "Localhost")
_SELINUX = (None, "", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
_SYSCTLS = {
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem", "net.ipv4.tcp_syncookies", "net.ipv4.tcp_wmem",
}  # fmt: skip
_CONTAINERS = ("initContainers", "containers", "ephemeralContainers")
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"


def violations(template: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the standard forbids in a pod template, and what it requires but is missing."""
    spec = mapping(template.get("spec"))
    pod = mapping(spec.get("securityContext"))
    yield from (name for name in _HOST if spec.get(name))
    for volume in _list(spec.get("volumes")):
        yield from (f"volume {volume.get('name')}: {kind}" for kind in volume.keys() - _VOLUMES)
    for sysctl in _list(pod.get("sysctls")):
        if sysctl.get("name") not in _SYSCTLS:
            yield f"sysctl {sysctl.get('name')}"
    for name, profile in mapping(mapping(template.get("metadata")).get("annotations")).items():
        if name.startswith(_APPARMOR) and not _is_apparmor(str(profile)):
            yield name
    yield from _context(pod)
    for kind in _CONTAINERS:
        for container in _list(spec.get(kind)):
            yield from _container(container, pod)


def _container(container: Mapping[str, Any], pod: Mapping[str, Any]) -> Iterator[str]:
    own = mapping(container.get("securityContext"))
    capabilities = mapping(own.get("capabilities"))
    seccomp = own.get("seccompProfile") or pod.get("seccompProfile")
    yield from _context(own)
    for is_forbidden, what in (
        (own.get("privileged"), "privileged"),
        (own.get("allowPrivilegeEscalation") is not False, "allowPrivilegeEscalation"),
        ("ALL" not in (capabilities.get("drop") or ()), "capabilities.drop"),
        (set(capabilities.get("add") or ()) - {PERMITTED}, "capabilities.add"),
        (own.get("procMount") not in (None, "Default"), "procMount"),
        (own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True, "runAsNonRoot"),
        (mapping(seccomp).get("type") not in _PROFILES, "seccompProfile"),
        (any(port.get("hostPort") for port in _list(container.get("ports"))), "hostPort"),
    ):
        if is_forbidden:
            yield f"{container.get('name')}: {what}"


def _context(context: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is forbidden in the security contexts of both pods and containers."""
    selinux = mapping(context.get("seLinuxOptions"))
    profile = mapping(context.get("appArmorProfile")).get("type", "RuntimeDefault")
    for is_forbidden, what in (
        (context.get("runAsUser") == 0, "runAsUser"),
        (context.get("runAsNonRoot") is False, "runAsNonRoot"),
        (mapping(context.get("windowsOptions")).get("hostProcess"), "windowsOptions"),
        (selinux.get("user") or selinux.get("role"), "seLinuxOptions"),
        (selinux.get("type") not in _SELINUX, "seLinuxOptions"),
        (profile not in _PROFILES, "appArmorProfile"),
        (mapping(context.get("seccompProfile")).get("type") == "Unconfined", "seccompProfile"),
    ):
        if is_forbidden:
            yield what


def _is_apparmor(profile: str) -> bool:
    return profile in ("", "runtime/default") or profile.startswith("localhost/")


def mapping(part: Any) -> Mapping[str, Any]:
    """Return part of a pod, or an empty mapping if it isn't a mapping."""
    return part if isinstance(part, Mapping) else {}


def _list(part: Any) -> list[Mapping[str, Any]]:
    return [each for each in part if isinstance(each, Mapping)] if isinstance(part, list) else []
