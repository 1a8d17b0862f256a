"""The metrics of a relay: what Prometheus reads at the admin listener.

All values are plain integers that the relay counts in any case; they are read when the page is asked for. The number of
samples does not depend on the number of attachments, routes or connections, so that no client can make the page longer.
"""

from collections.abc import Callable, Iterator

from tunnel.metrics.metric import Metric, Sample
from tunnel.metrics.page import render_page
from tunnel.metrics.process import PROCESS_METRICS, LoopLag, process_samples
from tunnel.system.clock import now_us
from tunnel.wire import RejectReason, StatusCode
from tunnel_servlet.access.connections import Connections
from tunnel_servlet.audit.trail import Trail
from tunnel_servlet.exit.dial_counts import EXIT_METRICS
from tunnel_servlet.switch.operating.rows import UserRow
from tunnel_servlet.switch.stats import Counters, RateWait, SwitchStats, Traffic, Undelivered
from tunnel_servlet.web.relay import Relay

__all__ = ["OTHER_USERS", "RELAY_METRICS", "USERS_MAX", "RelayMetrics"]

USERS_MAX = 100  # users with metrics of their own: 700 samples, with which a page takes 10 ms of a turn, not 2
OTHER_USERS = "(others)"  # stands for the users beyond; no user has this name
_PAGE_US = 1_000_000  # a page is served again for this time: all who ask share one

_STATUSES = tuple(code.name.lower() for code in StatusCode)
_REFUSALS = tuple(reason.name.lower() for reason in RejectReason)
_DIRECTIONS = ("in", "out")  # from endpoints, to endpoints
_CARRIERS = ("link", "exchange", "memory")
_ROUTE_STATES = ("waiting", "pending", "parked", "bound", "aborted")
_BUDGETS = ("mailboxes", "reserved", "outstanding", "http")

