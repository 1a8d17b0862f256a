"""What depends on tokens ends with them, and looking for it holds nobody up, however much there is."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import cast

import pytest

from tests.servlet.rig import relay, settings, until
from tests.support.loops import in_loop
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.access.sso import Member, SsoTerms
from tunnel_servlet.access.tokens import Identity
from tunnel_servlet.web.parts import Parts
from tunnel_servlet.web.running import RunningRelay
from tunnel_servlet.web.tokens import watch as watch_module
from tunnel_servlet.web.tokens.provider import IdentityProvider
from tunnel_servlet.web.tokens.watch import TokenWatch

NOW_S = 1_800_000_000


class Held:
    """An object that depends on a token."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.ended = ""

    def end(self, text: str) -> None:
        self.ended = text


def watch_of(why_ended: Callable[[Identity], str]) -> TokenWatch:
    return TokenWatch(why_ended, lambda: math.inf, lambda: None)


@pytest.mark.parametrize("next_s", [86_400.0, 0.0])  # in a day by the old clock; all have expired
@in_loop
async def test_a_clock_that_was_set_is_noticed_long_before_a_token_expires_by_the_old_one(
    monkeypatch: pytest.MonkeyPatch, next_s: float
) -> None:
    monkeypatch.setattr(watch_module, "LOOK_S", 0.01)
    looked = asyncio.Event()
    watch = TokenWatch(lambda identity: "", lambda: next_s, looked.set)
    watch.look()
    async with asyncio.timeout(5):
        await looked.wait()
    watch.close()


def test_each_token_is_looked_at_once_however_many_objects_depend_on_it() -> None:
    asked: Counter[str] = Counter()

    def why_ended(identity: Identity) -> str:
        asked[identity.user] += 1
        return "gone" if identity.user == "ann" else ""

    watch = watch_of(why_ended)
    held = [Held(Identity(user, "key")) for user in ("ann", "bob") for _ in range(100)]
    for one in held:
        watch.add(one)
    steps = sum(1 for _ in watch.end_invalid())
    assert asked == {"ann": 1, "bob": 1}
    assert [one.ended for one in held] == ["gone"] * 100 + [""] * 100
    assert steps == 102  # so that ending one user's many objects is in parts, too


def test_an_object_that_ends_while_others_are_looked_at_is_forgotten() -> None:
    watch = watch_of(lambda identity: "gone")
    first, second, other = Held(Identity("ann")), Held(Identity("ann")), Held(Identity("bob"))
    for one in (first, second, other):
        watch.add(one)
    steps = watch.end_invalid()
    next(steps)
    watch.remove(other)
    watch.remove(first)
    assert watch.identities == {Identity("ann")}
    list(steps)
    assert (first.ended, second.ended, other.ended) == ("gone", "gone", "")
    watch.remove(second)
    watch.remove(second)
    assert (watch.objects, watch.identities) == ([], set())


def reload(running: RunningRelay) -> None:
    running.relay.reload(replace(running.config, grants=GrantTable(groups={"staff": Grant(services=("news",))})))


@asynccontextmanager
async def slow_relay() -> AsyncIterator[RunningRelay]:
    """Run a relay with a group, in which each step of long work takes a millisecond, by a clock of its own."""
    sso = SsoTerms(issuer="https://login.example", audience="tunnel")
    config = settings(grants=GrantTable(groups={"staff": Grant(services=("*",))}), sso=sso)
    async with relay(config) as running:
        times = count()
        running.relay._ending, running.relay._review = (Parts(lambda: next(times) / 1000) for _ in range(2))
        running.relay.clock = lambda: NOW_S
        yield running
        await until(lambda: running.relay._review._next is None)


def old_ones(running: RunningRelay) -> list[Held]:
    """Return objects of 100 users whose tokens have expired."""
    old = [Held(Identity(f"sso:{number}", "key", expires_s=NOW_S - 60)) for number in range(100)]
    for one in old:
        running.relay.watch(one)
    return old


@pytest.mark.parametrize("act", [lambda running: running.relay._look_for_expired(), reload])
@in_loop
async def test_two_users_the_end_of_many_tokens_leaves_turns_to_others(act: Callable[[RunningRelay], None]) -> None:
    async with slow_relay() as running:
        old = old_ones(running)
        act(running)
        turns = 0
        while not all(one.ended for one in old):
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 10
        assert old[0].ended == "the token expired on 2027-01-15 07:59 UTC: get a new one of the identity provider"


@in_loop
async def test_two_users_one_whose_groups_change_does_not_keep_what_others_must_lose() -> None:
    async with slow_relay() as running:
        members = iter([Member("sso:ann", ("staff",), NOW_S + 60, 1), Member("sso:ann", ("staff", "x"), NOW_S + 60, 2)])

        class Named:
            async def identify(self, _: str) -> Member:
                return next(members)

            async def close(self) -> None: ...

        running.relay.provider = cast(IdentityProvider, Named())
        await running.relay.identify_member("first")
        old = old_ones(running)
        reload(running)
        assert not all(one.ended for one in old)
        await running.relay.identify_member("second")  # begins a review in place of the reload's
        await until(lambda: running.relay._review._next is None)
        assert all(one.ended for one in old)
