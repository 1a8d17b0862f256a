"""The doctor's exchanges: an examination must neither give the token away nor change what later connections
verify."""

import asyncio

import aiohttp
import msgspec
import pytest

from loadtests.harness.ports import hold_port
from tests.carriers.origin import Origin, answer
from tests.client.doctor.prober import LIMITS
from tests.servlet.rig import TOKENS, settings
from tests.support.certificates import server_tls
from tests.support.loops import in_loop
from tunnel.carriers.dialing.dialing import Dialing
from tunnel.carriers.probes.probe import ProbeError, Prober, Reply
from tunnel.carriers.probes.probe_certificate import issuer_of
from tunnel.wire import Answer, BodyFormat, Exchange, attachment_id, decode_envelope, encode_envelope
from tunnel_servlet.web.running import RunningRelay


@in_loop
async def test_examining_a_certificate_sends_no_token_to_a_server_that_is_not_trusted() -> None:
    async with Origin(answer("404 Not Found"), tls=server_tls()) as stranger:
        assert await issuer_of(Dialing(stranger.url, token="tnl_x", proxy=None))
        assert stranger.heads
        assert [head for head in stranger.heads if "tnl_x" in head or "authorization" in head.lower()] == []


@in_loop
async def test_after_a_certificate_was_examined_servers_are_verified_again() -> None:
    async with Origin(answer("404 Not Found"), tls=server_tls()) as stranger:
        dialing = Dialing(stranger.url, token="tnl_x", proxy=None)
        assert await issuer_of(dialing)
        before = len(stranger.heads)
        async with dialing.session() as session:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await session.get(dialing.url("exchange"), headers=dialing.headers)
        assert len(stranger.heads) == before


@in_loop
async def test_after_an_examination_that_failed_servers_are_verified_as_before() -> None:
    with hold_port() as port:
        dialing = Dialing(f"https://127.0.0.1:{port}", proxy=None)
        before = dialing.tls
        with pytest.raises(ProbeError, match="the connection was refused"):
            await issuer_of(dialing)
        assert dialing.tls is before


@in_loop
async def test_the_token_of_a_probe_follows_no_redirect() -> None:
    async with Origin(answer("200 OK")) as other, Origin(b"") as relay:
        relay.response = answer("307 Temporary Redirect", Location=f"{other.url}/exchange")
        async with Prober(Dialing(relay.url, token="tnl_x", proxy=None)) as prober:
            assert (await prober.attach()).status == 307
        assert other.heads == []
        assert "Authorization: Bearer tnl_x" in relay.heads[0]


@in_loop
async def test_requests_that_are_meant_for_hops_carry_no_token() -> None:
    async with (
        Origin(answer("400 Bad Request", b"<address>Apache/2.4", Server="Apache/2.4")) as hop,
        Prober(Dialing(hop.url, token="tnl_x", proxy=None)) as prober,
    ):
        for reply in (await prober.odd_expectation(), await prober.big_head()):
            assert (reply.kind, reply.status, reply.headers["server"]) == ("foreign", 400, "Apache/2.4")
            assert reply.page.startswith("<address>Apache")
        assert "tnl_x" not in "".join(hop.heads)
        assert "Expect: tunnel-doctor" in hop.heads[0]


@in_loop
async def test_the_relay_sends_as_many_bytes_as_were_asked_for_and_only_once() -> None:
    async with (
        RunningRelay(settings()) as relay,
        Prober(Dialing(f"http://{relay.addresses[0]}", token=TOKENS["ann"], proxy=None)) as prober,
    ):
        await prober.attach()
        for size in (4 << 10, 64 << 10, 1 << 20):
            asked = 0
            while asked < size:
                assert (await prober.ask(size - asked)).bytes < 512
                asked += min(size - asked, prober.ask_bytes_max)
            large = await prober.fetch(size)
            assert large.kind == "answer"
            assert size - 2048 < large.bytes <= size
        assert (await prober.fetch(1 << 20)).bytes < 256


