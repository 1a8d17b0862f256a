"""The table of the field: every intermediary, and what is expected of the tunnel through it."""

import msgspec

from tests.field.hops.apache import apache
from tests.field.hops.forward import mitmproxy, privoxy, tinyproxy
from tests.field.hops.haproxy import haproxy
from tests.field.hops.hop import Hop
from tests.field.hops.nginx import nginx
from tests.field.hops.reverse import caddy, envoy, h2o, lighttpd, nghttpx, scripted, trafficserver, varnish
from tests.field.hops.squid import squid, squid_accelerator, squid_bump

__all__ = ["CARRIERS", "ROWS", "Row", "find_rows"]

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
    Row("mitmproxy-tls", "mitmproxy, TLS", (mitmproxy(),), tls=True),
    Row("mitmproxy", "mitmproxy, plain http", (mitmproxy(),)),
    Row("squid-bump", "Squid, `ssl_bump`", (squid_bump("squid-bump.conf"),), tls=True),
    Row("squid-64k", "Squid, `reply_body_max_size 64 KB`", (squid("squid-64k.conf"),)),
    Row("squid-two-connections", "Squid, an ACL with `maxconn 2`", (squid("squid-two-connections.conf"),)),
)
_REVERSE = (
    Row("lighttpd", "lighttpd", (lighttpd("lighttpd.conf"),)),
    Row("lighttpd-strict", "lighttpd, strict limits", (lighttpd("lighttpd-strict.conf"),)),
    Row("haproxy-buffer", "haproxy, `http-buffer-request`", (haproxy("haproxy-buffer.cfg"),)),
    Row("haproxy-h2", "haproxy, HTTP/2 to haproxy", (haproxy("haproxy-h2.cfg"),)),
    Row("haproxy-rate", "haproxy, 20 requests/s, bodies of 32 KiB", (haproxy("haproxy-rate.cfg"),)),
    Row("haproxy-slots", "haproxy, server `maxconn 2`", (haproxy("haproxy-slots.cfg"),)),
    Row("caddy", "Caddy", (caddy("caddy.conf"),)),
    Row("caddy-strict", "Caddy, strict limits", (caddy("caddy-strict.conf"),)),
    Row("envoy", "Envoy", (envoy("envoy.yaml"),)),
    Row("envoy-strict", "Envoy, strict limits", (envoy("envoy-strict.yaml"),)),
    Row("envoy-upgrade", "Envoy, upgrades allowed", (envoy("envoy-upgrade.yaml"),)),
    Row("h2o", "h2o", (h2o("h2o.conf"),)),
    Row("nghttpx", "nghttpx", (nghttpx("nghttpx.conf"),)),
    Row("trafficserver", "Traffic Server", (trafficserver(),)),
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
    Row("nginx-8k", "nginx, `client_max_body_size 8k`", (nginx("nginx-8k.conf"),)),
    Row(
        "nginx-rate-503",
        "nginx, `limit_req` 10 requests/s, 503",
        (nginx("nginx-rate.conf", limit="limit_req zone=clients;"),),
        mib=8,
    ),
    Row(
        "nginx-rate-429",
        "nginx, `limit_req` 10 requests/s with a burst, 429",
        (nginx("nginx-rate.conf", limit="limit_req zone=clients burst=20; limit_req_status 429;"),),
    ),
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
_SCRIPTED = (
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
)
ROWS: tuple[Row, ...] = (
    Row("direct", "no intermediary"),
    *_APACHE,
    *_VARNISH,
    *_FORWARD,
    *_REVERSE,
    *_NGINX,
    *_CHAINS,
    *_SCRIPTED,
)


def find_rows(names: str) -> tuple[Row, ...]:
    """The rows with these names (separated by commas), in the order of the table; all of them for an empty text.

    Raise ValueError for a name that the table does not have.
    """
    wanted = [name for name in names.split(",") if name]
    unknown = set(wanted) - {row.name for row in ROWS}
    if unknown:
        raise ValueError(f"no row is named {', '.join(sorted(unknown))}: --list prints the names")
    return tuple(row for row in ROWS if not wanted or row.name in wanted)
