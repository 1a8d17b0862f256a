"""Glewlwyd, an identity provider that Debian packages, on loopback: with a database and a port of its own, set up over
its administration's interface, and with people who sign in over the interface of its login page.

    async with glewlwyd(tmp_path) as provider:
        await provider.add_client("tunnel")
        await provider.add_user("ann", "staff")
        tokens = await provider.sign_in("ann", "tunnel")
"""

import asyncio
import contextlib
import json
import sqlite3
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from joserfc import jwk

from loadtests.harness.ports import hold_port
from tests.real.servers import Server

__all__ = ["Glewlwyd", "glewlwyd"]

READY_S = 30.0
POLL_S = 1  # between two questions of a device: the least that Glewlwyd can be set to
_SCHEMA = Path("/usr/share/dbconfig-common/data/glewlwyd/install/sqlite3")
_ADMINISTRATOR = {"username": "admin", "password": "password"}  # whom the schema contains
_PASSWORD = "a password of a test"
_LIFETIME_S = 3600
_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_CONFIGURATION = """
port = {port}
bind_address = "127.0.0.1"
external_url = "http://127.0.0.1:{port}"
login_url = "login.html"
api_prefix = "api"
cookie_domain = "127.0.0.1"
cookie_secure = 0
log_mode = "console"
log_level = "WARNING"
admin_scope = "g_admin"
profile_scope = "g_profile"
user_module_path = "/usr/lib/glewlwyd/user"
client_module_path = "/usr/lib/glewlwyd/client"
user_auth_scheme_module_path = "/usr/lib/glewlwyd/scheme"
plugin_module_path = "/usr/lib/glewlwyd/plugin"
hash_algorithm = "SHA512"
database = {{ type = "sqlite3"; path = "{database}"; }};
"""


