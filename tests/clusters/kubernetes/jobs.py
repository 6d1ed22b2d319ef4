"""The Job controller.

Sources: kubernetes/kubernetes, pkg/controller/job: job_controller.go (commit 6ae037f1),
indexed_job_utils.go (78fc8e44), pod_failure_policy.go (95f08499), success_policy.go (cb6ff2d8);
pkg/controller/ttlafterfinished (490ffa43). Failed pods are replaced immediately here; the real
controller waits for 10 s after the first failure, and doubles the delay up to 10 min.
"""

from clusters.kubernetes.state import (
    INDEX,
    TRACKED,
    Object,
    Refused,
    State,
    copy,
    has_condition,
    is_over,
    is_terminating,
)

FAILURES = "batch.kubernetes.io/job-index-failure-count"
IGNORED = "batch.kubernetes.io/job-index-ignored-failure-count"
Ending = tuple[str, str, str]
"""The condition, its reason, and its message."""


def sync(state: State, job: Object) -> None:
    """syncJob: count ended pods, then end the Job or create its missing pods."""
    if has_condition(job, "Complete", "Failed"):
        for pod in state.owned(job, "pods"):
            state.release(pod)
        expire(state, job)
        return
    spec, status = job["spec"], job["status"]
    pods = state.owned(job, "pods")
    suspended = bool(spec.get("suspend"))
    if "startTime" not in status and not suspended:
        status["startTime"] = state.now()
    failed = [pod for pod in _tracked(pods) if is_failed(job, pod)]
    counted = status.get("failed", 0) + sum(_action(spec, pod) != "Ignore" for pod in failed)
    done = set(parse(status.get("completedIndexes", "")))
    done |= {index(x) for x in _tracked(pods) if x["status"]["phase"] == "Succeeded"}
    lost = set(parse(status.get("failedIndexes") or ""))
    lost |= {index(pod) for pod in failed if is_index_failed(spec, pod)}
    if not _is_indexed(spec):
        done = set(range(status.get("succeeded", 0) + _succeeded(pods)))
    ending = _ending(state, job, pods, counted, done, lost)
    if ending is not None:
        for pod in _active(pods):
            state.delete_pod(pod)  # deleteActivePods: removed once they have ended
        kind, reason, message = ending
        state.condition(job, kind, "True", reason, message)
    else:
        _manage(state, job, done, lost)
        pods = state.owned(job, "pods")
        is_complete = spec.get("completions") is not None and len(done) >= spec["completions"]
        is_complete |= spec.get("completions") is None and bool(done)
        if is_complete and not _active(pods):
            said = "Reached expected number of succeeded pods"
            ending = "SuccessCriteriaMet", "CompletionsReached", said
            state.condition(job, ending[0], "True", *ending[1:])
        elif suspended:
            state.condition(job, "Suspended", "True", "JobSuspended", "Job suspended")
        elif has_condition(job, "Suspended"):
            state.condition(job, "Suspended", "False", "JobResumed", "Job resumed")
            status["startTime"] = state.now()
    _count(state, job, done, lost, ending)
    _finish(state, job)


def _tracked(pods: list[Object]) -> list[Object]:
    return [pod for pod in pods if TRACKED in pod["metadata"].get("finalizers", ())]


def _active(pods: list[Object]) -> list[Object]:
    return [x for x in pods if not is_over(x) and "deletionTimestamp" not in x["metadata"]]


def _succeeded(pods: list[Object]) -> int:
    return sum(pod["status"]["phase"] == "Succeeded" for pod in _tracked(pods))


def _is_indexed(spec: Object) -> bool:
    return spec.get("completionMode") == "Indexed"


def index(pod: Object) -> int:
    return int((pod["metadata"].get("annotations") or {}).get(INDEX, 0))


def _annotation(pod: Object, name: str) -> int:
    return int((pod["metadata"].get("annotations") or {}).get(name, 0))


def only_replaces_failed(spec: Object) -> bool:
    """onlyReplaceFailedPods: a pod that is still terminating is not replaced."""
    return spec.get("podReplacementPolicy") == "Failed" or bool(spec.get("podFailurePolicy"))


def is_failed(job: Object, pod: Object) -> bool:
    """isPodFailed: without that policy, a deleted pod counts as failed before it has ended."""
    if pod["status"]["phase"] == "Failed":
        return True
    return is_terminating(pod) and not only_replaces_failed(job["spec"])


def _action(spec: Object, pod: Object) -> str:
    """matchPodFailurePolicy: the first rule that matches, by exit code or by condition."""
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or ():
        if "onExitCodes" in rule:
            if _matches_code(rule["onExitCodes"], pod):
                return str(rule["action"])
        elif any(
            (x["type"], x["status"]) == (wanted["type"], wanted.get("status", "True"))
            for x in pod["status"].get("conditions") or ()
            for wanted in rule.get("onPodConditions") or ()
        ):
            return str(rule["action"])
    return "Count"


