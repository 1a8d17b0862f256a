"""The table of the field: every intermediary, and what is expected of the tunnel through it."""

import msgspec

from tests.field.hops.apache import apache
from tests.field.hops.forward import e2guardian, ffproxy, mitmproxy, privoxy, tinyproxy
from tests.field.hops.haproxy import haproxy
from tests.field.hops.hop import Hop
from tests.field.hops.nginx import nginx
from tests.field.hops.reverse import caddy, envoy, h2o, lighttpd, nghttpx, node, scripted, trafficserver, varnish
from tests.field.hops.squid import squid, squid_accelerator, squid_bump

__all__ = ["CARRIERS", "ROWS", "SCRIPTED", "Row", "find_rows"]

CARRIERS = ("auto", "poll")


class Row(msgspec.Struct, frozen=True):
    """One intermediary, or a chain of them."""

    name: str
    title: str  # as the document prints it
    hops: tuple[Hop, ...] = ()  # in the order in which a request meets them
    tls: bool = False  # the relay's URL is https
    relays: int = 1
    mib: int = 32  # how much to move each way; less where a limit on the path makes 32 MiB take minutes
    seconds: int = 90  # the most time for each direction
    refused: int = 0  # the exit code of a client that this path refuses for good; 0 if the path must carry the tunnel
    known: dict[str, str] = {}  # parts that still fail, with the reason: "up", or with one carrier "auto:kill"


