"""Show that the simulation detects broken fencing rules: `python -m tests.simulation.mutants`.

Each mutant is the shipped code with one line of a fencing rule changed. The simulation must detect
it within `--seeds` seeds. For each mutant, the seed that detected it is printed.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent


class Mutant(NamedTuple):
    """A broken rule: a line in one of relight's modules, and its replacement."""

    rule: str
    module: str
    line: str
    broken: str
    mode: str = ""


MUTANTS = (
    Mutant(
        "a generation hangs only if the workers on all of its nodes are idle",
        "core/group/roster.py",
        "if not self.active or len(self._quiet) < len(self.active):",
        "if not self.active or not self._quiet:",
    ),
    Mutant(
        "workers agree on a call that none of them has reached",
        "core/group/checkpoint_barrier.py",
        "if self.limit > self._most:",
        "if self.limit >= self._most:",
    ),
    Mutant(
        "if a node is preempted, the workers are asked to save",
        "core/group/membership.py",
        "            if node in roster:\n                cause = f",
        "            if False:\n                cause = f",
    ),
    Mutant(
        "a preemption counts even before a new coordinator has confirmed the generation",
        "core/group/membership.py",
        "self.live.preempted[node] = message",
        "if self.state is GroupState.RUNNING:\n"
        "                    self.live.preempted[node] = message",
    ),
    Mutant(
        "the answer of a node that reconnects while nodes probe each other still counts",
        "core/group/reachability.py",
        "self._known.discard(node)\n        if prober is None:",
        "self._known.discard(node)\n        self._silent.discard(node)\n        if prober is None:",
    ),
    Mutant(
        "if one node couldn't reach another, one of the two is left out",
        "core/group/reachability.py",
        "for pair, why in self._failed.items() if set(pair) <= set(here)}",
        "for pair, why in self._failed.items() if not set(pair) <= set(here)}",
    ),
    Mutant(
        "a node is left out only because of a failed pair",
        "core/group/reachability.py",
        "self._failed[number, (number + target) % count] = why",
        "self._failed[number, (number - target) % count] = why",
    ),
    Mutant(
        "a preempted node whose workers have left starts no more workers",
        "agent/agent.py",
        "if node.preempted and ended and not signals:",
        "if node.preempted and outcome.failures and not signals:",
    ),
    Mutant(
        "a worker is held once it reaches the limit",
        "core/workers/shared_words.py",
        "return None if limit and call >= limit else False",
        "return False",
    ),
    Mutant(
        "a lease counts from when the heartbeat was sent, not from when its echo arrived",
        "core/link/link_state.py",
        "self.echoed_at = max(self.echoed_at, sent_at)",
        "self.echoed_at = self._last",
    ),
    Mutant(
        "a coordinator drops a node only after the lease it granted has expired",
        "core/group/silence.py",
        "self._lost_after_s = lost_after_s",
        "self._lost_after_s = lost_after_s - 2",
    ),
    Mutant(
        "echoes renew the workers' lease only once their generation is confirmed",
        "core/link/link_state.py",
        "if self.state is LinkState.CONNECTED:\n            self._lease.renew(",
        "if True:\n            self._lease.renew(",
    ),
    Mutant(
        "once another machine refuses their node, workers run for only a few more seconds",
        "core/link/lease.py",
        "self.until = min(self.until, self._refused_since + REFUSALS_S)",
        "pass",
        "endpoint",
    ),
    Mutant(
        "a refusal doesn't renew an expired lease",
        "core/link/lease.py",
        "if refusal is Refusal.PROOF and not self._doubtful and now < self.until:",
        "if refusal is Refusal.PROOF and not self._doubtful:",
        "endpoint",
    ),
    Mutant(
        "a refusal doesn't renew a lease that a later coordinator has not confirmed",
        "core/link/lease.py",
        "if refusal is Refusal.PROOF and not self._doubtful and now < self.until:",
        "if refusal is Refusal.PROOF and now < self.until:",
        "endpoint",
    ),
    Mutant(
        "a coordinator doesn't confirm a generation because of a node whose lease has expired",
        "core/link/lease.py",
        "return now >= min(self.until, self._sure_until)",
        "return False",
        "endpoint",
    ),
    Mutant(
        "coordinators that are looking for other nodes don't renew leases one after the other",
        "core/link/lease.py",
        "return now >= min(self.until, self._sure_until)",
        "return now >= self.until",
        "endpoint",
    ),
    Mutant(
        "a new coordinator forms a generation only after the old one's leases have expired",
        "core/group/foreign_leases.py",
        "            now + self._settings.rejoin_grace_s, "
        "self._began_at + self._settings.lost_after_s\n",
        "            now + self._settings.rejoin_grace_s, 0.0\n",
    ),
    Mutant(
        "an elected coordinator's own workers run only as long as its votes last",
        "rendezvous/election_finder.py",
        "self._seeker.extended(self.election.lease_until())",
        'self._seeker.extended(float("inf"))',
        "hosts",
    ),
    Mutant(
        "a registry holder's lease counts from before its request",
        "rendezvous/leader_session.py",
        "                self._hold_from(asked_at)\n                self.seeker.extended(",
        "                self._hold_from(self._loop.now())\n                self.seeker.extended(",
        "register",
    ),
    Mutant(
        "a holder gives up its lease before the registry can name another one",
        "core/link/leader_lease.py",
        "self._held_s = ttl_s - MARGIN_S",
        "self._held_s = 3 * ttl_s",
        "register",
    ),
    Mutant(
        "a node that never reached the coordinator doesn't evict it for refusing",
        "core/link/leader_lease.py",
        "is_evidence = same_host if is_loopback else reached or is_ours",
        "is_evidence = True",
        "register",
    ),
    Mutant(
        "a holder whose lease has ended stops its own node's workers",
        "core/link/lease.py",
        "self._extend(min(self.until, now + self._lease_s))",
        "pass",
        "register",
    ),
    Mutant(
        "the group continues without a dropped node only after its workers' lease has expired",
        "core/group/membership.py",
        "self.live.recovery.until = now + self.settings.lost_after_s",
        "self.live.recovery.until = now",
    ),
    Mutant(
        "frozen workers are checked repeatedly, as other programs may resume them",
        "processes/freezer.py",
        "return now + POLL_S",
        "return None",
    ),
    Mutant(
        "a new coordinator forms no first generation while the old one's may be running",
        "core/group/membership.py",
        "if join.met_coordinator and",
        "if False and",
        "register",
    ),
    Mutant(
        "a new coordinator also waits if only other hosts know about the old one",
        "agent/link.py",
        "reason = self._finder.predecessor()",
        'reason = ""',
        "hosts",
    ),
    Mutant(
        "a host whose agent has given up doesn't coordinate while its workers are being stopped",
        "agent/link.py",
        "self._finder.retire()",
        "pass",
        "hosts",
    ),
    Mutant(
        "a coordinator that hears about an unknown generation waits while it may be running",
        "core/group/formation.py",
        "return max(over, self.leases.expiry())",
        "return over",
    ),
    Mutant(
        "a silent node isn't part of a new generation",
        "core/group/members.py",
        "Silent(member.join.host, heard_at, reason))\n        self._ready.pop(member.node, None)",
        "Silent(member.join.host, heard_at, reason))",
    ),
    Mutant(
        "no newcomer is admitted while a node is silent",
        "core/group/admission.py",
        "return may and not silent",
        "return may",
    ),
    Mutant(
        "even a late freezer freezes workers before their node counts as lost",
        "core/link/lease.py",
        "return lost_after_s - MARGIN_S",
        "return lost_after_s",
    ),
    Mutant(
        "a silent coordinator is sought while the connection to it is kept",
        "core/link/link_state.py",
        "if now >= redial_at and not self._job_over:",
        "if False:",
    ),
    Mutant(
        "heartbeats are at most half a second apart, whatever the silence timeout",
        "core/link/link_state.py",
        "self._due = now + settings.interval_s",
        "self._due = now + settings.lost_after_s / 5",
    ),
    Mutant(
        "heartbeats are far more frequent than leases end, however large the group is",
        "core/link/heartbeat_rate.py",
        "min(wanted_s, LONGEST_S, lost_after_s / _SHARE)",
        "wanted_s",
        "crowd",
    ),
    Mutant(
        "a node that was told to send fewer heartbeats is silent only later",
        "agent/coordinator.py",
        "silent_s > _SILENT_AFTER_S + peer.extra_s:",
        "silent_s > _SILENT_AFTER_S:",
        "crowd",
    ),
    Mutant(
        "a closed connection proves nothing",
        "agent/coordinator.py",
        "            self._fall_silent(peer, reason)\n        else:  # it has left",
        "            peer.group.step(NodeLost(peer.node, reason))\n        else:  # it has left",
    ),
    Mutant(
        "a refused datagram is proof only if the socket outlives the agent",
        "agent/link.py",
        "return self.rank >= 0 and self.answers_datagrams and self.is_held",
        "return self.rank >= 0 and self.answers_datagrams",
    ),
    Mutant(
        "a failed worker doesn't shorten a silent node's lease",
        "core/group/membership.py",
        "        live.roster.reactivate()\n        order =",
        "        live.roster.reactivate()\n"
        "        for each in set(self.members.silence) & live.roster.active:\n"
        "            live.roster.active.discard(each)\n"
        "        order =",
    ),
    Mutant(
        "a failure caused by a silent peer uses no restart",
        "core/group/teardown.py",
        "if silence.explains(self.blamed_at, {*(named or self.addresses), self._blamed_by}):",
        "if False:",
    ),
    Mutant(
        "a coordinator doesn't count its own suspension as silence",
        "core/group/silence.py",
        "self._awake_at = now",
        "pass",
    ),
    Mutant(
        "a new coordinator waits for all nodes except those proven to be gone",
        "core/group/roster.py",
        "return self.order.count(None) - len(self._done_and_gone | self._gone)",
        "return 0",
    ),
    Mutant(
        "while its registry is silent, a holder gives up its lease if a node is silent",
        "core/group/membership.py",
        "return self.live.roster.lost + sum(node in self.live.roster.active for node in silent)",
        "return self.live.roster.lost",
        "register",
    ),
    Mutant(
        "a generation has whole segments",
        "core/group/formation.py",
        "size = settings.whole(min(len(ready), settings.max_nodes))",
        "size = min(len(ready), settings.max_nodes)",
    ),
    Mutant(
        "no workers are stopped for newcomers that don't fill a segment",
        "core/group/admission.py",
        "return self._settings.whole(min(waiting, self._settings.max_nodes - len(roster)))",
        "return min(waiting, self._settings.max_nodes - len(roster))",
    ),
    Mutant(
        "a segment lies in one leaf if possible",
        "core/group/rank_order.py",
        "for members in fit[: size // segment - in_mixed]",
        "for members in fit[:0]",
    ),
    Mutant(
        "nodes in a leaf are neighbours",
        "core/group/rank_order.py",
        "return levels, member is not first,",
        "return member is not first,",
    ),
    Mutant(
        "survivors join only the next generation, never a later one",
        "core/group/survivors.py",
        "if ready.generation != last.id or member.node not in last.roster:",
        "if member.node not in last.roster:",
    ),
    Mutant(
        "workers don't survive twice without a step in between",
        "core/group/survivors.py",
        "elif last.roster.survivors and not last.reports.progressed:",
        "elif False:",
    ),
    Mutant(
        "workers don't survive a hang if it is unknown which of them hung",
        "core/group/survivors.py",
        "elif not is_known:",
        "elif False:",
    ),
    Mutant(
        "survivors rejected by the group exit before other workers start",
        "agent/agent.py",
        "workers is not None and workers.has_survivors and formed.survivors_stay",
        "workers is not None and workers.has_survivors",
    ),
    Mutant(
        "a generation that is stopped while survivors exit doesn't start",
        "agent/agent.py",
        "return stay or not self._end_survivors()",
        "return stay or self._end_survivors() or True",
    ),
    Mutant(
        "a node is ready once all of its survivors have left their group",
        "agent/recovery.py",
        "        if self._late:\n            self._poll_again()",
        "        if len(self._late) == len(supervisor.alive):\n            self._poll_again()",
    ),
    Mutant(
        "a process started while others are being frozen is frozen as well",
        "processes/freezer.py",
        "for _ in range(_ROUNDS):",
        "for _ in range(1):",
    ),
    Mutant(
        "a process stopped by another program isn't resumed, and all others are",
        "processes/freezer.py",
        "            if pid in self._frozen_pids:\n",
        "            if pid == min(self._frozen_pids):\n",
    ),
)


