"""A job's driver: the program that Ray executes on the cluster to run the job.

    Ray's job supervisor --> driver --> one actor per replica --> guard.py --> the role's command
                               └------> guard.py --> relight coordinator

The driver is part of the job package, as `.relight/driver.py` in the job's working directory. It
requires only Python 3.11 and Ray, not relight. It reads `order.json`, which `request.py` writes,
from the same directory:

    app_id, grace_s         the job, and the seconds from SIGTERM to SIGKILL
    timeout_s               seconds until a replica receives SIGTERM; 0 for never
    strategy                STRICT_SPREAD, SPREAD or PACK
    coordinator             the agents' rendezvous port; null without a rendezvous
    token                   authenticates the agents to the coordinator
    roles                   name, least, most, retries, argv, env, resources (per replica)

The first `least` replicas of each role form one placement group, so Ray either starts all of them
or none. Once they have been placed, each additional replica gets a placement group of its own,
which allows the job to grow. With STRICT_SPREAD, node labels keep additional replicas off the other
replicas' nodes. Ray reschedules a lost bundle, and the driver creates a new actor for it.

The driver writes `relight-APP-status.json` and each replica's output (`relight-APP-ROLE-N.log`) to
the directory that contains the driver's own log. Ray serves the files in that directory. The driver
also writes all output to its stdout, with prefixes. Sources: Ray 2.60, "Placement Groups", "Ray
Jobs REST API".
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

PENDING, RUNNING, SUCCEEDED, FAILED, CANCELLED = (
    "PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED",
)  # fmt: skip
TRANSIENT = (3, 4, 129, 130, 137, 143)
"""Exit codes that don't indicate an error in the user's program. They mean that the rendezvous
failed, a machine rejected something, or a signal ended the agent. Such replicas are restarted a few
times.
"""
PREEMPTED = 75
"""The exit code of an agent on a preempted node. Such replicas are always restarted."""
TRIES = 3
LINGER_S = 30.0
"""Seconds that replicas may keep running after enough others have succeeded."""
_STOPPED, _KILLED = 143, 137
_RETRY_S = 5.0
"""Delay before a replica is placed again, because Ray may place replicas on a dying node until it
notices that the node is dying.
"""
_LOW_MEMORY = "low on memory"
"""Text that appears in the error of a process that Ray's memory monitor has killed."""
_STRICT = "STRICT_SPREAD"
_NODE = "ray.io/node-id"
"""The node label that contains the node's id."""
_READ_S = 1.0
_WAIT_S = 0.5
_POLL_S = 5.0
"""How often, in seconds, the driver checks why a replica has not been placed."""
_KILL_S = 5.0
_CONNECT_S = 20.0
_CHUNK = 1 << 20
_FOLDER = ".relight"
_ATTEMPTS = 5


class Slot:
    """A replica of a role, across all its starts."""

    def __init__(self, role: dict[str, Any], number: int) -> None:
        self.role = role
        self.number = number
        self.state = PENDING
        self.host = ""
        self.node = ""
        self.exitcode: int | None = None
        self.error = ""
        self.starts = 0
        """How often the replica's command has been started."""
        self.failures = 0
        """The number of failures that the user's program has caused."""
        self.transient = 0
        """The number of other failures, not counting lost nodes."""
        self.end_at = 0.0
        """When the time limit expires (`time.monotonic`). Ignored without a limit."""
        self.timed_out = False

    @property
    def name(self) -> str:
        """The replica's name as users see it, in the form ROLE/NUMBER."""
        return f"{self.role['name']}/{self.number}"

    @property
    def is_first(self) -> bool:
        """Whether the job can't start without this replica."""
        return bool(self.number < self.role["least"])

    @property
    def is_over(self) -> bool:
        """Whether the replica has exited permanently."""
        return self.state in (SUCCEEDED, FAILED, CANCELLED)


