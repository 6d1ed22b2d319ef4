"""The group, played as tables: who says what when, and what is sent to whom.

A line of a table is `TIME NODES VERB`; what is sent from then on comes below it, after arrows. The
verbs:

    joins     a node comes and has no workers
    offers    the same, but it is not ready yet
    ready     its workers have ended as they were asked to
    failed    a worker has ended badly; `ends` when all have, with a record of it
    done      all its workers have ended well
    lost, leaves
    returns   it comes with the workers of its generation; `returns-done` if they have ended well
    idle      it comes again, without workers
    -         nothing but time passes
"""

import pytest

from relight.core.group import Event, Lost, Send, Settings, State, Tick, Told
from relight.core.membership import Membership
from relight.core.messages import (
    Announce,
    Confirm,
    Done,
    End,
    Failed,
    Form,
    FromCoordinator,
    Join,
    Leave,
    Note,
    Ready,
    Stop,
    Wait,
)


def record(rank: int = 0, *, exitcode: int = 7, asked: int = 0, host: str = "a") -> dict:
    """How a worker ended, as a node reports it."""
    return {
        "rank": rank, "local_rank": 0, "host": host, "pid": 100 + rank, "exitcode": exitcode,
        "at": 0.5, "asked": asked, "report": None, "last_lines": (), "evidence": "", "log": "",
        "when": "12:00:00",
    }  # fmt: skip


