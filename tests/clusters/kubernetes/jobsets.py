"""The controllers of JobSets and TrainJobs.

Sources: kubernetes-sigs/jobset 0.12 (commit 08dfbdfd), pkg/controllers: jobset_controller.go,
failure_policy.go, success_policy.go, ttl_after_finished.go. A TrainJob becomes a JobSet according
to kubeflow/trainer's runtime torch-distributed.
"""

from clusters.kubernetes.state import KINDS, Object, State, copy, has_condition

PREFIX = "jobset.sigs.k8s.io"


def sync(state: State, jobset: Object) -> None:
    """Reconcile a JobSet."""
    spec, status = jobset["spec"], jobset["status"]
    mine = state.owned(jobset, "jobs")
    attempt = str(status.get("restarts", 0))
    current = [x for x in mine if x["metadata"]["labels"][f"{PREFIX}/restart-attempt"] == attempt]
    active = [x for x in current if not has_condition(x, "Complete", "Failed")]
    if has_condition(jobset, "Completed", "Failed"):
        for job in active:
            state.delete(job)  # with its pods, so logs of running pods are lost
        _expire(state, jobset)
        return
    for job in mine:
        if job not in current:
            state.delete(job)
    failed = [x for x in current if has_condition(x, "Failed")]
    if failed:
        _fail(state, jobset, failed[0])
        return
    done = [x for x in current if has_condition(x, "Complete")]
    policy = spec["successPolicy"]
    targets = policy.get("targetReplicatedJobs") or [x["name"] for x in spec["replicatedJobs"]]
    needed = sum(x["replicas"] for x in spec["replicatedJobs"] if x["name"] in targets)
    matching = [
        x for x in done if x["metadata"]["labels"][f"{PREFIX}/replicatedjob-name"] in targets
    ]
    if matching and len(matching) >= (1 if policy["operator"] == "Any" else needed):
        state.condition(
            jobset, "Completed", "True", "AllJobsCompleted", "jobset completed successfully"
        )
        state.enqueue(jobset)
        return
    _make_service(state, jobset)
    suspended = bool(spec.get("suspend"))
    names = {job["metadata"]["name"] for job in mine}
    for each in spec["replicatedJobs"]:
        for number in range(each["replicas"]):
            if f"{jobset['metadata']['name']}-{each['name']}-{number}" not in names:
                state.own(jobset, _job(jobset, each, number))
    for job in active:
        if bool(job["spec"].get("suspend")) != suspended:
            job["spec"]["suspend"] = suspended
            state.touch(job)
    value = ("True", "SuspendedJobs", "jobset is suspended") if suspended else (
        "False", "ResumeJobs", "jobset is resumed")  # fmt: skip
    state.condition(jobset, "Suspended", *value)


def _fail(state: State, jobset: Object, job: Object) -> None:
    """executeFailurePolicy: without one, the JobSet fails; by default all Jobs are recreated."""
    status, policy = jobset["status"], jobset["spec"].get("failurePolicy")
    name = job["metadata"]["name"]
    (its,) = (x for x in job["status"]["conditions"] if x["type"] == "Failed")
    action = "RestartJobSet"
    for rule in (policy or {}).get("rules") or ():
        reasons, targets = rule.get("onJobFailureReasons"), rule.get("targetReplicatedJobs")
        role = job["metadata"]["labels"][f"{PREFIX}/replicatedjob-name"]
        if (not reasons or its["reason"] in reasons) and (not targets or role in targets):
            action = rule["action"]
            break
    counted = status.get("restartsCountTowardsMax", 0)
    if policy is None:
        said = f"jobset failed due to one or more job failures (first failed job: {name})"
        state.condition(jobset, "Failed", "True", "FailedJobs", said)
    elif action == "FailJobSet":
        said = f"applying FailJobSet failure policy action (first failed job: {name})"
        state.condition(jobset, "Failed", "True", "FailJobSetFailurePolicyAction", said)
    elif action == "RestartJobSet" and counted >= policy.get("maxRestarts", 0):
        said = f"jobset failed due to reaching max number of restarts (first failed job: {name})"
        state.condition(jobset, "Failed", "True", "ReachedMaxRestarts", said)
    else:
        status["restarts"] = status.get("restarts", 0) + 1
        status["restartsCountTowardsMax"] = counted + (action == "RestartJobSet")
        state.touch(jobset)