class JobCore:
    """Decides which replicas run, and when and how the job ends. This class has no side effects.

    Args:
        roles: the roles in the order.
    """

    def __init__(self, roles: list[dict[str, Any]]) -> None:
        self.slots = [Slot(role, number) for role in roles for number in range(role["most"])]
        self.cause: Slot | None = None
        """The replica whose failure ended the job."""
        self.stopping = False
        """Whether all replicas are being stopped."""
        self.message = ""
        self._roles = roles
        self._cancelled = False

    def placed(self, slot: Slot, host: str, node: str) -> None:
        """Record the node of a placed replica."""
        slot.host, slot.node, slot.error = host, node, ""

    def started(self, slot: Slot) -> None:
        """Record that a replica's command has started."""
        slot.state, slot.exitcode, slot.timed_out = RUNNING, None, False
        slot.starts += 1

    def lost(self, slot: Slot, why: str) -> None:
        """Record that a replica was lost along with its node. The loss doesn't count as a failure,
        and the replica is restarted.

        Args:
            slot: the replica.
            why: the reason, in one line.
        """
        if slot.state != RUNNING:
            slot.transient += 1  # it has never run, and may never be able to
        slot.error, slot.host, slot.node = f"lost: {why}", "", ""
        if self.stopping:
            slot.state = CANCELLED
        elif slot.transient > TRIES:
            self._give_up(slot)
        else:
            slot.state = PENDING

    def ended(self, slot: Slot, exitcode: int, error: str = "") -> None:
        """Record that a replica's command has ended.

        Args:
            slot: the replica.
            exitcode: the exit code, which is 128 + n after signal n.
            error: the reason why the command did not start, or empty.
        """
        slot.exitcode = exitcode
        slot.error = error or (f"exit code {exitcode}" if exitcode else "")
        if slot.timed_out and exitcode:
            slot.error = f"its time limit was reached: {slot.error}"
        if exitcode == 0:
            slot.state = SUCCEEDED
        elif self.stopping:
            slot.state = CANCELLED
        elif self._may_restart(slot, exitcode):
            slot.state, slot.host, slot.node = PENDING, "", ""
        elif exitcode in TRANSIENT:
            self._give_up(slot)
        else:
            self._fail(slot)

    def refused(self, slot: Slot, why: str) -> None:
        """Record that a replica can't be created."""
        slot.error = why
        if self.stopping:
            slot.state = CANCELLED
        else:
            self._fail(slot)

    def cancel(self) -> None:
        """Begin to stop all replicas, because the job was cancelled."""
        if not self.stopping:
            self._cancelled, self.message = True, "it was cancelled"
            self.stop()

    def stop(self) -> None:
        """Begin to stop the replicas that have not finished."""
        self.stopping = True
        for slot in self.slots:
            if slot.state == PENDING:
                slot.state = CANCELLED

    @property
    def has_succeeded(self) -> bool:
        """Whether enough replicas of each role have succeeded."""
        return all(self._successes(role) >= role["least"] for role in self._roles)

    @property
    def is_over(self) -> bool:
        """Whether no replica is running, and none will be started."""
        states = [slot.state for slot in self.slots]
        if RUNNING in states:
            return False
        return self.stopping or self.has_succeeded or PENDING not in states

    def wanted(self) -> list[Slot]:
        """Return the replicas to place. Replicas of a role that has already succeeded are not
        placed, because a new replica wouldn't have peers.
        """
        if self.stopping:
            return []
        done = {role["name"] for role in self._roles if self._successes(role) >= role["least"]}
        return [slot for slot in self.slots
                if slot.state == PENDING and slot.role["name"] not in done]  # fmt: skip

    @property
    def exitcode(self) -> int:
        """The job's exit code. It is only valid once the job is over."""
        if self.cause is not None:
            return self.cause.exitcode or 1
        return _STOPPED if self._cancelled or not self.has_succeeded else 0

    def close(self) -> None:
        """End the job, and mark all replicas that have not finished as cancelled."""
        for slot in self.slots:
            if not slot.is_over:
                slot.state = CANCELLED
                slot.error = slot.error if self.exitcode else "not needed"

    def to_status(self) -> dict[str, Any]:
        """Return the status that `relight status` reads."""
        return {
            "message": self.message,
            "restarts": sum(max(0, slot.starts - 1) for slot in self.slots),
            "replicas": [
                [slot.role["name"], slot.number, slot.state, slot.host, slot.exitcode, slot.error]
                for slot in self.slots
            ],
        }

    def _may_restart(self, slot: Slot, exitcode: int) -> bool:
        if exitcode == PREEMPTED:
            return True
        if slot.timed_out:
            return False
        if slot.failures < slot.role["retries"]:
            slot.failures += 1
            return True
        if exitcode not in TRANSIENT:
            return False
        slot.transient += 1
        return slot.transient <= TRIES

    def _give_up(self, slot: Slot) -> None:
        """Stop restarting a replica. The job fails unless the role has enough other replicas."""
        others = [
            each
            for each in self.slots
            if each.role["name"] == slot.role["name"] and each is not slot
            and each.starts and each.state in (PENDING, RUNNING, SUCCEEDED)
        ]  # fmt: skip
        if len(others) >= slot.role["least"]:
            slot.state = FAILED
        else:
            self._fail(slot)

    def _fail(self, slot: Slot) -> None:
        slot.state, self.cause = FAILED, slot
        self.message = f"{slot.name}: {slot.error}"
        self.stop()

    def _successes(self, role: dict[str, Any]) -> int:
        return sum(x.state == SUCCEEDED and x.role["name"] == role["name"] for x in self.slots)