class Table:
    """A group, the time, and what its nodes have been told."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.group = Membership(settings)
        self.now = 0.0
        self.heard: dict[str, list[FromCoordinator]] = {}
        self.last: dict[str, Form] = {}  # that a node was told to start
        self.fresh: list[Send] = []

    def play(self, script: str) -> "Table":
        """Play a table and compare what is sent with what it says."""
        lines = [line.strip() for line in script.strip().splitlines()]
        for index, line in enumerate(lines):
            if line.startswith("->"):
                continue
            expected = []
            for below in lines[index + 1 :]:
                if not below.startswith("->"):
                    break
                expected.append(below[2:].strip())
            time, *nodes, verb = line.split()
            self.wait(float(time))
            for node in nodes:
                for event in self.events(node, verb):
                    self.step(event)
            assert self.sent() == expected, line
        return self

    def wait(self, until: float) -> None:
        """Let time pass; deadlines are kept."""
        for _ in range(1000):
            due = self.group.deadline()
            if due is None or due > until:
                break
            self.now = max(self.now, due)
            self.step(Tick())
        else:
            raise AssertionError("deadlines without end")
        self.now = until

    def step(self, event: Event) -> None:
        effects = self.group.step(event, self.now)
        self.group.check()
        self.fresh += effects
        for node, message in effects:
            self.heard.setdefault(node, []).append(message)
            if isinstance(message, Form):
                self.last[node] = message

    def events(self, node: str, verb: str) -> list[Event]:
        form = self.last.get(node)
        number = form.generation.number if form else -1
        messages = {
            "joins": [self.join(node), Ready(number, 29500, (), ())],
            "idle": [self.join(node), Ready(number, 29500, (), ())],
            "idle-failed": [self.join(node), Ready(number, 29500, (record(host=node),), ())],
            "offers": [self.join(node)],
            "ready": [Ready(number, 29500, (), ())],
            "failed": [Failed(number, f"a worker failed on {node}")],
            "ends": [Ready(number, 29500, (record(host=node),), ())],
            "done": [Done(number)],
            "leaves": [Leave("SIGTERM")],
            "-": [],
        }
        if verb == "lost":
            return [Lost(node, "no word")]
        if verb.startswith("returns"):
            return [Told(node, self.join(node, self.announce(node, done="done" in verb)))]
        return [Told(node, message) for message in messages[verb]]

    def announce(self, node: str, *, done: bool = False) -> Announce:
        generation, place = self.last[node]
        return Announce(
            generation.number, generation.restart, place.group_rank, place.group_world_size, done
        )

    def join(self, node: str, announce: Announce | None = None, **changes: object) -> Join:
        name = node.partition("/")[0]
        rank = int(name[4:]) if self.settings.ordered else -1
        offer = Join(
            node, name, f"10.0.0.{len(name)}", 2, "default", rank, self.settings.least,
            self.settings.most, self.settings.max_restarts, {}, announce,
        )  # fmt: skip
        return offer._replace(**changes)

    def sent(self) -> list[str]:
        """Return what was sent since the last call, without what is for people only."""
        found: dict[str, list[str]] = {}
        places: dict[str, dict[int, str]] = {}
        for node, message in self.fresh:
            match message:
                case Form(generation, place):
                    restart = f" restart {generation.restart}" if generation.restart else ""
                    key = f"form {generation.number}{restart}:"
                    places.setdefault(key, {})[place.group_rank] = node
                    found[key] = [n for _, n in sorted(places[key].items())]
                case Stop(number, _, gently):
                    found.setdefault(f"{'gently ' * gently}stop {number}:", []).append(node)
                case Confirm(number):
                    found.setdefault(f"confirm {number}:", []).append(node)
                case End(code, _, _, _):
                    found.setdefault(f"end {code}:", []).append(node)
        self.fresh = []
        return [
            f"{key} {' '.join(nodes if key.startswith('form') else sorted(nodes))}"
            for key, nodes in found.items()
        ]

    def waits(self, node: str) -> Wait:
        """Return the last that a node was told while it waited."""
        return [m for m in self.heard[node] if isinstance(m, Wait)][-1]

    def reason(self, node: str) -> str:
        """Return why a node was last told to stop."""
        return [m for m in self.heard[node] if isinstance(m, Stop)][-1].cause

    def end(self, node: str) -> End:
        """Return the end that a node was told."""
        (end,) = (m for m in self.heard[node] if isinstance(m, End))
        return end

    def follow(self) -> "Table":
        """Return a table with a new coordinator, which knows nothing of the nodes of this one."""
        other = Table(self.settings)
        other.last, other.now = dict(self.last), self.now
        return other


def table(least: int, most: int, max_restarts: int = 3, **others: object) -> Table:
    return Table(Settings(least, most, max_restarts, **others))


# The first generation.


def test_a_full_group_forms_at_once() -> None:
    """As many nodes as may be do not wait for anything."""
    table(2, 2).play("""
        0 a joins
        1 b joins
        -> form 0: a b
    """)


def test_enough_nodes_wait_for_more_until_nobody_has_come_for_a_while() -> None:
    """Between the minimum and the maximum the first generation waits for quiet after the last."""
    table(2, 4, last_call_s=5.0).play("""
        0 a joins
        1 b joins
        5.9 -
        5.95 c joins
        10.9 -
        11 -
        -> form 0: a b c
    """)


def test_a_node_counts_when_it_is_ready() -> None:
    """A node that has come but is not ready is waited for, and is told so."""
    game = table(2, 2)
    game.play("""
        0 a joins
        0 b offers
    """)
    assert game.group.explain(1) == "waiting for b to get ready (join timeout in 9 m 59 s)"
    game.play("""
        1 b ready
        -> form 0: a b
    """)


def test_hosts_are_sorted_as_people_do() -> None:
    """On the first formation node2 comes before node10, whoever came first."""
    table(4, 4).play("""
        0 node10 node1 node9 node2 joins
        -> form 0: node1 node2 node9 node10
    """)


def test_two_agents_on_one_host_are_two_nodes() -> None:
    """Nodes are told apart by their own random name, not by host name."""
    table(3, 3).play("""
        0 x/2 x/1 w/1 joins
        -> form 0: w/1 x/2 x/1
    """)


def test_of_too_many_the_first_are_taken() -> None:
    """Who came first is in the first generation, even if all became ready at the same time."""
    game = table(1, 2, last_call_s=1.0)
    game.play("""
        0 b c offers
        0.2 a joins
        0.3 c ready
        -> form 0: a c
        0.4 b ready
    """)
    game.wait(2)
    assert game.waits("b").spare


def test_enough_nodes_that_are_never_quiet_form_at_the_join_timeout() -> None:
    """A node that comes and goes can't keep the others from starting for ever."""
    game = table(2, 4, join_timeout_s=20.0)
    game.play("0 a b joins")
    for second in range(1, 18, 3):
        game.play(f"{second} c joins\n{second + 1} c lost")
    game.play("""
        20 -
        -> form 0: a b
    """)


