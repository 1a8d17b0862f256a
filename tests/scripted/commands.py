"""Commands that a script gives the endpoint, and facts that it asks for: two tables of small functions."""

from collections.abc import Callable
from typing import Any

from tests.scripted.language import Phrase, ScriptError, parse_number
from tests.scripted.packets import Fields
from tests.scripted.party import stream
from tests.scripted.shown import Value
from tests.scripted.world import World, clock
from tunnel.core import EndpointConfig, TunnelError
from tunnel.core.constants import NEVER_US
from tunnel.core.timers import Timer
from tunnel.wire import AbortReason, RejectReason

__all__ = ["COMMANDS", "FACTS", "configure", "run_command"]

_SHORT = {
    "window": "window_bytes_start",
    "window_min": "window_bytes_min",
    "window_max": "window_bytes_max",
    "budget": "budget_bytes",
    "send_buffer": "send_buffer_bytes_max",
    "packet": "packet_bytes_max",
    "keepalive": "keepalive_us",
    "user_timeout": "user_timeout_us",
    "connections": "connections_max",
    "out_of_order": "out_of_order_packets_max",
}


def configure(phrase: Phrase) -> EndpointConfig:
    """Return the endpoint's configuration, from `config key=value ...`."""
    known: dict[str, Any] = {_SHORT[key]: parse_number(value) for key, value in phrase.fields.items() if key in _SHORT}
    unknown = [key for key in phrase.fields if key not in _SHORT and key != "exit"]
    if unknown:
        raise ValueError(f"unknown settings: {', '.join(unknown)}")
    return EndpointConfig(exit=phrase.fields.get("exit") == "yes", **known)


def run_command(world: World, phrase: Phrase) -> None:
    """Run a command; with raises=NAME it must raise that exception."""
    command = COMMANDS.get(phrase.word)
    if command is None:
        raise ValueError(f"no command {phrase.word}")
    fields = dict(phrase.fields)
    raises = fields.pop("raises", None)
    wanted = Phrase(phrase.word, phrase.connection, phrase.arguments, fields)
    try:
        command(world, wanted)
    except TunnelError as error:
        if type(error).__name__ != raises:
            raise ScriptError(f"raised {type(error).__name__}: {error}") from error
    else:
        if raises:
            raise ScriptError(f"{raises} was not raised")


def _argument(phrase: Phrase, default: str = "") -> str:
    if len(phrase.arguments) > 1 or not (phrase.arguments or default):
        raise ValueError(f"{phrase.word} takes one argument")
    return phrase.arguments[0] if phrase.arguments else default


def _wait(world: World, phrase: Phrase) -> None:
    """Do nothing: the time up to this line has passed already."""


def _connect(world: World, phrase: Phrase) -> None:
    fields = Fields(phrase)
    party = world.new_party(phrase.connection, _argument(phrase, "svc"), fields.optional("base"), initiator=True)
    fields.finish()
    party.connection = world.endpoint.connect(party.target, world.now)
    party.route_key = party.connection.identity.route_key


def _listen(world: World, phrase: Phrase) -> None:
    fields = Fields(phrase)
    world.endpoint.listen(_argument(phrase, "svc"), fields.number("backlog", "8"), world.now)
    fields.finish()


def _unlisten(world: World, phrase: Phrase) -> None:
    world.endpoint.unlisten(_argument(phrase, "svc"), world.now)


def _leave(world: World, phrase: Phrase) -> None:
    world.endpoint.leave(world.now)


def _accept(world: World, phrase: Phrase) -> None:
    world.endpoint.accept(world.party(phrase.connection).own_id, world.now)


def _refuse(world: World, phrase: Phrase) -> None:
    fields = Fields(phrase)
    reason = RejectReason(fields.member("reason", RejectReason, "refused"))
    world.endpoint.refuse(world.party(phrase.connection).own_id, reason, fields.text("text"), world.now)
    fields.finish()


def _write(world: World, phrase: Phrase) -> None:
    """Write bytes of the stream; the endpoint must take all of them, or as many as `takes` says."""
    fields = Fields(phrase)
    connection = world.connection(phrase.connection)
    size = parse_number(_argument(phrase))
    wanted = fields.number("takes", str(size))
    fields.finish()
    taken = connection.write(stream(connection.sender.window.written_bytes, size), world.now)
    if taken != wanted:
        raise ScriptError(f"write took {taken} bytes, not {wanted}")


def _read(world: World, phrase: Phrase) -> None:
    """Read exactly this number of bytes, which must be the right ones; with `nothing`, there must be none."""
    party = world.party(phrase.connection)
    argument = _argument(phrase)
    wanted = 0 if argument == "nothing" else parse_number(argument)
    data = b""
    while len(data) < max(wanted, 1):
        part = party.live().read(max(wanted, 1) - len(data), world.now)
        if not len(part):
            break
        data += part
    if len(data) != wanted:
        raise ScriptError(f"read gave {len(data)} bytes, not {wanted}")
    if data != stream(party.read, wanted):
        raise ScriptError(f"read gave bytes that differ from those sent, after byte {party.read}")
    party.read += wanted


def _flush(world: World, phrase: Phrase) -> None:
    """Ask for the acknowledgement of everything written, and of `waiting` bytes that are still to be written."""
    fields = Fields(phrase)
    world.connection(phrase.connection).flush(fields.number("waiting", "0"))
    fields.finish()


