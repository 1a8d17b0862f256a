"""The relay's configuration: parses the text of its files into checked values. It does not read the files itself.

An error in a file names the file, the key if there is one, and what to do.
"""

import difflib
import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from ipaddress import IPv6Address, ip_address
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import msgspec

from tunnel.rates import parse_rate
from tunnel_servlet.access.grants import Grant, GrantTable, parse_public_address
from tunnel_servlet.access.rules import parse_network, parse_rule, read_host
from tunnel_servlet.access.tokens import Key, TokenTable, check_user_name
from tunnel_servlet.switch.config import SwitchConfig

__all__ = [
    "ConfigError",
    "ListenAddress",
    "RelayConfig",
    "ServiceLimits",
    "TlsFiles",
    "TokensFile",
    "parse_address",
    "parse_config",
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
_LIMIT_MAX = 1 << 40
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
    "public_http": 'public_http = ["0.0.0.0:80"]',
    "tls": 'a table: [tls] on one line, certificate = "relay.crt" and key = "relay.key" on the next ones',
    "tls.certificate": 'certificate = "relay.crt"',
    "tls.key": 'key = "relay.key"',
    "tls.client_ca": 'client_ca = "clients.crt"',
    "limits": "a table: [limits] on one line, body_bytes_max = 1048576 on the next one",
    "users": 'a table for each user: [users.ann] on one line, connect = ["db.internal:5432"] on the next one',
    "users.*": 'a table: [users.ann] on one line, connect = ["db.internal:5432"] on the next one',
    "everyone": 'a table: [everyone] on one line, connect = ["db.internal:5432"] on the next one',
    "everyone.connect": 'connect = ["db.internal:5432"]',
    "everyone.services": 'services = ["reports"]',
    "everyone.listen": 'listen = ["reports"]',
    "everyone.exit": "exit = true",
    "everyone.public": 'public = ["0.0.0.0:8443"]',
    "everyone.public_hosts": 'public_hosts = ["app.example"]',
    "everyone.rate": 'rate = "20 MiB/s"',
    "everyone.rates": 'a table: [users.ann.rates] on one line, "db.internal:5432" = "5 MiB/s" on the next one',
}


class ConfigError(ValueError):
    """The configuration or the command line is wrong; the text says what the operator has to change."""


class TlsFiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names of PEM files. With `client_ca`, the relay accepts only clients whose certificate that authority signed."""

    certificate: str
    key: str
    client_ca: str = ""


class ListenAddress(msgspec.Struct, frozen=True):
    """An address to listen on. `tls` is None if the address was given without a scheme."""

    host: str
    port: int
    tls: bool | None = None

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLimits:
    """The limits outside the switch: HTTP, links, tokens and the exit. Times are in seconds."""

    header_seconds: float = 10
    """Time from the first byte of a request, or from connecting, to the end of its headers."""
    body_seconds: float = 30
    """Time from the headers to the end of the body, and from the header of a link's batch to its end."""
    keepalive_seconds: float = 75
    """How long an idle connection stays open: longer than a proxy in front keeps it (nginx: 60)."""
    answer_seconds: float = 60
    """Time for a client to read an answer; then the relay cuts the connection."""
    tls_seconds: float = 10
    """Time for a TLS handshake."""
    connections_max: int = 10_000
    """Open connections of clients. The relay lowers this limit to three quarters of the files that it may open.
    Connections on which no valid token came yet take at most half of it; for each beyond this, the relay closes the
    oldest of the address that has most."""
    connections_per_address_max: int = 1024
    """Connections from one address (an IPv6 /64; a /56 has twice, a /48 four times as many) on which no valid token
    came yet: at most a quarter of `connections_max`. For each beyond this, the relay closes the oldest."""
    connections_per_user_max: int = 2048
    """Connections of one user: those whose latest request had the user's token. No user has more than stay free."""
    waiting_bytes_max: int = 256 << 20
    """Bytes of unfinished bodies and batches, and of answers that clients have not read yet. A user gets no more
    of them when it holds as many as are free, so one user alone gets at most half."""
    link_opening_seconds: float = 10
    """Time from the upgrade to the first message on a link."""
    link_batch_bytes_max: int = 4 << 20
    """The largest batch that the relay accepts on a link."""
    auth_failures_per_minute: int = 20
    """Wrong tokens from one address that the relay answers with 401; to further ones it answers 429."""
    dial_seconds: float = 10
    """How long an exit waits for a target, including name resolution."""
    exit_connections_max: int = 8192
    """Connections of one exit, including those that it is still dialling. A user gets no more of them when it has
    as many as are free, so one user alone gets at most half."""
    drain_seconds: float = 60
    """How long a draining relay waits for connections to end, if `tunnel-relay drain` names no other time."""
    public_connections_max: int = 2048
    """Open connections of people without the tunnel, at all public places. The services of one user get no more of
    them when they have as many as are free, so those of one user alone get at most half."""
    public_connections_per_address_max: int = 64
    """The same from one address (one /64 network of IPv6). They are never more than half of
    `public_connections_max`."""
    trace_bytes_max: int = 1 << 30
    """Bytes of all trace files in the folder `trace`; the oldest are removed when there are more."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            least = 0.001 if name.endswith("_seconds") else 1
            if not least <= getattr(self, name) <= _LIMIT_MAX:
                raise ValueError(f"{name} must be at least {least} and at most {_LIMIT_MAX}, not {getattr(self, name)}")


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
    admin_secret: str = field(default="", repr=False)
    """The secret of the tokens file with which the operator may drain the relay and read its state. Empty: no one may,
    except that everybody on this machine may read the state of an open relay."""
    grants: GrantTable = field(default_factory=GrantTable)
    is_open: bool = False
    """The relay accepts requests without a token."""
    tls: TlsFiles | None = None
    public_http: tuple[ListenAddress, ...] = ()
    """Addresses at which people without the tunnel reach HTTP services by host name."""
    trace: str = ""
    switch: SwitchConfig = field(default_factory=SwitchConfig)
    limits: ServiceLimits = field(default_factory=ServiceLimits)


class _GrantFile(msgspec.Struct, forbid_unknown_fields=True):
    connect: list[str] = []
    services: list[str] = []
    listen: list[str] = []
    exit: bool = False
    public: list[str] = []
    public_hosts: list[str] = []
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
    tls: TlsFiles | None = None
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
    if any(grant.public_hosts for grant in grants.values()) and not raw.public_http:
        raise ConfigError(f'{file}: public_http: public_hosts need a port: add the line public_http = ["0.0.0.0:80"]')
    switch, limits = _limits(raw.limits, file)
    if raw.base and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", raw.base):
        raise ConfigError(f"{file}: base: {raw.base!r} is not a path: write it as in /prefix, or leave it out")
    return RelayConfig(
        listen=tuple(_checked(parse_address, item, file, "listen") for item in raw.listen),
        base=raw.base,
        admin=_checked(parse_address, raw.admin, file, "admin") if raw.admin else None,
        exit=raw.exit,
        tokens=TokenTable({user: tuple(keys) for user, keys in (users or {}).items()}),
        tokens_file=raw.tokens,
        grants=GrantTable(grants, everyone, resolvable=resolvable),
        tls=raw.tls,
        public_http=tuple(_checked(parse_address, item, file, "public_http") for item in raw.public_http),
        trace=raw.trace,
        switch=switch,
        limits=limits,
    )


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
    if needs_tokens and not len(config.tokens):
        raise ConfigError(
            f"{config.tokens_file}: no user has a token: run `tunnel-relay user add NAME -c {shlex.quote(file)}`"
        )
    if config.grants.is_empty:
        raise ConfigError(f'{file}: no rule allows anything: add connect = ["HOST:PORT"] under [users.NAME]')


def require_users(config: RelayConfig) -> None:
    """Raise ConfigError if no user has a token any more, and the tokens file does not say that this is meant.

    A file that is missing, empty or not written to its end would otherwise end the connections of all users.
    """
    if config.is_open or len(config.tokens) or config.tokens.revoked:
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
        for key in keys:
            lines.append(f'  {{ id = "{key.id}", sha256 = "{key.sha256}", created = "{key.created}" }},\n')
        lines.append("]\n")
    return "".join([*lines, f"\n{_USERS_END}\n"])


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
        struct = TlsFiles if key == "tls" else wanted
        known = [] if found and key != "tls" else list(getattr(struct, "__struct_fields__", ()))
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
    if table == "users" and names:
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
    """Raise ConfigError if a public port or host name is listed under two users."""
    owners: dict[int | str, str] = {}
    for user, grant in grants.items():
        places: list[int | str] = [*(address.port for address in grant.public), *grant.public_hosts]
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
    for key in ("services", "listen", "public", "public_hosts"):
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
    return Grant(
        rules,
        tuple(raw.services),
        tuple(raw.listen),
        raw.exit,
        tuple(_checked(parse_public_address, item, file, f"{where}.public") for item in raw.public),
        tuple(_checked(_public_host, item, file, f"{where}.public_hosts") for item in raw.public_hosts),
        rate,
        tuple(rates),
    )


def _limits(values: dict[str, Any], file: str) -> tuple[SwitchConfig, ServiceLimits]:
    of_switch = {item.name for item in fields(SwitchConfig)} - {"node"}
    of_shell = {item.name for item in fields(ServiceLimits)}
    for name, value in values.items():
        if name not in of_switch | of_shell:
            raise ConfigError(_unknown_key(file, f"limits.{name}", name, sorted(of_switch | of_shell)))
        if type(value) is not int and not (type(value) is float and name.endswith("_seconds")):
            default = getattr(SwitchConfig() if name in of_switch else ServiceLimits(), name)
            raise ConfigError(
                f"{file}: limits.{name}: expected a {'' if '_sec' in name else 'whole '}number, not {value!r}: write "
                f"it as in {name} = {default}"
            )
    try:
        switch = SwitchConfig(**{name: value for name, value in values.items() if name in of_switch})
        limits = ServiceLimits(**{name: value for name, value in values.items() if name in of_shell})
    except ValueError as error:
        raise ConfigError(f"{file}: limits: {error}: write another number, or remove the line") from None
    return switch, limits
