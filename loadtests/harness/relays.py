"""A relay as an operator runs it: with users and rules, its own port, and an exit in another process."""

import time
from contextlib import ExitStack
from pathlib import Path
from random import SystemRandom
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from loadtests.harness.ports import hold_port
from loadtests.harness.processes import Process, python_command, relay_command, says_event
from tunnel_servlet.access.tokens import Key, make_token
from tunnel_servlet.command.files import write_users

__all__ = ["RelayProcess", "exit_process"]

_CONFIG = """\
listen = ["127.0.0.1:{port}"]
{public}exit = "{exit}"
tokens = "relay.tokens.toml"

[users.client]
connect = ["127.0.0.1:*"]
services = ["*"]
listen = ["*"]
{rules}
[users.attacker]
connect = ["127.0.0.1:*"]
services = ["attacker-own"]
listen = ["attacker-own"]

[users.exit]
exit = {separate}

[users.nobody]
"""


class RelayProcess:
    """A relay that a test can kill and start again at the same port. In its `with` block it is ready.

    It has four users: "client" may reach every port of this machine, and reach and offer every service; "exit" may
    attach as an exit, except at a relay with an inline exit, which would first wait for it; "attacker" may reach every
    port, too; `nobody` has no rights.
    """

    def __init__(
        self,
        *,
        inline_exit: bool = False,
        module: str = "",
        event: str = "listening",
        public: str = "",
        rules: str = "",
    ) -> None:
        """`module`, if given, runs the relay instead of `tunnel-relay serve`. The relay is ready when it logs `event`.

        `public` is a further line of the configuration, and `rules` one in the table of the user "client".
        """
        self._public, self._rules = public, rules
        self.startup_s = 0.0  # from the latest start, or from the kill by replace(), until the relay listened
        self.tokens: dict[str, str] = {}
        self._exit = "inline" if inline_exit else "none"
        self._module, self._event = module, event
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack as stack:
            directory = Path(stack.enter_context(TemporaryDirectory(prefix="tunnel-")))
            self.port = stack.enter_context(hold_port())
            self._write(directory)
            file = str(directory / "relay.toml")
            command = python_command(self._module, "-c", file) if self._module else relay_command("serve", "-c", file)
            began = time.monotonic()
            self.process = stack.enter_context(Process(command, ready=says_event(self._event)))
            self.startup_s = time.monotonic() - began
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        """The URL at which the relay listens."""
        return f"http://127.0.0.1:{self.port}"

    async def replace(self) -> None:
        """Kill the relay with SIGKILL, start a new one at once, and return when that listens."""
        began = time.monotonic()
        self.process.kill()
        self.process.start()
        await self.process.ready()
        self.startup_s = time.monotonic() - began

    def _text(self) -> str:
        separate = "true" if self._exit == "none" else "false"
        lines = {"public": f"{self._public}\n", "rules": f"{self._rules}\n"}
        return _CONFIG.format(port=self.port, exit=self._exit, separate=separate, **lines)

    def _write(self, directory: Path) -> None:
        users = ("client", "attacker", "exit", "nobody")
        made: dict[str, tuple[str, Key]] = {user: make_token(SystemRandom()) for user in users}
        write_users(directory / "relay.tokens.toml", {user: (key,) for user, (_, key) in made.items()})
        self.tokens = {user: token for user, (token, _) in made.items()}
        (directory / "relay.toml").write_text(self._text(), encoding="utf-8")


def exit_process(relay: RelayProcess, *more: str) -> Process:
    """Return `tunnel-relay exit` for this relay, not yet started. It may dial every port of this machine."""
    command = relay_command("exit", "--relay", relay.url, "--allow", "127.0.0.1:*", "--proxy", "", *more)
    environment = {"TUNNEL_TOKEN": relay.tokens["exit"]}
    return Process(command, ready=lambda line: line.startswith("attached"), environment=environment)
