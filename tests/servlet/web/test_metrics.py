"""The metrics of a relay: closed sets of labels, values that agree with events, and a cost that no client sets."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.servlet.rig import LOOPBACK, TOKENS, Client, exchange_body, relay, settings
from tests.servlet.support import connect
from tests.servlet.web.rig import admin, ask
from tests.support.loops import in_loop
from tunnel.metrics.metric import OPEN_LABELS, Histogram
from tunnel.wire import Attached
from tunnel_servlet.settings import AuditSettings
from tunnel_servlet.switch.stats import Undelivered
from tunnel_servlet.web.metrics import OTHER_USERS, RELAY_METRICS, USERS_MAX, RelayMetrics
from tunnel_servlet.web.running import RunningRelay

SECRETS = ("tnl_", "adm_", "127.0.0.1", "reports", "db.internal")


def values(running: RunningRelay) -> dict[tuple[str, ...], float]:
    """Return the plain values by name and labels."""
    metrics = RelayMetrics(running.relay, running.connections)
    return {
        (one.metric.name, *one.labels): one.value for one in metrics.samples() if not isinstance(one.value, Histogram)
    }


@in_loop
async def test_all_metrics_of_a_relay_are_listed_and_have_closed_labels(tmp_path: Path) -> None:
    async with (
        relay(
            admin(
                trace=str(tmp_path / "traces"),
                metrics_by_user=True,
                exit="inline",
                audit=AuditSettings(file=str(tmp_path / "audit.jsonl")),
            )
        ) as running,
        Client(running) as client,
    ):
        await client.attach()
        await client.post(exchange_body(client.epoch, 1, connect(7)))
        samples = list(RelayMetrics(running.relay, running.connections, running._lag).samples())
        _, page = await ask(running, "/metrics")
    assert list(dict.fromkeys(one.metric for one in samples)) == list(RELAY_METRICS)
    assert len({(one.metric.name, one.labels) for one in samples}) == len(samples)
    for one in samples:
        for label, text in zip(one.metric.labels, one.labels, strict=True):
            assert label in OPEN_LABELS or text in one.metric.labels[label]
            assert label != "user" or text in TOKENS
    assert not [text for text in SECRETS if text in page]
    shown = {family.name for family in text_string_to_metric_families(page)}
    assert shown == {each.name.removesuffix("_total") for each in RELAY_METRICS}


def test_a_label_that_a_peer_could_choose_is_refused() -> None:
    metric = next(each for each in RELAY_METRICS if each.name == "tunnel_packets_undelivered_total")
    with pytest.raises(ValueError, match="reason is one of"):
        metric.sample(1, reason="db.internal")
    with pytest.raises(ValueError, match="has the labels"):
        metric.sample(1, target="db.internal")
    with pytest.raises(ValueError, match="has the labels"):
        metric.sample(1)


def test_only_labels_of_the_users_the_operator_asked_for_are_open() -> None:
    opened = {label for each in RELAY_METRICS for label, texts in each.labels.items() if not texts}
    assert opened == OPEN_LABELS
    assert {each.name for each in RELAY_METRICS if "user" in each.labels} == {
        each.name for each in RELAY_METRICS if each.name.startswith("tunnel_user_")
    }


@in_loop
async def test_the_values_agree_with_what_happened() -> None:
    async with relay(admin(exit="inline")) as running, Client(running) as client:
        await client.attach()
        await client.post(exchange_body(client.epoch, 1, connect(7)))
        await client.post(exchange_body(client.epoch + 1, 2))
        client.token = "tnl_00000000_" + "A" * 43
        await client.post(b"")
        client.token = ""
        await client.post(b"")
        found = values(running)
        counters = running.relay.host.switch.stats().counters
        assert found["tunnel_attachments", "client"] == 1
        assert found["tunnel_attachments", "exit"] == 1
        assert found["tunnel_attachments_opened_total",] == 2
        assert found["tunnel_connects_total",] == 1
        assert found["tunnel_exchanges_total", "unknown"] == 1
        assert found["tunnel_exchanges_total", "not_authorised"] == 2
        assert found["tunnel_exchanges_total", "ok"] == counters.answers
        assert found["tunnel_authentication_failures_total", "wrong"] == 1
        assert found["tunnel_authentication_failures_total", "missing"] == 1
        assert found["tunnel_http_connections_opened_total",] >= 1
        assert found["tunnel_packets_total", "in", "exchange"] == 1
        parts = [found["tunnel_packets_total", "in", carrier] for carrier in ("link", "exchange", "memory")]
        assert sum(parts) == counters.packets_received
        parts = [found["tunnel_packet_bytes_total", "out", carrier] for carrier in ("link", "exchange", "memory")]
        assert sum(parts) == counters.bytes_sent
        opened = found["tunnel_routes_opened_total",]
        ended = sum(value for (name, *_), value in found.items() if name == "tunnel_routes_ended_total")
        present = sum(value for (name, *_), value in found.items() if name == "tunnel_routes")
        assert opened == ended + present


@in_loop
async def test_packets_that_were_not_delivered_are_shown_by_reason() -> None:
    async with relay(admin()) as running:
        counters = running.relay.host.switch._context.counters
        counters.packets_ended, counters.packets_dropped_full = 3, 5
        found = values(running)
    shown = {labels[0]: value for (name, *labels), value in found.items() if name == "tunnel_packets_undelivered_total"}
    assert shown == dict.fromkeys((why.name.lower() for why in Undelivered), 0) | {"ended": 3, "full": 5}


def calls_of(metrics: RelayMetrics) -> tuple[int, int]:
    """Return the number of samples of a scrape, and of the calls that it takes."""
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        samples = len(list(metrics.samples()))
    finally:
        sys.setprofile(before)
    return samples, calls


@pytest.mark.interpreted
@in_loop
async def test_two_users_a_scrape_costs_no_more_with_ten_thousand_connections() -> None:
    """One user opens all connections that the limits allow; the operator's page is as short and as cheap as before."""
    async with relay(settings(admin=LOOPBACK)) as running:
        switch = running.relay.host.switch
        metrics = RelayMetrics(running.relay, running.connections)
        async with Client(running) as eve:
            assert isinstance(await eve.attach(), Attached)
            calls_of(metrics)
            few = calls_of(metrics)
            attachment = next(one for one in switch._registry.by_id.values() if one.account.user in TOKENS)
            for number in range(10_000):
                attachment.legs[number] = attachment  # type: ignore[assignment]
            switch._routes.counts = dict.fromkeys(switch._routes.counts, 2_500)
            many = calls_of(metrics)
            attachment.legs.clear()
            switch._routes.counts = dict.fromkeys(switch._routes.counts, 0)
    assert many[0] == few[0]
    assert many[1] <= few[1] * 1.1


