"""Validation by the API server before it stores an object: code 422, with each invalid field.

Sources: kubernetes/kubernetes, unless another repository is named.
"""

import base64
import re
from collections.abc import Iterator
from typing import Any

from clusters.kubernetes.state import KINDS, Object, Refused

ANNOTATIONS_MAX_B = 256 * 1024
"""kubernetes/apimachinery 0.36, pkg/api/validation/objectmeta.go: TotalAnnotationSizeLimitB"""
DATA_MAX_B = 1024 * 1024
"""pkg/apis/core/types.go: MaxSecretSize; also for ConfigMaps, in ValidateConfigMap"""
REQUEST_MAX_B = 3 * 1024 * 1024
"""kubernetes/apiserver, pkg/server/config.go: MaxRequestBodyBytes"""
STORED_MAX_B = 3 * 512 * 1024
"""etcd-io/etcd 3.5, server/embed/config.go: DefaultMaxRequestBytes"""

# kubernetes/apimachinery 0.36, pkg/util/validation/validation.go
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
SUBDOMAIN = re.compile(
    r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
)
NAME_PART = r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)"
LABEL_VALUE = re.compile(NAME_PART + "?")
QUALIFIED = re.compile(r"(?:([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)/)?" + NAME_PART)
SUBSCRIPT = re.compile(r"metadata\.(?:labels|annotations)\['(.*)'\]")
ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
DATA_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
PORT_NAME = re.compile(r"(?=.*[a-z])(?!.*--)[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?")
QUANTITY = re.compile(r"([0-9.]+)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?")
UNITS = {
    "m": 1e-3, None: 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
}  # fmt: skip


def quantity(text: object) -> float:
    """kubernetes/apimachinery 0.36, pkg/api/resource/quantity.go.

    Raises:
        ValueError: if it isn't a quantity.
    """
    match = QUANTITY.fullmatch(str(text))
    if match is None:
        raise ValueError(f"quantities must match the regular expression, not {text!r}")
    return round(float(match[1]) * UNITS[match[2]], 3)


def check(plural: str, body: Object) -> None:
    """Refuse an object that the server would refuse.

    Raises:
        Refused: With code 400 for a wrong type, or 422 for invalid values.
    """
    _check_types(body)
    found = list(_metadata(plural, body))
    found += list(_CHECKS.get(plural, lambda _: ())(body))
    invalid(plural, body, found)


def invalid(plural: str, body: Object, found: list[str]) -> None:
    """kubernetes/apimachinery 0.36, pkg/api/errors/errors.go: NewInvalid."""
    if not found:
        return
    version, kind = KINDS[plural]
    group = version.rpartition("/")[0]
    text = found[0] if len(found) == 1 else f"[{', '.join(found)}]"
    name = body["metadata"].get("name", "")
    raise Refused(
        422, "Invalid", f'{kind}{"." + group if group else ""} "{name}" is invalid: {text}'
    )


def _check_types(body: Object) -> None:
    """Decoding: a number is not a string (Go's JSON decoder, 400)."""
    meta = body.get("metadata") or {}
    for part in ("labels", "annotations"):
        for name, value in (meta.get(part) or {}).items():
            _string(value, f"ObjectMeta.metadata.{part}.{name}")
    for part in ("data", "stringData"):
        for name, value in (body.get(part) or {}).items():
            _string(value, f"{body.get('kind')}.{part}.{name}")
    for container in [c for pod in pods(body) for c in pod["spec"].get("containers") or ()]:
        for each in container.get("env") or ():
            if "value" in each:
                _string(each["value"], "EnvVar.spec.containers.env.value")
        for each in (*(container.get("command") or ()), *(container.get("args") or ())):
            _string(each, "Container.spec.containers.command")


def _string(value: object, where: str) -> None:
    if value is not None and not isinstance(value, str):
        kind = {bool: "bool", int: "number", float: "number"}.get(type(value), "object")
        said = f"json: cannot unmarshal {kind} into Go struct field {where} of type string"
        raise Refused(400, "BadRequest", said)


