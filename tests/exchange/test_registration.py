"""Who we are at the relay (section 6)."""

from msgspec import structs

from tests.exchange.loop import SECRET
from tunnel.exchange.config import LaneConfig
from tunnel.exchange.registration import Registration
from tunnel.wire import Attached, attachment_id


def answer(generation: int = 1, identity: bytes = attachment_id(SECRET)) -> Attached:
    return Attached(identity, 5, generation, True, 1, 1, 1, 0, 1, 1)


def test_the_request_presents_the_secret() -> None:
    request = Registration(SECRET, "name", LaneConfig(pull_interval_us=250_000, answer_bytes_max=99_999)).request()
    assert (request.secret, request.generation, request.name) == (SECRET, 1, "name")
    assert (request.pull_interval_ms, request.body_bytes_max, request.versions) == (250, 99_999, (1, 1))


def test_only_the_answer_to_the_present_generation_is_taken() -> None:
    attachment = Registration(SECRET, "", LaneConfig())
    assert attachment.accept(answer(identity=bytes(16))) == "the answer to another endpoint's ATTACH"
    assert attachment.accept(answer(generation=2)) == "the answer to an older ATTACH"
    assert attachment.attached is None
    assert attachment.accept(answer()) == ""
    assert attachment.attached == answer()


def test_each_attach_has_a_higher_generation() -> None:
    attachment = Registration(SECRET, "", LaneConfig())
    attachment.accept(answer())
    assert attachment.renew(outbid=False)
    assert (attachment.generation, attachment.attached) == (2, None)


def test_a_relay_that_knows_a_higher_one_is_outbid_soon() -> None:
    attachment = Registration(SECRET, "", LaneConfig())
    steps = 0
    while attachment.renew(outbid=True):
        steps += 1
    assert (attachment.generation, steps) == (2**32 - 1, 31)


def test_an_attachment_is_fresh_if_the_relay_says_so_or_has_another_epoch() -> None:  # 6.3
    attachment = Registration(SECRET, "", LaneConfig())
    told = []
    for epoch, fresh in ((7, True), (7, False), (8, False), (8, True)):
        assert attachment.accept(structs.replace(answer(), epoch=epoch, fresh=fresh)) == ""
        told.append(attachment.is_fresh)
    assert told == [True, False, True, True]
