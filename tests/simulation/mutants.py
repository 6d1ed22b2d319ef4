"""Shows that the simulation would see a broken fencing rule: `python -m tests.simulation.mutants`.

Each mutant is the shipped code with one line of a fencing rule changed. It must be found within
`--seeds` seeds. Prints for each the seed that found it.
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
    """A broken rule: the line in a module of `relight`, and what takes its place."""

    rule: str
    module: str
    line: str
    broken: str
    mode: str = ""


MUTANTS = (
    Mutant(
        "a generation hangs only if the workers of all its nodes are quiet",
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
        "if a node is preempted, workers are asked to save",
        "core/group/membership.py",
        "            if node in self.roster:\n                cause = f",
        "            if False:\n                cause = f",
    ),
    Mutant(
        "a preemption counts before a new coordinator knows that the generation goes on",
        "core/group/membership.py",
        "self._ending.preempted[node] = message",
        "if self.state is GroupState.RUNNING:\n"
        "                    self._ending.preempted[node] = message",
    ),
    Mutant(
        "a node that comes back while nodes try to reach each other is still heard",
        "core/group/reachability.py",
        "self._known.discard(node)\n\n    def must_try",
        "self._known.discard(node)\n        self._silent.discard(node)\n\n    def must_try",
    ),
    Mutant(
        "of two nodes of which one has not reached the other, one is left out",
        "core/group/reachability.py",
        "for pair, why in self._failed.items() if set(pair) <= set(here)}",
        "for pair, why in self._failed.items() if not set(pair) <= set(here)}",
    ),
    Mutant(
        "a node is left out only because of a pair that has failed",
        "core/group/reachability.py",
        "self._failed[number, (number + target) % count] = why",
        "self._failed[number, (number - target) % count] = why",
    ),
    Mutant(
        "a preempted node whose workers have left starts no more",
        "agent/agent.py",
        "if node.preempted and ended and not signals:",
        "if node.preempted and outcome.failures and not signals:",
    ),
    Mutant(
        "a worker is held from the limit on",
        "core/workers/shared_words.py",
        "return None if limit and call >= limit else False",
        "return False",
    ),
    Mutant(
        "a lease counts from when the echoed heartbeat was sent, not from when its echo came",
        "core/link/link_state.py",
        "self.echoed_at = max(self.echoed_at, sent_at)",
        "self.echoed_at = self._last",
    ),
    Mutant(
        "a coordinator drops a node only after a lease that it has given is over",
        "core/group/silence.py",
        "self._lost_after_s = lost_after_s",
        "self._lost_after_s = lost_after_s - 2",
    ),
    Mutant(
        "echoes renew the lease of workers only once their generation is confirmed",
        "core/link/link_state.py",
        "if self.state is LinkState.CONNECTED:\n            self._lease.renew(",
        "if True:\n            self._lease.renew(",
    ),
    Mutant(
        "workers run for a few seconds only once another machine refuses their node",
        "core/link/lease.py",
        "self.until = min(self.until, self._refused_since + REFUSALS_S)",
        "pass",
        "endpoint",
    ),
    Mutant(
        "a refusal renews no lease that is over",
        "core/link/lease.py",
        "if refusal is Refusal.PROOF and not self._doubtful and now < self.until:",
        "if refusal is Refusal.PROOF and not self._doubtful:",
        "endpoint",
    ),
    Mutant(
        "nor one whose generation a later coordinator has not confirmed",
        "core/link/lease.py",
        "if refusal is Refusal.PROOF and not self._doubtful and now < self.until:",
        "if refusal is Refusal.PROOF and now < self.until:",
        "endpoint",
    ),
    Mutant(
        "who becomes the host of the endpoint goes on with no lease that is over",
        "core/link/lease.py",
        "self._confirmed_here = sole and now < self.until",
        "self._confirmed_here = sole",
        "endpoint",
    ),
    Mutant(
        "nor with one that a coordinator in between has not confirmed",
        "core/link/lease.py",
        "sole = until == FOR_EVER and not self._doubtful",
        "sole = until == FOR_EVER",
        "endpoint",
    ),
    Mutant(
        "who begins to coordinate forms a generation when all leases of the one before are over",
        "core/group/membership.py",
        "return max(now + self.settings.rejoin_grace_s, "
        "self._began_at + self.settings.lost_after_s)",
        "return now + self.settings.rejoin_grace_s",
    ),
    Mutant(
        "an elected coordinator's own workers run on its votes, and no longer",
        "rendezvous/election_finder.py",
        "self._seeker.extended(elector.lease_until())",
        'self._seeker.extended(float("inf"))',
        "hosts",
    ),
    Mutant(
        "a holder of a register counts from before it asked",
        "rendezvous/leader_session.py",
        "                self._hold_from(asked_at)\n                self._on_renewed()",
        "                self._hold_from(self._loop.now())\n                self._on_renewed()",
        "register",
    ),
    Mutant(
        "a holder ends its hold before the register can name another one",
        "core/link/leader_lease.py",
        "self._held_s = ttl_s - MARGIN_S",
        "self._held_s = 3 * ttl_s",
        "register",
    ),
    Mutant(
        "who was never at the coordinator does not evict it because it is refused",
        "core/link/leader_lease.py",
        "is_evidence = same_host if is_loopback else reached or is_ours",
        "is_evidence = True",
        "register",
    ),
    Mutant(
        "a holder that no longer holds stops the workers of its own node",
        "core/link/lease.py",
        "self.until = min(self.until, now + self._lease_s)",
        "pass",
        "register",
    ),
    Mutant(
        "the group goes on without a node that it drops when the lease of its workers is over",
        "core/group/membership.py",
        "self._recover_until = now + self.settings.lost_after_s  #",
        "self._recover_until = now  #",
    ),
    Mutant(
        "frozen workers are looked at again and again, as others may continue them",
        "processes/freezer.py",
        "return now + LOOK_EVERY_S",
        "return None",
    ),
    Mutant(
        "a new coordinator forms no first generation while the old one's may run",
        "core/group/membership.py",
        "if join.met_coordinator and",
        "if False and",
        "hosts",
    ),
    Mutant(
        "nor one that knows of the old one only from those that vote for it",
        "agent/link.py",
        "self._met_coordinator |= self._finder.follows_another()",
        "pass",
        "hosts",
    ),
    Mutant(
        "a host whose agent has given up does not coordinate while its workers are stopped",
        "agent/link.py",
        "self._finder.retire()",
        "pass",
        "hosts",
    ),
    Mutant(
        "a coordinator that hears of an unknown generation waits while its workers may run",
        "core/group/membership.py",
        "return max(over, self._foreign_lease_expiry())",
        "return over",
    ),
    Mutant(
        "a silent node is in no new generation",
        "core/group/members.py",
        "Silent(member.join.host, heard_at, reason))\n        self._ready.pop(member.node, None)",
        "Silent(member.join.host, heard_at, reason))",
    ),
    Mutant(
        "nobody is let in while a node is silent",
        "core/group/membership.py",
        "return may and not silent",
        "return may",
    ),
    Mutant(
        "workers are frozen before their node is lost, by a freezer that is late as well",
        "core/link/lease.py",
        "return lost_after_s - MARGIN_S",
        "return lost_after_s",
    ),
    Mutant(
        "a coordinator that is silent is sought beside its connection",
        "core/link/link_state.py",
        "if now >= redial_at and not self._job_over:",
        "if False:",
    ),
    Mutant(
        "heartbeats are at most half a second apart, however long a silent node is waited for",
        "core/link/link_state.py",
        "self._due = now + settings.interval_s",
        "self._due = now + settings.lost_after_s / 5",
    ),
    Mutant(
        "the end of a connection proves nothing",
        "agent/coordinator.py",
        "            self._fall_silent(peer, reason)\n        else:  # it has left",
        "            peer.group.step(NodeLost(peer.node, reason))\n        else:  # it has left",
    ),
    Mutant(
        "a refused datagram is proof only if the agent's socket outlives it",
        "agent/link.py",
        "return self.rank >= 0 and self.answers_datagrams and self.is_held",
        "return self.rank >= 0 and self.answers_datagrams",
    ),
    Mutant(
        "a failed worker does not shorten the lease of a silent node",
        "core/group/membership.py",
        "        self.roster.reactivate()\n        stopping =",
        "        self.roster.reactivate()\n"
        "        for each in set(self.members.silence) & self.roster.active:\n"
        "            self.roster.active.discard(each)\n"
        "        stopping =",
    ),
    Mutant(
        "a failure because of a peer that is silent spends no restart",
        "core/group/membership.py",
        "if ending.blamed_at is not None and self._was_silent(ending.blamed_at):",
        "if False:",
    ),
    Mutant(
        "what a coordinator has slept through it holds against nobody",
        "core/group/silence.py",
        "self._awake_at = now",
        "pass",
    ),
    Mutant(
        "only nodes that are proven to be gone are not waited for by a new coordinator",
        "core/group/roster.py",
        "return self.order.count(None) - len(self._done_and_gone | self._gone)",
        "return 0",
    ),
    Mutant(
        "a holder of a register that is silent ends its hold if a node is silent",
        "core/group/membership.py",
        "return self.roster.lost + silent",
        "return self.roster.lost",
        "register",
    ),
    Mutant(
        "a generation has whole segments",
        "core/group/membership.py",
        "size = settings.whole(min(len(ready), settings.max_nodes))",
        "size = min(len(ready), settings.max_nodes)",
    ),
    Mutant(
        "no workers are stopped for newcomers that do not fill a segment",
        "core/group/membership.py",
        "return self.settings.whole(min(waiting, self.settings.max_nodes - len(self.roster)))",
        "return min(waiting, self.settings.max_nodes - len(self.roster))",
    ),
    Mutant(
        "a segment lies in one leaf if that is possible",
        "core/group/rank_order.py",
        "for members in fit[: size // segment - in_mixed]",
        "for members in fit[:0]",
    ),
    Mutant(
        "nodes of a leaf are neighbours",
        "core/group/rank_order.py",
        "return levels, member is not first,",
        "return member is not first,",
    ),
    Mutant(
        "survivors join the generation after theirs, and no later one",
        "core/group/survivors.py",
        "if ready.generation != last or member.node not in before:",
        "if member.node not in before:",
    ),
    Mutant(
        "workers do not survive twice without a step in between",
        "core/group/survivors.py",
        "elif before.survivors and not progressed:",
        "elif False:",
    ),
    Mutant(
        "workers do not survive a hang if it is unknown which of them hung",
        "core/group/survivors.py",
        "elif not knows_culprit:",
        "elif False:",
    ),
    Mutant(
        "survivors that the group does not take end before others start",
        "agent/agent.py",
        "workers is not None and workers.has_survivors and formed.survivors_stay",
        "workers is not None and workers.has_survivors",
    ),
    Mutant(
        "a generation that is stopped while survivors end does not start",
        "agent/agent.py",
        "return stay or not self._end_survivors()",
        "return stay or self._end_survivors() or True",
    ),
    Mutant(
        "a node is ready once all of its survivors have left their group",
        "agent/recovery.py",
        "        if self._late:\n            self._look_again()",
        "        if len(self._late) == len(supervisor.alive):\n            self._look_again()",
    ),
    Mutant(
        "a process that is started while others are frozen is frozen as well",
        "processes/freezer.py",
        "for _ in range(_ROUNDS):",
        "for _ in range(1):",
    ),
    Mutant(
        "a process that another program has stopped is not continued, and all others are",
        "processes/freezer.py",
        "            if pid in self._frozen_pids:\n",
        "            if pid == min(self._frozen_pids):\n",
    ),
)


def broken_copy(mutant: Mutant, where: Path) -> None:
    """Copy relight, with a rule broken.

    Raises:
        ValueError: if the line is not there, or not once.
    """
    shutil.copytree(ROOT / "src", where, ignore=shutil.ignore_patterns("__pycache__"))
    path = where / "relight" / mutant.module
    text = path.read_text()
    if text.count(mutant.line) != 1:
        raise ValueError(f"{mutant.module} has {text.count(mutant.line)} times {mutant.line!r}")
    path.write_text(text.replace(mutant.line, mutant.broken))


def found_by(mutant: Mutant, seeds: int, start: int, processes: int) -> tuple[int, str]:
    """Return the seed that finds a mutant and how, -1 if none does."""
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
    """Look for each mutant; return 1 if one is not found."""
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
