"""Decides which failures end the attempts to reach a relay that has never answered (PROTOCOL 7.9)."""

import aiohttp
from yarl import URL

from tunnel.carriers.dialing.failures import TLS_CUT, describe_failure, explain, is_final, is_refused
from tunnel.exchange import LaneConfig
from tunnel.exchange.config import OR_WAIT, SECOND_US

__all__ = ["Patience"]

_STRANGE = ("no-http", "bad-http")
_STRANGE_MAX = 2  # a device on the path may have damaged one answer
_CHECK_URL = ", or check host and port of the URL"
_CHECK_PROXY = "check the proxy that --proxy, a variable of the environment or `tunnel login` names"


class Patience:
    """An exchanger's knowledge of the first answer from the relay at `base`."""

    def __init__(self, base: URL, config: LaneConfig) -> None:
        self._base = base
        self._wait = config.wait
        self._away_s = config.away_us / SECOND_US
        self._has_answer = False
        self._away_since_s: float | None = None  # since when no connection could be opened
        self._strange = 0  # answers in a row that were not HTTP

    def on_answered(self) -> None:
        """Record that something has answered."""
        self._has_answer = True

    def on_failed(self, error: BaseException, now_s: float) -> tuple[str, bool]:
        """Return how a request failed, on one line for people, and whether to try no more."""
        text = describe_failure(error, self._base, is_first=not self._has_answer)
        if is_final(error, self._base):
            return text, True
        end = "" if self._has_answer or self._wait is not False else self._end(error, now_s)
        return text + end, bool(end)

    def _end(self, error: BaseException, now_s: float) -> str:
        """Return the rest of the text, with advice, if the attempts end here; otherwise an empty text."""
        kind = explain(error, self._base, is_first=True).kind
        self._strange = self._strange + 1 if kind in _STRANGE else 0
        if not isinstance(error, aiohttp.ClientConnectorError) or isinstance(error, aiohttp.ClientSSLError):
            self._away_since_s = None
            end = _CHECK_URL if kind == "no-http" else OR_WAIT
            return end if self._strange >= _STRANGE_MAX else ""
        is_proxy = isinstance(error, aiohttp.ClientProxyConnectionError)
        if is_proxy and is_refused(error.os_error):
            return f": {_CHECK_PROXY}"
        if self._away_since_s is None:
            self._away_since_s = now_s
        if now_s - self._away_since_s < self._away_s:
            return ""
        if is_proxy:
            advice = _CHECK_PROXY
        elif kind == "name":
            advice = "check the host in the URL, or name your proxy with --proxy"
        elif kind == "tls-cut":
            advice = TLS_CUT
        else:
            advice = "check host and port of the URL, and that the relay runs"
        return f" for {self._away_s:g} s: {advice}{OR_WAIT}"
