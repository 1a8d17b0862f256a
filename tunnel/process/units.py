"""The systemd units that keep commands running: their text, in one place for the relay, exits, brokers and clients.

`unit_files` writes them.
"""

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tunnel.ground.printable import printable
from tunnel.process.service_manager import STOP_SPARE_S

__all__ = ["CREDENTIALS", "DRAIN_S", "WRITTEN_BY", "Unit", "quoted", "unit_text"]

CREDENTIALS = "${CREDENTIALS_DIRECTORY}"  # in a word of a command: the folder of its credentials
WRITTEN_BY = "# Written by"  # a file that begins so may be replaced
_STATE = "/var/lib"  # below it, systemd makes a folder for each unit of the system (StateDirectory)
DRAIN_S = 60  # time for connections to finish after SIGTERM, where nothing says another one
_RUN = Path("/run")
_WATCHDOG_S = 30
_PLAIN = re.compile(r"[A-Za-z0-9/._:=@,+${}-]+")  # a word that needs no quotes: ; for example ends a command
_HOMES = ("/home", "/root", "/run/user")

# These need no privilege, so they also hold in units of users.
_FOR_ALL = """\
NoNewPrivileges=yes
UMask=0077
LockPersonality=yes
MemoryDenyWriteExecute=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
SystemCallErrorNumber=EPERM
LimitCORE=0
"""

_FOR_SYSTEM = """\
ProtectSystem=strict
PrivateTmp=yes
PrivateDevices=yes
PrivateMounts=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
ProcSubset=pid
RemoveIPC=yes
DevicePolicy=closed
KeyringMode=private
"""

_FOR_USERS = """\
# These need user namespaces, which some distributions forbid: the unit then ends with 226/NAMESPACE. Where user
# namespaces work, remove the # before these lines.
#ProtectSystem=strict
#ProtectHome=read-only
#ReadWritePaths=%h/.config/tunnel %h/.cache/tunnel %t/tunnel
#PrivateTmp=yes
#PrivateDevices=yes
#ProtectKernelTunables=yes
#ProtectControlGroups=yes
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A command that systemd keeps running, and what it needs. `unit_files.install` adds the command and its user.

    `command`: its words; `${CREDENTIALS_DIRECTORY}` in them stands for the folder of the credentials. `user`: who runs
    it in a system unit; empty for a user that systemd makes up (DynamicUser). `reads`: files that it reads, its program
    included. `writes`: folders that it writes, beside those that systemd makes for it. Of these, systemd makes those
    below /run at each start (RuntimeDirectory), since /run is empty then. `has_low_ports`: it listens on ports below
    1024.
    """

    name: str
    what: str
    command: Sequence[str] = ()
    is_system: bool = False
    user: str = ""
    credentials: dict[str, Path] = field(default_factory=dict)
    reads: Sequence[Path] = ()
    writes: Sequence[Path] = ()
    stop_s: float = DRAIN_S
    final_codes: Sequence[int] = (2,)
    reloads: bool = False
    has_low_ports: bool = False

    @property
    def file_name(self) -> str:
        """The name of its file."""
        return f"{self.name}.service"

    @property
    def state(self) -> Path:
        """The folder that systemd makes for a unit of the system, and in which the unit may write."""
        return Path(_STATE) / self.name

    @property
    def runtime(self) -> list[str]:
        """The folders that systemd makes for it below /run, as names there."""
        below = [path.relative_to(_RUN) for path in self.writes if path.is_relative_to(_RUN) and path != _RUN]
        return list(dict.fromkeys([self.name, *map(str, below)]))

    def is_given(self, folder: Path) -> bool:
        """Whether systemd makes this folder for it, or one above it."""
        return folder.is_relative_to(self.state) or any(folder.is_relative_to(_RUN / name) for name in self.runtime)


