"""nginx in front of a relay, run as this user. All settings are nginx's defaults, except for paths, port, upstream and
what a caller adds."""

import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from loadtests.harness.ports import hold_port
from loadtests.harness.processes import Process

__all__ = ["Nginx"]

_CONFIG = """\
{user}pid {directory}/nginx.pid;
error_log {directory}/error.log;
daemon off;
events {{}}
http {{
  access_log off;
  client_body_temp_path {directory}/body;
  proxy_temp_path {directory}/proxy;
  fastcgi_temp_path {directory}/fastcgi;
  uwsgi_temp_path {directory}/uwsgi;
  scgi_temp_path {directory}/scgi;
  {http}
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass {upstream}; {location} }}
  }}
}}
"""


class Nginx:
    """A running nginx: `with Nginx(upstream) as proxy: ... proxy.url`.

    By default nginx accepts bodies up to 1 MiB, buffers them, and speaks HTTP/1.0 upstream. `http` and `location` are
    further directives for these two blocks of its configuration.
    """

    def __init__(self, upstream: str, *, http: str = "", location: str = "") -> None:
        self._upstream = upstream
        self._added = {"http": http, "location": location}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        program = shutil.which("nginx")
        if program is None:
            raise FileNotFoundError("nginx is not installed: run make system-deps")
        with self._stack as stack:
            directory = Path(stack.enter_context(TemporaryDirectory(prefix="tunnel-nginx-")))
            self.port = stack.enter_context(hold_port())
            # If nginx starts as root, its workers would by default run as a user who cannot read this directory.
            user = "user root;\n" if os.geteuid() == 0 else ""
            config = _CONFIG.format(
                user=user, directory=directory, port=self.port, upstream=self._upstream, **self._added
            )
            (directory / "nginx.conf").write_text(config, encoding="utf-8")
            command = [program, "-p", str(directory), "-e", "stderr", "-c", str(directory / "nginx.conf")]
            self.process = stack.enter_context(Process(command))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.stop()  # its workers end with it
        self._stack.close()

    @property
    def url(self) -> str:
        """The URL at which nginx listens, shortly after its start."""
        return f"http://127.0.0.1:{self.port}"
