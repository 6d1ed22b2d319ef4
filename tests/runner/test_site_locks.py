"""Options that the site locks can't be set in another way."""

from pathlib import Path
from typing import Any

import pytest

from relight.base.env import Environment
from relight.base.errors import UsageError
from relight.job.app import AppDef, BindMount, DeviceMount, Mount, Role, VolumeMount
from relight.runner.runner import Runner

DEVICE = DeviceMount("/dev/infiniband", "/dev/infiniband")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("SBATCH_PARTITION", "SBATCH_ACCOUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("RELIGHT_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "config.toml"


def app(*mounts: Mount, **metadata: Any) -> AppDef:
    role = Role("main", "img", entrypoint="true", mounts=list(mounts), metadata=metadata)
    return AppDef("job", [role])


def submitted(site: Path, text: str, scheduler: str, job: AppDef, /, **cfg: Any) -> dict[str, Any]:
    """Return the request for a job under a site's file."""
    site.write_text(text)
    env = Environment({"RELIGHT_CONFIG_DIR": str(site.parent), "HOME": str(site.parent)})
    with Runner("s", env=env) as runner:
        return dict(runner.dryrun(job, scheduler=scheduler, cfg=cfg).request.body)


def submitted_with_locked_restricted(site: Path, spec: dict[str, Any]) -> dict[str, Any]:
    """Return the request for a job that overrides the spec of its pods."""
    import yaml

    path = site.parent / "pods.yaml"
    path.write_text(yaml.safe_dump({"spec": spec}))
    text = locked("kubernetes", restricted="true")
    return submitted(site, text, "kubernetes", app(), pods=str(path), user=1000)


def locked(scheduler: str, **options: str) -> str:
    names = ", ".join(f'"schedulers.{scheduler}.{name}"' for name in options)
    values = "\n".join(f"{name} = {value}" for name, value in options.items())
    return f"locked = [{names}]\n[schedulers.{scheduler}]\n{values}\n"


NOT_PRIVILEGED = locked("kubernetes", privileged="false")
PRIVILEGED_POD = {"spec": {"initContainers": [
    {"name": "setup", "image": "x", "securityContext": {"privileged": True}}
]}}  # fmt: skip


@pytest.mark.needs_kubernetes
def test_device_mount_does_not_bypass_locked_privileged(site: Path) -> None:
    with pytest.raises(UsageError) as caught:
        submitted(site, NOT_PRIVILEGED, "kubernetes", app(DEVICE))
    assert caught.value.message == (
        "the device mount /dev/infiniband needs a privileged container: kubernetes's option "
        f"privileged is locked to False by {site}"
    )
    assert submitted(site, NOT_PRIVILEGED, "kubernetes", app(BindMount("/a", "/a")))
    assert submitted(site, locked("kubernetes", privileged="true"), "kubernetes", app(DEVICE))


@pytest.mark.needs_kubernetes
def test_pod_overrides_do_not_bypass_locked_privileged(site: Path) -> None:
    import yaml

    path = site.parent / "pods.yaml"
    path.write_text(yaml.safe_dump(PRIVILEGED_POD))
    with pytest.raises(UsageError, match=rf"^-cfg pods={path}: .* privileged is locked to False"):
        submitted(site, NOT_PRIVILEGED, "kubernetes", app(), pods=str(path))
    overlaid = app(kubernetes={"V1Pod": PRIVILEGED_POD})
    with pytest.raises(UsageError, match=r"^the metadata kubernetes of main: .* privileged is"):
        submitted(site, NOT_PRIVILEGED, "kubernetes", overlaid)


@pytest.mark.needs_kubernetes
@pytest.mark.parametrize(
    ("option", "value", "spec"),
    [
        ("service_account", "'train'", {"serviceAccountName": "admin"}),
        ("priority_class", "'low'", {"priorityClassName": "high"}),
        ("node_selector", "{pool = 'a'}", {"nodeSelector": {"pool": "b"}}),
        ("node_selector", "{pool = 'a'}", {"nodeName": "b1"}),
        ("tolerations", "['a']", {"tolerations": [{"operator": "Exists"}]}),
        ("capabilities", "[]", {"containers": [
            {"name": "main", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}
        ]}),
        ("user", "1000", {"securityContext": {"runAsUser": 0}}),
        ("restricted", "true", {"hostPID": True}),
        ("privileged", "false", {"hostPID": True}),
        ("privileged", "false", {"hostIPC": True}),
        ("privileged", "false", {"containers": [
            {"name": "main", "securityContext": {"capabilities": {"add": ["CAP_SYS_ADMIN"]}}}
        ]}),
        ("privileged", "false", {"initContainers": [
            {"name": "own", "image": "x", "securityContext": {"allowPrivilegeEscalation": True}}
        ]}),
        ("host_paths", "false", {"volumes": [{"name": "root", "hostPath": {"path": "/"}}]}),
        ("queue", "'team'", {"schedulerName": "volcano"}),
        ("shm_size", "'1Gi'", {"volumes": [{"name": "dshm", "emptyDir": {"sizeLimit": "9Gi"}}]}),
    ],
)  # fmt: skip
def test_pod_overrides_do_not_bypass_locked_option(
    site: Path, option: str, value: str, spec: dict[str, Any]
) -> None:
    import yaml

    path = site.parent / "pods.yaml"
    path.write_text(yaml.safe_dump({"spec": spec}))
    text = locked("kubernetes", **{option: value})
    with pytest.raises(UsageError, match=rf"^-cfg pods=.*: kubernetes's option {option} is locked"):
        submitted(site, text, "kubernetes", app(), pods=str(path), user=1000)
    path.write_text("spec: {hostNetwork: true}" if option != "restricted" else "spec: {}")
    assert submitted(site, text, "kubernetes", app(), pods=str(path), user=1000)


SAFE = {
    "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}  # fmt: skip


@pytest.mark.needs_kubernetes
@pytest.mark.parametrize(
    "spec",
    [
        {"securityContext": {"fsGroup": 2000, "supplementalGroups": [3], "runAsGroup": 4}},
        {"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "p"}}},
        {"securityContext": {"sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}]}},
        {"containers": [{"name": "sidecar", "image": "x", "securityContext": SAFE}]},
        {"initContainers": [{"name": "setup", "image": "x", "securityContext": SAFE}]},
        {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
    ],
)
def test_pod_overrides_may_set_what_locked_restricted_standard_permits(
    site: Path, spec: dict[str, Any]
) -> None:
    assert submitted_with_locked_restricted(site, spec)


@pytest.mark.needs_kubernetes
@pytest.mark.parametrize(
    "spec",
    [
        {"hostIPC": True},
        {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]},
        {"volumes": [{"name": "v", "nfs": {"server": "s", "path": "/"}}]},
        {"securityContext": {"runAsNonRoot": None}},
        {"securityContext": {"runAsUser": 0}},
        {"securityContext": {"seccompProfile": {"type": "Unconfined"}}},
        {"securityContext": {"seLinuxOptions": {"type": "spc_t"}}},
        {"securityContext": {"appArmorProfile": {"type": "Unconfined"}}},
        {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}},
        {"containers": [{"name": "sidecar", "image": "x"}]},
        {"containers": [{"name": "main", "ports": [{"containerPort": 1, "hostPort": 1}]}]},
        {"containers": [{"name": "main", "securityContext": {"procMount": "Unmasked"}}]},
        {"containers": [{"name": "main", "securityContext": {"runAsUser": 0}}]},
        {"initContainers": [
            {"name": "setup", "image": "x", "securityContext": {**SAFE, "privileged": True}}
        ]},
        {"ephemeralContainers": [{"name": "debug", "image": "x", "securityContext": {
            **SAFE, "capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}
        }}]},
    ],
)  # fmt: skip
def test_pod_overrides_may_not_violate_locked_restricted_standard(
    site: Path, spec: dict[str, Any]
) -> None:
    """Source: kubernetes/pod-security-admission, policy/check_*.go."""
    with pytest.raises(UsageError, match="option restricted is locked"):
        submitted_with_locked_restricted(site, spec)


@pytest.mark.needs_kubernetes
def test_host_network_does_not_bypass_locked_network_policy(site: Path) -> None:
    """NetworkPolicies don't affect pods on the node's network."""
    path = site.parent / "pods.yaml"
    path.write_text("spec: {hostNetwork: true}")
    text = locked("kubernetes", network_policy="true")
    with pytest.raises(UsageError, match=r"^-cfg pods=.* network_policy is locked to True"):
        submitted(site, text, "kubernetes", app(), pods=str(path))
    text = locked("kubernetes", network_policy="false")
    assert submitted(site, text, "kubernetes", app(), pods=str(path))


@pytest.mark.needs_kubernetes
def test_added_capabilities_do_not_bypass_locked_privileged(site: Path) -> None:
    with pytest.raises(UsageError) as caught:
        submitted(site, NOT_PRIVILEGED, "kubernetes", app(), capabilities=["IPC_LOCK", "sys_admin"])
    assert caught.value.message == (
        f"-cfg capabilities: SYS_ADMIN: kubernetes's option privileged is locked to False by {site}"
    )
    harmless = ["IPC_LOCK", "CAP_NET_BIND_SERVICE"]
    assert submitted(site, NOT_PRIVILEGED, "kubernetes", app(), capabilities=harmless)
    own = NOT_PRIVILEGED + "capabilities = ['SYS_ADMIN']\n"
    assert submitted(site, own, "kubernetes", app())


@pytest.mark.needs_kubernetes
@pytest.mark.parametrize("mount", [BindMount("/", "/host"), DEVICE])
def test_host_paths_are_rejected_if_disabled(site: Path, mount: Mount) -> None:
    text = locked("kubernetes", host_paths="false")
    with pytest.raises(UsageError) as caught:
        submitted(site, text, "kubernetes", app(mount))
    assert caught.value.message == (
        f"main: mount of {mount.src_path}: -cfg host_paths=False allows no paths of the node"
    )
    assert submitted(site, text, "kubernetes", app(VolumeMount("claim", "/data")))
    assert submitted(site, NOT_PRIVILEGED, "kubernetes", app(BindMount("/a", "/a")))


KUEUE = locked("kubernetes", queue="'team'")
VOLCANO = KUEUE + "kind = 'volcano'\n"


@pytest.mark.needs_kubernetes
@pytest.mark.parametrize(
    ("text", "cfg", "what"),
    [
        (KUEUE, {"kind": "volcano"}, "kind=volcano"),
        (KUEUE, {"scheduler": "volcano"}, "scheduler=volcano"),
        (VOLCANO, {"kind": "job"}, "kind=job"),
        (VOLCANO, {"scheduler": "other"}, "scheduler=other"),
    ],
)
def test_other_queueing_system_does_not_bypass_locked_queue(
    site: Path, text: str, cfg: dict[str, str], what: str
) -> None:
    """A queue of Kueue and one of Volcano with the same name are different queues."""
    with pytest.raises(UsageError) as caught:
        submitted(site, text, "kubernetes", app(), **cfg)
    assert caught.value.message == (
        f"-cfg {what} uses another queueing system: kubernetes's option queue is locked to team "
        f"by {site}"
    )


@pytest.mark.needs_kubernetes
@pytest.mark.parametrize(
    ("text", "cfg"),
    [
        (KUEUE, {"kind": "jobset"}),
        (KUEUE, {"scheduler": "other"}),
        (VOLCANO, {"scheduler": "volcano"}),
        ("locked = ['schedulers.kubernetes.queue']", {"kind": "volcano"}),
    ],
)
def test_locked_queue_allows_kinds_of_same_queueing_system(
    site: Path, text: str, cfg: dict[str, str]
) -> None:
    assert submitted(site, text, "kubernetes", app(), **cfg)


@pytest.mark.needs_kubernetes
def test_pod_overrides_of_site_may_set_locked_options(site: Path) -> None:
    path = site.parent / "pods.yaml"
    path.write_text("spec: {priorityClassName: low}")
    text = locked("kubernetes", priority_class="'low'", pods=f"'{path}'")
    assert submitted(site, text, "kubernetes", app())
    overlaid = app(kubernetes={"V1Pod": {"spec": {"hostNetwork": True}}})
    with pytest.raises(UsageError, match=r"the metadata kubernetes of main: .* pods is locked"):
        submitted(site, text, "kubernetes", overlaid)


@pytest.mark.parametrize(
    "words",
    ["--partition=debug", "--part debug", "-pdebug", "-p debug", "-Hp debug", "--nice -p debug",
     '--comment="a b" --partition=debug'],
)  # fmt: skip
def test_sbatch_words_do_not_bypass_locked_partition(site: Path, words: str) -> None:
    text = locked("slurm", partition="'gpu'")
    with pytest.raises(UsageError) as caught:
        submitted(site, text, "slurm", app(), sbatch=[words])
    assert caught.value.message == (
        f"-cfg sbatch={words}: slurm's option partition is locked to gpu by {site}"
    )


def test_sbatch_words_may_set_what_is_not_locked(site: Path) -> None:
    text = locked("slurm", partition="'gpu'")
    words = ["--reservation=p", "--nice", "--comment=-p", "-J p", "--account=x"]
    script = submitted(site, text, "slurm", app(), sbatch=words)["script"]
    assert "#SBATCH --account=x" in script
    own = text + "sbatch = ['--partition=other']\n"
    assert "--partition=other" in submitted(site, own, "slurm", app())["script"]


def test_sbatch_variable_does_not_bypass_locked_partition(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variables override the options in a script."""
    monkeypatch.setenv("SBATCH_PARTITION", "debug")
    with pytest.raises(UsageError, match=r"^SBATCH_PARTITION=debug: .* locked to gpu by"):
        submitted(site, locked("slurm", partition="'gpu'"), "slurm", app())
    assert submitted(site, locked("slurm", account="'a'"), "slurm", app())
    monkeypatch.setenv("SBATCH_PARTITION", "gpu")
    assert submitted(site, locked("slurm", partition="'gpu'"), "slurm", app())


@pytest.mark.parametrize(
    "words",
    [
        "--gres=gpu:1",
        "--gres fpga,gpu:a100:2",
        "--tres-per-task=gres/gpu=1",
        "--gres=shard:1",
        "--gres=none",
    ],
)
def test_generic_resources_do_not_bypass_locked_gpus(site: Path, words: str) -> None:
    text = locked("slurm", gpu_type="'a100'")
    with pytest.raises(UsageError, match=r"slurm's option gpu_type is locked to a100"):
        submitted(site, text, "slurm", app(), sbatch=[words])
    for other in ("--gres craynetwork:1", "--gres=tmpfs:10G"):
        assert submitted(site, text, "slurm", app(), sbatch=[other])


def test_other_gres_flag_does_not_replace_locked_one(site: Path) -> None:
    """The last one takes effect."""
    text = locked("slurm", gpus="'gres'", gpu_type="'a100'")
    with pytest.raises(UsageError, match=r"slurm's option \w+ is locked"):
        submitted(site, text, "slurm", app(), sbatch=["--gres=tmpfs:10G"])


@pytest.mark.parametrize(
    ("option", "value", "variable", "same", "other"),
    [
        ("exclusive", "true", "SBATCH_EXCLUSIVE", "exclusive", "user"),
        ("requeue", "true", "SBATCH_REQUEUE", "1", None),
        ("requeue", "false", "SBATCH_NO_REQUEUE", "1", None),
        ("requeue", "false", "SBATCH_REQUEUE", None, "1"),
        ("gpu_type", "'a100'", "SBATCH_GRES", "tmpfs:1", "gpu:1"),
    ],
)
def test_sbatch_variable_may_repeat_the_locked_value(
    site: Path,
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    value: str,
    variable: str,
    same: str | None,
    other: str | None,
) -> None:
    text = locked("slurm", **{option: value})
    if same is not None:
        monkeypatch.setenv(variable, same)
        assert submitted(site, text, "slurm", app())
    if other is not None:
        monkeypatch.setenv(variable, other)
        with pytest.raises(UsageError, match=rf"^{variable}={other}: slurm's option {option} is"):
            submitted(site, text, "slurm", app())


@pytest.mark.parametrize(
    ("option", "value", "cfg"),
    [
        ("port", "22", {"ssh_args": "-p 2222"}),
        ("port", "22", {"ssh_args": "-C -o 'Port=2222'"}),
        ("identity", "'/k'", {"ssh_args": "-i /own"}),
        ("identity", "'/k'", {"ssh_args": "-oIdentityFile=/own"}),
        ("port", "22", {"ssh_args": "-vp2222"}),
        ("port", "22", {"ssh_args": "-Co '\"Port\" 2222'"}),
        ("port", "22", {"ssh_args": "-o =Port=2222"}),
        ("port", "22", {"ssh_args": "-F own"}),
        ("hosts", "['a']", {"ssh_args": "-o HostName=b"}),
        ("hosts", "['a']", {"ssh_args": "-v b"}),
    ],
)
def test_ssh_arguments_do_not_bypass_locked_option(
    site: Path, option: str, value: str, cfg: dict[str, str]
) -> None:
    text = locked("ssh", **{option: value})
    with pytest.raises(UsageError, match=rf"^-cfg ssh_args=.*: ssh's option {option} is locked"):
        submitted(site, text, "ssh", app(), hosts=["a"], **cfg)
    for words in ("-C -o IPQoS=none", "-L 1:a:2 -J p"):
        assert submitted(site, text, "ssh", app(), hosts=["a"], ssh_args=words)


@pytest.mark.parametrize("cfg", [{"hosts": ["a", "b:2222"]}, {"hostfile": "nodes"}])
def test_port_of_host_does_not_bypass_locked_port(site: Path, cfg: dict[str, Any]) -> None:
    (site.parent / "nodes").write_text("b:2222")
    text = locked("ssh", port="22")
    with pytest.raises(UsageError, match=r"^-cfg \w+: b:2222: ssh's option port is locked to 22"):
        submitted(site, text, "ssh", app(), **cfg)
    assert submitted(site, text, "ssh", app(), hosts=["a:22"])
    own = locked("ssh", port="22", hosts="['a:2222']")
    assert submitted(site, own, "ssh", app())


class Preprocessed(Role):
    """A role that changes the scheduler's request."""

    def pre_proc(self, scheduler: str, dryrun_info: Any) -> Any:
        body = dryrun_info.request
        body["script"] = body["script"].replace("--partition=gpu", "--partition=debug")
        return dryrun_info


def test_pre_proc_does_not_bypass_locked_option(site: Path) -> None:
    job = AppDef("job", [Preprocessed("main", "img", entrypoint="true")])
    with pytest.raises(UsageError) as caught:
        submitted(site, locked("slurm", partition="'gpu'"), "slurm", job)
    assert caught.value.message == (
        f"pre_proc of a role changes the request: slurm's option partition is locked to gpu by "
        f"{site}"
    )
    assert submitted(site, locked("local", detach="false"), "slurm", job, partition="gpu")


@pytest.mark.parametrize("name", ["docker", "local_docker"])
def test_lock_applies_to_each_name_of_a_scheduler(site: Path, name: str) -> None:
    text = locked(name, privileged="false")
    for used in ("docker", "local_docker"):
        with pytest.raises(UsageError, match="privileged=True: locked to False"):
            submitted(site, text, used, app(), privileged=True)


LOCKED_FLAGS = """
locked = ["hang-timeout", "event-log-handler", "keep_alive_interval", "bad-nodes"]
[run]
hang-timeout = "auto"
[run.rdzv-conf]
keep_alive_interval = 1
"""


def with_variables(**variables: str) -> AppDef:
    return AppDef("job", [Role("main", "img", entrypoint="true", env=variables)])


@pytest.mark.parametrize("scheduler", ["local", "docker", "slurm"])
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("RELIGHT_HANG_TIMEOUT", "99999", "RELIGHT_HANG_TIMEOUT=99999: locked to auto by {}"),
        ("RELIGHT_BAD_NODES", "/none", "RELIGHT_BAD_NODES=/none: locked to its default by {}"),
        ("PET_EVENT_LOG_HANDLER", "console",
         "PET_EVENT_LOG_HANDLER=console: locked to its default by {}"),
        ("PET_RDZV_CONF", "keep_alive_interval=9",
         "PET_RDZV_CONF: keep_alive_interval=9: locked to 1 by {}"),
    ],
)  # fmt: skip
def test_role_variable_does_not_bypass_locked_flag(
    site: Path, scheduler: str, name: str, value: str, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        submitted(site, LOCKED_FLAGS, scheduler, with_variables(**{name: value}))
    assert caught.value.message == message.format(site)


def test_role_variable_may_repeat_locked_value_or_set_other_flags(site: Path) -> None:
    same = {"RELIGHT_HANG_TIMEOUT": "auto", "PET_RDZV_CONF": "keep_alive_interval=1"}
    job = with_variables(**same, PET_NODE_RANK="${replica_id}")
    assert submitted(site, LOCKED_FLAGS, "slurm", job)


def test_docker_option_env_does_not_bypass_locked_flag(site: Path) -> None:
    with pytest.raises(UsageError, match="RELIGHT_HANG_TIMEOUT=9: locked to auto by"):
        submitted(site, LOCKED_FLAGS, "docker", app(), env={"RELIGHT_HANG_TIMEOUT": "9"})


def test_ineffective_locks_are_noted_at_submission(site: Path) -> None:
    site.write_text('locked = ["submit.scheduler", "components.dist.ddp.j", "hang-timeout"]')
    env = Environment({"RELIGHT_CONFIG_DIR": str(site.parent), "HOME": str(site.parent)})
    with Runner("s", env=env) as runner:
        notes = runner.dryrun(app(), scheduler="slurm").notes
    assert [each for each in notes if "locked" in each] == [
        f"{site}: locked: components.dist.ddp.j can't be locked, so this has no effect",
        f"{site}: locked: submit.scheduler can't be locked, so this has no effect",
    ]