class Glewlwyd:
    """A running Glewlwyd with its plugin for OpenID Connect."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.url = server.url
        self.issuer = f"{self.url}/api/oidc"
        self._keys: list[dict[str, Any]] = []

    async def start(self) -> None:
        """Start it, for the first time or again, with what its database holds."""
        await asyncio.to_thread(self._server.start().wait_ready, READY_S)

    def kill(self) -> None:
        """End it at once. Its port stays reserved, and refuses connections."""
        self._server.kill()

    async def set_up(self) -> None:
        """Let users have groups, and start the plugin, which signs by ES256."""
        async with self._session(_ADMINISTRATOR) as session:
            users = await _ask(session, "GET", "mod/user/database")
            may_write = {"read": True, "write": True, "profile-read": True, "profile-write": False}
            users["parameters"]["data-format"]["groups"] = {"multiple": True, **may_write}
            await _ask(session, "PUT", "mod/user/database", json=users)
            await _ask(session, "PUT", "mod/user/database/reset")
            scope: dict[str, Any] = {"name": "relay", "display_name": "relay", "description": "the relay"}
            no_more: dict[str, Any] = {"password_required": False, "scheme": {}, "scheme_required": {}}
            await _ask(session, "POST", "scope/", json=scope | no_more)
            self._keys = [_private(jwk.ECKey.generate_key("P-256", {"kid": "first"}), "ES256")]
            await _ask(session, "POST", "mod/plugin/", json=self._plugin())

    async def rotate_keys(self) -> None:
        """Sign by RS256 with a new key from now on. The older keys stay published."""
        key = jwk.RSAKey.generate_key(2048, {"kid": f"rotated-{len(self._keys)}"})
        self._keys.insert(0, _private(key, "RS256"))
        async with self._session(_ADMINISTRATOR) as session:
            await _ask(session, "PUT", "mod/plugin/oidc", json=self._plugin())
            await _ask(session, "PUT", "mod/plugin/oidc/reset")

    def _plugin(self) -> dict[str, Any]:
        claims = [
            {"name": name, "user-property": value, "type": "string", "mandatory": True, "on-demand": False, "scope": []}
            for name, value in (("groups", "groups"), ("preferred_username", "username"))
        ]
        kinds = {f"auth-type-{name}-enabled": False for name in ("code", "token", "client", "password")}
        parameters = {
            **kinds,
            "iss": self.issuer,
            "subject-type": "public",
            "jwks-private": json.dumps({"keys": self._keys}),
            "default-kid": self._keys[0]["kid"],
            "jwks-show": True,
            "access-token-duration": _LIFETIME_S,
            "refresh-token-duration": _LIFETIME_S,
            "code-duration": 600,
            "refresh-token-rolling": True,
            "refresh-token-one-use": "always",
            "allow-non-oidc": True,  # sign-ins without an ID token
            "auth-type-refresh-enabled": True,
            "auth-type-device-enabled": True,
            "device-authorization-expiration": 600,
            "device-authorization-interval": POLL_S,
            "claims": claims,
            "additional-parameters": [{"user-parameter": "groups", "token-parameter": "groups"}],  # of access tokens
            "name-claim": "no",
            "email-claim": "no",
            "scope-claim": "no",
        }
        return {"module": "oidc", "name": "oidc", "display_name": "", "enabled": True, "parameters": parameters}

    async def add_client(self, name: str) -> None:
        """Register a public client that may use the device flow."""
        client = {
            "client_id": name,
            "name": name,
            "confidential": False,
            "enabled": True,
            "scope": [],
            "redirect_uri": ["http://127.0.0.1/"],
            "authorization_type": ["device_authorization", "refresh_token"],
        }
        async with self._session(_ADMINISTRATOR) as session:
            await _ask(session, "POST", "client/", json=client)

    async def add_user(self, name: str, *groups: str) -> None:
        """Add a person who is in these groups."""
        scope = ["openid", "relay", "g_profile"]
        user = {"username": name, "password": _PASSWORD, "enabled": True, "scope": scope, "groups": list(groups)}
        async with self._session(_ADMINISTRATOR) as session:
            await _ask(session, "POST", "user/", json=user)

    async def approve(self, user: str, client: str, page: str, scope: str = "openid") -> None:
        """Do what a person does on this page: log in, let the client have the scope, and confirm its code."""
        async with self._session({"username": user, "password": _PASSWORD}) as session:
            await _ask(session, "PUT", f"auth/grant/{client}/", json={"scope": scope})
            code = urllib.parse.parse_qs(urllib.parse.urlsplit(page).query)["code"][0]
            # The page leads to the login page, which adds g_continue when all is granted.
            query = {"code": code, "g_continue": ""}
            async with session.get(f"{self.issuer}/device", params=query, allow_redirects=False) as response:
                location = response.headers["Location"]
            assert "prompt=deviceComplete" in location, location

    async def sign_in(self, user: str, client: str, scope: str = "openid") -> dict[str, Any]:
        """Return what the token endpoint answers after a sign-in by the device flow."""
        async with self._session() as session, asyncio.timeout(READY_S):
            form = {"client_id": client, "scope": scope}
            device = await _ask(session, "POST", "oidc/device_authorization", data=form)
            await self.approve(user, client, device["verification_uri_complete"], scope)
            form = {"grant_type": _GRANT, "client_id": client, "device_code": device["device_code"]}
            return dict(await _ask(session, "POST", "oidc/token", data=form))

    async def end_sign_ins(self, user: str) -> int:
        """Let a person disable their refresh tokens; return the number of these."""
        async with self._session({"username": user, "password": _PASSWORD}) as session:
            found = await _ask(session, "GET", "oidc/token")
            for one in found:
                await _ask(session, "DELETE", f"oidc/token/{urllib.parse.quote(one['token_hash'], safe='')}")
            return len(found)

    @asynccontextmanager
    async def _session(self, who: dict[str, str] | None = None) -> AsyncIterator[aiohttp.ClientSession]:
        """Keep the cookies of one person, who logs in."""
        timeout, jar = aiohttp.ClientTimeout(total=READY_S), aiohttp.CookieJar(unsafe=True)  # for an IP address
        async with aiohttp.ClientSession(f"{self.url}/api/", timeout=timeout, cookie_jar=jar) as session:
            if who is not None:
                await _ask(session, "POST", "auth/", json=who)
            yield session


async def _ask(session: aiohttp.ClientSession, method: str, path: str, **body: Any) -> Any:
    async with session.request(method, path, **body) as response:
        text = await response.text()
        assert response.status == 200, f"{method} {path} answered {response.status}: {text}"
        return json.loads(text) if text else None


def _private(key: Any, algorithm: str) -> dict[str, Any]:
    return {**key.as_dict(private=True), "alg": algorithm}


@asynccontextmanager
async def glewlwyd(folder: Path) -> AsyncIterator[Glewlwyd]:
    """Run a Glewlwyd that keeps its files in this folder."""
    with hold_port() as port:
        server = Server(["glewlwyd", "-c", str(_write_files(folder, port))], port, is_up=_answers)
        provider = Glewlwyd(server)
        try:
            await provider.start()
            await provider.set_up()
            yield provider
        finally:
            provider.kill()


def _write_files(folder: Path, port: int) -> Path:
    """Make an empty database, and a configuration file, whose path is returned."""
    database, configuration = folder / "glewlwyd.db", folder / "glewlwyd.conf"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.executescript(_SCHEMA.read_text())
    configuration.write_text(_CONFIGURATION.format(port=port, database=database))
    return configuration


def _answers(port: int) -> bool:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            f"http://127.0.0.1:{port}/config", timeout=READY_S
        ) as response:
            return bool(response.status == 200)
    except OSError:
        return False