def _make_service(state: State, jobset: Object) -> None:
    """createHeadlessSvcIfNecessary: an existing Service with that name is not adopted."""
    network, meta = jobset["spec"]["network"], jobset["metadata"]
    name = network.get("subdomain") or meta["name"]
    if network["enableDNSHostnames"] and not state.find(meta["namespace"], "services", name):
        spec = {
            "clusterIP": "None", "selector": {f"{PREFIX}/jobset-name": meta["name"]},
            "publishNotReadyAddresses": network["publishNotReadyAddresses"],
        }  # fmt: skip
        body = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}
        state.own(jobset, body)


def _job(jobset: Object, each: Object, number: int) -> Object:
    """constructJob: sets labels on the Job and its pods, and the JobSet's subdomain."""
    meta, network = jobset["metadata"], jobset["spec"]["network"]
    template = copy(each["template"])
    labels = {
        f"{PREFIX}/jobset-name": meta["name"],
        f"{PREFIX}/replicatedjob-name": each["name"],
        f"{PREFIX}/restart-attempt": str(jobset["status"].get("restarts", 0)),
        f"{PREFIX}/replicatedjob-replicas": str(each["replicas"]),
        f"{PREFIX}/job-index": str(number),
    }
    job, pod = template["spec"], template["spec"]["template"]
    for its in (template.setdefault("metadata", {}), pod.setdefault("metadata", {})):
        its["labels"] = {**(its.get("labels") or {}), **labels}
        its["annotations"] = {**(its.get("annotations") or {}), **labels}
    template["metadata"]["name"] = f"{meta['name']}-{each['name']}-{number}"
    if network["enableDNSHostnames"]:
        pod["spec"]["subdomain"] = network.get("subdomain") or meta["name"]
    job["suspend"] = bool(jobset["spec"].get("suspend"))
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": template["metadata"], "spec": job}


def _expire(state: State, jobset: Object) -> None:
    limit = jobset["spec"].get("ttlSecondsAfterFinished")
    for each in jobset["status"]["conditions"]:
        is_end = each["type"] in ("Completed", "Failed")
        if is_end and limit is not None and state.age(each["lastTransitionTime"]) >= limit:
            state.delete(jobset)
            return


def sync_trainjob(state: State, trainjob: Object) -> None:
    """Create the JobSet for a TrainJob, and end with the same result."""
    spec, name = trainjob["spec"], trainjob["metadata"]["name"]
    found = state.owned(trainjob, "jobsets")
    jobset = found[0] if found else state.own(trainjob, _jobset(trainjob))
    if bool(spec.get("suspend")) != bool(jobset["spec"].get("suspend")):
        jobset["spec"]["suspend"] = bool(spec.get("suspend"))
        state.touch(jobset)
    for theirs, ours in (
        ("Suspended", "Suspended"), ("Failed", "Failed"), ("Completed", "Complete")
    ):  # fmt: skip
        if has_condition(jobset, theirs):
            state.condition(trainjob, ours, "True", theirs, f"{name} {ours}")
        elif has_condition(trainjob, ours):
            state.condition(trainjob, ours, "False", "Resumed", f"{name} resumed")


def _jobset(trainjob: Object) -> Object:
    spec, name = trainjob["spec"], trainjob["metadata"]["name"]
    trainer = spec["trainer"]
    (patch,) = spec["runtimePatches"]
    (step,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = copy(step["template"]["spec"]["template"])
    (container,) = pod["spec"]["containers"]
    container |= {key: trainer[key] for key in ("image", "command", "env")}
    pod["spec"] |= {"restartPolicy": "Never"}
    nodes = trainer["numNodes"]
    job = {
        "completions": nodes, "parallelism": nodes, "completionMode": "Indexed",
        "backoffLimit": 0, "template": pod,
    }  # fmt: skip
    template = {"metadata": copy(step["template"].get("metadata") or {}), "spec": job}
    jobs = [{"name": step["name"], "replicas": 1, "template": template}]
    version, kind = KINDS["jobsets"]
    suspended = bool(spec.get("suspend"))
    return {
        "apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": {}},
        "spec": {"replicatedJobs": jobs, "suspend": suspended},
    }  # fmt: skip
