"""The endpoint's registration at a relay: secret, generation and epoch (section 6)."""

from msgspec import structs

from tests.exchange.loop import SECRET
from tunnel.exchange.config import LaneConfig
from tunnel.exchange.lanes.registration import Registration
from tunnel.wire import Attached, attachment_id


def answer(generation: int = 1, identity: bytes = attachment_id(SECRET)) -> Attached:
    return Attached(identity, 5, generation, True, 1, 1, 1, 0, 1, 1)


def test_the_request_presents_the_secret() -> None:
    request = Registration(SECRET, "name", LaneConfig(pull_interval_us=250_000, answer_bytes_max=99_999)).request()
    assert (request.secret, request.generation, request.name) == (SECRET, 1, "name")
    assert (request.pull_interval_ms, request.body_bytes_max, request.versions) == (250, 99_999, (1, 1))


def test_only_the_answer_to_the_current_generation_is_accepted() -> None:
    attachment = Registration(SECRET, "", LaneConfig())
    assert attachment.accept(answer(identity=bytes(16)), 0) == "the answer to another endpoint's ATTACH"
    assert attachment.accept(answer(generation=2), 0) == "the answer to an older ATTACH"
    assert attachment.attached is None
    assert attachment.accept(answer(), 0) == ""
    assert attachment.attached == answer()


def test_each_attach_has_a_higher_generation() -> None:
    attachment = Registration(SECRET, "", LaneConfig())
    attachment.accept(answer(), 0)
    assert attachment.renew(outbid=False)
    assert (attachment.generation, attachment.attached) == (2, None)


def test_a_higher_generation_at_the_relay_is_outbid_in_few_steps() -> None:
    attachment = Registration(SECRET, "", LaneConfig())
    steps = 0
    while attachment.renew(outbid=True):
        steps += 1
    assert (attachment.generation, steps) == (2**32 - 1, 31)


def test_an_attachment_is_fresh_if_the_relay_says_so_or_has_another_epoch() -> None:  # 6.3
    attachment = Registration(SECRET, "", LaneConfig())
    told = []
    for epoch, fresh in ((7, True), (7, False), (8, False), (8, True)):
        assert attachment.accept(structs.replace(answer(), epoch=epoch, fresh=fresh), 0) == ""
        told.append(attachment.is_fresh)
    assert told == [True, False, True, True]


SECOND = 1_000_000


def met(*visits: tuple[int, int], nap_s: int = 0) -> bool:
    """Attach to relays with these epochs, at these seconds; return whether they count as several. Before each attach,
    the machine sleeps."""
    attachment = Registration(SECRET, "", LaneConfig())
    for epoch, second in visits:
        attachment.slept_us += nap_s * SECOND
        assert attachment.accept(structs.replace(answer(), epoch=epoch), second * SECOND) == ""
    return attachment.meets_several_relays


def test_relays_that_answer_by_turns_are_recognised() -> None:
    assert met(*((number % 2, number) for number in range(4)))
    assert not met(*((number % 2, number) for number in range(3)))
    assert met(*((number % 3, number) for number in range(5)))
    assert not met(*((number % 3, number) for number in range(4)))


def test_a_client_that_is_moved_between_relays_now_and_then_recognises_them() -> None:
    """A balancer moves it every two minutes. It must know before its connections have waited for 5 minutes."""
    assert met((1, 0), (2, 120), (1, 240), (2, 360))
    assert met((1, 0), (2, 120), (2, 130), (1, 240), (1, 250), (2, 360))
    assert met((1, 0), (2, 120), (1, 240), (2, 539))


def test_a_failover_and_its_end_are_no_reason_to_give_up() -> None:
    assert not met((1, 0), (2, 120), (1, 240))
    assert not met((1, 0), (2, 120), (1, 240), (2, 541))
    assert not met((1, 0), (2, 120), (1, 240), (3, 250), (4, 260))


def test_a_forgetful_relay_and_a_failover_do_not_add_up() -> None:
    assert not met((1, 0), (2, 10), (1, 20), *((1, second) for second in range(20, 29)))


def test_several_relays_are_recognised_even_if_the_same_one_answers_each_attach() -> None:
    """A proxy that sends every second request elsewhere may send each ATTACH to the same relay."""
    assert met(*((5, number) for number in range(11)))


def test_a_relay_that_restarts_every_second_is_one_relay() -> None:
    assert not met(*((number, number) for number in range(200)))


def test_a_relay_that_forgets_now_and_then_is_one_relay() -> None:
    assert not met(*((5, 11 * number) for number in range(100)))
    assert not met(*((number // 8, number) for number in range(200)))


def test_a_laptop_that_wakes_again_and_again_meets_one_relay() -> None:
    assert not met(*((5, number) for number in range(30)), nap_s=3600)  # the relay has forgotten it each time
    assert not met(*((number % 2, number) for number in range(6)), nap_s=3600)  # a failover, or its end, in each sleep


def test_short_sleeps_hide_no_relays_that_answer_by_turns() -> None:
    assert met(*((5, number) for number in range(11)), nap_s=1)
    assert met(*((number % 2, number) for number in range(4)), nap_s=60)


MINUTE_AGE = 17  # at least 65.536 s


def is_moved(age: int, *, at_s: int = 100, known_s: float = 40, epoch: int = 9) -> bool:
    """Attach at epoch 5, which answers a request of `known_s`; then attach again. Return whether that is a move."""
    attachment = Registration(SECRET, "", LaneConfig())
    attachment.accept(answer(), 0)
    again = structs.replace(answer(), epoch=epoch, age=age)
    attachment.accept(again, at_s * SECOND, known_us=round(known_s * SECOND))
    return attachment.both_ran_us > 0


def test_a_relay_that_already_ran_while_another_one_answered_is_another_relay() -> None:  # 6.3
    assert is_moved(MINUTE_AGE)
    assert not is_moved(MINUTE_AGE, known_s=100 - 65.536)
    assert is_moved(MINUTE_AGE, known_s=100 - 65.535)


def test_two_relays_ran_beside_each_other_from_the_start_of_one_to_the_last_answer_of_the_other() -> None:
    attachment = Registration(SECRET, "", LaneConfig())
    attachment.accept(answer(), 0)
    again = structs.replace(answer(), epoch=9, age=MINUTE_AGE)
    attachment.accept(again, 100 * SECOND, known_us=40 * SECOND)
    assert attachment.both_ran_us == 40 * SECOND - (100 * SECOND - 65_536_000)


def test_a_relay_that_began_after_another_one_had_answered_may_be_the_same_one() -> None:
    assert not is_moved(MINUTE_AGE, known_s=20)
    assert not is_moved(0)  # it does not say when it began


def test_the_same_relay_is_never_another_one_whatever_its_age_is() -> None:
    assert not is_moved(40, epoch=5)


def test_the_first_relay_is_not_another_one() -> None:
    attachment = Registration(SECRET, "", LaneConfig())
    attachment.accept(structs.replace(answer(), age=40), 0, known_us=0)
    assert not attachment.both_ran_us