def _finish(world: World, phrase: Phrase) -> None:
    world.connection(phrase.connection).finish(world.now)


def _close(world: World, phrase: Phrase) -> None:
    world.connection(phrase.connection).close(world.now)


def _abort(world: World, phrase: Phrase) -> None:
    fields = Fields(phrase)
    reason = AbortReason(fields.member("reason", AbortReason, "application"))
    world.connection(phrase.connection).abort(world.now, reason, fields.text("text"))
    fields.finish()


def _carrier(world: World, phrase: Phrase) -> None:
    """Switch the carrier `on` or `off`, or set receipts=manual|at_once, batch=BYTES, lanes=N, pull=TIME."""
    fields = Fields(phrase)
    if phrase.arguments:
        world.carrier_on = _argument(phrase) == "on"
    if receipts := fields.text("receipts"):
        world.receipts_at_once = receipts == "at_once"
    world.batch_bytes = fields.number("batch", str(world.batch_bytes))
    lanes, pull = fields.optional("lanes"), fields.optional("pull")
    if lanes is not None or pull is not None:
        view = world.endpoint.carrier
        new_lanes = view.lanes if lanes is None else lanes
        world.endpoint.carrier_changed(new_lanes, view.pull_interval_us if pull is None else pull, world.now)
    fields.finish()


def _batch(world: World, phrase: Phrase) -> None:
    """Send a batch now, whether the endpoint asks for it or not; with `none`, there must be no packet to send."""
    size = _argument(phrase, str(world.batch_bytes))
    left = world.take_batch(world.batch_bytes if size == "none" else parse_number(size))
    if left == (size == "none"):
        raise ScriptError("a batch left" if left else "no batch left")


def _receipt(world: World, phrase: Phrase) -> None:
    for number in phrase.arguments:
        world.done(parse_number(number), ok=True)


def _giveup(world: World, phrase: Phrase) -> None:
    for number in phrase.arguments:
        world.done(parse_number(number), ok=False)


def _attached(world: World, phrase: Phrase) -> None:
    """Attach: `fresh` or `known`; packet=BYTES, edge=BYTES, packets=NUMBER."""
    fields = Fields(phrase)
    packet, edge = fields.number("packet", "16M"), fields.number("edge", "1024M")
    packets = fields.number("packets", "0")
    fields.finish()
    world.endpoint.on_attached(_argument(phrase) == "fresh", packet, edge, world.now, packets_max=packets)


def _detached(world: World, phrase: Phrase) -> None:
    world.endpoint.on_detached(world.now)


def _timeout(world: World, phrase: Phrase) -> None:
    """Call handle_timeout, whether a timer is due or not."""
    world.endpoint.handle_timeout(world.now)


def _draw(world: World, phrase: Phrase) -> None:
    world.random.next.extend(parse_number(number) for number in phrase.arguments)


COMMANDS: dict[str, Callable[[World, Phrase], None]] = {
    "wait": _wait,
    "connect": _connect,
    "listen": _listen,
    "unlisten": _unlisten,
    "leave": _leave,
    "accept": _accept,
    "refuse": _refuse,
    "write": _write,
    "read": _read,
    "flush": _flush,
    "finish": _finish,
    "close": _close,
    "abort": _abort,
    "carrier": _carrier,
    "batch": _batch,
    "receipt": _receipt,
    "giveup": _giveup,
    "attached": _attached,
    "detached": _detached,
    "timeout": _timeout,
    "draw": _draw,
}


def _timer(world: World, phrase: Phrase) -> Value:
    """Return the time from now until the timer is due."""
    name = phrase.arguments[0]
    if name not in Timer.__members__:
        raise ValueError(f"no timer {name}")
    deadline = world.connection(phrase.connection).timers.get(Timer[name])
    return None if deadline >= NEVER_US else deadline - world.now


FACTS: dict[str, Callable[[World, Phrase], Value]] = {
    "state": lambda world, phrase: world.connection(phrase.connection).state.name,
    "timer": _timer,
    "srtt": lambda world, phrase: world.connection(phrase.connection).sender.rtt.srtt_us,
    "rttvar": lambda world, phrase: world.connection(phrase.connection).sender.rtt.variance_us,
    "rto": lambda world, phrase: world.connection(phrase.connection).sender.rtt.rto_us(),
    "discarded": lambda world, phrase: world.connection(phrase.connection).stats.packets_discarded,
    "duplicates": lambda world, phrase: world.connection(phrase.connection).stats.packets_duplicate,
    "spurious": lambda world, phrase: world.connection(phrase.connection).stats.packets_spurious,
    "unacknowledged": lambda world, phrase: world.connection(phrase.connection).unacknowledged_bytes,
    "at_eof": lambda world, phrase: world.connection(phrase.connection).at_eof,
    "strangers": lambda world, phrase: world.endpoint.packets_discarded,
    "connections": lambda world, phrase: len(world.endpoint.connections),
    "id": lambda world, phrase: world.connection(phrase.connection).id,
    "version": lambda world, phrase: world.connection(phrase.connection).handshake._option_received,
    "service_refused": lambda world, phrase: world.endpoint.services.is_refused("svc"),
    "draining": lambda world, phrase: world.endpoint.attachment_options.is_draining,
    "time": lambda world, phrase: clock(world.now),
}