def test_what_members_are_told() -> None:
    """Ranks count through the nodes, roles apart, and rank 0's address is everybody's."""
    game = table(2, 2)
    game.step(Told("a", game.join("a", slots=3, role="trainer", address="10.1.1.1")))
    game.step(Told("b", game.join("b", slots=2, role="reader", address="10.1.1.2")))
    game.step(Told("b", Ready(-1, 4000, (), ())))
    game.step(Told("a", Ready(-1, 5000, (), ())))
    (a,), (b,) = ([m for m in game.heard[node] if isinstance(m, Form)] for node in ("a", "b"))
    assert a.generation == b.generation
    assert (a.generation.master_addr, a.generation.master_port) == ("10.1.1.1", 5000)
    assert (a.place.first_rank, a.place.world_size, a.place.role_world_size) == (0, 5, 3)
    assert (b.place.first_rank, b.place.world_size, b.place.role_world_size) == (3, 5, 2)
    assert (b.place.group_rank, b.place.group_world_size, b.place.first_role_rank) == (1, 2, 0)


# Failures of workers.


def test_a_failure_restarts_all_with_the_same_ranks() -> None:
    """All nodes stop, the slowest is waited for, ranks stay, and one restart is spent."""
    game = table(3, 3).play("""
        0 c b a joins
        -> form 0: a b c
        9 b failed
        -> stop 0: a b c
        9.1 c ready
        9.2 b ends
        12 a ready
        -> form 1 restart 1: a b c
        20 a failed
        -> stop 1: a b c
        20 b c ready
        20 a ends
        -> form 2 restart 2: a b c
    """)
    assert game.reason("c") == "a worker failed on a"
    assert "restart 2 of 3" in game.last["c"].generation.cause


def test_a_restart_of_fewer_than_may_be_waits_for_nobody() -> None:
    """Between minimum and maximum a restart forms as soon as the members are ready."""
    table(2, 8, last_call_s=5.0).play("""
        0 a b joins
        5 -
        -> form 0: a b
        9 a failed
        -> stop 0: a b
        9.1 a ends
        9.2 b ready
        -> form 1 restart 1: a b
    """)


def test_the_end_of_the_budget() -> None:
    """When no restart is left all are told the root cause's exit code and report, spares too."""
    game = table(2, 2, 1).play("""
        0 a b joins
        -> form 0: a b
        0 s joins
        5 a failed
        -> stop 0: a b
        5 b ready
        5 a ends
        -> form 1 restart 1: a b
        9 b failed
        -> stop 1: a b
        9 a ready
        9 b ends
        -> end 7: a b s
    """)
    assert game.end("a") == game.end("s")
    assert game.end("s").root["host"] == "b"
    assert any("on b" in line for line in game.end("a").report)
    assert "the one restart is used up" in "\n".join(game.end("a").report)
    assert game.group.explain(10) == "the job is over"


def test_a_failure_that_nobody_describes_ends_the_job_too() -> None:
    """Records that make no sense can't break the coordinator; the exit code is then 1."""
    game = table(1, 1, 0).play("""
        0 a joins
        -> form 0: a
        1 a failed
        -> stop 0: a
    """)
    strange = ({"at": 10**400}, {"at": "x", "asked": "no"}, record() | {"exitcode": float("inf")})
    game.step(Told("a", Ready(0, 1, strange, ())))
    assert game.end("a").exit_code == 1
    assert game.end("a").reason == "a worker failed on a"


