"""Forward proxies besides Squid: tinyproxy, Privoxy, ffproxy, e2guardian, mitmproxy."""

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.field.hops.hop import Ground, Hop, fill, run_program, write_config

__all__ = ["e2guardian", "ffproxy", "mitmproxy", "privoxy", "tinyproxy"]


def _configured(program: str, make_command: Callable[[Path, Ground, int], list[str]]) -> Hop:
    def start(stack: ExitStack, ground: Ground, upstream: int) -> int:
        directory = ground.directory / program
        directory.mkdir(exist_ok=True)
        directory.chmod(0o1777)  # programs that give up root write there; nobody may replace files of others
        return run_program(stack, lambda port: make_command(directory, ground, port)).port

    return Hop(program, start, is_proxy=True)


def _from_file(*words: str, template: str) -> Callable[[Path, Ground, int], list[str]]:
    def command(directory: Path, ground: Ground, port: int) -> list[str]:
        file = write_config(directory / template, fill(template, port=port, directory=directory))
        return [*words, str(file)]

    return command


def tinyproxy() -> Hop:
    """tinyproxy as Debian configures it."""
    return _configured("tinyproxy", _from_file("tinyproxy", "-d", "-c", template="tinyproxy.conf"))


def privoxy() -> Hop:
    """Privoxy with the actions and filters of Debian's package."""
    return _configured("privoxy", _from_file("privoxy", "--no-daemon", template="privoxy.conf"))


def ffproxy() -> Hop:
    """ffproxy with the filters of Debian's package, which lets no client in until an administrator names some."""

    def command(directory: Path, ground: Ground, port: int) -> list[str]:
        shutil.copytree("/etc/ffproxy", directory / "etc", dirs_exist_ok=True)
        (directory / "etc" / "db" / "access.ip").write_text("127.0.0.1\n")
        file = write_config(directory / "ffproxy.conf", fill("ffproxy.conf", port=port, directory=directory))
        return ["ffproxy", "-F", str(file)]

    return _configured("ffproxy", command)


def e2guardian() -> Hop:
    """e2guardian with the lists and phrases of Debian's package; the rules of its group lie beside its settings."""

    def command(directory: Path, ground: Ground, port: int) -> list[str]:
        write_config(directory / "e2guardianf1.conf", fill("e2guardianf1.conf"))
        file = write_config(directory / "e2guardian.conf", fill("e2guardian.conf", port=port, directory=directory))
        return ["e2guardian", "-N", "-c", str(file)]

    return _configured("e2guardian", command)


def mitmproxy() -> Hop:
    """mitmdump, which decrypts TLS with an authority that it makes at its start."""

    def command(directory: Path, ground: Ground, port: int) -> list[str]:
        options = [f"confdir={directory}", f"ssl_verify_upstream_trusted_ca={ground.ca}", "flow_detail=0"]
        settings = [word for option in options for word in ("--set", option)]
        return ["mitmdump", "--listen-host", "127.0.0.1", "-p", str(port), *settings]

    hop = _configured("mitmdump", command)
    return Hop(hop.program, hop.start, is_proxy=True, ca=lambda there: there / "mitmdump" / "mitmproxy-ca-cert.pem")