def pods(body: Object) -> list[Object]:
    """Return an object's pod templates."""
    spec = body.get("spec") or {}
    if body.get("kind") == "Pod":
        return [body]
    if "tasks" in spec:
        return [task["template"] for task in spec["tasks"] if "template" in task]
    if "replicatedJobs" in spec:
        return [each["template"]["spec"]["template"] for each in spec["replicatedJobs"]]
    return [spec["template"]] if "template" in spec else []


# Metadata.


def _metadata(plural: str, body: Object) -> Iterator[str]:
    """apimachinery, pkg/api/validation/objectmeta.go; names by kind: pkg/apis/*/validation."""
    meta = body["metadata"]
    name = meta.get("name")
    if not name:
        yield "metadata.name: Required value: name or generateName is required"
        return
    if plural == "services":
        # ValidateServiceName: also a DNS label that starts with a letter.
        if not LABEL_1035.fullmatch(name):
            yield (
                f'metadata.name: Invalid value: "{name}": a DNS-1035 label must consist of '
                "lower case alphanumeric characters or '-', start with an alphabetic character"
            )
    elif not SUBDOMAIN.fullmatch(name):
        yield (
            f'metadata.name: Invalid value: "{name}": a lowercase RFC 1123 subdomain must consist '
            "of lower case alphanumeric characters, '-' or '.'"
        )
    yield from _labels(meta, "metadata")


def _labels(meta: Object, path: str) -> Iterator[str]:
    for key, value in (meta.get("labels") or {}).items():
        if not QUALIFIED.fullmatch(key):
            yield f'{path}.labels: Invalid value: "{key}": name part must consist of alphanumerics'
        if not LABEL_VALUE.fullmatch(value):
            why = (
                "must be no more than 63 characters" if len(value) > 63 else "a valid label must be"
            )
            yield f'{path}.labels: Invalid value: "{value}": {why}'
    annotations = meta.get("annotations") or {}
    for key in annotations:
        if not QUALIFIED.fullmatch(key.lower()):
            yield (
                f'{path}.annotations: Invalid value: "{key}": name part must consist of '
                "alphanumerics"
            )
    if sum(len(k.encode()) + len(v.encode()) for k, v in annotations.items()) > ANNOTATIONS_MAX_B:
        yield f"{path}.annotations: Too long: may not be more than {ANNOTATIONS_MAX_B} bytes"


# Pods.

_SOURCES = {
    "emptyDir", "hostPath", "configMap", "secret", "persistentVolumeClaim", "downwardAPI",
    "projected", "nfs", "csi", "ephemeral", "image",
}  # fmt: skip


def _template(template: Object, path: str) -> Iterator[str]:
    yield from _labels(template.get("metadata") or {}, f"{path}.metadata")
    yield from _pod_spec(template["spec"], f"{path}.spec")


def _pod_spec(spec: Object, path: str) -> Iterator[str]:
    """pkg/apis/core/validation/validation.go: ValidatePodSpec."""
    names = [each.get("name", "") for each in spec.get("volumes") or ()]
    for number, volume in enumerate(spec.get("volumes") or ()):
        where = f"{path}.volumes[{number}]"
        if not LABEL.fullmatch(volume.get("name", "")):
            yield (
                f'{where}.name: Invalid value: "{volume.get("name", "")}": a lowercase '
                "RFC 1123 label"
            )
        if names.index(volume["name"]) != number:
            yield f'{where}.name: Duplicate value: "{volume["name"]}"'
        if len(_SOURCES & volume.keys()) != 1:
            yield f"{where}: Required value: must specify exactly one volume type"
    for number, each in enumerate(spec.get("tolerations") or ()):
        yield from _toleration(each, f"{path}.tolerations[{number}]")
    for name in ("hostname", "subdomain"):
        if spec.get(name) and not LABEL.fullmatch(spec[name]):
            yield f'{path}.{name}: Invalid value: "{spec[name]}": a lowercase RFC 1123 label must'
    for name, least in (("terminationGracePeriodSeconds", 0), ("activeDeadlineSeconds", 1)):
        if name in spec and spec[name] < least:
            yield (
                f"{path}.{name}: Invalid value: {spec[name]}: must be greater than or "
                f"equal to {least}"
            )
    for key, value in (spec.get("nodeSelector") or {}).items():
        if not QUALIFIED.fullmatch(key) or not LABEL_VALUE.fullmatch(value):
            yield f'{path}.nodeSelector: Invalid value: "{key}={value}": a valid label must'
    account = spec.get("serviceAccountName")
    if account and not SUBDOMAIN.fullmatch(account):
        yield (
            f'{path}.serviceAccountName: Invalid value: "{account}": a lowercase RFC 1123 subdomain'
        )
    if not spec.get("containers"):
        yield f"{path}.containers: Required value"
    seen: set[str] = set()
    for part in ("initContainers", "containers"):
        for number, each in enumerate(spec.get(part) or ()):
            where = f"{path}.{part}[{number}]"
            name = each.get("name", "")
            if not LABEL.fullmatch(name):
                yield f'{where}.name: Invalid value: "{name}": a lowercase RFC 1123 label must'
            if name in seen:
                yield f'{where}.name: Duplicate value: "{name}"'
            seen.add(name)
            yield from _container(each, where, names)