class Guarded:
    """A command that a guard runs, and that never outlives this object's process.

    Args:
        folder: the directory of `guard.py`.
        order: the guard's order, which consists of `argv`, `env`, `cwd` and `grace_s`.
        shared: whether the command writes to this process's stdout instead of to `output`.
    """

    def __init__(self, folder: str, order: dict[str, Any], *, shared: bool = False) -> None:
        self._end: tuple[int, str] | None = None
        self._channel, theirs = socket.socketpair()
        self.output, writer = (-1, 1) if shared else os.pipe()
        kept = (theirs.fileno(), *(() if shared else (self.output,)))
        command = [sys.executable, "-I", os.path.join(folder, "guard.py"), str(theirs.fileno())]
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=writer,
            pass_fds=kept,
            check=True,
        )
        theirs.close()
        if not shared:
            os.close(writer)
            os.set_blocking(self.output, False)
        line = json.dumps({**order, "output": self.output}) + "\n"
        self._channel.sendall(line.encode())

    def stop(self) -> None:
        """Request that the command stop."""
        with suppress(OSError):  # the guard has exited
            self._channel.shutdown(socket.SHUT_WR)

    def read(self, wait_s: float) -> "tuple[bytes, tuple[int, str] | None]":
        """Return the command's new output and, once the command has ended and all its output has
        been returned, its exit code and error.

        Args:
            wait_s: the maximum number of seconds to wait for output or for the end.
        """
        if self._end is None:
            poll = select.poll()
            poll.register(self._channel, select.POLLIN)
            if self.output >= 0:
                poll.register(self.output, select.POLLIN)
            events = [descriptor for descriptor, _ in poll.poll(wait_s * 1000)]
            self._end = self._result() if self._channel.fileno() in events else None
        data = self._drain()
        return data, None if len(data) >= _CHUNK else self._end

    def _result(self) -> "tuple[int, str]":
        data = b""
        while not data.endswith(b"\n"):
            more = self._channel.recv(1 << 16)
            if not more:
                return _KILLED, "the process that guards the command was killed"
            data += more
        found = json.loads(data)
        return found["exitcode"], found["error"]

    def _drain(self) -> bytes:
        found, size = [], 0
        while self.output >= 0 and size < _CHUNK:
            try:
                data = os.read(self.output, 1 << 16)
            except BlockingIOError:
                break
            if not data:
                os.close(self.output)
                self.output = -1
            found.append(data)
            size += len(data)
        return b"".join(found)


