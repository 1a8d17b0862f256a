"""The systemd unit that keeps `tunnel up` running for one user, without rights that it does not need."""

import sys
from pathlib import Path

__all__ = ["unit_text"]

_UNIT = """\
# Save this as ~/.config/systemd/user/tunnel.service, then:
#   systemctl --user daemon-reload
#   systemctl --user enable --now tunnel
#   journalctl --user -u tunnel -f
# It runs while you are logged in; `loginctl enable-linger` lets it run from the start of the machine on.

[Unit]
Description=tunnel up: forwards, services and proxies through the relay
Documentation=https://www.freedesktop.org/software/systemd/man/systemd.exec.html

[Service]
Type=exec
ExecStart={command}
# The file is read again when it changes: no reload is needed. Exit code 2 means that it cannot be used.
Restart=on-failure
RestartSec=5
RestartPreventExitStatus=2
# SIGTERM lets connections finish that still move bytes.
TimeoutStopSec=30

# These need no privilege, so they hold for every user.
NoNewPrivileges=yes
UMask=0077
LockPersonality=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
LimitCORE=0

# These need user namespaces, which some distributions forbid: the unit then ends with 226/NAMESPACE. Where user
# namespaces work, remove the # before these lines.
#ProtectSystem=strict
#ProtectHome=read-only
#ReadWritePaths=%h/.config/tunnel %t/tunnel
#PrivateTmp=yes
#PrivateDevices=yes
#ProtectKernelTunables=yes
#ProtectControlGroups=yes

[Install]
WantedBy=default.target
"""


def unit_text(path: Path) -> str:
    """Return the unit that runs `tunnel up` with this file, by the program that runs now."""
    words = [*_program(), "up", "-c", str(path.absolute())]
    return _UNIT.format(command=" ".join(map(_quoted, words)))


def _program() -> list[str]:
    started = Path(sys.argv[0])
    if started.suffix == ".pyz":
        return [sys.executable, str(started.absolute())]
    if started.name == "tunnel" and started.is_file():
        return [str(started.absolute())]
    return [sys.executable, "-m", "tunnel_client"]


def _quoted(word: str) -> str:
    """Quote a word so that systemd expands no specifiers and no variables (systemd.syntax(7), systemd.service(5))."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if escaped != word or " " in word else word