def broken_copy(mutant: Mutant, where: Path) -> None:
    """Copy relight with a broken rule.

    Raises:
        ValueError: If the line doesn't occur exactly once.
    """
    shutil.copytree(ROOT / "src", where, ignore=shutil.ignore_patterns("__pycache__"))
    path = where / "relight" / mutant.module
    text = path.read_text()
    if text.count(mutant.line) != 1:
        raise ValueError(f"{mutant.module} has {text.count(mutant.line)} times {mutant.line!r}")
    path.write_text(text.replace(mutant.line, mutant.broken))


def found_by(mutant: Mutant, seeds: int, start: int, processes: int) -> tuple[int, str]:
    """Return the seed that detects a mutant and how, or -1 if none does."""
    with tempfile.TemporaryDirectory(prefix="relight-mutant-") as directory:
        copy = Path(directory) / "src"
        broken_copy(mutant, copy)
        result = subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--seeds", str(seeds), "--from", str(start),
             "--processes", str(processes), *(("--mode", mutant.mode) if mutant.mode else ())],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(copy)}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
    failed = re.search(r"failed: \[(\d+)", result.stdout)
    if failed is None:
        return -1, result.stderr[-500:]
    reason = re.findall(r"^\S*(?:Failure|Error): (.*)", result.stdout, re.MULTILINE)
    return int(failed[1]), reason[-1] if reason else ""


def main() -> int:
    """Try to detect each mutant, and return 1 if one isn't detected."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants")
    parser.add_argument("--seeds", type=int, default=10_000, help="how many, at most, for each")
    parser.add_argument("--from", type=int, default=0, dest="start", help="the first one")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of mutants")
    options = parser.parse_args()
    missed = 0
    for number, mutant in enumerate(MUTANTS):
        if options.only and number not in options.only:
            continue
        seed, how = found_by(mutant, options.seeds, options.start, options.processes)
        missed += seed < 0
        print(
            f"{number}: {mutant.rule}\n   {f'seed {seed}' if seed >= 0 else 'MISSED'}: {how}",
            flush=True,
        )
    print(f"{missed} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