class ReplicaActor:
    """A replica's actor, which runs the replica's command on the node that Ray has chosen."""

    def __init__(self) -> None:
        self._guarded: Guarded | None = None

    def where(self) -> "tuple[str, str]":
        """Return this node's address and id."""
        import ray

        return ray.util.get_node_ip_address(), ray.get_runtime_context().get_node_id()

    def start(self, order: dict[str, Any]) -> None:
        """Start the command.

        Args:
            order: `argv`, `env`, `grace_s`, `timeout_s` and `cpus`. Ray has set OMP_NUM_THREADS to
                `cpus`, as if there were only one process.
        """
        cwd = os.getcwd()
        folder = os.path.join(cwd, _FOLDER)
        here = dict(os.environ)
        if here.get("OMP_NUM_THREADS") == str(order["cpus"]):
            del here["OMP_NUM_THREADS"]
        if order["timeout_s"]:
            here["RELIGHT_END_TIME"] = str(int(time.time()) + order["timeout_s"])
        env = {name: value.replace("${img_root}", cwd) for name, value in order["env"].items()}
        argv = [word.replace("${img_root}", cwd) for word in order["argv"]]
        _set_modes(folder)
        whole = {**here, **env, "RELIGHT_LAUNCHER_PATH": folder, "PWD": cwd}
        self._guarded = Guarded(
            folder, {"argv": argv, "env": whole, "cwd": cwd, "grace_s": order["grace_s"]}
        )

    def read(self, wait_s: float) -> "tuple[bytes, tuple[int, str] | None]":
        """Return the command's output and end, as `Guarded.read` does."""
        assert self._guarded is not None
        return self._guarded.read(wait_s)

    def stop(self) -> None:
        """Request that the command stop."""
        if self._guarded is not None:
            self._guarded.stop()