def _toleration(each: Object, where: str) -> Iterator[str]:
    """ValidateTolerations."""
    operator = each.get("operator") or "Equal"
    if not each.get("key") and operator != "Exists":
        yield (
            f'{where}.operator: Invalid value: "{operator}": operator must be Exists '
            "when `key` is empty"
        )
    if operator == "Exists" and each.get("value"):
        yield f"{where}.operator: Invalid value: value must be empty when `operator` is 'Exists'"
    if operator not in ("Exists", "Equal"):
        yield (
            f'{where}.operator: Unsupported value: "{operator}": supported values: '
            '"Equal", "Exists"'
        )
    if "tolerationSeconds" in each and each.get("effect") != "NoExecute":
        yield (
            f"{where}.effect: Invalid value: effect must be 'NoExecute' when "
            "`tolerationSeconds` is set"
        )
    if each.get("effect") not in (None, "", "NoSchedule", "PreferNoSchedule", "NoExecute"):
        yield f'{where}.effect: Unsupported value: "{each["effect"]}"'


def _container(each: Object, where: str, volumes: list[str]) -> Iterator[str]:
    """ValidateContainer."""
    if not each.get("image"):
        yield f"{where}.image: Required value"
    for number, variable in enumerate(each.get("env") or ()):
        if not ENV_NAME.fullmatch(variable.get("name", "")):
            yield f'{where}.env[{number}].name: Invalid value: "{variable.get("name", "")}"'
        source = variable.get("valueFrom") or {}
        field = (source.get("fieldRef") or {}).get("fieldPath", "")
        if (match := SUBSCRIPT.fullmatch(field)) and not QUALIFIED.fullmatch(match[1]):
            yield f'{where}.env[{number}].valueFrom.fieldRef.fieldPath: Invalid value: "{field}"'
        if variable.get("value") and "valueFrom" in variable:
            yield (
                f"{where}.env[{number}].valueFrom: Invalid value: may not be specified "
                "when `value` is"
            )
    paths: set[str] = set()
    for number, mount in enumerate(each.get("volumeMounts") or ()):
        at = f"{where}.volumeMounts[{number}]"
        if mount.get("name") not in volumes:
            yield f'{at}.name: Not found: "{mount.get("name")}"'
        if not mount.get("mountPath"):
            yield f"{at}.mountPath: Required value"
        elif mount["mountPath"] in paths:
            yield f'{at}.mountPath: Invalid value: "{mount["mountPath"]}": must be unique'
        paths.add(mount.get("mountPath", ""))
    for number, port in enumerate(each.get("ports") or ()):
        at = f"{where}.ports[{number}]"
        if port.get("name") and not PORT_NAME.fullmatch(port["name"]):
            yield f'{at}.name: Invalid value: "{port["name"]}": must be no more than 15 characters'
        if not 0 < port.get("containerPort", 0) < 1 << 16:
            yield f"{at}.containerPort: Invalid value: must be between 1 and 65535, inclusive"
    yield from _resources(each.get("resources") or {}, f"{where}.resources")
    yield from _security(each.get("securityContext") or {}, f"{where}.securityContext")


