"""A name server for tests: it takes the place of `socket.getaddrinfo`, and answers when and what a test says."""

import socket
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["NameServer"]


class NameServer:
    """Knows the name `name` as 127.0.0.1; other names go to the system's resolver.

    `answers` is set while it answers at all. `is_away`: it answers with an error. `asked` counts the questions for
    the name; `others` are the other names for which it was asked.
    """

    def __init__(self, name: str, address: str = "127.0.0.1") -> None:
        self.name = name
        self.address = address
        self.answers = threading.Event()
        self.answers.set()
        self.is_away = False
        self.asked = 0
        self.others: set[Any] = set()
        self._resolve: Callable[..., Any] = socket.getaddrinfo

    def getaddrinfo(self, host: Any, *arguments: Any, **options: Any) -> Any:
        if host != self.name:
            self.others.add(host)
            return self._resolve(host, *arguments, **options)
        self.asked += 1
        self.answers.wait(60)  # a caller that waits for it then fails instead of hanging
        if self.is_away:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return self._resolve(self.address, *arguments, **options)
