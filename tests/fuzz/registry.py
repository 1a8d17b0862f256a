"""All targets, by name, in the order in which they run."""

from tests.fuzz.connection_target import CONNECTION_TARGET
from tests.fuzz.lanes_target import LANES_TARGET
from tests.fuzz.link_target import LINK_TARGET
from tests.fuzz.served_target import SERVED_TARGET
from tests.fuzz.switch_target import SWITCH_TARGET
from tests.fuzz.target import Target
from tests.fuzz.wire_targets import WIRE_TARGETS

__all__ = ["TARGETS"]

_ALL = (*WIRE_TARGETS, LINK_TARGET, CONNECTION_TARGET, LANES_TARGET, SERVED_TARGET, SWITCH_TARGET)
TARGETS: dict[str, Target] = {target.name: target for target in _ALL}