_READY = Metric.gauge("tunnel_ready", "1 if the relay takes connections, 0 before it does and while it drains.")
_USERS = Metric.gauge("tunnel_users", "Users that have an endpoint attached.")
_ATTACHMENTS = Metric.gauge(
    "tunnel_attachments", "Endpoints that are attached; exits are those that take connections.", kind=("client", "exit")
)
_ATTACHED = Metric.counter("tunnel_attachments_opened_total", "Endpoints that attached for the first time.")
_DETACHED = Metric.counter(
    "tunnel_attachments_ended_total",
    "Endpoints that are attached no more: they have ended (left), were silent for too long (expired), replaced by a "
    "newer one of the same name, denied by changed tokens or roles, kicked by the operator, or displaced at a limit.",
    reason=("left", "expired", "replaced", "denied", "kicked", "displaced"),
)
_LISTENERS = Metric.gauge("tunnel_listeners", "Services that endpoints offer.")
_LISTENERS_DENIED = Metric.counter("tunnel_listeners_denied_total", "Services that changed rules ended.")
_LINKS = Metric.gauge("tunnel_links", "Links and websockets that carry packets.")
_LINKS_OPENED = Metric.counter("tunnel_links_opened_total", "Links and websockets that were opened.")
_LINKS_ENDED = Metric.counter("tunnel_links_ended_total", "Links and websockets that have ended.")
_STREAMS = Metric.gauge("tunnel_answer_streams", "Answers that are streamed.")
_STREAMS_OPENED = Metric.counter("tunnel_answer_streams_opened_total", "Answers whose streaming began.")
_PULLS = Metric.gauge("tunnel_held_pulls", "Requests that the relay holds until a packet comes.")
_ROUTES = Metric.gauge(
    "tunnel_routes",
    "Connections through the relay: waiting for a listener with room, pending at an acceptor, parked until an endpoint "
    "attaches again, bound, which is open, or aborted: it has ended, and is kept for a minute for what comes late.",
    state=_ROUTE_STATES,
)
_ROUTES_OPENED = Metric.counter(
    "tunnel_routes_opened_total", "Connections that were asked for, but those refused at once."
)
_ROUTES_BOUND = Metric.counter("tunnel_routes_bound_total", "Connections that an acceptor accepted, with resumed ones.")
_ROUTES_RESUMED = Metric.counter("tunnel_routes_resumed_total", "Connections that were resumed after a restart.")
_ROUTES_ENDED = Metric.counter(
    "tunnel_routes_ended_total",
    "Connections that have ended: closed by their endpoints, lost because an endpoint was no longer attached, denied "
    "by changed rules or tokens, kicked by the operator, moved to another relay, or unopened, because they were "
    "refused, rejected, given up or too late.",
    reason=("closed", "lost", "denied", "kicked", "moved", "unopened"),
)
_CONNECTS = Metric.counter("tunnel_connects_total", "CONNECT packets, repeats included.")
_CONNECTS_REFUSED = Metric.counter(
    "tunnel_connects_refused_total", "CONNECT packets that the relay itself refused.", reason=_REFUSALS
)
_PACKETS = Metric.counter(
    "tunnel_packets_total",
    "Packets from endpoints (in) and to them (out). A link includes websockets; an exchange is an HTTP request with "
    "its answer, streamed or not; memory is the inline exit.",
    direction=_DIRECTIONS,
    carrier=_CARRIERS,
)
_BYTES = Metric.counter(
    "tunnel_packet_bytes_total", "The bytes of these packets.", direction=_DIRECTIONS, carrier=_CARRIERS
)
_TAKEN_BACK = Metric.counter(
    "tunnel_packets_taken_back_total", "Packets that left, were not confirmed, and wait for another way."
)
_UNDELIVERED = Metric.counter(
    "tunnel_packets_undelivered_total",
    "Packets that the relay did not deliver.",
    reason=tuple(why.name.lower() for why in Undelivered),
)
_EXCHANGES = Metric.counter(
    "tunnel_exchanges_total", "HTTP requests of endpoints that were answered, by status.", status=("ok", *_STATUSES)
)
_WAITING = Metric.gauge("tunnel_requests_waiting", "Requests without an answer, held pulls included.")
_HTTP = Metric.gauge(
    "tunnel_http_connections", "Open connections of clients.", state=("authenticated", "unauthenticated")
)
_HTTP_OPENED = Metric.counter("tunnel_http_connections_opened_total", "Connections of clients that were accepted.")
_HTTP_TURNED_AWAY = Metric.counter(
    "tunnel_http_connections_turned_away_total",
    "Connections of clients that a limit ended: refused at once, or evicted for a newer one.",
    outcome=("refused", "evicted"),
)
_HELD = Metric.gauge(
    "tunnel_held_bytes",
    "Memory by budget: packets in mailboxes, which outstanding ones are a part of; promises to routes (reserved); "
    "unfinished bodies and unread answers (http).",
    kind=_BUDGETS,
)
_HELD_LIMIT = Metric.gauge("tunnel_held_bytes_limit", "The limit of each budget.", kind=_BUDGETS)
_TIMERS = Metric.gauge("tunnel_timers", "Timers of the switch.")
_FAILURES = Metric.counter(
    "tunnel_authentication_failures_total",
    "Requests without a valid token: none came (missing), a wrong one, one too many of its address (limited), one that "
    "has expired, one for a single use that another endpoint has used, or a certificate of no user (certificate).",
    reason=("missing", "wrong", "limited", "expired", "used", "certificate"),
)
_TURN_USERS = Metric.gauge("tunnel_turn_users", "Users whose input runs or waits.")
_TURN_STOPS = Metric.counter("tunnel_turn_stops_total", "Times that a user had to wait for the turn of others.")
_TURN_LONGEST = Metric.gauge("tunnel_turn_longest_seconds", "The most processor time that one user took in one turn.")
_GARBAGE = Metric.counter(
    "tunnel_garbage_seconds_total", "Processor time of garbage collections in the relay's thread."
)
_GARBAGE_LONGEST = Metric.gauge("tunnel_garbage_longest_seconds", "The longest garbage collection.")
_RELOADS_APPLIED = Metric.counter("tunnel_reloads_applied_total", "Times that changed rules and tokens were applied.")
_RELOADS_FAILED = Metric.counter("tunnel_reloads_failed_total", "Times that they could not be used.")
_RELOAD_FAILING = Metric.gauge(
    "tunnel_reload_failing", "1 while the files, as they are now, cannot be used; the relay's state says why."
)
_RATE_WAITED = Metric.counter(
    "tunnel_rate_waited_seconds_total",
    "Time for which connections waited for a rate: up is from a user's endpoints, down to them.",
    direction=("up", "down"),
)
_AUDIT_EVENTS = Metric.counter(
    "tunnel_audit_events_total",
    "Events of the audit: written; lost, because the queue was full or the place could not be written to; or summed, "
    "which were only counted because their user had too many. Only with [audit].",
    outcome=("written", "lost", "summed"),
)
_AUDIT_FAILURES = Metric.counter(
    "tunnel_audit_write_failures_total", "Attempts to write events that have failed. Only with [audit]."
)
_AUDIT_FAILING = Metric.gauge("tunnel_audit_failing", "1 while events cannot be written. Only with [audit].")
_AUDIT_WAITING = Metric.gauge("tunnel_audit_waiting_bytes", "Events that wait to be written. Only with [audit].")
_AUDIT_REMOVED = Metric.counter(
    "tunnel_audit_files_removed_total", "Older files of the audit that were removed at their limit. Only with [audit]."
)
_USER_ATTACHMENTS = Metric.gauge("tunnel_user_attachments", "Attached endpoints of a user.", user=())
_USER_ROUTES = Metric.gauge("tunnel_user_routes", "Open connections that a user's endpoints began.", user=())
_USER_HELD = Metric.gauge("tunnel_user_held_bytes", "Memory for packets of a user.", user=())
_USER_BYTES = Metric.counter(
    "tunnel_user_packet_bytes_total",
    "Bytes of packets of a user; they begin at 0 when the user attaches after all endpoints have left.",
    user=(),
    direction=_DIRECTIONS,
)
_USER_WAITED = Metric.counter(
    "tunnel_user_rate_waited_seconds_total",
    "Time for which connections of a user waited for a rate.",
    user=(),
    direction=("up", "down"),
)