def _resources(resources: Object, where: str) -> Iterator[str]:
    """ValidateResourceRequirements."""
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    try:
        limit = {name: quantity(its) for name, its in limits.items()}
        request = {name: quantity(its) for name, its in requests.items()}
    except ValueError as error:
        yield f"{where}: Invalid value: {error}"
        return
    for name, its in (*limit.items(), *request.items()):
        is_extended = "/" in name or name.startswith("hugepages-")
        if is_extended and its != int(its):
            yield f"{where}.limits[{name}]: Invalid value: {its}: must be an integer"
        if is_extended and limit.get(name) is None:
            yield (
                f"{where}.limits: Required value: Limit must be set for non "
                "overcommitable resources"
            )
        elif is_extended and limit[name] != request.get(name, limit[name]):
            yield f"{where}.requests: Invalid value: must be equal to {name} limit"
    for name, its in request.items():
        if its > limit.get(name, its):
            yield f"{where}.requests: Invalid value: must be less than or equal to {name} limit"


def _security(context: Object, where: str) -> Iterator[str]:
    """ValidateSecurityContext."""
    if context.get("runAsUser", 0) < 0:
        yield f"{where}.runAsUser: Invalid value: must be between 0 and 2147483647, inclusive"
    if context.get("allowPrivilegeEscalation") is False:
        if context.get("privileged"):
            yield (
                f"{where}: Invalid value: cannot set `allowPrivilegeEscalation` to false and "
                "`privileged` to true"
            )
        if "SYS_ADMIN" in ((context.get("capabilities") or {}).get("add") or ()):
            yield (
                f"{where}: Invalid value: cannot set `allowPrivilegeEscalation` to false and "
                "`capabilities.Add` CAP_SYS_ADMIN"
            )


def _pod(pod: Object) -> Iterator[str]:
    yield from _pod_spec(pod["spec"], "spec")


# Services, ConfigMaps, Secrets.


def _service(service: Object) -> Iterator[str]:
    """ValidateService."""
    spec = service.get("spec") or {}
    if not spec.get("ports") and spec.get("clusterIP") != "None":
        yield "spec.ports: Required value"


def _config_map(each: Object) -> Iterator[str]:
    """ValidateConfigMap: only the values count towards the size."""
    data, binary = each.get("data") or {}, each.get("binaryData") or {}
    for key in (*data, *binary):
        if not DATA_KEY.fullmatch(key):
            yield f'data[{key}]: Invalid value: "{key}": a valid config key must consist of'
    if duplicates := data.keys() & binary.keys():
        yield f"data: Invalid value: {sorted(duplicates)}: duplicate of key present in binaryData"
    size = sum(len(x.encode()) for x in data.values())
    if size + sum(len(base64.b64decode(x)) for x in binary.values()) > DATA_MAX_B:
        yield f"[]: Too long: may not be more than {DATA_MAX_B} bytes"


def _secret(each: Object) -> Iterator[str]:
    """ValidateSecret."""
    for key in each.get("data") or {}:
        if not DATA_KEY.fullmatch(key):
            yield f'data[{key}]: Invalid value: "{key}": a valid config key must consist of'
    if sum(len(base64.b64decode(x)) for x in (each.get("data") or {}).values()) > DATA_MAX_B:
        yield f"data: Too long: may not be more than {DATA_MAX_B} bytes"


# Jobs.


def _job(job: Object) -> Iterator[str]:
    """pkg/apis/batch/validation/validation.go: ValidateJob."""
    spec, name = job["spec"], job["metadata"]["name"]
    completions = spec.get("completions")
    if spec.get("completionMode") == "Indexed" and completions:
        host = f"{name}-{completions - 1}"
        if not LABEL.fullmatch(host):
            yield (
                f'metadata.name: Invalid value: "{name}": will not able to create pod with invalid '
                f"DNS label: {host}"
            )
    yield from job_spec(spec, "spec")


