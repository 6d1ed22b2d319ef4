"""Volcano's Job controller, with its plug-ins svc and env, and its gang scheduling.

Sources: volcano-sh/volcano 1.15 (commit ed72c7c8), pkg/controllers/job: job_controller_util.go
(createJobPod, applyPolicies), job_controller_actions.go (syncJob, killPods),
job_controller_handler.go (updatePod, deletePod), state/*.go,
plugins/svc/svc.go, plugins/env/env.go.
"""

from clusters.kubernetes.state import Object, Refused, State, copy, is_over

ENDS = ("Completed", "Failed", "Terminated", "Aborted")
OUT_OF_SYNC = "volcano.sh/out-of-sync"
RETRIES = "volcano.sh/job-retry-count"


class Volcano:
    """Volcano's controller for one cluster."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._phases: dict[str, str] = {}
        """The last observed phase of each pod, by uid."""

    def sync(self, job: Object) -> None:
        """Execute SyncJob according to the Job's state."""
        phase = job["status"].get("state", {}).get("phase", "")
        if phase in ENDS:
            self._kill(job, keeps_ended=True)
        elif phase in ("Aborting", "Completing", "Terminating"):
            self._kill(job, keeps_ended=True)
            if all(is_over(pod) for pod in self._pods(job)):
                ends = {"Aborting": "Aborted", "Completing": "Completed"}
                self._enter(job, ends.get(phase, "Terminated"))
        elif phase == "Restarting":
            self._restart(job)
        else:
            self._sync_pods(job)

    def pod_event(self, pod: Object, what: str) -> None:
        """updatePod, deletePod: apply the Job's policies to what happened to a pod."""
        owners = pod["metadata"].get("ownerReferences") or ()
        job = next(
            (
                each
                for each in self.state.of("jobs.volcano")
                if any(x["uid"] == each["metadata"]["uid"] for x in owners)
            ),
            None,
        )
        if job is None:
            return
        before = self._phases.get(pod["metadata"]["uid"], "")
        phase = pod["status"]["phase"]
        self._phases[pod["metadata"]["uid"]] = phase
        if OUT_OF_SYNC in pod["metadata"]["annotations"]:
            return
        if int(pod["metadata"]["annotations"]["volcano.sh/job-version"]) < self._version(job):
            return
        event, code = "OutOfSync", 0
        if what == "deleted":
            event = "PodEvicted"
        elif phase == "Failed" != before:
            event = "PodFailed"
            for each in pod["status"].get("containerStatuses") or ()[:1]:
                code = (each["state"].get("terminated") or {}).get("exitCode", 0)
        elif phase == "Succeeded" != before and self._is_task_complete(job, pod):
            event = "TaskCompleted"
        elif phase == "Running" != before:
            event = "PodRunning"
        action = self._policy(
            job, pod["metadata"]["annotations"]["volcano.sh/task-spec"], event, code
        )
        if action != "SyncJob":
            self._execute(job, pod, action)

    @staticmethod
    def _version(job: Object) -> int:
        return int(job["status"].get("version", 0))

    def _pods(self, job: Object) -> list[Object]:
        return self.state.owned(job, "pods")

    def _is_task_complete(self, job: Object, pod: Object) -> bool:
        name = pod["metadata"]["annotations"]["volcano.sh/task-spec"]
        (task,) = (x for x in job["spec"]["tasks"] if x["name"] == name)
        its = [
            x for x in self._pods(job) if x["metadata"]["labels"]["volcano.sh/task-spec"] == name
        ]
        return sum(x["status"]["phase"] == "Succeeded" for x in its) >= task["replicas"]

    @staticmethod
    def _policy(job: Object, name: str, event: str, code: int) -> str:
        """applyPolicies: the task's policy, otherwise the Job's; without one, SyncJob."""
        if event in ("OutOfSync", "PodRunning"):
            return "SyncJob"
        (task,) = (x for x in job["spec"]["tasks"] if x["name"] == name)
        for policies in (task.get("policies") or (), job["spec"].get("policies") or ()):
            for each in policies:
                events = {*(each.get("events") or ()), each.get("event")}
                if event in events or "*" in events:
                    return str(each["action"])
                if code and each.get("exitCode") == code:
                    return str(each["action"])
        return "SyncJob"

    def _execute(self, job: Object, pod: Object, action: str) -> None:
        """state/pending.go, state/running.go; actions are ignored in other states."""
        status = job["status"]
        phase = status.get("state", {}).get("phase", "")
        if phase not in ("", "Pending", "Running"):
            return
        if action == "RestartJob":
            self._kill(job, keeps_ended=False)
        elif action in ("RestartTask", "RestartPod"):
            name = pod["metadata"]["annotations"]["volcano.sh/task-spec"]
            for each in self._pods(job):
                same_task = each["metadata"]["annotations"]["volcano.sh/task-spec"] == name
                if each is pod or (action == "RestartTask" and same_task):
                    self._drop(each)
        if action.startswith("Restart"):
            status["retryCount"] = status.get("retryCount", 0) + 1
            self._enter(job, "Restarting")
            return
        self._kill(job, keeps_ended=True)
        next_phase = {"AbortJob": "Aborting", "CompleteJob": "Completing"}
        self._enter(job, next_phase.get(action, "Terminating"))

    def _enter(self, job: Object, phase: str) -> None:
        its = job["status"].setdefault("state", {})
        if its.get("phase") != phase:
            its |= {"phase": phase, "lastTransitionTime": self.state.now()}
            self.state.touch(job)

    def _drop(self, pod: Object) -> None:
        """Mark killed pods first, so that their end is not an event for the Job's policies."""
        pod["metadata"]["annotations"][OUT_OF_SYNC] = "true"
        if "deletionTimestamp" not in pod["metadata"]:
            self.state.delete_pod(pod)

    def _kill(self, job: Object, keeps_ended: bool) -> None:
        """killPods: ended pods stay after the last retry; what plug-ins created is deleted."""
        status = job["status"]
        is_last = status.get("retryCount", 0) >= job["spec"]["maxRetry"] - 1
        for pod in self._pods(job):
            if "deletionTimestamp" in pod["metadata"]:
                continue
            if not ((keeps_ended or is_last) and is_over(pod)):
                self._drop(pod)
        if not keeps_ended:
            status["version"] = self._version(job) + 1
        meta, name = job["metadata"], job["metadata"]["name"]
        known = [("services", name), ("networkpolicies", name), ("configmaps", f"{name}-svc")]
        for plural, its in known if "svc" in (job["spec"].get("plugins") or {}) else ():
            each = self.state.find(meta["namespace"], plural, its)
            if each is not None:  # OnJobDelete: by name, no matter who created it
                self.state.delete(each)

    def _restart(self, job: Object) -> None:
        """state/restarting.go: with maxRetry N, a Job is started N times."""
        pods = self._pods(job)
        if job["status"].get("retryCount", 0) >= job["spec"]["maxRetry"]:
            self._enter(job, "Failed")
            return
        terminating = sum("deletionTimestamp" in pod["metadata"] for pod in pods)
        total = sum(task["replicas"] for task in job["spec"]["tasks"])
        if total - terminating >= job["spec"]["minAvailable"]:
            self._enter(job, "Pending")

    def _sync_pods(self, job: Object) -> None:
        """syncJob: create missing pods, and count."""
        spec, status = job["spec"], job["status"]
        if status.get("state", {}).get("phase", "") in ("", "Pending"):
            self._add_plugins(job)
            self._enter(job, "Pending")
        names = {pod["metadata"]["name"] for pod in self._pods(job)}
        for task in spec["tasks"]:
            for number in range(task["replicas"]):
                pod = self._pod(job, task, number)
                if pod["metadata"]["name"] in names:
                    continue
                try:
                    self.state.own(job, pod)
                except Refused as error:
                    said = f"Error creating pods: [failed to create pod {pod['metadata']['name']}"
                    self.state.warn(job, "FailedCreate", f"{said}, err: {error.message}]")
        self._judge(job)

    def _judge(self, job: Object) -> None:
        """state/pending.go, state/running.go: derive the Job's phase from its pods' phases."""
        spec, status = job["spec"], job["status"]
        phases = [x["status"]["phase"] for x in self._pods(job)]
        counts = {x: phases.count(x) for x in ("Pending", "Running", "Succeeded", "Failed")}
        before = copy(status)
        status |= {x.lower(): count for x, count in counts.items()} | {
            "minAvailable": spec["minAvailable"]
        }
        status["taskStatusCount"] = self._by_task(job)
        total = sum(task["replicas"] for task in spec["tasks"])
        ended = counts["Succeeded"] + counts["Failed"]
        if status["state"]["phase"] == "Pending":
            if spec["minAvailable"] <= counts["Running"] + ended:
                self._enter(job, "Running")
        elif spec.get("minSuccess") is not None and counts["Succeeded"] >= spec["minSuccess"]:
            self._enter(job, "Completed")
        elif ended == total:
            self._enter(job, self._end(job, counts["Succeeded"]))
        elif counts["Pending"] > total - spec["minAvailable"]:
            self._enter(job, "Pending")
        if status != before:
            self.state.touch(job)

    def _by_task(self, job: Object) -> Object:
        found: Object = {}
        for pod in self._pods(job):
            its = found.setdefault(pod["metadata"]["labels"]["volcano.sh/task-spec"], {"phase": {}})
            phase = pod["status"]["phase"]
            its["phase"][phase] = its["phase"].get(phase, 0) + 1
        return found

    def _end(self, job: Object, succeeded: int) -> str:
        """Return how a Job ends once all its pods have ended."""
        spec = job["spec"]
        by_task = self._by_task(job)
        if spec["minAvailable"] >= sum(task["minAvailable"] for task in spec["tasks"]):
            for task in spec["tasks"]:
                its = by_task.get(task["name"], {"phase": {}})["phase"]
                if its.get("Succeeded", 0) < task["minAvailable"]:
                    return "Failed"
        least = spec.get("minSuccess")
        return (
            "Completed"
            if succeeded >= (spec["minAvailable"] if least is None else least)
            else "Failed"
        )

    # Pods and plug-ins.

    def _pod(self, job: Object, task: Object, number: int) -> Object:
        """createJobPod: no host name, unless the plug-in svc sets one."""
        meta, spec = job["metadata"], job["spec"]
        template = copy(task["template"])
        its = template.setdefault("metadata", {})
        name = f"{meta['name']}-{task['name']}-{number}"
        its["name"] = name
        its["annotations"] = {
            **(its.get("annotations") or {}),
            "volcano.sh/task-index": str(number), "volcano.sh/task-spec": task["name"],
            "volcano.sh/job-name": meta["name"], "volcano.sh/queue-name": spec["queue"],
            "volcano.sh/job-version": str(self._version(job)),
            "volcano.sh/template-uid": f"{meta['name']}-{task['name']}",
            RETRIES: str(job["status"].get("retryCount", 0)),
        }  # fmt: skip
        its["labels"] = {
            **(its.get("labels") or {}),
            "volcano.sh/task-index": str(number), "volcano.sh/task-spec": task["name"],
            "volcano.sh/job-name": meta["name"], "volcano.sh/job-namespace": meta["namespace"],
            "volcano.sh/queue-name": spec["queue"],
        }  # fmt: skip
        pod = template["spec"]
        pod["schedulerName"] = pod.get("schedulerName") or spec["schedulerName"]
        if spec.get("priorityClassName") and not pod.get("priorityClassName"):
            pod["priorityClassName"] = spec["priorityClassName"]
        plugins = spec.get("plugins") or {}
        variables: list[Object] = []
        if "svc" in plugins:
            pod["hostname"] = pod.get("hostname") or name
            pod["subdomain"] = pod.get("subdomain") or meta["name"]
            variables += [
                {
                    "name": key,
                    "valueFrom": {"configMapKeyRef": {"name": f"{meta['name']}-svc", "key": key}},
                }
                for key in self._hosts(job)
                if key.isupper() and key.startswith("VC_")
            ]
        if "env" in plugins:
            variables += [
                {"name": x, "value": str(number)} for x in ("VK_TASK_INDEX", "VC_TASK_INDEX")
            ]
        for each in (*(pod.get("initContainers") or ()), *pod["containers"]):
            each["env"] = [*(each.get("env") or ()), *copy(variables)]
        return {"apiVersion": "v1", "kind": "Pod", "metadata": its, "spec": pod}

    @staticmethod
    def _hosts(job: Object) -> dict[str, str]:
        """svc.go, GenerateHosts: VC_TASK_HOSTS and VC_TASK_NUM, and a file for each task."""
        found: dict[str, str] = {}
        for task in job["spec"]["tasks"]:
            spec, name = task["template"]["spec"], job["metadata"]["name"]
            key = task["name"].replace("-", "_")
            subdomain = spec.get("subdomain") or name
            pods = [f"{name}-{task['name']}-{number}" for number in range(task["replicas"])]
            hosts = [
                f"{host}.{subdomain}"
                for host in ([spec.get("hostname")] if spec.get("hostname") else pods)
            ]
            found[f"{key}.host"] = "\n".join(hosts)
            found[f"VC_{key.upper()}_HOSTS"] = ",".join(hosts)
            found[f"VC_{key.upper()}_NUM"] = str(len(hosts))
        return found

    def _add_plugins(self, job: Object) -> None:
        """svc.go, OnJobAdd: ConfigMap, Service and NetworkPolicy."""
        meta, plugins = job["metadata"], job["spec"].get("plugins") or {}
        if "svc" not in plugins:
            return
        arguments = plugins["svc"] or []
        match = {"volcano.sh/job-name": meta["name"], "volcano.sh/job-namespace": meta["namespace"]}
        ready = any(x.lstrip("-").startswith("publish-not-ready-addresses") for x in arguments)
        service = {"clusterIP": "None", "selector": match, "publishNotReadyAddresses": ready}
        peers = [{"from": [{"podSelector": {"matchLabels": match}}]}]
        policy = {
            "podSelector": {"matchLabels": match},
            "ingress": peers,
            "policyTypes": ["Ingress"],
        }
        wanted = [
            ("configmaps", f"{meta['name']}-svc", {"data": self._hosts(job)}),
            ("services", meta["name"], {"spec": service}),
        ]
        if not any("disable-network-policy" in x for x in arguments):
            wanted.append(("networkpolicies", meta["name"], {"spec": policy}))
        for plural, name, rest in wanted:
            if self.state.find(meta["namespace"], plural, name) is None:
                kind = {"configmaps": "ConfigMap", "services": "Service"}.get(
                    plural, "NetworkPolicy"
                )
                version = "networking.k8s.io/v1" if kind == "NetworkPolicy" else "v1"
                body = {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **rest}
                self.state.own(job, body)