RELAY_METRICS = (
    *PROCESS_METRICS,
    *(_READY, _USERS, _ATTACHMENTS, _ATTACHED, _DETACHED, _LISTENERS, _LISTENERS_DENIED),
    *(_LINKS, _LINKS_OPENED, _LINKS_ENDED, _STREAMS, _STREAMS_OPENED, _PULLS),
    *(_ROUTES, _ROUTES_OPENED, _ROUTES_BOUND, _ROUTES_RESUMED, _ROUTES_ENDED, _CONNECTS, _CONNECTS_REFUSED),
    *(_PACKETS, _BYTES, _TAKEN_BACK, _UNDELIVERED, _EXCHANGES, _WAITING, _FAILURES),
    *(_HTTP, _HTTP_OPENED, _HTTP_TURNED_AWAY, _HELD, _HELD_LIMIT, _TIMERS),
    *(_TURN_USERS, _TURN_STOPS, _TURN_LONGEST, _GARBAGE, _GARBAGE_LONGEST),
    *(_RELOADS_APPLIED, _RELOADS_FAILED, _RELOAD_FAILING, _RATE_WAITED),
    *(_AUDIT_EVENTS, _AUDIT_FAILURES, _AUDIT_FAILING, _AUDIT_WAITING, _AUDIT_REMOVED),
    *EXIT_METRICS,
    *(_USER_ATTACHMENTS, _USER_ROUTES, _USER_HELD, _USER_BYTES, _USER_WAITED),
)


