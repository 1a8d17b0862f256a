"""The relay's configuration: parses the text of its files into checked values. It does not read the files itself.

An error in a file names the file, the key if there is one, and what to do.
"""

import difflib
import json
import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from ipaddress import IPv6Address
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import msgspec

from tunnel.ground.rates import parse_rate
from tunnel_servlet.access.certificates import parse_certificate_name
from tunnel_servlet.access.grants import Grant, GrantTable, parse_public_address
from tunnel_servlet.access.proxies import UNIX, TrustedProxies
from tunnel_servlet.access.rules import parse_network, parse_rule, read_host
from tunnel_servlet.access.sso import SsoTerms
from tunnel_servlet.access.tokens import Key, TokenTable, check_user_name
from tunnel_servlet.settings import AuditSettings, ListenAddress, ProxySettings, ServiceLimits, TlsFiles
from tunnel_servlet.switch.config import SETTABLE, SwitchConfig

__all__ = [
    "AuditSettings",
    "ConfigError",
    "ListenAddress",
    "RelayConfig",
    "ServiceLimits",
    "TlsFiles",
    "TokensFile",
    "parse_address",
    "parse_config",
    "parse_listen",
    "parse_tokens",
    "render_users",
    "require_safe",
    "require_users",
]

_PATH = re.compile(r" - at `\$\.?(.*)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_CHOICE = re.compile(r"invalid enum value '(.*)'")
_TWICE = re.compile(r"Cannot declare (\(.*\)) twice(.*)")
_ExitChoice: TypeAlias = Literal["inline", "none"]
_T = TypeVar("_T")
_PORT_MAX = 65535
_UNIX = "unix:"
_UNIX_PATH_BYTES_MAX = 107  # of sun_path on Linux, without its end
_SECRET = re.compile(r"[A-Za-z0-9_-]{32,256}")
_ADMIN_SECRET = "_admin_secret"  # a key of the tokens file, between the users: no user's name begins with _
_USERS_END = "# end"
_USERS_HEAD = f"# Written by `tunnel-relay user`, up to the line {_USERS_END!r}."  # so that a cut-off file is noticed

# For each key, an example of a valid line or table, which errors show. A user's table has the keys of [everyone].
_EXAMPLES = {
    "listen": 'listen = ["127.0.0.1:8080"]',
    "base": 'base = "/api"',
    "admin": 'admin = "127.0.0.1:9080"',
    "exit": 'exit = "inline"',
    "tokens": 'tokens = "relay.tokens.toml"',
    "names_may_resolve_to": 'names_may_resolve_to = ["10.0.0.0/8"]',
    "trace": 'trace = "traces"',
    "metrics_by_user": "metrics_by_user = true",
    "public_http": 'public_http = ["0.0.0.0:80"]',
    "audit": 'a table: [audit] on one line, file = "audit.jsonl" on the next one',
    "audit.to": 'to = "file"',
    "audit.file": 'file = "audit.jsonl"',
    "audit.syslog": 'syslog = "/dev/log"',
    "audit.fsync": "fsync = true",
    "audit.required": "required = true",
    "audit.file_bytes_max": "file_bytes_max = 67108864",
    "audit.files_max": "files_max = 16",
    "audit.events_per_minute": "events_per_minute = 600",
    "proxies": 'a table: [proxies] on one line, trusted = ["10.0.0.5"] on the next one',
    "proxies.trusted": 'trusted = ["10.0.0.5", "10.1.0.0/16"]',
    "proxies.proxy_protocol": "proxy_protocol = true",
    "tls": 'a table: [tls] on one line, certificate = "relay.crt" and key = "relay.key" on the next ones',
    "tls.certificate": 'certificate = "relay.crt"',
    "tls.key": 'key = "relay.key"',
    "tls.client_ca": 'client_ca = "clients.crt"',
    "tls.client_optional": "client_optional = true",
    "sso": 'a table: [sso] on one line, issuer = "https://login.example" and audience = "tunnel" on the next ones',
    "sso.issuer": 'issuer = "https://login.example"',
    "sso.audience": 'audience = "tunnel"',
    "sso.client_id": 'client_id = "tunnel"',
    "sso.scopes": 'scopes = ["openid", "groups", "offline_access"]',
    "groups": 'a table for each group: [groups.staff] on one line, connect = ["db.internal:5432"] on the next one',
    "limits": "a table: [limits] on one line, body_bytes_max = 1048576 on the next one",
    "users": 'a table for each user: [users.ann] on one line, connect = ["db.internal:5432"] on the next one',
    "users.*": 'a table: [users.ann] on one line, connect = ["db.internal:5432"] on the next one',
    "everyone": 'a table: [everyone] on one line, connect = ["db.internal:5432"] on the next one',
    "everyone.connect": 'connect = ["db.internal:5432"]',
    "everyone.services": 'services = ["reports"]',
    "everyone.listen": 'listen = ["reports"]',
    "everyone.exit": "exit = true",
    "everyone.public": 'public = ["0.0.0.0:8443"]',
    "everyone.certificates": 'certificates = ["DNS:ann.clients.example"]',
    "everyone.public_hosts": 'public_hosts = ["app.example"]',
    "everyone.rate": 'rate = "20 MiB/s"',
    "everyone.rates": 'a table: [users.ann.rates] on one line, "db.internal:5432" = "5 MiB/s" on the next one',
}


class ConfigError(ValueError):
    """The configuration or the command line is wrong; the text says what the operator has to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayConfig:
    """The whole configuration of a relay, as `create_app` and the commands use it."""

    listen: tuple[ListenAddress, ...] = (ListenAddress("127.0.0.1", 8080),)
    base: str = ""
    """Prefix of every path: empty, or a path such as /prefix."""
    admin: ListenAddress | None = None
    exit: _ExitChoice = "inline"
    tokens: TokenTable = field(default_factory=lambda: TokenTable({}))
    tokens_file: str = "tokens.toml"
    token_use: str = ""
    """The folder in which the relay keeps when tokens were used. Empty: it keeps nothing."""
    admin_secret: str = field(default="", repr=False)
    """The secret of the tokens file with which the operator may drain the relay and read its state. Empty: no one may,
    except that everybody on this machine may read the state of an open relay."""
    grants: GrantTable = field(default_factory=GrantTable)
    is_open: bool = False
    """The relay accepts requests without a token."""
    tls: TlsFiles | None = None
    sso: SsoTerms | None = None
    public_http: tuple[ListenAddress, ...] = ()
    """Addresses at which people without the tunnel reach HTTP services by host name."""
    trace: str = ""
    metrics_by_user: bool = False
    """The metrics name users: at most 100, those with most connections."""
    audit: AuditSettings | None = None
    proxies: TrustedProxies = field(default_factory=TrustedProxies)
    """The proxies in front of the relay whose word about a client's address counts."""
    switch: SwitchConfig = field(default_factory=SwitchConfig)
    limits: ServiceLimits = field(default_factory=ServiceLimits)

    @property
    def named_files(self) -> list[str]:
        """The files whose changes a running relay applies, besides the configuration itself."""
        tls = self.tls
        names = () if tls is None else (tls.certificate, tls.key, tls.client_ca)
        return [self.tokens_file, *filter(None, names)]


class _GrantFile(msgspec.Struct, forbid_unknown_fields=True):
    connect: list[str] = []
    services: list[str] = []
    listen: list[str] = []
    exit: bool = False
    public: list[str] = []
    public_hosts: list[str] = []
    certificates: list[str] = []
    rate: str = ""
    rates: dict[str, str] = {}


class _ConfigFile(msgspec.Struct, forbid_unknown_fields=True):
    listen: tuple[str, ...] = ("127.0.0.1:8080",)
    base: str = ""
    admin: str = ""
    exit: _ExitChoice = "inline"
    tokens: str = "tokens.toml"
    names_may_resolve_to: list[str] = []
    public_http: tuple[str, ...] = ()
    trace: str = ""
    metrics_by_user: bool = False
    tls: TlsFiles | None = None
    audit: AuditSettings | None = None
    proxies: ProxySettings = ProxySettings()
    sso: SsoTerms | None = None
    groups: dict[str, Any] = {}
    everyone: dict[str, Any] = {}
    users: dict[str, Any] = {}
    limits: dict[str, Any] = {}


def parse_config(text: str, file: str, users: Mapping[str, Iterable[Key]] | None = None) -> RelayConfig:
    """Return the configuration that `text`, the content of `file`, describes. Raise ConfigError if it is invalid."""
    raw = _convert(_load(text, file), _ConfigFile, file, "")
    resolvable = [_checked(parse_network, item, file, "names_may_resolve_to") for item in raw.names_may_resolve_to]
    grants = {name: _grant(value, file, f"users.{name}") for name, value in raw.users.items()}
    for name in grants:
        _checked(check_user_name, name, file, "users")
    _require_distinct(raw.listen, file, "listen")
    _require_owned(grants, file)
    everyone = _grant(raw.everyone, file, "everyone")
    if everyone.public or everyone.public_hosts:
        key = "public" if everyone.public else "public_hosts"
        raise ConfigError(f"{file}: everyone.{key}: a public place belongs to one user: list it under [users.NAME]")
    if everyone.certificates:
        raise ConfigError(
            f"{file}: everyone.certificates: a certificate belongs to one user: list it under [users.NAME]"
        )
    groups = _groups(raw, file)
    if any(grant.certificates for grant in grants.values()) and not (raw.tls and raw.tls.client_ca):
        raise ConfigError(
            f'{file}: tls.client_ca: certificates of users need an authority: add the line client_ca = "clients.crt" '
            "under [tls]"
        )
    if raw.tls and raw.tls.client_optional and not raw.tls.client_ca:
        raise ConfigError(f"{file}: tls.client_optional: there is no client_ca: remove the line, or add client_ca")
    if any(grant.public_hosts for grant in grants.values()) and not raw.public_http:
        raise ConfigError(f'{file}: public_http: public_hosts need a port: add the line public_http = ["0.0.0.0:80"]')
    switch, limits = _limits(raw.limits, file)
    if raw.base and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", raw.base):
        raise ConfigError(f"{file}: base: {raw.base!r} is not a path: write it as in /prefix, or leave it out")
    return RelayConfig(
        listen=tuple(_checked(parse_listen, item, file, "listen") for item in raw.listen),
        base=raw.base,
        admin=_checked(parse_listen, raw.admin, file, "admin") if raw.admin else None,
        exit=raw.exit,
        tokens=TokenTable({user: tuple(keys) for user, keys in (users or {}).items()}),
        tokens_file=raw.tokens,
        grants=GrantTable(grants, everyone, groups=groups, resolvable=resolvable),
        tls=raw.tls,
        sso=raw.sso,
        public_http=tuple(_checked(parse_address, item, file, "public_http") for item in raw.public_http),
        trace=raw.trace,
        metrics_by_user=raw.metrics_by_user,
        audit=raw.audit,
        proxies=_proxies(raw.proxies, file),
        switch=switch,
        limits=limits,
    )


def _groups(raw: _ConfigFile, file: str) -> dict[str, Grant]:
    """Return the grants of the groups that the identity provider names."""
    groups = {name: _grant(value, file, f"groups.{name}") for name, value in raw.groups.items()}
    for name, grant in groups.items():
        if not name.strip() or not name.isprintable():
            raise ConfigError(
                f"{file}: groups: {name!r} is not the name of a group: write the printable name that the identity "
                "provider has in its tokens"
            )
        if grant.exit or grant.public or grant.public_hosts or grant.certificates:
            raise ConfigError(
                f"{file}: groups.{name}: exit, public, public_hosts and certificates belong to single users: list them "
                "under [users.NAME]"
            )
    if groups and raw.sso is None:
        raise ConfigError(f"{file}: groups: an identity provider names them: add the table [sso], or remove the groups")
    if raw.sso is not None and not groups:
        raise ConfigError(
            f'{file}: sso: no group may attach: add connect = ["HOST:PORT"] under [groups.NAME] for a group of the '
            "identity provider"
        )
    return groups


def parse_address(text: str) -> ListenAddress:
    """Parse HOST:PORT or [IPv6]:PORT, with an optional https:// (TLS) or http:// (no TLS) before it.

    Port 0 means any free port. Raise ValueError if the text is not an address.
    """
    scheme, separator, rest = text.rpartition("://")
    if scheme not in ("", "http", "https"):
        raise ValueError(f"{text!r}: only http:// or https:// may precede an address")
    host, colon, port = rest.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if ":" in host and not is_bracketed:
        raise ValueError(f"{text!r} is not an address: put brackets around IPv6 and add the port, as in [::1]:8080")
    host = host[1:-1] if is_bracketed else host
    if host == "*":
        raise ValueError(f"{text!r} is not an address: for every IPv4 address of this machine, write 0.0.0.0:{port}")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > _PORT_MAX:
        raise ValueError(f"{text!r} is not an address: write HOST:PORT, as in 127.0.0.1:8080 or [::1]:8080")
    found = read_host(host)
    if found is None or isinstance(found, IPv6Address) != is_bracketed:
        raise ValueError(f"{text!r} is not an address: {host!r} is neither a name nor an address of this machine")
    return ListenAddress(host, int(port), scheme == "https" if separator else None)


def parse_listen(text: str) -> ListenAddress:
    """Parse an address as `parse_address` does, or unix:/PATH, a Unix socket, which speaks no TLS."""
    if not text.startswith(_UNIX):
        return parse_address(text)
    path = text.removeprefix(_UNIX)
    if not path.startswith("/") or "\0" in path or len(path.encode()) > _UNIX_PATH_BYTES_MAX:
        raise ValueError(f"{text!r} is not an address: a Unix socket has a path of at most 107 bytes: unix:/run/x.sock")
    return ListenAddress(path, 0, tls=False)


def require_safe(config: RelayConfig, file: str, *, needs_tokens: bool = True) -> None:
    """Raise ConfigError if the relay must not start with this configuration."""
    for key, addresses in (("listen", config.listen), ("public_http", config.public_http)):
        for address in addresses:
            if address.tls and config.tls is None:
                raise ConfigError(f"{file}: {key}: https://{address} needs a [tls] table with certificate and key")
    if config.admin is not None and config.admin.tls:
        raise ConfigError(f"{file}: admin: the admin listener speaks no TLS: write {config.admin} without https://")
    if config.is_open:
        for address in config.listen:
            if not address.is_loopback:
                raise ConfigError(f"--open: other machines can reach {address}: listen only on 127.0.0.1 or [::1]")
        return
    if needs_tokens and not (len(config.tokens) or config.grants.certificates or config.sso):
        raise ConfigError(
            f"{config.tokens_file}: no user has a token: run `tunnel-relay user add NAME -c {shlex.quote(file)}`"
        )
    if config.grants.is_empty:
        raise ConfigError(f'{file}: no rule allows anything: add connect = ["HOST:PORT"] under [users.NAME]')


def require_users(config: RelayConfig, present: TokenTable | None = None, admin_secret: str = "") -> None:
    """Raise ConfigError if no user has a token any more, and the tokens file does not say that this is meant.

    A file that is missing, empty or not written to its end would otherwise end the connections of all users. `present`
    and `admin_secret` are what a running relay has: it never loses them to such a file. Without them, a relay whose
    users need no token needs no tokens file.
    """
    if len(config.tokens) or config.tokens.revoked:
        return
    needs_none = config.is_open or config.grants.certificates or config.sso
    if needs_none and not present and (config.admin_secret or not admin_secret):
        return
    raise ConfigError(
        f"{config.tokens_file}: the file is missing, or lists no user: restore it, or run `tunnel-relay user add NAME "
        "-c FILE`; if no user shall have a token, run `tunnel-relay user revoke NAME -c FILE` for each user: the file "
        "then still names the last one, with tokens = [], and the relay accepts it"
    )


# --- tokens


class TokensFile(msgspec.Struct, frozen=True):
    """The content of a tokens file: the hashes of each user's tokens, and the admin secret, which may be missing."""

    users: Mapping[str, tuple[Key, ...]]
    admin_secret: str = ""


def parse_tokens(text: str, file: str) -> TokensFile:
    """Return the content of a tokens file. Raise ConfigError if it is invalid."""
    if text.startswith(_USERS_HEAD) and _USERS_END not in text.splitlines():
        raise ConfigError(f"{file}: the file is not whole, because its line {_USERS_END!r} is missing: copy it again")
    tables = _load(text, file)
    secret = tables.pop(_ADMIN_SECRET, "")
    if secret != "" and not (isinstance(secret, str) and _SECRET.fullmatch(secret)):
        raise ConfigError(
            f"{file}: {_ADMIN_SECRET} is not a text of 32 to 256 letters, digits, _ and -: remove the line: the next "
            "`tunnel-relay user add` or `rotate` writes a new one"
        )
    users: dict[str, tuple[Key, ...]] = {}
    for name, value in tables.items():
        _checked(check_user_name, name, file, "")
        if not isinstance(value, dict) or set(value) - {"tokens"}:
            raise ConfigError(f"{file}: {name}: a user may have only the key `tokens`: remove the others")
        if "tokens" not in value:
            raise ConfigError(f"{file}: {name}: the key `tokens` is missing: if the user has none, write tokens = []")
        users[name] = tuple(_convert(value["tokens"], list[Key], file, f"{name}.tokens"))
    _checked(TokenTable, users, file, "")
    return TokensFile(users, secret)


def render_users(users: Mapping[str, Iterable[Key]], admin_secret: str = "") -> str:
    """Return the text of a tokens file, which `parse_tokens` reads."""
    lines = [f"{_USERS_HEAD} It holds no token, only the SHA-256 hash of each.\n"]
    if admin_secret:
        lines.append("\n# `tunnel-relay drain` and `tunnel-relay state` show it to the relay. Keep it secret.\n")
        lines.append(f'{_ADMIN_SECRET} = "{admin_secret}"\n')
    for name, keys in users.items():
        lines.append(f'\n["{name}"]\ntokens = [\n')
        lines += [f"  {_key_table(key)},\n" for key in keys]
        lines.append("]\n")
    return "".join([*lines, f"\n{_USERS_END}\n"])


def _key_table(key: Key) -> str:
    """Return a token's record as an inline table of TOML, without the fields that have their usual values."""
    found = {name: value for name, value in msgspec.structs.asdict(key).items() if value or name == "created"}
    fields_ = (f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in found.items())
    return f"{{ {', '.join(fields_)} }}"


# --- inside


def _load(text: str, file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not TOML: {_syntax(str(error))}") from None
    except RecursionError:
        raise ConfigError(f"{file}: not TOML: its brackets are nested too deeply: check the brackets") from None


def _convert(value: Any, wanted: type[_T], file: str, where: str) -> _T:
    try:
        return msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        text = str(error)
    found = _PATH.search(text)
    key = ".".join(part for part in (where, found[1] if found else "") if part).replace(".[", "[")
    text = _PATH.sub("", text)
    unknown = _UNKNOWN.match(text)
    if unknown:
        tables: dict[str, type] = {"tls": TlsFiles, "audit": AuditSettings, "proxies": ProxySettings, "sso": SsoTerms}
        struct = tables.get(key, wanted)
        known = [] if found and key not in tables else list(getattr(struct, "__struct_fields__", ()))
        raise ConfigError(_unknown_key(file, f"{key}.{unknown[1]}".lstrip("."), unknown[1], known))
    text = f"{text[0].lower()}{text[1:]}".replace("`", "")
    raise ConfigError(f"{file}: {key or 'the whole file'}: {text}{_remedy(key, text)}")


def _remedy(key: str, text: str) -> str:
    """Return what to write instead of the value of `key`, where that is known."""
    choice = _CHOICE.match(text)
    if choice and key == "exit":
        choices = get_args(_ExitChoice)
        near = difflib.get_close_matches(choice[1], choices, n=1)
        guess = f"did you mean {near[0]!r}? " if near else ""
        return f": {guess}choose {' or '.join(map(repr, choices))}"
    table, *names = key.partition("[")[0].split(".")
    if table in ("users", "groups") and names:
        table, names = ("everyone", names[-1:]) if names[1:] else ("users", ["*"])
    example = _EXAMPLES.get(".".join([table, *names]), "")
    return f": write {'' if example.startswith('a table') else 'it as in '}{example}" if example else ""


def _syntax(text: str) -> str:
    """Return the text for an error of the TOML parser, with advice on how to mend the file."""
    twice = _TWICE.match(text)
    if twice:
        names = ".".join(re.findall(r"'([^']*)'", twice[1]))
        return f"the table [{names}] is there twice{twice[2]}: join the two"
    return f"{text}: check the quotes, brackets and commas there"


def _unknown_key(file: str, key: str, name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        advice = f"did you mean {near[0]}?"
    else:
        removal = [] if known and "." not in key else ["remove it"]
        advice = "; ".join(removal + ([f"known keys: {', '.join(sorted(known))}"] if known else []))
    return f"{file}: {key}: unknown key; {advice}"


def _checked(check: Any, value: Any, file: str, key: str) -> Any:
    try:
        return check(value)
    except ValueError as error:
        raise ConfigError(": ".join(part for part in (file, key, str(error)) if part)) from None


def _require_distinct(names: Iterable[str], file: str, key: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigError(f"{file}: {key}: {name!r} is listed twice: remove one, or write the name that you meant")
        seen.add(name)


def _require_owned(grants: Mapping[str, Grant], file: str) -> None:
    """Raise ConfigError if a public port, a host name or a certificate is listed under two users."""
    owners: dict[int | str, str] = {}
    for user, grant in grants.items():
        places: list[int | str] = [*(address.port for address in grant.public), *grant.public_hosts]
        for name in grant.certificates:
            other = owners.setdefault(name, user)
            if other != user:
                raise ConfigError(
                    f"{file}: users.{user}.certificates: {name} belongs to {other} already: a name in a certificate "
                    "belongs to one user: remove it from one of the two tables"
                )
        for place in places:
            other = owners.setdefault(place, user)
            if other != user:
                key = "public" if isinstance(place, int) else "public_hosts"
                raise ConfigError(
                    f"{file}: users.{user}.{key}: {place} belongs to {other} already: a public port or host name "
                    "belongs to one user: remove it from one of the two tables"
                )


def _public_host(text: str) -> str:
    found = read_host(text)
    if not isinstance(found, str):
        raise ValueError(f"{text!r} is not the name of a host: write it as in app.example")
    return found


def _grant(value: Any, file: str, where: str) -> Grant:
    raw = _convert(value, _GrantFile, file, where)
    for key in ("services", "listen", "public", "public_hosts", "certificates"):
        _require_distinct(getattr(raw, key), file, f"{where}.{key}")
    rules = tuple(_checked(parse_rule, item, file, f"{where}.connect") for item in raw.connect)
    rate = _checked(parse_rate, raw.rate, file, f"{where}.rate") if raw.rate else 0
    rates: list[tuple[str, int]] = []
    listed = [*raw.connect, *raw.services, *raw.listen]
    for rule, text in raw.rates.items():
        if rule not in listed:
            near = difflib.get_close_matches(rule, listed, n=1)
            advice = f"did you mean {near[0]!r}?" if near else f"add it to connect, services or listen of [{where}]"
            raise ConfigError(f"{file}: {where}.rates: {rule!r} is no rule of this table: {advice}")
        rates.append((rule, _checked(parse_rate, text, file, f"{where}.rates.{rule}")))
    public = tuple(_checked(parse_public_address, item, file, f"{where}.public") for item in raw.public)
    hosts = tuple(_checked(_public_host, item, file, f"{where}.public_hosts") for item in raw.public_hosts)
    names = [_checked(parse_certificate_name, item, file, f"{where}.certificates") for item in raw.certificates]
    return Grant(
        connect=rules,
        services=tuple(raw.services),
        listen=tuple(raw.listen),
        exit=raw.exit,
        public=public,
        public_hosts=hosts,
        rate=rate,
        rates=tuple(rates),
        certificates=tuple(names),
    )


def _proxies(raw: ProxySettings, file: str) -> TrustedProxies:
    networks = [_checked(parse_network, item, file, "proxies.trusted") for item in raw.trusted if item != UNIX]
    if raw.proxy_protocol and not raw.trusted:
        raise ConfigError(f'{file}: proxies.proxy_protocol: name the proxies: add the line trusted = ["10.0.0.5"]')
    return TrustedProxies(networks, has_unix=UNIX in raw.trusted, has_header=raw.proxy_protocol)


def _limits(values: dict[str, Any], file: str) -> tuple[SwitchConfig, ServiceLimits]:
    of_shell = [item.name for item in fields(ServiceLimits)]
    fixed = {item.name for item in fields(SwitchConfig)} - {"node", *SETTABLE}
    for name, value in values.items():
        default = getattr(ServiceLimits() if name in of_shell else SwitchConfig(), name, None)
        if name in fixed:
            raise ConfigError(f"{file}: limits.{name}: this is always {str(default).lower()}: remove the line")
        if name not in SETTABLE and name not in of_shell:
            raise ConfigError(_unknown_key(file, f"limits.{name}", name, sorted({*SETTABLE, *of_shell})))
        if type(value) is not int and not (type(value) is float and name.endswith("_seconds")):
            raise ConfigError(
                f"{file}: limits.{name}: expected a {'' if '_sec' in name else 'whole '}number, not {value!r}: write "
                f"it as in {name} = {default}"
            )
    try:
        switch = SwitchConfig(**{name: values[name] for name in SETTABLE if name in values})
        return switch, ServiceLimits(**{name: values[name] for name in of_shell if name in values})
    except ValueError as error:
        raise ConfigError(f"{file}: limits: {error}: write another number, or remove the line") from None