_APACHE = (
    Row("apache", "Apache mod_proxy, defaults", (apache("apache-defaults.conf"),)),
    Row("apache-strict", "Apache, strict limits", (apache("apache-strict.conf"),)),
    Row("apache-upgrade", "Apache, `upgrade=ANY`", (apache("apache-upgrade.conf"),)),
    Row("apache-ratelimit", "Apache, `mod_ratelimit` of 400 KiB/s", (apache("apache-ratelimit.conf"),), mib=8),
    Row("apache-filters", "Apache, inflate, substitute, deflate", (apache("apache-filters.conf"),)),
    Row("modsecurity", "ModSecurity without rules", (apache("modsecurity-empty.conf"),)),
    Row("modsecurity-crs", "ModSecurity, core rule set at its defaults", (apache("modsecurity-crs.conf"),)),
    Row(
        "modsecurity-crs-octets",
        "ModSecurity, core rule set, octet-stream allowed",
        (apache("modsecurity-crs-octets.conf"),),
    ),
)
_VARNISH = (
    Row("varnish", "Varnish, defaults", (varnish("varnish-defaults.vcl"),)),
    Row("varnish-pipe", "Varnish, pipe", (varnish("varnish-pipe.vcl"),)),
    Row(
        "varnish-strict",
        "Varnish, 4 connections, 3 s timeouts",
        (varnish("varnish-strict.vcl", "timeout_idle=3"),),
    ),
)
_FORWARD = (
    Row("tinyproxy", "tinyproxy, plain http", (tinyproxy(),)),
    Row("tinyproxy-connect", "tinyproxy, CONNECT (https)", (tinyproxy(),), tls=True),
    Row("privoxy", "Privoxy, plain http", (privoxy(),)),
    Row("privoxy-connect", "Privoxy, CONNECT (https)", (privoxy(),), tls=True),
    Row("ffproxy", "ffproxy, plain http", (ffproxy(),)),
    Row("e2guardian", "e2guardian, a filter of contents, plain http", (e2guardian(),)),
    Row("mitmproxy-tls", "mitmproxy, TLS", (mitmproxy(),), tls=True),
    Row("mitmproxy", "mitmproxy, plain http", (mitmproxy(),)),
    Row("squid-bump", "Squid, `ssl_bump`", (squid_bump("squid-bump.conf"),), tls=True),
    Row("squid-64k", "Squid, `reply_body_max_size 64 KB`", (squid("squid-64k.conf"),)),
    Row("squid-delay-pool", "Squid, a delay pool of 64 KiB/s", (squid("squid-delay-pool.conf"),), mib=1),
    Row("squid-two-connections", "Squid, an ACL with `maxconn 2`", (squid("squid-two-connections.conf"),)),
)
_REVERSE = (
    Row("lighttpd", "lighttpd", (lighttpd("lighttpd.conf"),)),
    Row("lighttpd-strict", "lighttpd, strict limits", (lighttpd("lighttpd-strict.conf"),)),
    Row("haproxy-buffer", "haproxy, `http-buffer-request`", (haproxy("haproxy-buffer.cfg"),)),
    Row("haproxy-h2", "haproxy, HTTP/2 to haproxy", (haproxy("haproxy-h2.cfg"),)),
    Row("haproxy-rate", "haproxy, 20 requests/s, bodies of 32 KiB", (haproxy("haproxy-rate.cfg"),)),
    Row("haproxy-wait-for-body", "haproxy, `wait-for-body`", (haproxy("haproxy-wait-for-body.cfg"),)),
    Row(
        "haproxy-ban-429",
        "haproxy, 50 requests in 5 s, then 429 until 30 s without any",
        (haproxy("haproxy-ban.cfg", refusal="deny deny_status 429"),),
        mib=2,
    ),
    Row(
        "haproxy-ban-silent",
        "haproxy, the same, silently",
        (haproxy("haproxy-ban.cfg", refusal="silent-drop"),),
        mib=2,
        known=dict.fromkeys(
            ("poll:echo", "poll:doctor"), "silence could be an outage, so the ban comes twice before requests slow down"
        ),
    ),
    Row(
        "haproxy-connections",
        "haproxy, 5 new connections in 10 s",
        (haproxy("haproxy-connections.cfg"),),
    ),
    Row(
        "haproxy-tarpit",
        "haproxy, 30 requests in 10 s, others wait for 5 s and get 500",
        (haproxy("haproxy-tarpit.cfg"),),
        mib=2,
    ),
    Row("haproxy-slots", "haproxy, server `maxconn 2`", (haproxy("haproxy-slots.cfg"),)),
    Row("caddy", "Caddy", (caddy("caddy.conf"),)),
    Row("caddy-strict", "Caddy, strict limits", (caddy("caddy-strict.conf"),)),
    Row("caddy-encode", "Caddy, compresses, drops `X-` headers, bodies of 100 kB", (caddy("caddy-encode.conf"),)),
    Row("envoy", "Envoy", (envoy("envoy.yaml"),)),
    Row("envoy-strict", "Envoy, strict limits", (envoy("envoy-strict.yaml"),)),
    Row("envoy-upgrade", "Envoy, upgrades allowed", (envoy("envoy-upgrade.yaml"),)),
    Row("h2o", "h2o", (h2o("h2o.conf"),)),
    Row("nghttpx", "nghttpx", (nghttpx("nghttpx.conf"),)),
    Row("trafficserver", "Traffic Server", (trafficserver(),)),
    Row("node", "Node, a proxy of a few lines with its defaults", (node("node-proxy.js"),)),
    Row(
        "squid-accelerator",
        "Squid as an accelerator: strips Authorization",
        (squid_accelerator("squid-accelerator.conf"),),
        refused=4,
    ),
    Row(
        "squid-accelerator-pass",
        "Squid as an accelerator, `login=PASS`",
        (squid_accelerator("squid-accelerator-pass.conf"),),
    ),
)
_NGINX = (
    Row("nginx-8k", "nginx, `client_max_body_size 8k`", (nginx("nginx-bodies.conf", size="8k"),)),
    Row(
        "nginx-rate-503",
        "nginx, `limit_req` 10 requests/s, 503",
        (nginx("nginx-rate.conf", rate=10, limit="limit_req zone=clients;"),),
        mib=8,
    ),
    Row(
        "nginx-rate-429",
        "nginx, `limit_req` 10 requests/s with a burst, 429",
        (nginx("nginx-rate.conf", rate=10, limit="limit_req zone=clients burst=20; limit_req_status 429;"),),
    ),
    Row(
        "nginx-2k",
        "nginx, `client_max_body_size 2k`",
        (nginx("nginx-bodies.conf", size="2k"),),
        mib=2,
    ),
    Row(
        "nginx-second-429",
        "nginx, `limit_req` 1 request/s, 429",
        (nginx("nginx-rate.conf", rate=1, limit="limit_req zone=clients; limit_req_status 429;"),),
        mib=1,
    ),
    Row(
        "nginx-second-queued",
        "nginx, `limit_req` 1 request/s, the others queue",
        (nginx("nginx-rate.conf", rate=1, limit="limit_req zone=clients burst=1000;"),),
        mib=1,
    ),
    Row(
        "nginx-connections",
        "nginx, two requests at once (503), five on each connection",
        (nginx("nginx-connections.conf"),),
        mib=8,
    ),
    Row("nginx-unbuffered", "nginx, unbuffered, `limit_rate 1m`", (nginx("nginx-unbuffered.conf"),), mib=8),
    Row("nginx-sub-filter", "nginx, `sub_filter`", (nginx("nginx-sub-filter.conf"),)),
    Row("nginx-timeout-3s", "nginx, `proxy_read_timeout 3s`", (nginx("nginx-timeout-3s.conf"),)),
    Row("nginx-cache-gzip", "nginx, cache and gzip", (nginx("nginx-cache-gzip.conf"),)),
    Row("nginx-strict", "nginx, everything strict", (nginx("nginx-strict.conf"),), mib=8),
)
_CHAINS = (
    Row("h2-front", "an HTTP/2 front, nginx after it", (haproxy("haproxy-h2-front.cfg"), nginx("nginx-h2.conf"))),
    Row(
        "chain",
        "nginx, Apache and Varnish in a row",
        (nginx("nginx-plain.conf"), apache("apache-defaults.conf"), varnish("varnish-defaults.vcl")),
    ),
    Row(
        "chain-of-three",
        "Squid, nginx and haproxy in a row",
        (squid("squid-plain.conf"), nginx("nginx-plain.conf"), haproxy("haproxy-buffer.cfg")),
    ),
    Row(
        "two-relays",
        "two relays by turns",
        (nginx("nginx-two-relays.conf", choice=""),),
        relays=2,
        refused=3,
    ),
    Row(
        "two-relays-ip-hash",
        "two relays, `ip_hash`",
        (nginx("nginx-two-relays.conf", choice="ip_hash;"),),
        relays=2,
    ),
)
SCRIPTED = (
    Row("login-first", "302 to a login page, first ten requests", (scripted("login-first"),), refused=3),
    Row("outage-302", "302 for 2 s in mid-transfer", (scripted("outage-302"),)),
    Row("outage-403", "403 for 2 s in mid-transfer", (scripted("outage-403"),)),
    Row("empty-answers", "one empty 200 in ten", (scripted("empty-answers"),)),
    Row("two-seconds", "2 s before each request", (scripted("two-seconds"),)),
    Row("answers-0-to-400-ms", "answers 0 to 400 ms late, at random", (scripted("answers-0-to-400-ms"),)),
    Row("two-connections", "two TCP connections at most", (scripted("two-connections"),)),
    Row("closes", "closes after each answer", (scripted("closes"),)),
    Row("closes-silently", "closes after each answer, silently", (scripted("closes-silently"),)),
    Row("strips-headers", "unknown headers stripped", (scripted("strips-headers"),)),
    Row("http-1.0", "HTTP/1.0", (scripted("http-1.0"),)),
    Row("scanner-403", "content scanner: 403", (scripted("scanner-403"),)),
    Row("scanner-page", "content scanner: 200 with a page", (scripted("scanner-page"),)),
    Row("scanner-reset", "content scanner: reset", (scripted("scanner-reset"),)),
    Row("json-alone", "JSON alone, others 403", (scripted("json-alone"),), mib=8),
    Row("text-alone", "text of ASCII alone, others 403", (scripted("text-alone"),), mib=8),
    Row("ascii-alone", "bodies of ASCII alone, others 403", (scripted("ascii-alone"),), mib=8),
    Row(
        "entropy-403",
        "a filter on entropy: 403",
        (scripted("entropy-403"),),
        mib=8,
    ),
    Row(
        "entropy-reset",
        "a filter on entropy: reset",
        (scripted("entropy-reset"),),
        mib=8,
    ),
    Row("word-403", 'heads with the word "tunnel": 403', (scripted("word-403"),), refused=5),
    Row("line-ends", "all line ends become CRLF", (scripted("line-ends"),), mib=8),
    Row("letters", "all bodies become UTF-8", (scripted("letters"),), mib=8),
    Row("types", "each body is declared to be `text/plain`", (scripted("types"),), mib=8),
    Row("sometimes-407", "1 in 30 answers is 407", (scripted("sometimes-407"),)),
    Row("sometimes-401", "1 in 30 answers is 401", (scripted("sometimes-401"),)),
    Row("sometimes-404", "1 in 30 answers is 404", (scripted("sometimes-404"),)),
    Row("often-reset", "1 in 10 requests is reset", (scripted("often-reset"),)),
    Row("often-halved", "1 in 10 answers is cut in its middle", (scripted("often-halved"),)),
    Row("early-hints", "103 before each answer", (scripted("early-hints"),)),
    Row("quota", "1 MiB for each connection", (scripted("quota"),)),
    Row("shaper", "64 KiB/s for each connection", (scripted("shaper"),), mib=4),
)
ROWS: tuple[Row, ...] = (
    Row("direct", "no intermediary"),
    *_APACHE,
    *_VARNISH,
    *_FORWARD,
    *_REVERSE,
    *_NGINX,
    *_CHAINS,
    *SCRIPTED,
)


def find_rows(names: str, *, half: int = 0) -> tuple[Row, ...]:
    """The rows with these names (separated by commas), in the order of the table; all of them for an empty text.
    `half`: only those in the first (1) or second (2) half of the table.

    Raise ValueError for a name that the table does not have.
    """
    middle = len(ROWS) // 2
    rows = {0: ROWS, 1: ROWS[:middle], 2: ROWS[middle:]}[half]
    wanted = [name for name in names.split(",") if name]
    unknown = set(wanted) - {row.name for row in ROWS}
    if unknown:
        raise ValueError(f"no row is named {', '.join(sorted(unknown))}: --list prints the names")
    return tuple(row for row in rows if not wanted or row.name in wanted)