class RelayMetrics:
    """Reads the metrics of one relay. `connections` are those of its clients, if there is a listener for them."""

    def __init__(
        self,
        relay: Relay,
        connections: Connections | None = None,
        lag: LoopLag | None = None,
        clock: Callable[[], int] = now_us,
    ) -> None:
        self._relay = relay
        self._connections = connections
        self._lag = lag
        self._clock = clock
        self._page = b""
        self._page_ends_us = 0

    def page(self) -> bytes:
        """Return the page, which is at most a second old. Raise MissingLibraryError without prometheus-client."""
        now = self._clock()
        if now >= self._page_ends_us:
            self._page = render_page(self.samples())
            self._page_ends_us = now + _PAGE_US
        return self._page

    def samples(self) -> Iterator[Sample]:
        """Yield all samples; those of one metric follow each other."""
        relay = self._relay
        stats, waits = relay.host.switch.stats(), relay.host.switch.rate_waits(now_us())
        yield from process_samples(relay.trace, self._lag)
        yield _READY.sample(relay.is_ready and not relay.is_draining)
        yield from _attachment_samples(stats)
        yield from _route_samples(stats)
        yield from _packet_samples(stats.counters)
        yield from self._exchange_samples(stats.counters)
        yield from self._memory_samples(stats)
        yield from self._turn_samples()
        for direction in ("up", "down"):
            waited_ms = sum(each.waited_ms for each in waits if each.direction == direction)
            yield _RATE_WAITED.sample(waited_ms / 1000, direction=direction)
        if relay.audit.trail is not None:
            yield from _audit_samples(relay.audit.trail)
        if relay.dialer is not None:
            yield from relay.dialer.samples()
        if relay.config.metrics_by_user:
            yield from _user_samples(relay.host.switch.operator.users(), waits)

    def _exchange_samples(self, counters: Counters) -> Iterator[Sample]:
        early = {code.name.lower(): count for code, count in self._relay.refusals.items()}
        yield _EXCHANGES.sample(counters.answers, status="ok")
        for status in _STATUSES:
            count = counters.refusals_by_status.get(status, 0) + early.get(status, 0)
            yield _EXCHANGES.sample(count, status=status)
        yield _WAITING.sample(self._relay.host.waiting)
        failures = self._relay.failures
        yield _FAILURES.sample(failures.missing, reason="missing")
        yield _FAILURES.sample(failures.wrong, reason="wrong")
        yield _FAILURES.sample(failures.limited, reason="limited")
        yield _FAILURES.sample(failures.expired, reason="expired")
        yield _FAILURES.sample(failures.used, reason="used")
        yield _FAILURES.sample(failures.certificates, reason="certificate")

    def _memory_samples(self, stats: SwitchStats) -> Iterator[Sample]:
        config, connections = self._relay.config, self._connections
        if connections is not None:
            strangers = connections.unauthenticated
            yield _HTTP.sample(connections.total - strangers, state="authenticated")
            yield _HTTP.sample(strangers, state="unauthenticated")
            yield _HTTP_OPENED.sample(connections.opened)
            yield _HTTP_TURNED_AWAY.sample(connections.refused, outcome="refused")
            yield _HTTP_TURNED_AWAY.sample(connections.evicted, outcome="evicted")
        http = 0 if connections is None else connections.held_bytes
        held = (stats.bytes_held, stats.bytes_reserved, stats.bytes_outstanding, http)
        most = config.switch.process_bytes_max
        pool = config.switch.pool_bytes(most)
        limits = (most, pool, pool, config.limits.waiting_bytes_max)
        for kind, size in zip(_BUDGETS, held, strict=True):
            yield _HELD.sample(size, kind=kind)
        for kind, size in zip(_BUDGETS, limits, strict=True):
            yield _HELD_LIMIT.sample(size, kind=kind)
        yield _TIMERS.sample(stats.timers)

    def _turn_samples(self) -> Iterator[Sample]:
        host, reloads = self._relay.host, self._relay.reloads
        yield _TURN_USERS.sample(host.turns.users)
        yield _TURN_STOPS.sample(host.turns.stops)
        yield _TURN_LONGEST.sample(host.turns.peak_us / 1e6)
        yield _GARBAGE.sample(host.collector.total_s)
        yield _GARBAGE_LONGEST.sample(host.collector.longest_s)
        yield _RELOADS_APPLIED.sample(reloads.applied)
        yield _RELOADS_FAILED.sample(reloads.failed)
        yield _RELOAD_FAILING.sample(bool(reloads.error))


def _attachment_samples(stats: SwitchStats) -> Iterator[Sample]:
    counters = stats.counters
    yield _USERS.sample(stats.users)
    yield _ATTACHMENTS.sample(stats.attachments - stats.exits, kind="client")
    yield _ATTACHMENTS.sample(stats.exits, kind="exit")
    yield _ATTACHED.sample(counters.attaches_fresh)
    named = {
        "left": counters.attachments_left,
        "expired": counters.attachments_expired,
        "replaced": counters.attachments_replaced,
        "denied": counters.attachments_denied,
        "kicked": counters.attachments_kicked,
    }
    ended = counters.attaches_fresh - stats.attachments
    for reason, count in (named | {"displaced": ended - sum(named.values())}).items():
        yield _DETACHED.sample(count, reason=reason)
    yield _LISTENERS.sample(stats.listeners)
    yield _LISTENERS_DENIED.sample(counters.listeners_denied)
    yield _LINKS.sample(stats.links)
    yield _LINKS_OPENED.sample(counters.links_opened)
    yield _LINKS_ENDED.sample(counters.links_opened - stats.links)
    yield _STREAMS.sample(stats.streams)
    yield _STREAMS_OPENED.sample(counters.streams_opened)
    yield _PULLS.sample(stats.parked_pulls)


