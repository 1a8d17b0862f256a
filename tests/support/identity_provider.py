"""An identity provider (OpenID Connect) on loopback. It signs with the library that the relay checks with."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from joserfc import jwk, jwt

__all__ = ["CURVE", "NOW_S", "OTHER", "RSA", "SECRET", "DeviceProvider", "Provider", "provided"]

NOW_S = 1_800_000_000
RSA = jwk.RSAKey.generate_key(2048, {"kid": "first", "use": "sig"})
OTHER = jwk.RSAKey.generate_key(2048, {"kid": "second", "use": "sig"})
CURVE = jwk.ECKey.generate_key("P-256", {"kid": "curve", "use": "sig"})
SECRET = jwk.OctKey.generate_key(256, {"kid": "secret"})


class Provider:
    """An identity provider: its configuration, its keys, and tokens of it."""

    def __init__(self) -> None:
        self.url = ""
        self.keys: list[Any] = [RSA, CURVE]
        self.asked = 0  # times that its keys were asked for
        self.answer: Callable[[], web.StreamResponse] | None = None  # in place of its keys
        self.configuration: dict[str, Any] = {}
        self.gate: asyncio.Event | None = None  # which its keys and tokens wait for

    def add_to(self, app: web.Application) -> None:
        """Add what it serves."""
        app.router.add_get("/.well-known/openid-configuration", self.configure)
        app.router.add_get("/keys", self.show_keys)

    async def configure(self, _: web.Request) -> web.Response:
        return web.json_response({"issuer": self.url, "jwks_uri": f"{self.url}/keys", **self.configuration})

    async def show_keys(self, _: web.Request) -> web.StreamResponse:
        self.asked += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.answer is not None:
            return self.answer()
        return web.json_response({"keys": [key.as_dict(private=False) for key in self.keys]})

    def token(self, key: Any = RSA, algorithm: str = "RS256", /, header: Any = None, **changes: Any) -> str:
        """Return a token of a user in the group `staff`; None removes a claim."""
        claims = {"iss": self.url, "aud": "tunnel", "sub": "ann", "groups": ["staff"], "iat": NOW_S, "exp": NOW_S + 600}
        claims = {name: value for name, value in {**claims, **changes}.items() if value is not None}
        return jwt.encode({"alg": algorithm, "kid": key.kid, **(header or {})}, claims, key, algorithms=[algorithm])


class DeviceProvider(Provider):
    """The same with a sign-in for devices (RFC 8628) and refresh tokens, each of which it takes once.

    It answers the requests for tokens with what `polls` and `refreshes` hold, in turn, and then issues them: each entry
    is a status and an error, or a function that answers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.forms: list[tuple[str, dict[str, str]]] = []  # with the path
        self.headers: list[dict[str, str]] = []
        self.polls: list[tuple[int, str] | Callable[[], web.StreamResponse]] = []
        self.refreshes: list[tuple[int, str] | Callable[[], web.StreamResponse]] = []
        self.device: dict[str, Any] = {}  # changes of what a device gets; None removes an entry
        self.issued: dict[str, Any] = {}  # the same of what the token endpoint answers
        self.claims: dict[str, Any] = {}  # changes of the claims
        self.lifetime_s = 600
        self.refresh_token = ""  # the one that is valid
        self._count = 0

    def add_to(self, app: web.Application) -> None:
        super().add_to(app)
        app.router.add_post("/device", self.begin)
        app.router.add_post("/token", self.issue)

    async def configure(self, request: web.Request) -> web.Response:
        places = {"device_authorization_endpoint": f"{self.url}/device", "token_endpoint": f"{self.url}/token"}
        self.configuration = {**places, **self.configuration}
        return await super().configure(request)

    async def begin(self, request: web.Request) -> web.StreamResponse:
        await self._note(request)
        found = {
            "device_code": "device-secret",
            "user_code": "WDJB-MJHT",
            "verification_uri": f"{self.url}/activate",
            "verification_uri_complete": f"{self.url}/activate?user_code=WDJB-MJHT",
            "expires_in": 600,
            "interval": 0.01,
            **self.device,
        }
        return web.json_response({name: value for name, value in found.items() if value is not None})

    async def issue(self, request: web.Request) -> web.StreamResponse:
        form = await self._note(request)
        if self.gate is not None:
            await self.gate.wait()
        is_refresh = form["grant_type"] == "refresh_token"
        script = self.refreshes if is_refresh else self.polls
        if script:
            step = script.pop(0)
            if callable(step):
                return step()
            return web.json_response({"error": step[1]}, status=step[0])
        if is_refresh and form["refresh_token"] != self.refresh_token:
            return web.json_response({"error": "invalid_grant", "error_description": "used or revoked"}, status=400)
        return web.json_response(self.tokens())

    def tokens(self) -> dict[str, Any]:
        """Return what the token endpoint answers. The refresh token before is used up."""
        self._count += 1
        self.refresh_token = f"refresh-{self._count}"
        now_s = int(time.time())
        claims = {"iat": now_s, "exp": now_s + self.lifetime_s, "jti": str(self._count), **self.claims}
        found = {
            "access_token": "opaque",
            "token_type": "Bearer",
            "id_token": self.token(**claims),
            "refresh_token": self.refresh_token,
            **self.issued,
        }
        return {name: value for name, value in found.items() if value is not None}

    async def _note(self, request: web.Request) -> dict[str, str]:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.forms.append((request.path, form))
        self.headers.append(dict(request.headers))
        return form


@asynccontextmanager
async def provided(provider: Provider | None = None) -> AsyncIterator[Provider]:
    """Run a provider."""
    provider = provider or Provider()
    app = web.Application()
    provider.add_to(app)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    provider.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield provider
    finally:
        if provider.gate is not None:
            provider.gate.set()
        await runner.cleanup()
