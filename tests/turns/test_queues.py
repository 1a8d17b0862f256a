"""Users whose input must wait for the turn of others."""

from __future__ import annotations

import asyncio
import itertools

from tests.servlet.rig import until
from tests.support.loops import in_loop
from tests.turns.fake_meter import FakeMeter
from tunnel.turns.queues import FIRST, Turns


class Input:
    """An input with work, each piece of which takes some processor time."""

    def __init__(self, turns: Turns, user: str, log: list[str], pieces: int = 0) -> None:
        self.turns, self.user, self.log, self.pieces = turns, user, log, pieces
        turns.join(user, self)

    def pause_input(self) -> None:
        self.log.append(f"{self.user} stops")

    def resume_input(self) -> None:
        while self.pieces and not self.turns.is_stopped(self.user):
            self.log.append(self.user)
            self.pieces -= 1
            spend(self.turns, self.user, 0.011)


def spend(turns: Turns, user: str, seconds: float) -> None:
    assert isinstance(turns.meter, FakeMeter)
    began = turns.meter.start()
    turns.meter.seconds += seconds
    turns.spent_since(user, began)


@in_loop
async def test_two_users_one_whose_turn_is_over_waits_for_the_other() -> None:
    turns, log = Turns(meter=FakeMeter()), list[str]()
    eve = [Input(turns, "eve", log, 2) for _ in range(2)]
    spend(turns, "eve", 0.011)
    assert log == ["eve stops"] * 2
    assert turns.is_stopped("eve")
    assert not turns.is_stopped("ann")
    late = Input(turns, "eve", log)
    assert log == ["eve stops"] * 3
    await until(lambda: log.count("eve") == 2)
    assert [each.pieces for each in eve] == [1, 1]  # the inputs of one user take turns, too
    await until(lambda: not any(each.pieces for each in eve))
    assert log.count("eve") == 4
    assert log.index("eve", 4) > log.index("eve stops", 3)  # one piece in each turn
    for each in (*eve, late):
        turns.leave("eve", each)
    await until(lambda: not turns.is_stopped("eve"))
    turns.close()


@in_loop
async def test_what_was_spent_in_earlier_turns_of_the_event_loop_counts_only_as_a_debt() -> None:
    turns = Turns(meter=FakeMeter())
    for _ in range(2):
        await asyncio.sleep(0)
        turns.spend("eve", 5_000)
        assert not turns.is_stopped("eve")
    for stops in (1, 2):
        turns.spend("eve", 200 if stops == 1 else 5_200)
        assert turns.is_stopped("eve")
        assert turns.stops == stops
        await until(lambda: not turns.is_stopped("eve"))
        assert turns.users == 0


@in_loop
async def test_when_the_server_stops_all_go_on_at_once_and_wait_no_more() -> None:
    turns, log = Turns(meter=FakeMeter()), list[str]()
    turns.spend("eve", 25_000)
    inputs = [Input(turns, user, log, pieces) for user, pieces in (("ann", 0), *[("eve", 1)] * 20)]
    turns.spend("bob", 25_000)
    leaving = Input(turns, "bob", log)
    leaving.resume_input = lambda: turns.leave("bob", leaving)  # type: ignore[method-assign]
    turns.spend("cat", 25_000)
    asked = [asyncio.ensure_future(turns.wait_for_turn("cat")) for _ in range(20)]
    await asyncio.sleep(0)
    turns.close()
    await asyncio.gather(*asked)
    assert not any(each.pieces for each in inputs)
    turns.spend("eve", 10_000_000)
    assert not turns.is_stopped("eve")


@in_loop
async def test_an_input_that_ends_while_it_runs_or_waits_is_forgotten() -> None:
    turns = Turns(meter=FakeMeter())
    for cost_us in (0, 25_000):
        first, second = (Input(turns, "eve", []) for _ in range(2))
        turns.spend("eve", cost_us)
        assert (turns.has_to_wait("eve"), turns.inputs, turns.users) == (cost_us > 0, 2, 1)
        turns.leave("eve", first)
        turns.leave("eve", first)
        assert turns.inputs == 1
        turns.leave("eve", second)
        assert (turns.inputs, turns.users) == (0, int(cost_us > 0))
    assert (turns.stops, turns.peak_us) == (1, 25_000)
    turns.close()


@in_loop
async def test_two_users_a_debt_delays_its_user_alone() -> None:
    turns, log = Turns(meter=FakeMeter()), list[str]()
    spend(turns, "eve", 0.5)
    waiting = [asyncio.ensure_future(turns.wait_for_turn("eve")) for _ in range(2)]
    await turns.wait_for_turn("ann")
    assert not any(each.done() for each in waiting)
    assert [turns.has_to_wait(user) for user in ("eve", "ann")] == [True, False]
    waiting[0].cancel()
    turns.close()
    await waiting[1]
    assert not turns.is_stopped("eve")
    assert log == []


@in_loop
async def test_two_users_those_who_waited_do_not_all_go_on_in_one_turn() -> None:
    turns, passed, first = Turns(meter=FakeMeter()), list[int](), asyncio.Event()
    turns.spend("eve", 25_000)

    async def ask(number: int) -> None:
        await turns.wait_for_turn("eve", 600_000)  # so much that a pause of the machine does not pay for it
        passed.append(number)
        first.set()

    waiting = [asyncio.ensure_future(ask(number)) for number in range(6)]
    await first.wait()
    assert passed == [0]
    assert turns.is_stopped("eve")
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    turns.close()