def _route_samples(stats: SwitchStats) -> Iterator[Sample]:
    counters = stats.counters
    for state in _ROUTE_STATES:
        yield _ROUTES.sample(getattr(stats, f"routes_{state}"), state=state)
    yield _ROUTES_OPENED.sample(stats.routes + counters.routes_released)
    yield _ROUTES_BOUND.sample(counters.routes_bound)
    yield _ROUTES_RESUMED.sample(counters.routes_resumed)
    named = {
        "closed": counters.routes_closed,
        "lost": counters.routes_lost,
        "denied": counters.routes_denied,
        "kicked": counters.routes_kicked,
        "moved": counters.routes_moved,
    }
    for reason, count in (named | {"unopened": counters.routes_released - sum(named.values())}).items():
        yield _ROUTES_ENDED.sample(count, reason=reason)
    yield _CONNECTS.sample(counters.connects)
    for reason in _REFUSALS:
        yield _CONNECTS_REFUSED.sample(counters.connects_refused_by_reason.get(reason, 0), reason=reason)


def _packet_samples(counters: Counters) -> Iterator[Sample]:
    links, memory = counters.by_links, counters.in_process
    exchange = Traffic(
        counters.packets_received - links.packets_received - memory.packets_received,
        counters.bytes_received - links.bytes_received - memory.bytes_received,
        counters.packets_sent - links.packets_sent - memory.packets_sent,
        counters.bytes_sent - links.bytes_sent - memory.bytes_sent,
    )
    carriers = dict(zip(_CARRIERS, (links, exchange, memory), strict=True))
    for carrier, traffic in carriers.items():
        yield _PACKETS.sample(traffic.packets_received, direction="in", carrier=carrier)
        yield _PACKETS.sample(traffic.packets_sent, direction="out", carrier=carrier)
    for carrier, traffic in carriers.items():
        yield _BYTES.sample(traffic.bytes_received, direction="in", carrier=carrier)
        yield _BYTES.sample(traffic.bytes_sent, direction="out", carrier=carrier)
    yield _TAKEN_BACK.sample(counters.packets_taken_back)
    for why in Undelivered:
        yield _UNDELIVERED.sample(getattr(counters, why.value), reason=why.name.lower())


def _audit_samples(trail: Trail) -> Iterator[Sample]:
    for outcome in ("written", "lost", "summed"):
        yield _AUDIT_EVENTS.sample(getattr(trail, f"events_{outcome}"), outcome=outcome)
    yield _AUDIT_FAILURES.sample(trail.failures)
    yield _AUDIT_FAILING.sample(trail.is_failing)
    yield _AUDIT_WAITING.sample(trail.waiting_bytes)
    yield _AUDIT_REMOVED.sample(trail.files_removed)


def _user_samples(users: list[UserRow], waits: list[RateWait]) -> Iterator[Sample]:
    """Yield what the operator has asked for by user: the users with most routes have labels of their own."""
    shown = sorted(users, key=lambda one: (-one.connections, one.user))
    names = {one.user: one.user if place < USERS_MAX else OTHER_USERS for place, one in enumerate(shown)}
    rows: dict[str, list[float]] = {}
    for one in shown:
        row = rows.setdefault(names[one.user], [0.0] * 7)
        traffic = one.traffic
        own = (one.attachments, one.connections, one.held_bytes, traffic.bytes_received, traffic.bytes_sent)
        for place, value in enumerate(own):
            row[place] += value
    for wait in waits:
        if wait.user in names:
            rows[names[wait.user]][5 + (wait.direction == "down")] += wait.waited_ms / 1000
    for place, metric in enumerate((_USER_ATTACHMENTS, _USER_ROUTES, _USER_HELD)):
        for user, row in rows.items():
            yield metric.sample(row[place], user=user)
    for user, row in rows.items():
        yield _USER_BYTES.sample(row[3], user=user, direction="in")
        yield _USER_BYTES.sample(row[4], user=user, direction="out")
    for user, row in rows.items():
        yield _USER_WAITED.sample(row[5], user=user, direction="up")
        yield _USER_WAITED.sample(row[6], user=user, direction="down")