@in_loop
async def test_a_new_attachment_leaves_what_waits_and_is_kept_only_if_a_relay_accepts_it() -> None:
    async with RunningRelay(settings()) as relay, Origin(answer("403 Forbidden", b"no")) as origin:
        dialing = Dialing(f"http://{relay.addresses[0]}", token=TOKENS["ann"], proxy=None)
        async with Prober(dialing) as prober:
            await prober.attach()
            await prober.ask(20_000)
            assert prober.moved_bytes > 19_000
            prober.dialing = Dialing(origin.url, token=TOKENS["ann"], proxy=None)
            assert (await prober.attach_anew()).kind == "foreign"
            prober.dialing = dialing
            assert (await prober.fetch(4096)).bytes > 2048  # the old attachment still works
            assert (await prober.attach_anew()).kind == "attached"
            assert (await prober.fetch(4096)).bytes < 256
            assert (await prober.ask(1536, most=3)).kind == "answer"
            assert 500 <= (await prober.fetch(768)).bytes <= 768
            assert (await prober.fetch(768)).bytes < 256
            assert (await prober.attach_anew()).kind == "attached"
            attachments = relay.relay.host.switch.operator.attachments()[-3:]
            for left in ([False, False, True], [False, True, True], [True, True, True]):
                assert not prober.has_left
                assert (await prober.leave()).kind == "answer"
                assert [one.is_leaving for one in attachments] == left
            assert prober.has_left


@in_loop
async def test_exchanges_are_sent_as_forms_only_after_a_relay_has_answered_one() -> None:
    async with (
        Origin(answer("403 Forbidden")) as hop,
        Prober(Dialing(hop.url, token="tnl_x", proxy=None)) as prober,
    ):
        await prober.attach_as(BodyFormat.FORM.value)
        await prober.attach()
        assert "Content-Type: multipart/form-data; boundary=" in hop.heads[0]
        assert "Content-Type: application/octet-stream" in hop.heads[1]
        ours = msgspec.structs.replace(LIMITS, attachment_id=attachment_id(prober._secret))
        hop.response = answer("200 OK", b"".join(encode_envelope(ours)))
        await prober.attach_as(BodyFormat.FORM.value)
        await prober.exchange()
        assert prober.attached == ours
        assert "Content-Type: multipart/form-data; boundary=" in hop.heads[3]


@in_loop
async def test_other_forms_of_body_reach_a_relay() -> None:
    async with (
        RunningRelay(settings()) as relay,
        Prober(Dialing(f"http://{relay.addresses[0]}", token=TOKENS["ann"], proxy=None)) as prober,
    ):
        assert (await prober.attach_as("application/x-www-form-urlencoded")).kind == "status"
        for body_format in BodyFormat:
            assert (await prober.attach_as(body_format.value)).kind == "attached"
            assert (await prober.exchange(4096)).kind == "answer"
            assert prober.format is body_format


@in_loop
async def test_a_fresh_prober_opens_a_connection_for_each_exchange() -> None:
    async with (
        Origin(answer("200 OK")) as hop,
        Prober(Dialing(hop.url, token="tnl_x", proxy=None)) as prober,
    ):
        await prober.attach()
        await prober.attach()
        assert len(set(hop.ports)) == 1
        prober.is_fresh = True
        await prober.attach()
        await prober.attach()
        assert len(set(hop.ports)) == 3
        prober.is_fresh = False
        await prober.reconnect()
        await prober.attach()
        assert len(set(hop.ports)) == 4


@in_loop
async def test_an_answer_belongs_to_its_question_although_another_has_followed_on_the_lane(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def post(body: bytes, session: aiohttp.ClientSession, headers: object = None) -> tuple[Reply, Answer]:
        question = decode_envelope(body)
        assert isinstance(question, Exchange)
        asked.append(question.number)
        await both.wait()
        return Reply("answer", 200, "", 0.0, {}), Answer(question.lane, question.number, 9)

    asked, both = list[int](), asyncio.Event()
    async with (
        RunningRelay(settings()) as relay,
        Prober(Dialing(f"http://{relay.addresses[0]}", token=TOKENS["ann"], proxy=None)) as prober,
    ):
        await prober.attach()
        monkeypatch.setattr(prober, "_post", post)
        asking = asyncio.gather(prober.exchange(lane=1), prober.fetch(0, lane=1))
        while len(asked) < 2:  # noqa: ASYNC110 - counts the turns of the event loop
            await asyncio.sleep(0)
        both.set()
        assert [reply.kind for reply in await asking] == ["answer", "answer"]
    assert asked == [1, 2]
