"""An OPTION of the attachment is repeated until the relay answers it; the answer settles the interval.

Clause 2.7 of docs/PROTOCOL.md.
"""

import pytest

from tests.core.solo import Solo
from tunnel.core.attachment_options import AttachmentOptions
from tunnel.core.constants import NEVER_US, SECOND_US
from tunnel.wire import Option, Options, Packet, PacketType, decode_option, encode_option


class Recorder:
    """Options of an attachment whose packets are recorded."""

    def __init__(self) -> None:
        self.packets: list[Packet] = []
        self.rate = AttachmentOptions(self.packets.append)

    def asked(self) -> list[Option | None]:
        """Return the OPTIONs that were sent since the last call."""
        found = [decode_option(packet.payload) for packet in self.packets]
        self.packets.clear()
        return found


def answer(version: int, interval_ms: int | None = None) -> Packet:
    payload = encode_option(Option(version, Options(pull_interval_ms=interval_ms)))
    return Packet(PacketType.OPTION, 0, 0, 0, payload)


def test_nothing_is_asked_at_first() -> None:
    rate = Recorder().rate
    rate.handle_timeout(60 * SECOND_US)
    assert (rate.is_answered, rate.due_us, rate.poll_settled()) == (True, NEVER_US, None)


def test_an_option_is_repeated_with_exponential_backoff_until_it_is_answered() -> None:
    recorder = Recorder()
    rate = recorder.rate
    rate.ask(200, 0)
    assert not rate.is_answered
    times = []
    for _ in range(8):
        rate.handle_timeout(rate.due_us - 1)
        times.append(rate.due_us // SECOND_US)
        rate.handle_timeout(rate.due_us)
    assert times == [1, 3, 7, 15, 31, 63, 123, 183]
    assert recorder.asked() == 9 * [Option(1, Options(pull_interval_ms=200))]
    assert rate.receive_option(answer(1, 500))
    assert (rate.is_answered, rate.due_us) == (True, NEVER_US)
    assert rate.poll_settled() == (200_000, 500_000)
    assert rate.poll_settled() is None


def test_only_the_answer_to_the_newest_option_counts() -> None:
    recorder = Recorder()
    rate = recorder.rate
    rate.ask(200, 0)
    rate.handle_timeout(SECOND_US)
    rate.ask(300, SECOND_US)
    assert rate.due_us == 2 * SECOND_US
    assert not rate.receive_option(answer(1, 200))
    assert not rate.receive_option(answer(3, 200))
    assert not rate.receive_option(Packet(PacketType.OPTION, 0, 0, 0, b"x"))
    assert not rate.is_answered
    assert rate.receive_option(answer(2, 300))
    assert not rate.receive_option(answer(2, 900))
    assert rate.poll_settled() == (300_000, 300_000)
    assert recorder.asked()[-1] == Option(2, Options(pull_interval_ms=300))


def test_an_answer_without_an_interval_changes_nothing() -> None:
    rate = Recorder().rate
    rate.ask(200, 0)
    assert rate.receive_option(answer(1))
    assert rate.is_answered
    assert rate.poll_settled() is None


def test_an_exit_that_leaves_says_so_once_and_in_all_later_options() -> None:
    recorder = Recorder()
    options = recorder.rate
    options.ask(200, 0)
    options.leave(0)
    assert not options.receive_option(answer(1, 200))
    assert options.receive_option(answer(2, 300))
    assert options.poll_settled() == (200_000, 300_000)
    options.leave(0)
    assert options.is_answered
    options.ask(400, 0)
    assert recorder.asked() == [
        Option(1, Options(pull_interval_ms=200)),
        Option(2, Options(pull_interval_ms=200, leaving=True)),
        Option(3, Options(pull_interval_ms=400, leaving=True)),
    ]


def test_an_interval_that_was_not_asked_for_is_not_settled_by_an_exit_that_leaves() -> None:
    options = Recorder().rate
    options.leave(0)
    assert options.receive_option(answer(1, 700))
    assert options.poll_settled() is None


def test_a_new_relay_is_told_that_the_exit_leaves_but_not_which_interval_it_wants() -> None:
    recorder = Recorder()
    recorder.rate.ask(200, 0)
    recorder.rate.attached_afresh(0)
    recorder.rate.leave(0)
    recorder.asked()
    recorder.rate.attached_afresh(0)
    assert recorder.asked() == [Option(3, Options(pull_interval_ms=200, leaving=True))]


def test_an_interval_of_more_than_32_bits_is_not_asked_for() -> None:
    recorder = Recorder()
    with pytest.raises(ValueError, match=r"32 bits|fit"):
        recorder.rate.ask(1 << 32, 0)
    assert recorder.rate.is_answered
    recorder.rate.ask(1, 0)
    assert recorder.asked() == [Option(1, Options(pull_interval_ms=1))]


def test_an_endpoint_repeats_its_option_and_takes_the_answer() -> None:
    solo = Solo().opened()
    solo.endpoint.attachment_options.ask(200, solo.now)
    assert solo.types() == [PacketType.OPTION]
    assert solo.endpoint.next_timeout() == solo.now + SECOND_US
    solo.endpoint.handle_timeout(solo.now + SECOND_US)
    assert solo.types() == [PacketType.OPTION]
    before = solo.endpoint.packets_discarded
    solo.receive(answer(1, 250))
    assert solo.endpoint.attachment_options.poll_settled() == (200_000, 250_000)
    assert solo.endpoint.packets_discarded == before
    solo.receive(answer(1, 250))
    assert solo.endpoint.packets_discarded == before + 1


@pytest.mark.parametrize(("source", "destination"), [(7, 0), (0, 7)])
def test_an_option_of_a_connection_is_no_answer_to_one_of_the_attachment(source: int, destination: int) -> None:
    solo = Solo()
    solo.endpoint.attachment_options.ask(200, solo.now)
    payload = encode_option(Option(1, Options(pull_interval_ms=9)))
    solo.receive(Packet(PacketType.OPTION, source, destination, 0, payload))
    assert not solo.endpoint.attachment_options.is_answered