class Driver:
    """Executes the decisions of `JobCore` with Ray actors.

    Args:
        order: the description of the job.
        ray: the ray package, connected to the cluster.
        directory: the directory for logs.
    """

    def __init__(self, order: dict[str, Any], ray: Any, directory: str) -> None:
        self.job = JobCore(order["roles"])
        self._order = order
        self._ray = ray
        self._folder = os.path.dirname(os.path.abspath(__file__))
        self._outputs = Outputs(directory, order["app_id"])
        self._places: dict[Slot, tuple[Any, int]] = {}
        """Each replica's placement group and bundle number."""
        self._may_grow = False
        self._actors: dict[Slot, Any] = {}
        self._calls: dict[Any, tuple[Slot, str, Any]] = {}
        """The replica, the method and the actor of each pending actor call, by the call's object
        reference.
        """
        self._stop_sent: set[Slot] = set()
        """The replicas that have been asked to stop."""
        self._coordinator: CoordinatorActor | None = None
        self._retry_at: dict[Slot, float] = {}
        """The earliest time at which each replica that ended before it could run may be placed
        again.
        """
        self._written: dict[str, Any] = {}
        self._next_look = 0.0
        self._linger_until = 0.0
        self._kill_at = 0.0

    def run(self) -> int:
        """Run the job, and return its exit code."""
        signal.signal(signal.SIGTERM, lambda *_: self.job.cancel())
        signal.signal(signal.SIGINT, lambda *_: self.job.cancel())
        own = str(self._ray.util.get_node_ip_address())
        if self._order["coordinator"] is not None:
            self._coordinator = CoordinatorActor(self._folder, self._order, own)
        self._place_first()
        while not (self.job.is_over and not self._calls):
            self._step()
        self.job.close()
        self._write_status()
        self._outputs.say(self.job.message or "all replicas have succeeded")
        if self._coordinator is not None:
            self._coordinator.stop()
        return self.job.exitcode

    def _step(self) -> None:
        self._place_further()
        for slot in self.job.wanted():
            is_time = time.monotonic() >= self._retry_at.get(slot, 0.0)
            if slot in self._places and slot not in self._actors and is_time:
                self._make_actor(slot)
        self._start_placed()
        self._stop_timed_out()
        self._end_if_stopping()
        self._explain_waiting()
        self._write_status()
        if self._coordinator is not None:
            self._coordinator.keep_up()
        if not self._calls:
            time.sleep(_WAIT_S)
            return
        first, rest = self._ray.wait(list(self._calls), num_returns=1, timeout=_WAIT_S)
        more = self._ray.wait(rest, num_returns=len(rest), timeout=0)[0] if first and rest else []
        for call in (*first, *more):
            if call in self._calls:
                self._answered(call)

    # Placement and actors.

    def _place_first(self) -> None:
        """Ask Ray to place the replicas that the job can't run without."""
        first = [slot for slot in self.job.slots if slot.is_first]
        group = self._ray.util.placement_group(
            [dict(slot.role["resources"]) for slot in first],
            strategy=self._order["strategy"],
            name=self._order["app_id"],
        )
        for index, slot in enumerate(first):
            self._places[slot] = group, index

    def _place_further(self) -> None:
        """Ask Ray to place additional replicas once the first replicas have been placed. An earlier
        request might take the resources that the first replicas need.
        """
        self._may_grow = self._may_grow or all(x.host for x in self.job.slots if x.is_first)
        for slot in self.job.wanted() if self._may_grow else ():
            if slot not in self._places:
                group = self._ray.util.placement_group(
                    [dict(slot.role["resources"])],
                    name=f"{self._order['app_id']}-{slot.name}",
                    bundle_label_selector=self._elsewhere(),
                )
                self._places[slot] = group, 0

    def _elsewhere(self) -> list[dict[str, str]] | None:
        """Return a label selector that excludes all nodes that already have a replica, or None if
        replicas may share nodes.
        """
        used = sorted({slot.node for slot in self.job.slots if slot.node})
        if self._order["strategy"] != _STRICT or not used:
            return None
        return [{_NODE: f"!in({','.join(used)})"}]

    def _is_taken(self, slot: Slot, node: str) -> bool:
        """Return whether an additional replica would share a node with another replica. This can
        happen if the other replica had not been placed yet when the additional one was requested.
        """
        others = {other.node for other in self.job.slots if other is not slot}
        return self._order["strategy"] == _STRICT and not slot.is_first and node in others

    def _make_actor(self, slot: Slot) -> None:
        group, index = self._places[slot]
        needs = dict(slot.role["resources"])
        strategies = self._ray.util.scheduling_strategies
        actor = (
            self._ray.remote(ReplicaActor)
            .options(
                num_cpus=needs.pop("CPU", 0),
                num_gpus=needs.pop("GPU", 0),
                memory=int(needs.pop("memory", 0)),
                resources=needs,
                max_restarts=0,
                # Ray runs its workers at a lower priority than other processes.
                runtime_env={"env_vars": {"RAY_worker_niceness": "0"}},
                scheduling_strategy=strategies.PlacementGroupSchedulingStrategy(
                    placement_group=group, placement_group_bundle_index=index
                ),
            )
            .remote()
        )
        self._actors[slot] = actor
        self._call(slot, "where", actor.where.remote())

    def _call(self, slot: Slot, method: str, reference: Any) -> None:
        self._calls[reference] = slot, method, self._actors[slot]

    def _start_placed(self) -> None:
        """Start the commands of the replicas that have been placed, as soon as the first replica's
        host is known.
        """
        for slot, actor in self._actors.items():
            waits = slot.state == PENDING and slot.host and not self._called(slot)
            if waits and (self._coordinator is not None or self.job.slots[0].host):
                self._call(slot, "start", actor.start.remote(self._command(slot)))

    def _called(self, slot: Slot) -> list[str]:
        """Return the methods of a replica's actor that have been called but not answered."""
        return [method for each, method, _ in self._calls.values() if each is slot]

    def _command(self, slot: Slot) -> dict[str, Any]:
        role, number = slot.role, str(slot.number)
        first = self.job.slots[0].host
        meeting = self._coordinator.endpoint if self._coordinator is not None else first
        env = {
            "PYTHONUNBUFFERED": "x",
            "RELIGHT_RANK0_HOST": meeting,
            "TORCHX_RANK0_HOST": first or meeting,
            "RELIGHT_REPLICA_ID": number,
            "RELIGHT_REQUEUES": str(slot.starts),
            **role["env"],
        }
        if self._coordinator is not None:
            env["RELIGHT_RANK0_PORT"] = str(self._coordinator.port)
        return {
            "argv": [word.replace("${replica_id}", number) for word in role["argv"]],
            "env": {name: value.replace("${replica_id}", number) for name, value in env.items()},
            "grace_s": self._order["grace_s"],
            "timeout_s": self._order["timeout_s"],
            "cpus": int(role["resources"].get("CPU", 0)),
        }

    # Results from actors.

    def _answered(self, call: Any) -> None:
        slot, method, actor = self._calls.pop(call)
        if slot not in self._actors or self._actors[slot] is not actor:
            return
        exceptions = self._ray.exceptions
        try:
            answer = self._ray.get(call)
        except exceptions.RuntimeEnvSetupError as error:
            self._drop(slot)
            self.job.refused(slot, f"the runtime environment: {_line(error)}")
            return
        except exceptions.RayTaskError as error:
            self._drop(slot)
            self.job.refused(slot, _line(error.cause))
            return
        except exceptions.RayError as error:
            self._drop(slot)
            self._outputs.end(slot)
            if not slot.is_over:
                self._on_lost(slot, error)
            return
        if method == "where":
            self._on_placed(slot, answer)
        elif method == "start":
            self.job.started(slot)
            slot.end_at = time.monotonic() + self._order["timeout_s"]
            self._outputs.say(f"{slot.name} runs on {slot.host}")
            self._call(slot, "read", actor.read.remote(_READ_S))
        elif method == "read":
            self._on_output(slot, actor, *answer)

    def _on_placed(self, slot: Slot, answer: "tuple[str, str]") -> None:
        if slot not in self.job.wanted():
            self._drop(slot)
        elif self._is_taken(slot, answer[1]):
            self._drop(slot)
            self._ray.util.remove_placement_group(self._places.pop(slot)[0])
        else:
            self.job.placed(slot, *answer)

    def _on_lost(self, slot: Slot, error: BaseException) -> None:
        if _LOW_MEMORY in str(error):
            self.job.ended(
                slot, _KILLED, "out of memory: Ray stopped it because its node had no memory left"
            )
        else:
            self.job.lost(slot, _why_lost(error))
        self._retry_at[slot] = time.monotonic() + _RETRY_S * slot.transient
        self._outputs.say(f"{slot.name}: {slot.error}")

    def _on_output(
        self, slot: Slot, actor: Any, data: bytes, end: "tuple[int, str] | None"
    ) -> None:
        self._outputs.add(slot, data)
        if end is None:
            self._call(slot, "read", actor.read.remote(_READ_S))
            return
        self._outputs.end(slot)
        self._drop(slot)
        self.job.ended(slot, *end)
        self._outputs.say(f"{slot.name} has ended: {slot.error or 'exit code 0'}")

    def _drop(self, slot: Slot) -> None:
        """Kill a replica's actor, and discard the actor's pending calls."""
        actor = self._actors.pop(slot)
        self._stop_sent.discard(slot)
        self._calls = {ref: call for ref, call in self._calls.items() if call[2] is not actor}
        self._ray.kill(actor)

    # The end.

    def _end_if_stopping(self) -> None:
        now = time.monotonic()
        if self.job.has_succeeded and not self.job.stopping:
            self._linger_until = self._linger_until or now + LINGER_S
            if now >= self._linger_until or self.job.is_over:
                self.job.stop()
        if not self.job.stopping:
            return
        self._kill_at = self._kill_at or now + self._order["grace_s"] + _KILL_S
        for slot, actor in list(self._actors.items()):
            if slot.state != RUNNING and "start" not in self._called(slot):
                self._drop(slot)
            elif now >= self._kill_at:
                self._drop(slot)
                self.job.lost(slot, "it did not exit in time")
            elif slot.state == RUNNING and slot not in self._stop_sent:
                self._stop_sent.add(slot)
                actor.stop.remote()

    def _stop_timed_out(self) -> None:
        """Stop each replica whose time limit has expired. Such a replica can save a checkpoint
        first, and is restarted afterwards.
        """
        for slot, actor in self._actors.items() if self._order["timeout_s"] else ():
            is_over = slot.state == RUNNING and time.monotonic() >= slot.end_at
            if is_over and slot not in self._stop_sent:
                slot.timed_out = True
                self._stop_sent.add(slot)
                actor.stop.remote()

    # Status and logs.

    def _explain_waiting(self) -> None:
        """Periodically report why some replicas have not been placed yet."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _POLL_S
        waiting = [x for x in self.job.wanted() if not x.host and not x.error.startswith("lost")]
        if not waiting:
            return
        used = {slot.node for slot in self.job.slots if slot.node}
        nodes, free = self._ray.nodes(), self._ray.available_resources()
        if self._order["strategy"] == _STRICT:
            nodes = [node for node in nodes if node["NodeID"] not in used]
        for slot in waiting:
            slot.error = f"Unschedulable: {unplaced(slot.role['resources'], nodes, free)}"

    def _write_status(self) -> None:
        status = self.job.to_status()
        if status != self._written:
            self._written = status
            self._outputs.write_status(status)


class CoordinatorActor:
    """Runs `relight coordinator` next to the driver. The coordinator is the agents' rendezvous
    endpoint. The endpoint therefore survives the loss of any replica, and two jobs can share a
    node.

    Args:
        folder: the launcher's directory.
        order: the description of the job.
        host: this node's address.
    """

    def __init__(self, folder: str, order: dict[str, Any], host: str) -> None:
        self.endpoint = f"[{host}]" if ":" in host else host
        """The host as it appears in an endpoint. An IPv6 address is in brackets."""
        self._host = host
        self._folder, self._order = folder, order
        self._retry_at = 0.0
        for port in (order["coordinator"], *[0] * _ATTEMPTS):
            self.port = _free_port(host, port) or _free_port(host, 0)
            self._process = self._start()
            if self._listens():
                return
        raise SystemExit(f"relight: error: no coordinator can listen on {host}")

    def keep_up(self) -> None:
        """Restart the coordinator if it has exited. The new coordinator recovers its state from the
        agents.
        """
        _, end = self._process.read(0)
        if end is not None and time.monotonic() >= self._retry_at:
            self._retry_at = time.monotonic() + 1.0
            self._process = self._start()

    def stop(self) -> None:
        """Request that the coordinator stop."""
        self._process.stop()

    def _start(self) -> Guarded:
        launcher = os.path.join(self._folder, "relight")
        argv = ["sh", launcher, "coordinator", "--bind", f"{self.endpoint}:{self.port}"]
        env = {**os.environ, "RELIGHT_TOKEN": self._order["token"]}
        order = {"argv": argv, "env": env, "cwd": self._folder, "grace_s": 1.0}
        return Guarded(self._folder, order, shared=True)

    def _listens(self) -> bool:
        end = time.monotonic() + _CONNECT_S
        while time.monotonic() < end:
            try:
                socket.create_connection((self._host, self.port), 1.0).close()
            except OSError:
                _, ended = self._process.read(0.05)
                if ended is not None:
                    return False
            else:
                return True
        return False


class Outputs:
    """Writes files to the directory that contains the driver's own log.

    Args:
        directory: the directory in which to create the files.
        app_id: the job's id.
    """

    def __init__(self, directory: str, app_id: str) -> None:
        self._start = os.path.join(directory, f"relight-{app_id}")
        self._rests: dict[str, bytes] = {}

    def say(self, text: str) -> None:
        """Write a line to the driver's own log."""
        print(f"relight: {time.strftime('%H:%M:%S')} {text}", flush=True)  # noqa: T201

    def add(self, slot: Slot, data: bytes) -> None:
        """Write a replica's output unchanged to the replica's file, and as complete lines to
        stdout.
        """
        if not data:
            return
        self._append(slot, data)
        *lines, rest = (self._rests.get(slot.name, b"") + data).split(b"\n")
        self._rests[slot.name] = rest
        self._show(slot, lines)

    def end(self, slot: Slot) -> None:
        """Write a replica's last line to stdout even though it lacks a final newline."""
        rest = self._rests.pop(slot.name, b"")
        if rest:
            self._show(slot, [rest])
            self._append(slot, b"\n")

    def write_status(self, status: dict[str, Any]) -> None:
        """Replace the status file."""
        new = f"{self._start}-status.new"
        with open(new, "w") as file:
            json.dump(status, file)
        os.replace(new, f"{self._start}-status.json")

    def _append(self, slot: Slot, data: bytes) -> None:
        """Append data to a replica's file. The file isn't created before there is data, because
        some versions of Ray don't serve empty files.
        """
        path = f"{self._start}-{slot.role['file']}-{slot.number}.log"
        begins = not os.path.exists(path)
        with open(f"{path}.new" if begins else path, "ab") as file:
            file.write(data)
        if begins:
            os.rename(f"{path}.new", path)

    def _show(self, slot: Slot, lines: list[bytes]) -> None:
        prefix = f"{slot.name} | ".encode()
        text = b"".join(prefix + line + b"\n" for line in lines)
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()


