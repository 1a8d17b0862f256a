"""Hostile users in a world of honest ones, and what the honest acceptors do with their connections."""

from __future__ import annotations

from tests.sim.clock import SECOND, Clock
from tests.sim.hostile import HostileUser
from tests.sim.hostile_packets import ACTS
from tests.sim.node import Node
from tests.sim.randomness import stream
from tests.sim.relay import RelayHost
from tests.sim.scenario import Scenario
from tunnel.core import State
from tunnel.wire import Target, TargetKind

__all__ = ["Guests"]

PORT = 1  # the port of the targets of hostile users
WRITTEN_BYTES = 256 * 1024  # an acceptor tries to write this many on each connection of a hostile user
VISIT_US = 20 * SECOND  # after this time, the acceptor aborts the connection


class Guests:
    """The hostile users of a scenario. The object is also their `Surroundings`: what they know of the others."""

    def __init__(self, scenario: Scenario, clock: Clock, relay: RelayHost, nodes: list[Node]) -> None:
        self._scenario = scenario
        self._nodes = nodes
        self._users = {
            spec.user: HostileUser(clock, relay, stream(scenario.seed, "hostile", number), spec, number, self, ACTS)
            for number, spec in enumerate(scenario.hostiles)
        }

    @property
    def users(self) -> list[HostileUser]:
        """The hostile users."""
        return list(self._users.values())

    def start(self) -> None:
        """Begin the attacks."""
        for user in self._users.values():
            user.start()

    def stop(self) -> None:
        """End the attacks."""
        for user in self._users.values():
            user.stop()

    @property
    def acts(self) -> int:
        """The number of acts so far."""
        return sum(user.done for user in self._users.values())

    def owns(self, user: str) -> bool:
        """Whether this user is a hostile one."""
        return user in self._users

    # --- Surroundings

    def targets(self) -> list[Target]:
        """Every service and exit, and a target that the rules deny."""
        found = [Target(TargetKind.SERVICE, name, 0) for spec in self._scenario.nodes for name in spec.services]
        found += [Target(TargetKind.TCP, spec.name, PORT) for spec in self._scenario.nodes if spec.endpoint.exit]
        return [*found, Target(TargetKind.TCP, "denied.example", PORT)]

    def attachments(self) -> list[bytes]:
        """The attachment ids of honest endpoints."""
        return [node.lanes.registration.id for node in self._nodes]

    def connections(self) -> list[tuple[int, int]]:
        """The ids of honest connections, at both ends."""
        return [
            (connection.id, connection.identity.peer_id)
            for node in self._nodes
            for connection in node.endpoint.connections.values()
        ]

    # --- connections that hostile users opened

    def asked(self, node: Node, connection_id: int) -> None:
        """Accept the connection at once."""
        node.endpoint.accept(connection_id, node.now_us)
        self.incoming(node, connection_id)

    def incoming(self, node: Node, connection_id: int) -> None:
        """Write as much as the connection takes, read nothing, and abort the connection after VISIT_US."""
        connection = node.endpoint.connections.get(connection_id)
        if connection is not None and connection.state is not State.PEER_CLOSED:
            connection.write(bytes(WRITTEN_BYTES), node.now_us)
        node.later(VISIT_US, lambda: self._has_enough(node, connection_id))

    def _has_enough(self, node: Node, connection_id: int) -> None:
        connection = node.endpoint.connections.get(connection_id)
        if connection is not None:
            connection.abort(node.now_us)