def test_ages_of_failures_do_not_need_a_common_clock() -> None:
    """The cause is what happened first, by age when heard, not what was heard first."""
    game = table(2, 2, 0).play("""
        0 a b joins
        -> form 0: a b
        9 a failed
        -> stop 0: a b
    """)
    game.step(Told("a", Ready(0, 1, (record(0, exitcode=3) | {"at": 0.1},), ())))
    game.now = 12.0
    game.step(Told("b", Ready(0, 1, (record(2, exitcode=4) | {"at": 3.5},), ())))
    assert game.end("a").exit_code == 4


# Nodes that come and go.


def test_a_lost_node_is_replaced_by_nobody_at_once() -> None:
    """Survivors above the minimum form as soon as their workers have stopped, at no cost."""
    game = table(2, 3, 0).play("""
        0 a b c joins
        -> form 0: a b c
        9 b lost
        -> stop 0: a c
        9.1 a ready
        9.2 c ready
        -> form 1: a c
    """)
    assert game.reason("a") == "b was lost: no word"


def test_below_the_minimum_the_rest_waits_and_says_for_what() -> None:
    """Too few nodes wait for the join timeout, are told what for, and end with exit code 3."""
    game = table(3, 3, join_timeout_s=60.0).play("""
        0 a b c joins
        -> form 0: a b c
        9 b lost
        -> stop 0: a c
        10 a c ready
        12 -
    """)
    text = "2 of 3 nodes have joined: a, c; waiting for 1 more (join timeout in "
    assert game.waits("a").text.startswith(text)
    assert not game.waits("a").spare
    assert game.group.explain(40) == f"{text}30 s)"
    game.play("""
        69.9 -
        70 -
        -> end 3: a c
        80 d joins
        -> end 3: d
    """)
    assert game.end("c").reason == (
        "gave up after 1 m 00 s: 2 of 3 nodes have joined: a, c; waiting for 1 more"
    )


def test_a_replacement_takes_the_hole() -> None:
    """A newcomer has the place of the lost node; rank 0 does not move."""
    table(3, 3).play("""
        0 a b c joins
        -> form 0: a b c
        9 b lost
        -> stop 0: a c
        9 a c ready
        20 Z joins
        -> form 1: a Z c
    """)


def test_two_newcomers_come_together() -> None:
    """Nodes that come within the last call are admitted in one new generation."""
    game = table(1, 8, 0, last_call_s=5.0).play("""
        0 b joins
        5 -
        -> form 0: b
        10 c joins
        13 a joins
        17.9 -
        18 -
        -> stop 0: b
        18.1 b ready
        -> form 1: b c a
    """)
    assert game.reason("b") == "c, a joined"


def test_what_makes_the_group_full_is_let_in_at_once() -> None:
    """There is nobody to wait for when the maximum is reached."""
    table(1, 3, last_call_s=5.0).play("""
        0 a joins
        5 -
        -> form 0: a
        10 b joins
        10.5 c joins
        -> stop 0: a
        11 a ready
        -> form 1: a b c
    """)


def test_newcomers_may_be_let_in_gently() -> None:
    """Where workers may save first, a newcomer's stop says so; that of a failure does not."""
    table(1, 2, gently=True, last_call_s=5.0).play("""
        0 a joins
        5 -
        -> form 0: a
        10 b joins
        -> gently stop 0: a
        11 a ready
        -> form 1: a b
        12 a failed
        -> stop 1: a b
    """)


def test_a_spare_waits_and_is_used_at_once() -> None:
    """A node above the maximum is told that it is a spare, and takes the place of a lost one."""
    game = table(2, 2).play("""
        0 a b joins
        -> form 0: a b
        1 s joins
        5 -
    """)
    assert game.waits("s").spare
    assert game.waits("s").text == "generation 0 runs on 2 nodes; this node is kept as a spare"
    game.play("""
        9 a lost
        -> stop 0: b
        9.1 b ready
        -> form 1: s b
    """)


def test_a_node_that_leaves() -> None:
    """An orderly leave costs no restart, and is named."""
    game = table(1, 2, 0).play("""
        0 a b joins
        -> form 0: a b
        9 a leaves
        -> stop 0: b
        9 a lost
        9 b ready
        -> form 1: b
    """)
    assert game.reason("b") == "a left: SIGTERM"