def _matches_code(wanted: Object, pod: Object) -> bool:
    """getMatchingContainerFromList: containers that exited with 0 never match."""
    for each in pod["status"].get("containerStatuses") or ():
        code = (each["state"].get("terminated") or {}).get("exitCode", 0)
        is_meant = wanted.get("containerName", each["name"]) == each["name"]
        if code and is_meant and (code in wanted["values"]) == (wanted["operator"] == "In"):
            return True
    return False


def is_index_failed(spec: Object, pod: Object) -> bool:
    """isIndexFailed: an index fails after more failures than backoffLimitPerIndex."""
    if spec.get("backoffLimitPerIndex") is None:
        return False
    action = _action(spec, pod)
    if action == "FailIndex":
        return True
    return action != "Ignore" and _annotation(pod, FAILURES) >= spec["backoffLimitPerIndex"]


def _ending(
    state: State, job: Object, pods: list[Object], failed: int, done: set[int], lost: set[int]
) -> Ending | None:
    """Return how the Job ends, or None if it does not end yet."""
    spec, conditions = job["spec"], job["status"].get("conditions") or ()
    for each in conditions:
        if each["type"] in ("SuccessCriteriaMet", "FailureTarget"):
            return each["type"], each["reason"], each["message"]
    for pod in pods:
        if is_failed(job, pod) and _action(spec, pod) == "FailJob":
            return "FailureTarget", "PodFailurePolicy", _why(spec, pod)
    if failed > spec["backoffLimit"]:
        said = "Job has reached the specified backoff limit"
        return "FailureTarget", "BackoffLimitExceeded", said
    limit = spec.get("activeDeadlineSeconds")
    if limit is not None and "startTime" in job["status"] and not spec.get("suspend"):
        left_s = limit - state.age(job["status"]["startTime"])
        if left_s <= 0:
            said = "Job was active longer than specified deadline"
            return "FailureTarget", "DeadlineExceeded", said
        if left_s <= 1:  # updateJob: AddAfter; a test skips longer limits itself
            state.enqueue_after(job, left_s)
    if lost:
        most = spec.get("maxFailedIndexes")
        if most is not None and len(lost) > most:
            said = "Job has exceeded the specified maximal number of failed indexes"
            return "FailureTarget", "MaxFailedIndexesExceeded", said
        # The other indexes run to their end first.
        if len(lost) + len(done) >= spec["completions"]:
            return "FailureTarget", "FailedIndexes", "Job has failed indexes"
    for count, rule in enumerate((spec.get("successPolicy") or {}).get("rules") or ()):
        wanted = set(parse(rule.get("succeededIndexes", f"0-{spec['completions'] - 1}")))
        needed = rule.get("succeededCount", len(wanted))
        if done and len(done & wanted) >= needed:
            return "SuccessCriteriaMet", "SuccessPolicy", f"Matched rules at index {count}"
    return None


def _why(spec: Object, pod: Object) -> str:
    name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    for count, rule in enumerate(spec["podFailurePolicy"]["rules"]):
        if "onExitCodes" in rule and _matches_code(rule["onExitCodes"], pod):
            for each in pod["status"]["containerStatuses"]:
                code = (each["state"].get("terminated") or {}).get("exitCode", 0)
                if code:
                    return (
                        f"Container {each['name']} for pod {name} failed with exit code {code} "
                        f"matching FailJob rule at index {count}"
                    )
    return f"Pod {name} has condition DisruptionTarget matching FailJob rule"


def _manage(state: State, job: Object, done: set[int], lost: set[int]) -> None:
    """manageJob: delete the pods of a suspended Job, or create missing pods."""
    spec = job["spec"]
    pods = state.owned(job, "pods")
    active = _active(pods)
    if spec.get("suspend"):
        for pod in active:
            state.release(pod)  # deleteJobPods: not counted as failures
            state.delete_pod(pod)
        return
    wanted = spec["parallelism"]
    if spec.get("completions") is not None:
        wanted = max(0, min(spec["completions"] - len(done), wanted))
    elif done:
        wanted = len(active)
    terminating = sum(map(is_terminating, pods)) if only_replaces_failed(spec) else 0
    lacking = wanted - terminating - len(active)
    if not _is_indexed(spec):
        _make(state, job, [None] * max(0, lacking))
        return
    taken = done | lost | {index(pod) for pod in active}
    if only_replaces_failed(spec):
        taken |= {index(pod) for pod in pods if is_terminating(pod)}
    _make(state, job, [x for x in range(spec["completions"]) if x not in taken][: max(0, lacking)])


def _make(state: State, job: Object, indexes: list[int | None]) -> None:
    """Create pods in batches of 1, 2, 4, …; stop after a batch with an error."""
    batch = 1
    while indexes:
        refused = False
        for number in indexes[:batch]:
            try:
                state.own(job, _pod(state, job, number))
            except Refused as error:
                refused = True
                state.warn(job, "FailedCreate", f"Error creating: {error.message}")
        if refused:
            return
        indexes, batch = indexes[batch:], 2 * batch


