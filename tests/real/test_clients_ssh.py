"""SSH to a real sshd: paramiko on a tunnel socket; ssh and scp with `tunnel connect` as their ProxyCommand."""

import getpass
import hashlib
import io
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import paramiko
import pytest

import tunnel_client
from tests.real.clients_rig import LOOPBACK, WAIT_S, Way, environment, run_command, wait_until
from tests.real.servers import Server, start_server
from tests.real.transfers import MIB, noise
from tests.support.programs import find_program

pytestmark = pytest.mark.real("nginx", "sshd", "ssh", "scp", "ssh-keygen")

PAYLOAD = noise(2 * MIB, seed=4)
DIGEST = hashlib.sha256(PAYLOAD).hexdigest()
_SEPARATION = Path("/run/sshd")  # Debian's sshd needs it when it runs as root; normally its service creates it
_CONFIG = """\
ListenAddress {host}:{port}
HostKey {directory}/host_key
AuthorizedKeysFile {directory}/user_key.pub
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
Subsystem sftp internal-sftp
"""


@dataclass
class Sshd:
    """A server, and the options that a client needs."""

    server: Server
    directory: Path

    @property
    def words(self) -> list[str]:
        """Options for ssh and scp, with the ProxyCommand of the recipe."""
        options = (
            "ProxyCommand=tunnel connect %h:%p",
            f"IdentityFile={self.directory}/user_key",
            "IdentitiesOnly=yes",
            f"UserKnownHostsFile={self.directory}/known_hosts",
            "StrictHostKeyChecking=yes",
            f"Port={self.server.port}",
            "LogLevel=ERROR",
        )
        return ["-F", "none", *(word for option in options for word in ("-o", option))]


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """A server that runs as this user, admits this user, and has its own keys."""
    directory = tmp_path_factory.mktemp("sshd")
    for name in ("host_key", "user_key"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)]
        subprocess.run(command, check=True, timeout=WAIT_S)
    program = find_program("sshd")
    assert program
    if getpass.getuser() == "root":
        _SEPARATION.mkdir(mode=0o755, exist_ok=True)

    def make_command(port: int) -> list[str]:
        (directory / "config").write_text(_CONFIG.format(host=LOOPBACK, port=port, directory=directory))
        key = (directory / "host_key.pub").read_text()
        (directory / "known_hosts").write_text(f"[{LOOPBACK}]:{port} {key}")
        return [program, "-D", "-e", "-f", str(directory / "config")]

    with start_server(make_command) as server:
        yield Sshd(server, directory)


@contextmanager
def shell(way: Way, sshd: Sshd) -> Iterator[paramiko.SSHClient]:
    sock = tunnel_client.create_connection((LOOPBACK, sshd.server.port), timeout=WAIT_S, runtime=way.runtime)
    with closing(paramiko.SSHClient()) as ssh:
        ssh.load_host_keys(str(sshd.directory / "known_hosts"))
        ssh.connect(
            LOOPBACK,
            sshd.server.port,
            username=getpass.getuser(),
            key_filename=str(sshd.directory / "user_key"),
            sock=sock,
            allow_agent=False,
            look_for_keys=False,
            timeout=WAIT_S,
            banner_timeout=WAIT_S,
            auth_timeout=WAIT_S,
        )
        yield ssh


def test_paramiko(way: Way, sshd: Sshd, tmp_path: Path) -> None:
    """A command and file transfers share one connection."""
    with shell(way, sshd) as ssh:
        stdin, stdout, _ = ssh.exec_command("sha256sum", timeout=WAIT_S)
        with way.trouble():
            stdin.write(PAYLOAD)
            stdin.channel.shutdown_write()
            assert stdout.read().decode().split()[0] == DIGEST
        with ssh.open_sftp() as files:
            files.putfo(io.BytesIO(PAYLOAD), str(tmp_path / "there"))
            files.get(str(tmp_path / "there"), str(tmp_path / "back"))
        assert (tmp_path / "there").read_bytes() == (tmp_path / "back").read_bytes() == PAYLOAD


def test_ssh(way: Way, sshd: Sshd) -> None:
    """Standard input comes back as output; the exit code is that of the remote command."""
    command = ["ssh", *sshd.words, LOOPBACK, "echo ready; cat; exit 7"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(way)
    ) as ssh:
        try:
            assert ssh.stdout is not None
            assert ssh.stdout.readline() == b"ready\n", ssh.stderr and ssh.stderr.read()
            with way.trouble():
                echoed, said = ssh.communicate(PAYLOAD, timeout=WAIT_S)
        finally:
            ssh.kill()
    assert (ssh.returncode, said) == (7, b"")
    assert hashlib.sha256(echoed).hexdigest() == DIGEST


def test_scp(way: Way, sshd: Sshd, tmp_path: Path) -> None:
    ours, there, back = (tmp_path / name for name in ("ours", "there", "back"))
    ours.write_bytes(PAYLOAD)
    with subprocess.Popen(
        ["scp", *sshd.words, str(ours), f"{LOOPBACK}:{there}"], stderr=subprocess.PIPE, env=environment(way)
    ) as scp:
        try:
            wait_until(there.exists, "scp begins")
            with way.trouble():
                _, said = scp.communicate(timeout=WAIT_S)
        finally:
            scp.kill()
    assert (scp.returncode, said) == (0, b"")
    assert there.read_bytes() == PAYLOAD
    run_command(way, ["scp", *sshd.words, f"{LOOPBACK}:{there}", str(back)])
    assert back.read_bytes() == PAYLOAD
