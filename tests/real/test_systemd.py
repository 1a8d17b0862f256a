"""Units of `install-unit` under a real systemd, on a machine of their own."""

import shlex
from collections.abc import Iterator

import pytest

from tests.real.systemd_machine import SYSTEMD, Machine, running_machine, why_not

pytestmark = [
    pytest.mark.real(SYSTEMD, "unshare", "nsenter", "pivot_root", "ip", "curl"),
    pytest.mark.xdist_group("systemd"),
    pytest.mark.timeout(300),
]

_RELAY = """
useradd --system --home-dir /var/lib/tunnel-relay --create-home --shell /usr/sbin/nologin tunnel-relay
chmod 700 /var/lib/tunnel-relay
cd /var/lib/tunnel-relay
runuser -u tunnel-relay -- tunnel-relay init relay.toml --user ann --token-file token --allow 127.0.0.1:8000
sed -i 's/^exit = "inline"/exit = "none"/' relay.toml
printf '[users.exits]\\nexit = true\\n' >> relay.toml
tunnel-relay user add exits --token-file exit-token
tunnel-relay install-unit serve -c relay.toml
install -d /etc/tunnel
install -m 600 exit-token /etc/tunnel/exit-token
install -m 600 token /etc/tunnel/token
systemctl daemon-reload
systemctl enable --now tunnel-relay
"""

_RELAY_URL = "http://127.0.0.1:8080"
_RULES = """printf '[everyone]\\nconnect = ["127.0.0.1:8000"]\\n' > /etc/tunnel/exit.toml"""

_OTHERS = f"""
{_RULES}
printf '[relay]\\nurl = "{_RELAY_URL}"\\n[forward]\\nweb = "9000:127.0.0.1:8000"\\n' > /etc/tunnel/up.toml
tunnel-relay install-unit exit --relay {_RELAY_URL} --token-file /etc/tunnel/exit-token -c /etc/tunnel/exit.toml
tunnel-broker install-unit serve --dir /var/lib/tunnel-broker/messages --topic orders:4
tunnel install-unit up -c /etc/tunnel/up.toml --token-file /etc/tunnel/token
systemctl daemon-reload
systemctl enable --now tunnel-exit tunnel-broker tunnel
mkdir /srv/site
echo 'through the tunnel' > /srv/site/index.html
systemd-run --quiet --unit site /opt/tunnel/bin/python -m http.server 8000 --bind 127.0.0.1 --directory /srv/site
"""

_GET = "curl --silent --max-time 10 http://127.0.0.1:9000/"


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    if reason := why_not():
        pytest.skip(reason)
    with running_machine() as machine:
        machine.shell(f"set -e\n{_RELAY}{_OTHERS}")
        yield machine


def test_all_units_start_as_the_documents_say_and_carry_a_connection(machine: Machine) -> None:
    machine.wait(_GET, "through the tunnel")
    assert machine.shell("systemctl is-active tunnel-relay tunnel-exit tunnel-broker tunnel").split() == ["active"] * 4
    assert f"attached to {_RELAY_URL}" in machine.shell("systemctl show -p StatusText tunnel-exit")


def test_a_broker_keeps_its_messages_where_its_unit_lets_it_write(machine: Machine) -> None:
    assert machine.shell("ls /var/lib/private/tunnel-broker/messages/topics").split()


def test_root_asks_a_relay_at_the_socket_that_its_unit_makes(machine: Machine) -> None:
    machine.shell(
        "cd /var/lib/tunnel-relay; sed -i 's#^admin = .*#admin = \"unix:/run/tunnel-relay/admin.sock\"#' relay.toml; "
        "tunnel-relay install-unit serve -c relay.toml; systemctl daemon-reload; systemctl restart tunnel-relay"
    )
    machine.wait("cd /var/lib/tunnel-relay; tunnel-relay ps attachments", "exits")
    assert machine.shell("stat -c '%U %a' /run/tunnel-relay/admin.sock").split() == ["tunnel-relay", "600"]


def test_a_relay_that_dies_or_hangs_is_started_again_and_its_users_come_back(machine: Machine) -> None:
    machine.shell(
        "mkdir -p /etc/systemd/system/tunnel-relay.service.d; cd /etc/systemd/system/tunnel-relay.service.d; "
        "printf '[Service]\\nWatchdogSec=2\\n' > quick.conf; systemctl daemon-reload; systemctl restart tunnel-relay"
    )
    for blow in ("KILL", "STOP"):
        before = machine.shell("systemctl show -p MainPID --value tunnel-relay")
        machine.shell(f"kill -{blow} {before}")
        restarted = f'[ "$(systemctl show -p MainPID --value tunnel-relay)" != {before.strip()} ] && '
        machine.wait(f"{restarted}systemctl is-active tunnel-relay", "active\n")
        machine.wait(_GET, "through the tunnel")


def test_rules_that_are_wrong_end_an_exit_for_good_with_a_word_why(machine: Machine) -> None:
    machine.shell("echo 'connect = 1' > /etc/tunnel/exit.toml; systemctl restart tunnel-exit", check=False)
    try:
        machine.wait(
            "systemctl show -p ActiveState -p ExecMainStatus tunnel-exit", "ExecMainStatus=2\nActiveState=failed"
        )
        assert "exit.toml" in machine.log()
    finally:
        machine.shell(f"{_RULES}; systemctl restart tunnel-exit")


def test_the_units_of_a_user_start_too(machine: Machine) -> None:
    """Relay, broker and `tunnel up` of a user who has no right on the machine."""
    own = """
export XDG_RUNTIME_DIR=/run/user/$(id -u)
cd
tunnel-relay init relay.toml --user bob --token-file token --allow 127.0.0.1:8000
sed -i 's/127.0.0.1:8080/127.0.0.1:8081/; s/127.0.0.1:9080/127.0.0.1:9082/' relay.toml
tunnel-relay install-unit serve -c relay.toml
tunnel-broker install-unit serve --dir messages --listen 127.0.0.1:9101 --topic orders:4
mkdir -p .config/tunnel
printf '[relay]\\nurl = "http://127.0.0.1:8081"\\ntoken-file = "/home/bob/token"\\n' > .config/tunnel/tunnel.toml
printf '[forward]\\nweb = "9001:127.0.0.1:8000"\\n' >> .config/tunnel/tunnel.toml
tunnel install-unit
systemctl --user daemon-reload
systemctl --user enable --now tunnel-relay tunnel-broker tunnel
"""
    as_bob = f"runuser -u bob -- env -u XDG_CONFIG_HOME HOME=/home/bob bash -ec {shlex.quote(own)}"
    runtime = "mkdir -p /run/user/$(id -u bob); chown bob: /run/user/$(id -u bob); chmod 700 /run/user/$(id -u bob)"
    machine.shell(f"set -e; useradd --create-home bob; {runtime}; systemctl start user@$(id -u bob); {as_bob}")
    machine.wait(_GET.replace("9000", "9001"), "through the tunnel")