def unplaced(needs: dict[str, float], nodes: list[dict[str, Any]], free: dict[str, float]) -> str:
    """Explain in one line why a replica is waiting. The explanation names the resources that no
    node has, or that are in use.

    Args:
        needs: the replica's resources, under the names that Ray uses. Memory is in bytes.
        nodes: the nodes that the replica may use, as described by `ray.nodes()`.
        free: the resources that are free in the whole cluster.
    """
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    if not alive:
        return "each node has a replica of this job"
    lacking = [name for name in needs if not any(x.get(name, 0) >= needs[name] for x in alive)]
    wanted = ", ".join(_amount(name, needs[name]) for name in lacking or needs)
    if lacking:
        most = {name: max((x.get(name, 0) for x in alive), default=0) for name in lacking}
        has = ", ".join(_amount(name, most[name]) for name in lacking)
        return f"it needs {wanted}, but no node has more than {has}"
    fitting = sum(all(x.get(name, 0) >= needs[name] for name in needs) for x in alive)
    left = ", ".join(_amount(name, free.get(name, 0)) for name in needs)
    return (
        f"it needs {wanted}; {fitting} of {len(alive)} nodes have that much, "
        f"free in the whole cluster: {left}"
    )


def _amount(name: str, number: float) -> str:
    if name == "memory":
        return f"{number / (1 << 20):.0f} MiB memory"
    return f"{number:g} {name}"


