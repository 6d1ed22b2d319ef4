"""How much slower heartbeats are in a large group."""

import pytest

from relight.core.link.heartbeat_rate import FULL_RATE_AGENTS, LONGEST_S, USUAL_S, extra_s
from relight.core.link.lease import lease_s
from relight.flags.rdzv_conf import MIN_LOST_AFTER_S

PATIENCES = (MIN_LOST_AFTER_S, 3.0, 10.0, 60.0, 3600.0)


@pytest.mark.parametrize("lost_after_s", PATIENCES)
def test_heartbeat_rate_is_normal_for_up_to_a_thousand_agents(lost_after_s: float) -> None:
    assert {extra_s(agents, lost_after_s) for agents in range(FULL_RATE_AGENTS + 1)} == {0.0}


@pytest.mark.parametrize("lost_after_s", PATIENCES)
def test_heartbeat_interval_is_far_shorter_than_a_lease_in_any_group(lost_after_s: float) -> None:
    """A heartbeat that is echoed renews the lease, and one echo may be late."""
    for agents in (1001, 2000, 4000, 10_000, 1_000_000):
        interval_s = USUAL_S + extra_s(agents, lost_after_s)
        assert interval_s <= lease_s(lost_after_s) / 2
        assert interval_s <= max(USUAL_S, min(LONGEST_S, lost_after_s / 5))


def test_total_heartbeat_rate_is_constant_from_1000_to_4000_agents() -> None:
    rates = [round(n / (USUAL_S + extra_s(n, 10.0))) for n in (1000, 1500, 2000, 3000, 4000)]
    assert rates == [2000] * 5
    assert round(10_000 / (USUAL_S + extra_s(10_000, 10.0))) == 5000
