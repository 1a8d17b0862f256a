"""Connections that bypass the tunnel: found in a /proc that the test writes, and printed once.

The *hook* is the code that `tunnel run` loads into Python programs to lead their sockets through the tunnel.
"""

from __future__ import annotations

import sys
import threading
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from tunnel_client.borrowed.hosts import Hosts
from tunnel_client.cli.bypasses import Bypass, Bypasses, Noticing, Remote

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
COMMAND, CHILD, GRANDCHILD, OWN = 100, 101, 102, 99
ANYWHERE, LOOPBACK, WEB = "0.0.0.0", "127.0.0.1", "93.184.216.34"


def word(address: str) -> str:
    """An address as the kernel prints it."""
    return int.from_bytes(bytes(map(int, address.split("."))), sys.byteorder).to_bytes(4, "big").hex().upper()


def row(inode: int, remote: str, port: int = 443, *, local: int = 40000, state: str = "01") -> str:
    if ":" not in remote:
        near, far = word("10.0.0.5"), word(remote)
    else:
        words = (
            [b"\0\0\0\0", b"\0\0\0\0", b"\0\0\0\0", b"\0\0\0\1"]
            if remote == "::1"
            else [b"\x20\1\r\xb8"] + [b"abcd"] * 3
        )
        near = far = "".join(int.from_bytes(part, sys.byteorder).to_bytes(4, "big").hex().upper() for part in words)
    return f"   0: {near}:{local:04X} {far}:{port:04X} {state} 0:0 0:0 0 0 0 {inode} 1 0 20 4 30 10 -1\n"