@in_loop
async def test_users_who_carry_packets_of_others_are_exempt() -> None:
    turns = Turns(lambda user: user == "exits", FakeMeter())
    spend(turns, "exits", 10.0)
    assert not turns.is_stopped("exits")


@in_loop
async def test_an_input_of_the_first_group_goes_on_before_all_others_of_its_user() -> None:
    turns, log = Turns(meter=FakeMeter()), list[str]()
    others = [Input(turns, "ann", log) for _ in range(10)]
    running = Input(turns, "ann", log)
    turns.leave("ann", running)
    turns.join("ann", running, FIRST)
    turns.spend("ann", 25_000)
    late = Input(turns, "ann", log)
    turns.leave("ann", late)
    turns.join("ann", late, FIRST)
    resumed: list[Input] = []
    for each in (*others, running, late):
        each.resume_input = lambda each=each: resumed.append(each)  # type: ignore[misc, method-assign]
    await until(lambda: len(resumed) == 12)
    assert resumed[:2] == [running, late]


@in_loop
async def test_two_users_the_sources_of_one_payer_take_turns() -> None:
    """However many inputs one source has, an input of another source that has the same payer waits for only one."""
    turns, log = Turns(meter=FakeMeter()), list[str]()
    turns.spend("@unauthenticated", 25_000)
    flood = [Input(turns, "@unauthenticated", log) for _ in range(40)]
    late = Input(turns, "@unauthenticated", log)
    turns.leave("@unauthenticated", late)
    turns.join("@unauthenticated", late, "elsewhere")
    resumed: list[Input] = []

    def note(each: Input) -> None:
        resumed.append(each)

    for each in (*flood, late):
        each.resume_input = lambda each=each: note(each)  # type: ignore[misc, method-assign]
    await until(lambda: len(resumed) == 41)
    assert resumed.index(late) == 1
    assert turns.inputs == 41


@in_loop
async def test_two_users_inputs_go_on_a_few_in_each_turn() -> None:
    turns, log = Turns(meter=FakeMeter()), list[str]()
    turns.spend("eve", 25_000)
    inputs = [Input(turns, "eve", log, 1) for _ in range(20)]
    sizes = [0]

    def free(self: Input) -> None:
        self.pieces = 0

    for each in inputs:
        each.resume_input = lambda each=each: free(each)  # type: ignore[misc, method-assign]
    while any(each.pieces for each in inputs):
        await asyncio.sleep(0)
        sizes.append(sum(not each.pieces for each in inputs))
    assert max(after - before for before, after in itertools.pairwise(sizes)) <= 8


@in_loop
async def test_two_users_a_user_takes_over_what_an_unauthenticated_client_was_charged() -> None:
    turns = Turns(meter=FakeMeter())
    turns.spend("@unauthenticated", 19_000)
    turns.move("@unauthenticated", "eve", 19_000)
    turns.spend("eve", 2_000)
    assert turns.is_stopped("eve")
    assert turns.peak_us == 19_000  # the time that eve takes over is not spent twice
    await until(lambda: not turns.is_stopped("@unauthenticated"))  # it had no debt: 19 ms in one turn stopped it
    turns.spend("@unauthenticated", 1_500)
    assert not turns.is_stopped("@unauthenticated")


@in_loop
async def test_a_request_that_comes_later_goes_on_after_those_that_wait() -> None:
    turns, passed = Turns(meter=FakeMeter()), list[int]()
    turns.spend("eve", 25_000)

    async def ask(number: int) -> None:
        await turns.wait_for_turn("eve")
        passed.append(number)

    asked = [asyncio.ensure_future(ask(number)) for number in range(30)]
    await until(lambda: passed)
    assert (turns.has_to_wait("eve"), turns.is_stopped("eve")) == (True, False)
    asked += [asyncio.ensure_future(ask(number)) for number in range(30, 32)]
    await asyncio.gather(*asked)
    assert passed == list(range(32))


class BrokenInput(Input):
    """An input whose data raises an error when it is handled."""

    def resume_input(self) -> None:
        raise RuntimeError("broken")


def test_two_users_an_input_that_fails_does_not_hold_up_the_others() -> None:
    errors: list[tuple[str, str]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: errors.append((context["message"], str(context["exception"])))
        )
        turns, log = Turns(meter=FakeMeter()), list[str]()
        BrokenInput(turns, "eve", log, 1)
        others = [Input(turns, "eve", log, 1) for _ in range(20)]
        turns.spend("eve", 30_000)
        await until(lambda: not any(each.pieces for each in others))

    asyncio.run(main())
    assert set(errors) == {
        ("an input failed when it went on", "broken")
    }  # the user may be stopped, and the input resumed, twice


@in_loop
async def test_inputs_that_cost_less_than_a_microsecond_are_charged_too() -> None:
    turns, log = Turns(meter=FakeMeter()), list[str]()
    Input(turns, "eve", log)
    for _ in range(40_000):
        spend(turns, "eve", 0.9e-6)
    assert log == ["eve stops"]