def test_a_failure_and_a_loss_are_a_change_of_membership() -> None:
    """Whichever comes first: where a node is lost, the others' failures are its consequence."""
    table(1, 3, 0).play("""
        0 a b c joins
        -> form 0: a b c
        9 a failed
        -> stop 0: a b c
        9.5 b lost
        9.6 a ends
        9.7 c ready
        -> form 1: a c
        19 c lost
        -> stop 1: a
        19 a failed
        19 a ends
        -> form 2: a
    """)


def test_a_loss_while_nothing_runs_does_not_pay_for_a_later_failure() -> None:
    """Only what happens during a stop belongs to it."""
    table(2, 2, 0).play("""
        0 a b joins
        -> form 0: a b
        9 b lost
        -> stop 0: a
        9 a ready
        10 c joins
        -> form 1: a c
        11 c lost
        -> stop 1: a
        11 a ready
        12 d offers
        13 d lost
        14 e joins
        -> form 2: a e
        15 e failed
        -> stop 2: a e
        15 a ready
        15 e ends
        -> end 7: a e
    """)


def test_two_losses_are_no_trouble() -> None:
    """Nodes can go one after the other, down to none, and come again."""
    table(1, 2).play("""
        0 a b joins
        -> form 0: a b
        1 a lost
        -> stop 0: b
        1 b ready
        -> form 1: b
        2 b leaves
        3 c joins
        -> form 2: c
    """)


def test_when_all_nodes_are_lost_their_lease_is_waited_for() -> None:
    """Others do not start while the whole live generation may still run somewhere."""
    table(1, 2, rejoin_s=2.0).play("""
        0 a b joins
        -> form 0: a b
        1 s t joins
        9 a lost
        -> stop 0: b
        9.1 b lost
        11 -
        11.1 -
        -> form 1: s t
        12 a returns
        -> stop 0: a
    """)


def test_who_returns_during_the_stop_has_its_place_again() -> None:
    """A node that was lost and comes back, workers and all, is waited for, and keeps its rank."""
    table(1, 3, 0).play("""
        0 a b c joins
        -> form 0: a b c
        9 a lost
        -> stop 0: b c
        9.1 b ready
        9.2 a returns
        -> stop 0: a
        9.3 c ready
        9.4 a ready
        -> form 1: a b c
    """)


def test_who_returns_too_late_was_replaced() -> None:
    """A node that others went on without must stop, and may then come in anew."""
    game = table(2, 2).play("""
        0 a b joins
        -> form 0: a b
        1 s joins
        9 a lost
        -> stop 0: b
        9 b ready
        -> form 1: s b
        20 a returns
        -> stop 0: a
        21 a ready
        25 -
    """)
    assert game.reason("a") == "the group went on without this node"
    assert game.waits("a").spare


def test_a_broken_connection_is_nothing() -> None:
    """A node that comes again before it is lost, with its workers, is confirmed."""
    table(2, 2).play("""
        0 a b joins
        -> form 0: a b
        9 a returns
        -> confirm 0: a
        10 a lost
        -> stop 0: b
    """)


def test_who_never_got_the_word_to_start() -> None:
    """A node that comes again without workers makes the others start again, at no cost."""
    game = table(2, 2, 0).play("""
        0 a b joins
        -> form 0: a b
    """)
    del game.last["b"]
    game.play("""
        1 b idle
        -> stop 0: a b
        1.1 a ready
        -> form 1: a b
    """)
    assert game.reason("a") == "b came back without its workers"


def test_a_failure_while_the_connection_is_broken_is_charged() -> None:
    """Workers that fail before a node is back count as any failure."""
    table(2, 2, 1).play("""
        0 a b joins
        -> form 0: a b
        1 b idle-failed
        -> stop 0: a b
        1.1 a ready
        -> form 1 restart 1: a b
    """)


def test_a_node_that_comes_again_during_the_stop_changes_nothing() -> None:
    """A break of a stopped node's connection costs no rank and makes no restart free."""
    table(2, 2, 1).play("""
        0 a b joins
        -> form 0: a b
        1 b failed
        -> stop 0: a b
        1.1 a ready
        1.2 a idle
        -> stop 0: a
        1.3 b ends
        -> form 1 restart 1: a b
    """)


