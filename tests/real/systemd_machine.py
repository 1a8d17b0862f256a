"""A machine of its own under a real systemd, in namespaces: a copy of this machine's files that nothing else sees.

It has loopback alone, and forgets all that was written when it ends.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["SYSTEMD", "Machine", "running_machine", "why_not"]

ROOT = Path(__file__).parents[2]
SYSTEMD = "/lib/systemd/systemd"
PROGRAMS = "/opt/tunnel/bin"
_NAMESPACES = ("--pid", "--fork", "--mount", "--net", "--uts", "--ipc", "--cgroup")
_STARTING_S = 60.0
_COMMAND_S = 120.0

# Programs and sources are where no unit's ProtectHome= and PrivateTmp= hides them, as after an installation in /opt.
_BOOT = """\
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs {work}
mkdir {work}/up {work}/spare {work}/root
mount -t overlay overlay -o lowerdir=/,upperdir={work}/up,workdir={work}/spare {work}/root
cd {work}/root
mkdir -p opt/tunnel/bin opt/python opt/source opt/packages oldroot
mount --bind {python} opt/python
mount --bind {source} opt/source
mount --bind {packages} opt/packages
cp -r {programs}/. opt/tunnel
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mount --rbind /dev dev
if [ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ]; then mount -t cgroup2 cgroup2 sys/fs/cgroup
else mount --rbind /sys/fs/cgroup sys/fs/cgroup; fi
rm -rf var/lib/private etc/systemd/system/*.wants
: > etc/machine-id
echo /opt/python/lib > etc/ld.so.conf.d/00-python.conf
ldconfig -r .
ip link set lo up
pivot_root . oldroot
umount -l /oldroot
mount --make-rshared /
exec env -i container=tests PATH=/usr/sbin:/usr/bin:/sbin:/bin {systemd} --system --unit=basic.target --log-target=null
"""

_PROGRAM = """\
#!/opt/tunnel/bin/python
import sys
from {module} import main
sys.exit(main())
"""
_COMMANDS = {
    "tunnel": "tunnel_client.cli.main",
    "tunnel-broker": "tunnel_client.cli.broker.main",
    "tunnel-relay": "tunnel_servlet.command.main",
}


def why_not() -> str:
    """Return why this machine cannot start another one; empty if it can."""
    if os.geteuid():
        return "needs root: it mounts file systems in namespaces of its own"
    tried = subprocess.run(["unshare", *_NAMESPACES, "true"], capture_output=True, text=True, check=False)
    return f"namespaces cannot be made here: {tried.stderr.strip()}" if tried.returncode else ""


class Machine:
    """A machine that runs. `pid`: of its systemd, as this machine sees it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def shell(self, script: str, *, check: bool = True) -> str:
        """Run a script as the machine's root; return what it printed. It must succeed if `check` is set."""
        words = ["nsenter", "-t", str(self.pid), "-m", "-p", "-n", "-u", "-i", "-r", "-w", "env", "-i", "HOME=/root",
                 f"PATH={PROGRAMS}:/usr/sbin:/usr/bin:/sbin:/bin", "bash", "-c", f"cd /root; {script}"]  # fmt: skip
        done = subprocess.run(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_COMMAND_S, check=False
        )
        assert not check or done.returncode == 0, f"{script}\n{done.stdout}"
        return done.stdout

    def wait(self, script: str, wanted: str) -> str:
        """Run a script until it prints what is wanted; return all that it printed then."""
        deadline = time.monotonic() + _STARTING_S
        while wanted not in (found := self.shell(script, check=False)):
            assert time.monotonic() < deadline, f"{script} does not say {wanted!r}: {found}\n{self.log()}"
            time.sleep(0.2)
        return found

    def log(self) -> str:
        """Return the last lines of the machine's journal."""
        return self.shell("journalctl -b --no-pager -n 60 -o cat _TRANSPORT=stdout + _PID=1", check=False)


def _write_programs(folder: Path) -> None:
    """Write an environment of Python as `python -m venv` does, whose packages are those of the tests."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    places = [
        "/opt/source",
        "/opt/source/client",
        "/opt/source/servlet",
        "import site; site.addsitedir('/opt/packages')",
    ]
    (packages / "tunnel.pth").write_text("".join(f"{place}\n" for place in places))
    (folder / "pyvenv.cfg").write_text("home = /opt/python/bin\ninclude-system-site-packages = false\n")
    programs = folder / "bin"
    programs.mkdir()
    (programs / "python").symlink_to(f"/opt/python/bin/{version}")
    for name, module in _COMMANDS.items():
        (programs / name).write_text(_PROGRAM.format(module=module))
        (programs / name).chmod(0o755)


def _systemd_of(process: subprocess.Popen[bytes]) -> int:
    """Return the process of systemd once it has the machine's files: the child of `unshare`."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + _STARTING_S
    while True:
        assert process.poll() is None, f"the machine did not start: exit code {process.returncode}"
        assert time.monotonic() < deadline, "the machine did not start"
        for child in children.read_text().split():
            if os.readlink(f"/proc/{child}/exe").endswith("/systemd"):
                return int(child)
        time.sleep(0.05)


@contextmanager
def running_machine() -> Iterator[Machine]:
    """Start a machine, and end it with all that runs on it."""
    work = Path(tempfile.mkdtemp(prefix="tunnel-machine-"))
    programs = Path(tempfile.mkdtemp(prefix="tunnel-programs-"))
    process: subprocess.Popen[bytes] | None = None
    try:
        _write_programs(programs)
        places = {
            "work": work, "programs": programs, "source": ROOT, "python": sys.base_prefix, "systemd": SYSTEMD,
            "packages": sysconfig.get_paths()["purelib"],
        }  # fmt: skip
        script = _BOOT.format_map({name: shlex.quote(str(place)) for name, place in places.items()})
        process = subprocess.Popen(["unshare", *_NAMESPACES, "--kill-child", "bash", "-c", script])
        machine = Machine(_systemd_of(process))
        machine.wait("systemctl is-system-running", "running")
        yield machine
    finally:
        if process is not None:
            process.send_signal(signal.SIGKILL)  # and with it systemd, the first process of its namespace
            process.wait(30)
        shutil.rmtree(programs)
        work.rmdir()