def job_spec(spec: Object, path: str) -> Iterator[str]:
    """ValidateJobSpec."""
    is_indexed = spec.get("completionMode") == "Indexed"
    completions = spec.get("completions")
    for name in (
        "parallelism", "completions", "activeDeadlineSeconds", "backoffLimit",
        "ttlSecondsAfterFinished", "backoffLimitPerIndex", "maxFailedIndexes",
    ):  # fmt: skip
        if (spec.get(name) or 0) < 0:
            yield f"{path}.{name}: Invalid value: {spec[name]}: must be greater than or equal to 0"
    per_index, most = spec.get("backoffLimitPerIndex"), spec.get("maxFailedIndexes")
    if most is not None and per_index is None:
        yield f"{path}.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified"
    if is_indexed and completions is None:
        yield f"{path}.completions: Required value: when completion mode is Indexed"
    if is_indexed and most is not None and most > (completions or 0):
        yield (
            f"{path}.maxFailedIndexes: Invalid value: {most}: must be less than or "
            "equal to completions"
        )
    if is_indexed and (spec.get("parallelism") or 0) > 100_000:
        yield f"{path}.parallelism: Invalid value: must be less than or equal to 100000"
    if not is_indexed:
        for name in ("backoffLimitPerIndex", "maxFailedIndexes", "successPolicy"):
            if spec.get(name) is not None:
                yield f"{path}.{name}: Invalid value: requires indexed completion mode"
    yield from _failure_policy(spec, path)
    for number, rule in enumerate((spec.get("successPolicy") or {}).get("rules") or ()):
        where = f"{path}.successPolicy.rules[{number}]"
        count = rule.get("succeededCount")
        if count is None and "succeededIndexes" not in rule:
            yield f"{where}: Required value: at least one of succeededCount or succeededIndexes"
        if count is not None and count > (completions or 0):
            yield f"{where}.succeededCount: Invalid value: {count}: must be less than or equal to"
    policy = spec.get("podReplacementPolicy")
    allowed = ("Failed",) if spec.get("podFailurePolicy") else ("Failed", "TerminatingOrFailed")
    if policy is not None and policy not in allowed:
        yield (
            f'{path}.podReplacementPolicy: Unsupported value: "{policy}": supported '
            'values: "Failed"'
        )
    yield from _template(spec["template"], f"{path}.template")
    restart, where = (
        spec["template"]["spec"].get("restartPolicy"),
        f"{path}.template.spec.restartPolicy",
    )
    if restart in (None, "Always"):
        yield f'{where}: Required value: valid values: "OnFailure", "Never"'
    elif spec.get("podFailurePolicy") and restart != "Never":
        yield (
            f'{where}: Invalid value: "{restart}": only "Never" is supported when '
            "podFailurePolicy is"
        )


def _failure_policy(spec: Object, path: str) -> Iterator[str]:
    """ValidatePodFailurePolicy."""
    rules = (spec.get("podFailurePolicy") or {}).get("rules") or ()
    where = f"{path}.podFailurePolicy.rules"
    if len(rules) > 20:
        yield f"{where}: Too many: {len(rules)}: must have at most 20 items"
    template = spec["template"]["spec"]
    names = {
        x["name"] for part in ("initContainers", "containers") for x in template.get(part) or ()
    }
    for number, rule in enumerate(rules):
        at = f"{where}[{number}]"
        codes, conditions = rule.get("onExitCodes"), rule.get("onPodConditions")
        if rule.get("action") not in ("Count", "FailIndex", "FailJob", "Ignore"):
            yield f'{at}.action: Unsupported value: "{rule.get("action")}"'
        if rule.get("action") == "FailIndex" and spec.get("backoffLimitPerIndex") is None:
            yield (
                f'{at}.action: Invalid value: "FailIndex": requires the '
                "backoffLimitPerIndex to be set"
            )
        if bool(codes) == bool(conditions):
            yield (
                f"{at}: Invalid value: specifying one of OnExitCodes and OnPodConditions "
                "is required"
            )
        for count, condition in enumerate(conditions or ()):
            if condition.get("status", "True") not in ("True", "False", "Unknown"):
                yield f"{at}.onPodConditions[{count}].status: Unsupported value"
        if codes:
            yield from _exit_codes(codes, f"{at}.onExitCodes", names)


def _exit_codes(codes: Object, where: str, names: set[str]) -> Iterator[str]:
    """ValidatePodFailurePolicyRuleOnExitCodes."""
    values: list[int] = codes.get("values") or []
    if codes.get("operator") not in ("In", "NotIn"):
        yield f'{where}.operator: Unsupported value: "{codes.get("operator")}"'
    if codes.get("containerName") is not None and codes["containerName"] not in names:
        yield (
            f"{where}.containerName: Invalid value: must be one of the container or "
            "initContainer names"
        )
    if not values:
        yield f"{where}.values: Invalid value: at least one value is required"
    if len(values) > 255:
        yield f"{where}.values: Too many: {len(values)}: must have at most 255 items"
    if codes.get("operator") == "In" and 0 in values:
        yield (
            f"{where}.values[{values.index(0)}]: Invalid value: 0: must not be 0 for "
            "the In operator"
        )
    if len(set(values)) != len(values):
        yield f"{where}.values: Duplicate value"
    if values != sorted(values):
        yield f"{where}.values: Invalid value: must be ordered"


