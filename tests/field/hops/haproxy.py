"""haproxy, each time with another configuration."""

from contextlib import ExitStack

from loadtests.harness.ports import hold_port
from tests.field.hops.hop import Ground, Hop, fill, run_program, write_config

__all__ = ["haproxy"]


def haproxy(template: str, **values: object) -> Hop:
    """haproxy with this configuration; `@{inner}` is a second port, for configurations with two frontends."""

    def start(stack: ExitStack, ground: Ground, upstream: int) -> int:
        inner = stack.enter_context(hold_port())

        def make_command(port: int) -> list[str]:
            text = fill("haproxy-common.cfg") + fill(template, port=port, upstream=upstream, inner=inner, **values)
            return ["haproxy", "-db", "-f", str(write_config(ground.directory / "haproxy.cfg", text))]

        return run_program(stack, make_command).port

    return Hop("haproxy", start)