class Proc:
    """A /proc with the few files that are read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tables: dict[str, str] = dict.fromkeys(("tcp", "tcp6", "udp", "udp6"), HEAD)
        self.hooked: set[int] = set()
        self.add(COMMAND, "bash")

    def add(self, pid: int, name: str, *inodes: int, parent: int = 0, stack: int = 0) -> None:
        folder = self.root / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "task" / str(pid)).mkdir(parents=True)
        (folder / "comm").write_text(name + "\n")
        fields = ["S", *["0"] * 24, str(stack or pid)]
        (folder / "stat").write_text(f"{pid} (a ) name) {' '.join(fields)} 0 0\n")
        (folder / "task" / str(pid) / "children").write_text("")
        (folder / "fd" / "0").symlink_to("/dev/null")
        for number, inode in enumerate(inodes, 3):
            (folder / "fd" / str(number)).symlink_to(f"socket:[{inode}]")
        if parent:
            children = self.root / str(parent) / "task" / str(parent) / "children"
            children.write_text(f"{children.read_text()}{pid} ")

    def write(self) -> None:
        net = self.root / str(COMMAND) / "net"
        net.mkdir(exist_ok=True)
        for name, table in self.tables.items():
            (net / name).write_text(table)

    def bypasses(self, *patterns: str) -> Bypasses:
        self.write()
        return Bypasses(COMMAND, lambda: self.hooked, Hosts(patterns), self.root, OWN)

    def look(self, *patterns: str) -> str | None:
        found = self.bypasses(*patterns).look()
        return found[0].notice if found else None


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_a_program_without_the_hook_that_connects_is_noticed(proc: Proc) -> None:
    proc.add(CHILD, "curl", 7, parent=COMMAND)
    assert proc.look("*") is None
    proc.tables["tcp"] += row(7, WEB, state="02")  # still connecting, as through a firewall that drops packets
    assert proc.look("*") == (
        "tunnel: curl (process 101) connects to 93.184.216.34:443 and bypasses the tunnel: `tunnel run` redirects only "
        "sockets that Python itself opens. Start this program without `tunnel run`, with `tunnel proxy 1080` and "
        "HTTPS_PROXY=http://127.0.0.1:1080 (for Java -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=1080), or use "
        "`tunnel forward`"
    )


@pytest.mark.parametrize(
    ("patterns", "remote", "is_noticed"),
    [
        (["*"], WEB, True),
        (["*"], LOOPBACK, False),
        ([LOOPBACK], LOOPBACK, True),
        (["93.184.0.0/16"], WEB, True),
        (["10.0.0.0/8"], WEB, False),  # a network says which addresses are meant
        (["10.0.0.0/8", "*.internal"], WEB, True),  # the address may be that of a name
        (["*.internal"], LOOPBACK, False),
    ],
)
def test_the_given_hosts_decide_which_connections_are_noticed(
    proc: Proc, patterns: list[str], remote: str, is_noticed: bool
) -> None:
    proc.add(CHILD, "curl", 7, parent=COMMAND)
    proc.tables["tcp"] += row(7, remote)
    assert (proc.look(*patterns) is not None) == is_noticed


def test_the_notice_adds_a_condition_if_all_hosts_are_names(proc: Proc) -> None:
    proc.add(CHILD, "curl", 7, parent=COMMAND)
    proc.tables["tcp"] += row(7, WEB)
    assert "bypasses the tunnel, if this is one of your --hosts: `tunnel run`" in (proc.look("*.internal") or "")


def test_ipv6_connections_are_noticed(proc: Proc) -> None:
    proc.add(CHILD, "curl", 7, 8, parent=COMMAND)
    proc.tables["tcp6"] += row(8, "::1")
    assert proc.look("*") is None
    proc.tables["tcp6"] += row(7, "2001:db8::")
    assert "[2001:db8:6162:6364:6162:6364:6162:6364]:443" in (proc.look("*") or "")


def test_other_sockets_are_ignored(proc: Proc) -> None:
    """Ignored are sockets of other processes, listeners, accepted connections, and unconnected UDP sockets."""
    proc.add(CHILD, "server", 7, 8, 9, parent=COMMAND)
    proc.tables["tcp"] += row(6, WEB) + row(7, ANYWHERE, 0, local=80, state="0A") + row(8, WEB, 5000, local=80)
    proc.tables["udp"] += row(9, ANYWHERE, 0, state="07")
    assert proc.look("*") is None


def test_with_the_hook_only_tcp_to_matching_addresses_counts(proc: Proc) -> None:
    proc.hooked.add(CHILD)
    proc.add(CHILD, "python", 7, 8, parent=COMMAND)
    proc.tables["udp"] += row(7, WEB, 53)
    proc.tables["tcp"] += row(8, WEB)
    assert proc.look("*.internal") is None
    assert proc.look("10.0.0.0/8") is None
    assert "python (process 101) connects to 93.184.216.34:443 " in (proc.look("*") or "")


def test_without_the_hook_a_question_to_a_name_server_counts(proc: Proc) -> None:
    proc.add(CHILD, "client", 7, parent=COMMAND)
    proc.tables["udp"] += row(7, WEB, 53)
    assert proc.look("*.internal") is None
    assert "93.184.216.34:53" in (proc.look("*") or "")


@pytest.mark.parametrize(("stack", "is_noticed"), [(CHILD, False), (GRANDCHILD, True)])
def test_a_fork_has_the_hook_of_its_parent_and_another_program_has_not(
    proc: Proc, stack: int, is_noticed: bool
) -> None:
    proc.hooked.add(CHILD)
    proc.add(CHILD, "python", parent=COMMAND)
    proc.add(GRANDCHILD, "worker", 7, parent=CHILD, stack=stack)
    proc.tables["tcp"] += row(7, WEB)
    assert (proc.look("*.internal") is not None) == is_noticed


def test_where_there_is_no_proc_nothing_is_found(tmp_path: Path) -> None:
    assert Bypasses(1, set, Hosts(["*"]), tmp_path / "nothing").look() == []


def test_a_process_that_ended_meanwhile_is_ignored(proc: Proc) -> None:
    proc.tables["tcp"] += row(7, WEB)
    (proc.root / str(COMMAND) / "task" / str(COMMAND) / "children").write_text("4711 ")
    proc.hooked.add(COMMAND)
    assert proc.look("*") is None


def test_connections_over_which_a_program_uses_the_tunnel_are_no_bypasses(proc: Proc) -> None:
    proc.add(OWN, "tunnel", 5)
    proc.hooked.add(CHILD)
    proc.add(CHILD, "python", 7, 8, parent=COMMAND)
    proc.tables["tcp"] += row(5, LOOPBACK, 40001, local=40007) + row(7, LOOPBACK, 40007, local=40001)
    assert proc.look(LOOPBACK) is None
    proc.tables["tcp"] += row(8, LOOPBACK, 5432)
    assert "127.0.0.1:5432" in (proc.look(LOOPBACK) or "")


def test_each_connection_is_found_once(proc: Proc) -> None:
    proc.add(CHILD, "curl", 7, 8, parent=COMMAND)
    proc.tables["tcp"] += row(7, WEB)
    bypasses = proc.bypasses("*")
    assert [bypass.remote.port for bypass in bypasses.look()] == [443]
    proc.tables["tcp"] += row(8, WEB, 80)
    proc.write()
    assert [bypass.remote.port for bypass in bypasses.look()] == [80]
    assert bypasses.look() == []
    proc.tables["tcp"] = HEAD
    proc.write()
    assert bypasses.look() == []
    proc.tables["tcp"] += row(7, WEB, 81)  # the kernel has used the inode again
    proc.write()
    assert [bypass.remote.port for bypass in bypasses.look()] == [81]


class Findings:
    """Finds what it is given, one list for each look, and sets `over` at the last one."""

    def __init__(self, *findings: list[Bypass]) -> None:
        self.findings = list(findings)
        self.over = threading.Event()

    def look(self) -> list[Bypass]:
        if len(self.findings) <= 1:
            self.over.set()
        return self.findings.pop(0) if self.findings else []


def bypass(port: int, *, kind: str = "tcp", is_certain: bool = True) -> Bypass:
    return Bypass(CHILD, "curl", Remote(kind, IPv4Address(WEB), port), is_certain)


@pytest.mark.parametrize("tells", [True, False])
def test_the_first_notice_is_printed_and_all_connections_are_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, tells: bool
) -> None:
    monkeypatch.setattr("tunnel_client.cli.bypasses._FIRST_LOOK_S", 0.001)
    first = bypass(53, kind="udp")
    findings = Findings([], [first, bypass(80)], [bypass(81), bypass(82, is_certain=False)], [])
    with Noticing(findings, tells=tells) as noticing:  # type: ignore[arg-type]
        assert findings.over.wait(60)
    assert (noticing.first, noticing.certain, noticing.possible) == (first, 2, 1)
    assert capsys.readouterr().err == (f"{first.notice}\n" if tells else "")


def test_the_end_of_the_command_ends_the_looking() -> None:
    with Noticing(Findings()) as noticing:  # type: ignore[arg-type]
        pass
    assert noticing.first is None
    assert not noticing._thread.is_alive()