# The end.


def test_all_are_done() -> None:
    """The job ends well when the last worker of the last node has ended well."""
    table(2, 2).play("""
        0 a b joins
        -> form 0: a b
        0 s joins
        8 a done
        9 b done
        -> end 0: a b s
        10 c joins
        -> end 0: c
    """)


def test_a_done_node_may_be_lost() -> None:
    """What has ended well is not missed."""
    table(2, 3).play("""
        0 a b c joins
        -> form 0: a b c
        8 a done
        8.5 a lost
        9 c done
        9 b done
        -> end 0: b c
    """)


def test_a_done_node_begins_anew_when_another_fails() -> None:
    """A restart is for all, done or not."""
    table(2, 2).play("""
        0 a b joins
        -> form 0: a b
        8 a done
        9 b failed
        -> stop 0: a b
        9 a ready
        9 b ends
        -> form 1 restart 1: a b
    """)


def test_a_done_node_is_released_when_others_take_too_long() -> None:
    """The exit barrier has a limit; the rest of the job goes on."""
    table(2, 2, exit_barrier_s=30.0).play("""
        0 a b joins
        -> form 0: a b
        8 a done
        37.9 -
        38 -
        -> end 0: a
        38 a lost
        90 b done
        -> end 0: b
    """)


def test_a_job_that_ends_lets_nobody_in() -> None:
    """Newcomers do not stop workers when others have ended well already."""
    table(1, 3, last_call_s=5.0).play("""
        0 a b joins
        5 -
        -> form 0: a b
        8 a done
        9 c joins
        30 -
        31 b done
        -> end 0: a b c
    """)


def test_a_node_that_is_done_while_another_fails_for_good_leaves_at_once() -> None:
    """The end of the budget releases those that are done as well."""
    table(2, 2, 0).play("""
        0 a b joins
        -> form 0: a b
        8 a done
        9 b failed
        -> stop 0: a b
        9 b ends
        9.1 a ready
        -> end 7: a b
    """)


# A new coordinator.


def running(most: int = 3, least: int = 2) -> Table:
    """Return a table whose coordinator is new, and nodes a, b and c in generation 1, restart 1."""
    game = table(least, most, rejoin_s=2.0).play("""
        0 a b c joins
        -> form 0: a b c
        1 a failed
        -> stop 0: a b c
        1 a ends
        1 b c ready
        -> form 1 restart 1: a b c
    """)
    return game.follow()


def test_a_new_coordinator_confirms_what_runs() -> None:
    """When all nodes announce the same generation nothing restarts, and counters go on."""
    game = running().play("""
        9 c returns
        9.1 a returns
    """)
    text = "waiting for 1 more of the nodes of generation 1 to come back"
    assert game.group.explain(9.1) == text
    game.play("""
        9.2 b returns
        -> confirm 1: a b c
        20 b failed
        -> stop 1: a b c
        20 a c ready
        20 b ends
        -> form 2 restart 2: a b c
    """)


def test_a_node_that_is_lost_with_the_coordinator() -> None:
    """Whoever does not come to the new coordinator in time was lost; the rest forms anew."""
    game = running().play("""
        9 c returns
        9.1 a returns
        11 -
        -> stop 1: a c
        11.1 a ready
        11.1 c ready
        -> form 2 restart 1: a c
    """)
    assert game.reason("a") == "a node was lost together with the coordinator"


def test_a_new_node_does_not_disturb_the_recovery() -> None:
    """A stranger that comes first waits until it is known what runs."""
    running().play("""
        9 d joins
        9 a returns
        9 b returns
        9 c returns
        -> confirm 1: a b c
    """)


def test_a_failure_during_the_recovery_is_kept_until_all_are_back() -> None:
    """A worker that failed while there was no coordinator restarts all, and is charged."""
    running().play("""
        9 a returns
        9 a failed
        9.1 a ends
        9.2 b returns
        9.3 c returns
        -> stop 1: b c
        9.4 b c ready
        -> form 2 restart 2: a b c
    """)