def unit_text(unit: Unit) -> str:
    """Return the text of the unit. Raise ValueError if a part of it would end its line, or continue in the next one.

    Root may install a unit whose paths come from a file of another user, who must not add settings to it.
    """
    kept = "the system" if unit.is_system else "your user"
    lines = [
        f"{WRITTEN_BY} `{Path(unit.command[0]).name} install-unit`, which replaces this file when it is run again.",
        f"# For settings of your own, run: systemctl{'' if unit.is_system else ' --user'} edit {unit.name}",
        "",
        "[Unit]",
        f"Description={unit.what}, for {kept}",
        *(("Wants=network-online.target", "After=network-online.target") if unit.is_system else ()),
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        *_service(unit),
        "",
        "[Install]",
        f"WantedBy={'multi-user' if unit.is_system else 'default'}.target",
    ]
    for line in lines:
        if line.endswith("\\") or any(ord(letter) < 32 for letter in line):
            raise ValueError(
                f"the unit would have the line {printable(line)}: systemd reads it in another way, so use words and "
                "paths without a control character and without \\ at the end"
            )
    return "\n".join(lines) + "\n"


def _service(unit: Unit) -> list[str]:
    codes = " ".join(map(str, unit.final_codes))
    causes = "settings, tokens, rules" if len(unit.final_codes) > 1 else "settings"
    return [
        "Type=notify",
        f"ExecStart={' '.join(map(_word, unit.command))}",
        *(("ExecReload=/bin/kill -HUP $MAINPID",) if unit.reloads else ()),
        *_identity(unit),
        *(f"LoadCredential={name}:{_path(path)}" for name, path in unit.credentials.items()),
        "",
        f"# Another start cannot mend what ends with {codes}: {causes}.",
        "Restart=on-failure",
        "RestartSec=2",
        f"RestartPreventExitStatus={codes}",
        f"WatchdogSec={_WATCHDOG_S}",
        "# After SIGTERM, connections that still move bytes may finish.",
        f"TimeoutStopSec={math.ceil(unit.stop_s) + STOP_SPARE_S}",
        *(("LimitNOFILE=65536",) if unit.is_system else ()),
        "",
        *_FOR_ALL.splitlines(),
        "",
        *(_system(unit) if unit.is_system else _FOR_USERS.splitlines()),
    ]


def _identity(unit: Unit) -> list[str]:
    if not unit.is_system:
        return []
    state = [f"StateDirectory={unit.name}", "StateDirectoryMode=0700"]
    places = [f"Environment=XDG_CONFIG_HOME=%S/{unit.name} XDG_CACHE_HOME=%S/{unit.name}"]
    run = [f"RuntimeDirectory={' '.join(map(quoted, unit.runtime))}", "RuntimeDirectoryMode=0755"]
    if unit.user:
        return [f"User={unit.user}", *run, *state, *places]
    return ["DynamicUser=yes", *run, *state, *places]


def _system(unit: Unit) -> list[str]:
    at_home = any(path.is_relative_to(home) for path in (*unit.reads, *unit.writes) for home in _HOMES)
    capability = "CAP_NET_BIND_SERVICE" if unit.has_low_ports else ""
    # systemd does not start a unit one of whose ReadWritePaths is missing, as such a folder is at first.
    writes = dict.fromkeys(str(path) for path in unit.writes if not unit.is_given(path))
    return [
        *_FOR_SYSTEM.splitlines(),
        f"ProtectHome={'read-only' if at_home else 'yes'}",
        *((f"ReadWritePaths={' '.join(map(quoted, writes))}",) if writes else ()),
        f"CapabilityBoundingSet={capability}",
        *((f"AmbientCapabilities={capability}",) if capability else ("PrivateUsers=yes",)),
    ]


def quoted(word: str) -> str:
    """Quote a word so that systemd expands no specifiers in it (systemd.syntax(7))."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return word if _PLAIN.fullmatch(word) else f'"{escaped}"'


def _word(word: str) -> str:
    """Quote a word of a command, in which only the folder of the credentials is expanded (systemd.service(5))."""
    return quoted(CREDENTIALS.join(part.replace("$", "$$") for part in word.split(CREDENTIALS)))


def _path(path: Path) -> str:
    return os.fspath(path).replace("%", "%%")
