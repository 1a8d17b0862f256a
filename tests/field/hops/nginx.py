"""nginx, each time with another configuration of its server."""

import os
from contextlib import ExitStack

from tests.field.hops.hop import Ground, Hop, fill, run_program, write_config

__all__ = ["nginx"]

_HEAD = """\
{user}daemon off;
master_process off;
pid {directory}/nginx.pid;
error_log stderr notice;
events {{ worker_connections 512; }}
http {{
access_log off;
client_body_temp_path {directory}/body;
proxy_temp_path {directory}/proxy;
fastcgi_temp_path {directory}/fastcgi;
uwsgi_temp_path {directory}/uwsgi;
scgi_temp_path {directory}/scgi;
{server}}}
"""


def nginx(template: str, **values: object) -> Hop:
    """nginx with this server; `@{upstream}` is the port of the next hop or relay, `@{other}` that of the last relay."""

    def start(stack: ExitStack, ground: Ground, upstream: int) -> int:
        directory = ground.directory / template
        user = "user root;\n" if os.geteuid() == 0 else ""  # the user `nobody` cannot write in root's directory

        def make_command(port: int) -> list[str]:
            server = fill(
                template, port=port, upstream=upstream, other=ground.relays[-1], directory=directory, **values
            )
            file = write_config(directory / "nginx.conf", _HEAD.format(user=user, directory=directory, server=server))
            return ["nginx", "-p", str(directory), "-c", str(file), "-e", "stderr"]

        return run_program(stack, make_command).port

    return Hop("nginx", start)