# JobSet and Volcano.


def _jobset(jobset: Object) -> Iterator[str]:
    """kubernetes-sigs/jobset 0.12, pkg/webhooks/jobset_webhook.go: ValidateCreate."""
    spec, name = jobset["spec"], jobset["metadata"]["name"]
    jobs = spec.get("replicatedJobs") or []
    names = [each["name"] for each in jobs]
    for number, each in enumerate(jobs):
        where = f"spec.replicatedJobs[{number}]"
        job, replicas = each["template"]["spec"], each.get("replicas", 1)
        longest = f"{name}-{each['name']}-{replicas - 1}"
        if not LABEL_1035.fullmatch(longest):
            yield f'{where}.name: Invalid value: "{longest}": jobset names must be DNS-1035 labels'
        if job.get("completionMode", "Indexed") == "Indexed" and job.get("completions"):
            pod = f"{longest}-{job['completions'] - 1}-abcde"
            if not LABEL_1035.fullmatch(pod):
                yield f'{where}.name: Invalid value: "{pod}": pod names generated must be DNS-1035'
    policy = spec.get("successPolicy") or {}
    for target in policy.get("targetReplicatedJobs") or ():
        if target not in names:
            yield f"invalid replicatedJob name '{target}' does not appear in .spec.ReplicatedJobs"
    subdomain = (spec.get("network") or {}).get("subdomain")
    if subdomain and not LABEL_1035.fullmatch(subdomain):
        yield f'spec.network.subdomain: Invalid value: "{subdomain}"'


_VOLCANO_EVENTS = {
    "*", "PodFailed", "PodEvicted", "PodPending", "Unknown", "TaskCompleted", "TaskFailed",
}  # fmt: skip
_VOLCANO_ACTIONS = {
    "AbortJob", "RestartJob", "RestartTask", "RestartPod", "RestartPartition", "TerminateJob",
    "CompleteJob", "ResumeJob",
}  # fmt: skip
_VOLCANO_PLUGINS = {"env", "svc", "ssh", "tensorflow", "mpi", "pytorch", "hcclrank", "ray"}


def _volcano(job: Object) -> Iterator[str]:
    """volcano-sh/volcano 1.15, pkg/webhooks/admission/jobs/validate/admit_job.go."""
    spec, name = job["spec"], job["metadata"]["name"]
    tasks = spec.get("tasks") or []
    if not tasks:
        yield "No task specified in job spec"
    names: list[str] = []
    for index, task in enumerate(tasks):
        if task["minAvailable"] > task["replicas"]:
            yield f"'minAvailable' is greater than 'replicas' in task: {task['name']}, job: {name}"
        if task["name"] in names:
            yield f"duplicated task name {task['name']}"
        names.append(task["name"])
        yield from volcano_policies(task.get("policies") or ())
        if not re.fullmatch(NAME_PART, f"{name}-{task['name']}-{index}"):
            yield f"create pod with name {name}-{task['name']}-{index} validate failed"
        yield from _template(task["template"], f"spec.task[{index}].template")
    if sum(task["replicas"] for task in tasks) < spec["minAvailable"]:
        yield "job 'minAvailable' should not be greater than total replicas in tasks"
    yield from volcano_policies(spec.get("policies") or ())
    for plugin in spec.get("plugins") or {}:
        if plugin not in _VOLCANO_PLUGINS:
            yield f"unable to find job plugin: {plugin}"


