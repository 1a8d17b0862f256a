"""All targets, by name, in the order in which they are started."""

from tests.fuzz.client_targets import CHALLENGES_TARGET, CLIENT_LINK_TARGET, PROXY_ANSWER_TARGET
from tests.fuzz.connection_target import CONNECTION_TARGET
from tests.fuzz.front_targets import DATAGRAMS_TARGET, FRONT_TARGET
from tests.fuzz.http_targets import ADMIN_TARGET, HTTP_TARGET, RELAY_LINK_TARGET
from tests.fuzz.lanes_target import LANES_TARGET
from tests.fuzz.link_target import LINK_TARGET
from tests.fuzz.served_target import SERVED_TARGET
from tests.fuzz.stream_target import STREAM_TARGET
from tests.fuzz.switch_target import SWITCH_TARGET
from tests.fuzz.target import Target
from tests.fuzz.websocket_targets import CLIENT_WEBSOCKET_TARGET, RELAY_WEBSOCKET_TARGET
from tests.fuzz.wire_targets import WIRE_TARGETS

__all__ = ["TARGETS"]

_SANS_IO = (*WIRE_TARGETS, LINK_TARGET, CONNECTION_TARGET, LANES_TARGET, SERVED_TARGET, STREAM_TARGET, SWITCH_TARGET)
_RELAY = (HTTP_TARGET, ADMIN_TARGET, RELAY_LINK_TARGET, RELAY_WEBSOCKET_TARGET)
_CLIENT = (
    CLIENT_LINK_TARGET,
    CLIENT_WEBSOCKET_TARGET,
    CHALLENGES_TARGET,
    PROXY_ANSWER_TARGET,
    FRONT_TARGET,
    DATAGRAMS_TARGET,
)
_ALL = (*_SANS_IO, *_RELAY, *_CLIENT)
TARGETS: dict[str, Target] = {target.name: target for target in _ALL}