def _free_port(host: str, port: int) -> int:
    """Return the port if it can be bound, or 0 if it can't. If the port is 0, return any free
    port.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return 0
        return int(probe.getsockname()[1])


def _why_lost(error: BaseException) -> str:
    text = str(error)
    if "node" in text.lower() and ("died" in text or "dead" in text or "terminated" in text):
        return "its node died"
    return f"its actor died: {_line(error)}"


def _line(error: BaseException) -> str:
    said = " ".join(str(error).split())[:500]
    return f"{type(error).__name__}: {said}"


def _set_modes(folder: str) -> None:
    """Restore the file modes, which Ray loses when it unpacks the package. The launcher must be
    executable, and the order must be private because it contains secrets.
    """
    for name, mode in (("relight", 0o700), ("order.json", 0o600)):
        path = os.path.join(folder, name)
        if os.path.exists(path):
            os.chmod(path, mode)


def _log_directory() -> str:
    """Return the directory that contains the job's log (this process's stdout)."""
    path = os.path.realpath("/proc/self/fd/1")
    if not os.path.isfile(path):
        raise SystemExit("relight: error: the driver's output is not a log file of a Ray job")
    return os.path.dirname(path)


def main() -> int:
    """Run the job that `order.json` describes, and return its exit code."""
    found = sys.version.split()[0]
    if sys.version_info < (3, 11):  # noqa: UP036  # this is the cluster's Python
        why = f"the cluster's Python is {found}, but 3.11 or newer is required"
        print(f"relight: error: {why}")  # noqa: T201
        return 4
    directory = _log_directory()
    import ray
    import ray.util.scheduling_strategies

    folder = os.path.dirname(os.path.abspath(__file__))
    _set_modes(folder)
    with open(os.path.join(folder, "order.json")) as file:
        order = json.load(file)
    ray.init(address="auto", log_to_driver=False, logging_level="WARNING")
    try:
        return Driver(order, ray, directory).run()
    finally:
        ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())