def _pod(state: State, job: Object, number: int | None) -> Object:
    """Return a pod with the host name JOB-INDEX and only the template's subdomain."""
    template = copy(job["spec"]["template"])
    name = job["metadata"]["name"]
    meta = template.setdefault("metadata", {})
    meta["finalizers"] = [*meta.get("finalizers", ()), TRACKED]
    meta["generateName"] = f"{name}-"
    if number is not None:
        meta["generateName"] = f"{name[: 58 - len(f'-{number}-')]}-{number}-"
        meta["labels"] = {**(meta.get("labels") or {}), INDEX: str(number)}
        meta["annotations"] = {**(meta.get("annotations") or {}), INDEX: str(number)}
        if job["spec"].get("backoffLimitPerIndex") is not None:
            meta["annotations"] |= _failure_counts(state, job, number)
        template["spec"]["hostname"] = f"{name}-{number}"
        source = {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}
        for each in (*template["spec"].get("initContainers", ()), *template["spec"]["containers"]):
            env = each.setdefault("env", [])
            if all(x["name"] != "JOB_COMPLETION_INDEX" for x in env):
                env.append({"name": "JOB_COMPLETION_INDEX", "valueFrom": source})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"]}


def _failure_counts(state: State, job: Object, number: int) -> dict[str, str]:
    """getNewIndexFailureCounts: the replaced pod's counts, plus its own failure."""
    failed = [
        pod
        for pod in _tracked(state.owned(job, "pods"))
        if index(pod) == number and is_failed(job, pod)
    ]
    if not failed:
        return {FAILURES: "0"}
    last = max(failed, key=lambda pod: _annotation(pod, FAILURES) + _annotation(pod, IGNORED))
    is_ignored = _action(job["spec"], last) == "Ignore"
    found = {FAILURES: str(_annotation(last, FAILURES) + (not is_ignored))}
    ignored = _annotation(last, IGNORED) + is_ignored
    return found | ({IGNORED: str(ignored)} if ignored else {})


def _count(
    state: State, job: Object, done: set[int], lost: set[int], ending: Ending | None
) -> None:
    """trackJobStatusAndRemoveFinalizers: count pods, and let deleted ones disappear."""
    spec, status = job["spec"], job["status"]
    before = copy(status)
    pods = state.owned(job, "pods")
    succeeds = ending is not None and ending[0] == "SuccessCriteriaMet"
    active_indexes = {index(pod) for pod in _active(pods)}
    status["succeeded"] = len(done)
    for pod in _tracked(pods):
        failed = is_failed(job, pod) or (ending is not None and not succeeds)
        if pod["status"]["phase"] != "Succeeded":
            if not failed and ending is None:
                continue
            is_kept = spec.get("backoffLimitPerIndex") is not None and ending is None
            if is_kept and index(pod) not in done | lost | active_indexes:
                continue  # its counts are passed to the pod that will replace it
            if failed and _action(spec, pod) != "Ignore":
                status["failed"] = status.get("failed", 0) + 1
        state.release(pod)
    if _is_indexed(spec):
        status["completedIndexes"] = intervals(done)
        if spec.get("backoffLimitPerIndex") is not None:
            status["failedIndexes"] = intervals(lost)
    pods = state.owned(job, "pods")
    status["active"] = status["ready"] = len(_active(pods))
    status["terminating"] = sum(map(is_terminating, pods))
    if status != before:
        state.touch(job)


def _finish(state: State, job: Object) -> None:
    """enactJobFinished: only when no pods are terminating."""
    for each in job["status"].get("conditions") or ():
        kind = {"FailureTarget": "Failed", "SuccessCriteriaMet": "Complete"}.get(each["type"])
        if kind is not None and not job["status"]["terminating"] and not job["status"]["active"]:
            if kind == "Complete":
                job["status"]["completionTime"] = state.now()
            state.condition(job, kind, "True", each["reason"], each["message"])
            if kind == "Failed":
                state.warn(job, each["reason"], each["message"])
            expire(state, job)
            return


def expire(state: State, job: Object) -> None:
    """ttlSecondsAfterFinished: delete the Job and everything that it owns."""
    limit = job["spec"].get("ttlSecondsAfterFinished")
    for each in job["status"].get("conditions") or ():
        is_end = each["type"] in ("Complete", "Failed")
        if is_end and limit is not None and state.age(each["lastTransitionTime"]) >= limit:
            state.delete(job)


def intervals(numbers: set[int]) -> str:
    """Format indexes as in the Job's status: 0-2,4 (orderedIntervals.String)."""
    parts: list[list[int]] = []
    for each in sorted(numbers):
        if parts and parts[-1][-1] == each - 1:
            parts[-1].append(each)
        else:
            parts.append([each])
    return ",".join(
        f"{x[0]}" if len(x) == 1 else f"{x[0]}{',' if len(x) == 2 else '-'}{x[-1]}" for x in parts
    )


def parse(text: str) -> list[int]:
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
