"""What `tunnel run` says at its end: how many connections used the tunnel, how many did not, and what to do then."""

from dataclasses import dataclass, field

from tunnel.ground.printable import counted
from tunnel_client.cli.bypasses import Bypass

__all__ = ["RunSummary"]

_OTHERWISE = "use `tunnel forward`, or `tunnel proxy 1080` and HTTPS_PROXY=http://127.0.0.1:1080"


@dataclass
class RunSummary:
    """Counts the connections of a command, and says so in a sentence. `hosts`: the patterns of --hosts."""

    command: str
    hosts: list[str]
    opened: int = 0  # through the tunnel
    failed: int = 0  # that the tunnel could not open
    has_python: bool = False  # whether a process has announced that it uses the tunnel
    certain: int = 0  # past the tunnel, as far as they were seen
    possible: int = 0  # past the tunnel, to addresses that may belong to --hosts
    first: Bypass | None = None  # of those past the tunnel
    clients: list[str] = field(default_factory=list)  # in C, which connect past the tunnel

    def __str__(self) -> str:
        if self.opened or self.failed:
            return f"tunnel: {self._used()}{self._past(', ')}"
        if self.has_python or self.first is not None:
            return f"tunnel: no connection used the tunnel{self._past(', and ') or self._why()}"
        return (
            f"tunnel: no connection used the tunnel: {self.command} started no Python process that could use it "
            f"({self.command} is not a Python program, or Python ran with -I, -E or -S). If it connected, it bypassed "
            f"the tunnel: for such programs {_OTHERWISE}"
        )

    def _used(self) -> str:
        text = f"{counted(self.opened, 'connection')} went through the tunnel"
        return f"{text}, {self.failed} more could not be opened" if self.failed else text

    def _past(self, joint: str) -> str:
        """Say what went past the tunnel, or may have; an empty string if nothing did."""
        parts = []
        if self.certain:
            parts.append(f"at least {self.certain} did not")
        if self.possible:
            parts.append(f"{self.possible} did not that may lead to your --hosts")
        if not parts and not self.clients:
            return ", none was seen to bypass it" if joint == ", " else ""
        if self.first is not None and parts:
            parts[-1] += f" (the first: {self.first.program}, process {self.first.pid}, to {self.first.remote})"
        if self.clients:
            parts.append(f"those of {', '.join(self.clients)} could not, since these connect in C")
        return f"{joint}{', '.join(parts)}: for these {_OTHERWISE}"

    def _why(self) -> str:
        pattern = "any host but this machine" if self.hosts == ["*"] else ", ".join(self.hosts)
        return (
            f": {self.command} opened none to {pattern} from Python. If it connected there, another program or "
            f"a library in C did: for these {_OTHERWISE}"
        )