@in_loop
async def test_two_users_a_page_with_users_is_bounded() -> None:
    """However many users attach, at most `USERS_MAX` have labels of their own, and the sums lose no user."""
    async with relay(admin(metrics_by_user=True)) as running:
        registry = running.relay.host.switch._registry
        for number in range(USERS_MAX + 50):
            registry.add(number.to_bytes(16, "big"), f"u{number:04}", is_exit=False)
            registry.accounts[f"u{number:04}"].routes = number
        found = values(running)
    rows = {labels[0]: value for (name, *labels), value in found.items() if name == "tunnel_user_attachments"}
    assert len(rows) == USERS_MAX + 1
    assert rows[OTHER_USERS] == 50
    assert f"u{USERS_MAX + 49:04}" in rows
    assert "u0000" not in rows
    assert sum(rows.values()) == USERS_MAX + 50


@in_loop
async def test_users_are_named_only_by_choice() -> None:
    async with relay(admin()) as running, Client(running) as client:
        await client.attach()
        _, page = await ask(running, "/metrics")
        assert "user=" not in page
        running.relay.config = replace(running.relay.config, metrics_by_user=True)
        assert ("tunnel_user_routes", "ann") in values(running)


@in_loop
async def test_two_users_all_who_ask_within_a_second_share_one_page() -> None:
    now = 0
    async with relay(admin()) as running:
        metrics = RelayMetrics(running.relay, clock=lambda: now)
        first = metrics.page()
        running.relay.failures.wrong += 1
        now = 999_999
        assert metrics.page() is first
        now = 1_000_000
        assert b'tunnel_authentication_failures_total{reason="wrong"} 1.0' in metrics.page()


@in_loop
async def test_without_the_library_the_page_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with relay(admin()) as running:
        monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
        status, text = await ask(running, "/metrics")
        assert status == 501
        assert "pip install prometheus-client" in text
        assert (await ask(running, "/readyz"))[0] == 200
