"""Reverse proxies that need nothing but their configuration: Varnish, lighttpd, Caddy, Envoy, h2o, nghttpx,
Traffic Server, a program of Node; and the scripted proxy."""

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.field.hops.hop import CONFIG, Ground, Hop, fill, run_program, write_config

__all__ = ["caddy", "envoy", "h2o", "lighttpd", "nghttpx", "node", "scripted", "trafficserver", "varnish"]

_TRAFFIC_SERVER = (
    "trafficserver-records.config",
    "trafficserver-storage.config",
    "trafficserver-ip_allow.yaml",
    "trafficserver-remap.config",
    "trafficserver-runroot.yaml",
)
_MakeCommand = Callable[[Path, int], list[str]]  # given the file of the first configuration, and the port


def _configured(program: str, make_command: _MakeCommand, *templates: str, prefix: str = "") -> Hop:
    """The program with these configurations in one directory, under their names without the prefix."""

    def start(stack: ExitStack, ground: Ground, upstream: int) -> int:
        directory = ground.directory / program
        directory.mkdir(exist_ok=True)

        def command(port: int) -> list[str]:
            files = []
            for template in templates:
                text = fill(template, port=port, upstream=upstream, directory=directory)
                files.append(write_config(directory / template.removeprefix(prefix), text))
            return make_command(files[0], port)

        return run_program(stack, command).port

    return Hop(program, start)


def varnish(template: str, *parameters: str) -> Hop:
    """varnishd with this VCL and these parameters (NAME=VALUE)."""

    def command(file: Path, port: int) -> list[str]:
        options = [word for parameter in parameters for word in ("-p", parameter)]
        place = ["-n", str(file.parent / "work"), "-a", f"127.0.0.1:{port}", "-T", "none", "-s", "malloc,64m"]
        jail = ["-j", "none"] if os.geteuid() == 0 else []
        return ["varnishd", *jail, "-F", *place, "-f", str(file), *options]

    return _configured("varnishd", command, template)


def lighttpd(template: str) -> Hop:
    """lighttpd with this configuration."""
    return _configured("lighttpd", lambda file, port: ["lighttpd", "-D", "-f", str(file)], template)


def caddy(template: str) -> Hop:
    """Caddy with this Caddyfile."""

    def command(file: Path, port: int) -> list[str]:
        home = [f"{name}={file.parent}" for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")]
        return ["env", *home, "caddy", "run", "--config", str(file), "--adapter", "caddyfile"]

    return _configured("caddy", command, template)


def envoy(template: str) -> Hop:
    """Envoy with this static configuration."""

    def command(file: Path, port: int) -> list[str]:
        return ["envoy", "-c", str(file), "--use-dynamic-base-id", "--concurrency", "1", "-l", "warn"]

    return _configured("envoy", command, template)


def h2o(template: str) -> Hop:
    """h2o with this configuration."""
    return _configured("h2o", lambda file, port: ["h2o", "-c", str(file)], template)


def nghttpx(template: str) -> Hop:
    """nghttpx with this configuration."""
    return _configured("nghttpx", lambda file, port: ["nghttpx", f"--conf={file}"], template)


def trafficserver() -> Hop:
    """Apache Traffic Server, whose files all lie in one directory of their own."""

    def command(file: Path, port: int) -> list[str]:
        return ["traffic_server", f"--run-root={file.parent}"]

    return _configured("traffic_server", command, *_TRAFFIC_SERVER, prefix="trafficserver-")


def node(script: str) -> Hop:
    """This script of Node, called with its port and that of its upstream."""

    def start(stack: ExitStack, ground: Ground, upstream: int) -> int:
        return run_program(stack, lambda port: ["node", str(CONFIG / script), str(port), str(upstream)]).port

    return Hop("node", start)


def scripted(name: str) -> Hop:
    """The scripted proxy with this behaviour."""

    def start(stack: ExitStack, ground: Ground, upstream: int) -> int:
        def command(port: int) -> list[str]:
            ports = ["--port", str(port), "--upstream", str(upstream)]
            return [sys.executable, "-m", "tests.field.scripted", name, *ports]

        return run_program(stack, command).port

    return Hop("", start)