def test_done_is_known_to_a_new_coordinator() -> None:
    """Nodes that had ended well say so; when all have, the job ends."""
    running().play("""
        9 a returns-done
        9 b returns
        9 c returns-done
        -> confirm 1: a b c
        10 b done
        -> end 0: a b c
    """)


def test_done_between_two_connections_is_not_forgotten() -> None:
    """A node that comes twice during the recovery, the second time done, is done."""
    running().play("""
        9 a b returns
        9.1 a b returns-done
        9.2 c returns-done
        -> confirm 1: a b c
        -> end 0: a b c
    """)


def test_the_latest_generation_counts() -> None:
    """Whoever announces an older generation than another node must stop."""
    game = running()
    game.last["old"] = Form(
        game.last["a"].generation._replace(number=0), game.last["a"].place._replace(group_rank=0)
    )
    game.play("""
        9 old returns
        9 a returns
        -> stop 0: old
        9 b c returns
        -> confirm 1: a b c
    """)


def test_numbers_are_above_all_that_was_heard_of() -> None:
    """Nodes that have stopped tell which generation they were in, and the next one is above it."""
    running().play("""
        9 a idle
        9 b idle
        9 c idle
        -> form 2: a b c
    """)


def test_two_nodes_with_one_place() -> None:
    """The second node that announces a place is superseded."""
    game = running()
    game.last["x"] = game.last["a"]
    game.play("""
        9 a returns
        9 x returns
        -> stop 1: x
        9 b c returns
        -> confirm 1: a b c
    """)


@pytest.mark.parametrize(
    "announce",
    [
        Announce(5, 0, 0, 0, done=True),
        Announce(5, 0, -1, 3, done=False),
        Announce(5, 0, 3, 3, done=False),
        Announce(5, 0, 0, 1 << 60, done=False),
        Announce(-1, 0, 0, 1, done=False),
    ],
)
def test_announcements_that_can_not_be(announce: Announce) -> None:
    """A place outside the group is no place: such a node is told to stop."""
    game = table(2, 3)
    game.step(Told("a", game.join("a", announce)))
    assert game.group.state is State.GATHERING
    assert game.sent() == [f"stop {announce.generation}: a"]


# What must not matter.


def test_words_of_older_generations_are_ignored() -> None:
    """Failed, Done and Ready of an earlier generation do not touch the live one."""
    game = table(2, 2).play("""
        0 a b joins
        -> form 0: a b
        1 a failed
        -> stop 0: a b
        1 a ends
        1 b ready
        -> form 1 restart 1: a b
    """)
    for old in (Failed(0, "old"), Done(0), Ready(0, 1, (record(),), ()), Ready(-1, 1, (), ())):
        game.step(Told("a", old))
    assert game.sent() == []
    assert game.group.state is State.RUNNING
    game.play("""
        2 a b done
        -> end 0: a b
    """)


def test_words_of_strangers_are_ignored() -> None:
    """Who has not joined is not listened to."""
    game = table(1, 1)
    for message in (Ready(0, 1, (), ()), Done(0), Failed(0, "x"), Leave("x")):
        game.step(Told("x", message))
    game.step(Lost("x", "no word"))
    assert game.sent() == []
    assert game.group.deadline() is None


# Who is refused.


def test_another_nnodes_is_refused() -> None:
    """A node with another --nnodes could not work; it alone ends, with exit code 2."""
    game = table(2, 4)
    game.play("0 a joins")
    game.step(Told("x", game.join("x", least=1)))
    assert game.sent() == ["end 2: x"]
    assert game.end("x").reason == "--nnodes=1:4 on x, but the job was started with --nnodes=2:4"
    assert list(game.group.members) == ["a"]


def test_static_ranks() -> None:
    """Nodes that bring their ranks have them, whoever comes first, and all are waited for."""
    table(1, 3, ordered=True, last_call_s=1.0).play("""
        0 node2 joins
        1 node1 joins
        9 node0 joins
        -> form 0: node0 node1 node2
        10 node1 lost
        -> stop 0: node0 node2
        10 node0 node2 ready
        30 node1/again joins
        -> form 1: node0 node1/again node2
    """)


