"""Apache httpd as a reverse proxy, with and without ModSecurity."""

import os
from contextlib import ExitStack

from tests.field.hops.hop import Ground, Hop, fill, run_program, write_config

__all__ = ["apache"]


def apache(template: str) -> Hop:
    """Apache with this configuration after the common head, in one process with many threads."""

    def start(stack: ExitStack, ground: Ground, upstream: int) -> int:
        directory = ground.directory / "apache"
        user = "User nobody\nGroup nogroup\n" if os.geteuid() == 0 else ""

        def make_command(port: int) -> list[str]:
            head = fill("apache-common.conf", port=port, directory=directory, user=user)
            body = fill(template, upstream=upstream, directory=directory)
            file = write_config(directory / "httpd.conf", head + body)
            directory.chmod(0o777)  # the user `nobody` writes there
            return ["apache2", "-X", "-d", str(directory), "-f", str(file)]

        return run_program(stack, make_command).port

    return Hop("apache2", start)