def volcano_policies(policies: Any) -> Iterator[str]:
    """pkg/webhooks/admission/jobs/validate/util.go: validatePolicies."""
    seen: set[str] = set()
    for policy in policies:
        events = [
            *(policy.get("events") or ()),
            *([policy["event"]] if policy.get("event") else ()),
        ]
        if bool(events) == ("exitCode" in policy):
            yield "either event and exitCode should be specified"
        if policy.get("action") not in _VOLCANO_ACTIONS:
            yield f'spec.policies: Invalid value: "{policy.get("action")}": invalid policy action'
        if policy.get("exitCode") == 0:
            yield "0 is not a valid error code"
        for event in events:
            if event not in _VOLCANO_EVENTS:
                yield f'spec.policies: Invalid value: "{event}": invalid policy event'
            if event in seen:
                yield f"duplicate event {event} across different policy"
            seen.add(event)
    if "*" in seen and len(seen) > 1:
        yield "if there's * here, no other policy should be here"


_CHECKS = {
    "pods": _pod,
    "services": _service,
    "configmaps": _config_map,
    "secrets": _secret,
    "jobs": _job,
    "jobsets": _jobset,
    "jobs.volcano": _volcano,
}


# Updates.


def check_update(plural: str, old: Object, new: Object) -> None:
    """Refuse changes to immutable fields.

    Raises:
        Refused: With code 422.
    """
    _check_types(new)
    found = [
        f"metadata.{name}: Invalid value: field is immutable"
        for name in ("name", "namespace", "uid", "creationTimestamp")
        if old["metadata"].get(name) != new["metadata"].get(name)
    ]
    found += list(_labels(new["metadata"], "metadata"))
    was, now = old.get("spec") or {}, new.get("spec") or {}
    if plural == "jobs":
        found += list(_job(new)) + list(_job_update(old, was, now))
    elif plural == "jobsets":
        # ValidateUpdate and the CRD's own rules: only these fields may change.
        fixed = {**was, "suspend": 0, "ttlSecondsAfterFinished": 0}
        if fixed != {**now, "suspend": 0, "ttlSecondsAfterFinished": 0}:
            found.append("spec: Invalid value: field is immutable")
    elif plural == "jobs.volcano":
        # validateJobUpdate: the other fields may not change.
        def rest(spec: Object) -> Object:
            tasks = [{**task, "replicas": 0, "minAvailable": 0} for task in spec["tasks"]]
            return {**spec, "minAvailable": 0, "priorityClassName": 0, "tasks": tasks}

        if rest(was) != rest(now):
            found.append("job updates may not change fields other than `minAvailable`")
    elif plural == "services" and was.get("clusterIP") != now.get("clusterIP"):
        found.append("spec.clusterIP: Invalid value: field is immutable")
    elif plural in ("configmaps", "secrets"):
        found += list(_CHECKS[plural](new)) + list(_immutable(old, new))
    elif plural == "pods" and {**was, "tolerations": 0} != {**now, "tolerations": 0}:
        found.append(
            "spec: Forbidden: pod updates may not change fields other than `spec.tolerations`"
        )
    invalid(plural, old, found)


def _immutable(old: Object, new: Object) -> Iterator[str]:
    """ValidateConfigMapUpdate, ValidateSecretUpdate."""
    if old.get("immutable"):
        for name in ("immutable", "data", "binaryData"):
            if old.get(name) != new.get(name):
                yield f"{name}: Forbidden: field is immutable when `immutable` is set"


def _job_update(old: Object, was: Object, now: Object) -> Iterator[str]:
    """ValidateJobSpecUpdate; for templates of suspended Jobs that never started: strategy.go,
    AllowMutableSchedulingDirectives.
    """
    for name in (
        "selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy",
        "successPolicy",
    ):  # fmt: skip
        if was.get(name) != now.get(name):
            yield f"spec.{name}: Invalid value: field is immutable"
    if (
        was.get("completions") != now.get("completions")
        and now["completions"] != now["parallelism"]
    ):
        yield (
            "spec.completions: Invalid value: can only be modified in tandem with spec.parallelism"
        )
    loose = ("nodeSelector", "tolerations", "schedulingGates", "affinity")
    is_loose = was.get("suspend") and "startTime" not in old.get("status", {})

    def fixed(template: Object) -> Object:
        if not is_loose:
            return template
        return {"spec": {k: v for k, v in template["spec"].items() if k not in loose}}

    if fixed(was["template"]) != fixed(now["template"]):
        yield "spec.template: Invalid value: field is immutable"
