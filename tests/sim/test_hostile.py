"""Hostile users beside honest ones: no byte of an honest user is lost, and all accounts are zero at the end."""

from collections.abc import Callable

import pytest

from tests.sim.front import Front, FrontLimits
from tests.sim.hostile import HostileUser
from tests.sim.hostile_packets import ACTS
from tests.sim.runner import run_seed
from tests.sim.scenario import draw_scenario
from tests.sim.violation import Violation
from tests.sim.world import World
from tunnel.wire import StatusCode
from tunnel_servlet.switch.mailboxes.mailbox import Mailbox
from tunnel_servlet.switch.registry import Registry

SEED = 1002


def test_two_users_beside_hostile_ones_do_not_lose_a_byte() -> None:
    outcome = run_seed(SEED, hostile=True)
    assert not outcome.failure, outcome.report()
    assert outcome.hostile
    assert outcome.hostile_acts > 0


def noted(act: Callable[[HostileUser], None], done: set[str]) -> Callable[[HostileUser], None]:
    """The act, which leaves its name in `done`."""

    def act_and_note(user: HostileUser) -> None:
        done.add(act.__name__)
        act(user)

    return act_and_note


def test_every_act_is_done_in_some_seed_and_the_relay_refuses_in_four_ways() -> None:
    done: set[str] = set()
    codes: set[int] = set()
    for seed in range(10):
        world = World(draw_scenario(seed, 7, hostile=True))
        acts = {name: noted(act, done) for name, act in ACTS.items()}
        for user in world.guests.users:
            user.spec = type(user.spec)(user.user, tuple(ACTS), 80, user.spec.pause_us)
            user.acts = acts
        world.run()
        for user in world.guests.users:
            codes |= user.refusals.keys()
    assert done == set(ACTS)
    assert codes >= {StatusCode.UNKNOWN, StatusCode.CORRUPT, StatusCode.STALE, StatusCode.TOO_LARGE}


def test_only_some_seeds_have_hostile_users_and_older_draw_versions_have_none() -> None:
    drawn = [bool(draw_scenario(seed).hostiles) for seed in range(80)]
    assert 2 <= sum(drawn) <= 30
    assert not any(draw_scenario(seed, 4).hostiles for seed in range(80))


@pytest.mark.interpreted
@pytest.mark.parametrize("forgets", ["bytes of packets", "an attachment", "a connection"])
def test_a_relay_that_forgets_to_give_something_back_is_found(forgets: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if forgets == "bytes of packets":
        monkeypatch.setattr(Mailbox, "release_taken", lambda self, frames: None)
    elif forgets == "an attachment":
        monkeypatch.setattr(Registry, "remove", lambda self, attachment: None)
    else:
        monkeypatch.setattr(Front, "leave", lambda self, counted: None)
    outcome = run_seed(SEED, hostile=True)
    assert outcome.failure


def test_the_accounts_of_the_front_are_recounted() -> None:
    front = Front(FrontLimits(bytes_max=1000))
    counted = front.open("here", "eve", 500)
    assert counted is not None
    assert front.open("here", "eve", 1) is None
    front.check()
    with pytest.raises(Violation, match="1 connections, 500 bytes and \\['eve'\\] are left"):
        front.check_empty()
    counted.held_bytes -= 1
    with pytest.raises(Violation, match="are counted"):
        front.check()