def test_a_static_rank_belongs_to_one_node() -> None:
    """A second node with the same --node-rank, or one that is too large, is refused by name."""
    game = table(3, 3, ordered=True).play("""
        0 node0 joins
        0 node1 joins
        1 node1/other joins
        -> end 2: node1/other
        1 node3 joins
        -> end 2: node3
        2 node1 idle
        3 node2 joins
        -> form 0: node0 node1 node2
    """)
    assert game.end("node1/other").reason == "--node-rank=1 belongs to node1 already"
    assert game.end("node3").reason == "--node-rank=3 on node3 is not below --nnodes=3"


def test_differences_are_told_to_both() -> None:
    """A newcomer whose facts differ is a note on it and on the first node; it may join."""
    game = table(2, 2)
    game.step(Told("a", game.join("a", facts={"script": "1"})))
    game.step(Told("b", game.join("b", facts={"script": "2"})))
    notes = {node: [m for m in heard if isinstance(m, Note)] for node, heard in game.heard.items()}
    assert len(notes["a"]) == 1
    assert notes["a"] == notes["b"]
    game.play("""
        1 a b ready
        -> form 0: a b
    """)


def test_each_difference_is_told_once() -> None:
    """What some node has already was told when the first of its kind came; not all can be news."""
    game = table(100, 100)
    for index in range(60):
        game.step(Told(f"n{index}", game.join(f"n{index}", facts={"script": f"{index % 2}"})))
    notes = [(n, m) for n, heard in game.heard.items() for m in heard if isinstance(m, Note)]
    assert sorted(node for node, _ in notes) == ["n0", "n1"]
    for index in range(60):
        game.step(Told(f"m{index}", game.join(f"m{index}", facts={"script": f"m{index}"})))
    assert len([m for m in game.heard["n0"] if isinstance(m, Note)]) < 10


def test_numbers_of_a_stranger_do_not_count() -> None:
    """A generation's number that can't be does not make the next one unspeakable."""
    game = table(1, 2)
    game.step(Told("a", game.join("a", Announce(1 << 61, 0, 0, 1, done=False))))
    game.step(Told("a", Ready(1 << 61, 1, (), ())))
    game.step(Told("b", game.join("b")))
    game.step(Told("b", Ready(-1, 1, (), ())))
    assert game.sent() == [f"stop {1 << 61}: a", "form 0: a b"]


# What people are told.


def test_explanations() -> None:
    """Every state says what it waits for."""
    game = table(2, 4, last_call_s=5.0, join_timeout_s=600.0)
    game.play("0 gpu-01 joins")
    assert game.group.explain(48) == (
        "1 of at least 2 nodes have joined: gpu-01; waiting for 1 more (join timeout in 9 m 12 s)"
    )
    game.play("48 gpu-03 joins")
    assert game.group.explain(48) == (
        "2 of at most 4 nodes have joined: gpu-01, gpu-03; "
        "the group is formed when no other comes for 5 s"
    )
    game.play("""
        53 -
        -> form 0: gpu-01 gpu-03
    """)
    assert game.group.explain(60) == "generation 0 runs on 2 nodes"
    game.play("""
        60 gpu-03 lost
        -> stop 0: gpu-01
    """)
    assert game.group.explain(60) == (
        "waiting for workers to stop on gpu-01 (gpu-03 was lost: no word)"
    )


def test_many_that_join_do_not_flood_each_other() -> None:
    """A thousand nodes that come in a second are told a few times why they wait, not a thousand."""
    game = table(1000, 1000)
    for index in range(999):
        game.wait(index / 1000)
        for event in game.events(f"n{index}", "joins"):
            game.step(event)
    assert len([m for m in game.heard["n0"] if isinstance(m, Wait)]) <= 2
    game.wait(10)
    assert "999 of 1000 nodes have joined" in game.waits("n0").text
    assert "and 991 more" in game.waits("n0").text
