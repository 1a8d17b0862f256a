"""Plays a script: commands and packets go in, and every packet and event must be expected by a line, at its time."""

from collections import deque
from dataclasses import replace
from pathlib import Path

from tests.scripted.commands import FACTS, configure, run_command
from tests.scripted.language import Kind, Phrase, Script, ScriptError, Step, parse_script, parse_steps
from tests.scripted.packets import NOBODY, Fields, build
from tests.scripted.shown import Shown, agrees, matches
from tests.scripted.world import World, clock
from tunnel.core import EndpointConfig

__all__ = ["play", "play_file"]

HISTORY_LINES = 14  # lines of history shown with a failure

OPENINGS = {
    "initiator": """
        connect@{name} svc {connect}
        > CONNECT@{name} destination=0
        < ACCEPTED@{name} {fields}
        > ACK@{name} cum=0
        ! Connected@{name}
    """,
    "acceptor": """
        < CONNECT@{name} svc {fields} {connect}
        > ACCEPTED@{name}
        < ACK@{name} cum=0 echo=-9
        ! Incoming@{name}
    """,
    "exit": """
        < CONNECT@{name} host:80 {fields} {connect}
        ! ConnectRequested@{name} target=host:80
        accept@{name}
        > ACCEPTED@{name}
        < ACK@{name} cum=0 echo=-9
        ! Connected@{name}
    """,
}
"""`open`, `open acceptor`, `open exit`: opens a connection. The peer's ACK names no packet, and so measures no round
trip."""

LISTENING = """
        listen svc
        > LISTEN_STATE name=svc state=up
        < LISTEN_STATE name=svc state=up version=1
"""


def play_file(path: Path) -> None:
    """Read and play a file; ScriptError gives file, line, the expected and the actual packet or event."""
    play(parse_script(path))


def play(script: Script) -> None:
    """Play every step, then check that no packet or event is left over."""
    player = _Player(script)
    for step in script.steps:
        player.play(step)
    player.finish()


class _Player:
    def __init__(self, script: Script) -> None:
        self._path = script.path
        self._step: Step | None = None
        self._listening = False
        self._first = script.steps[0] if script.steps else None
        first = Phrase("wait") if self._first is None else self._first.phrases[0]
        try:
            config = configure(first) if first.word == "config" else EndpointConfig()
        except ValueError as error:
            raise ScriptError(f"{script.path}:{script.steps[0].line}: {error}") from error
        self._world = World(config)

    def play(self, step: Step) -> None:
        """Play one line."""
        self._step = step
        try:
            moment = step.moment(self._world.now)
            if moment > self._world.now and step.kind not in (Kind.OUT, Kind.EVENT):
                self._nothing_left()
            self._world.advance(moment)
            self._act(step)
        except (ScriptError, ValueError, KeyError) as error:
            self._fail(error)

    def finish(self) -> None:
        """Check that every packet and event was expected."""
        try:
            self._nothing_left()
        except ScriptError as error:
            self._fail(error)

    def _act(self, step: Step) -> None:
        if step.kind is Kind.OUT:
            self._expect(step, self._world.sent, "packet")
        elif step.kind is Kind.EVENT:
            self._expect(step, self._world.events, "event")
        elif step.kind is Kind.FACT:
            for phrase in step.phrases:
                self._check_fact(phrase)
        else:
            self._nothing_left()
            self._change(step)
            self._world.settle()

    def _change(self, step: Step) -> None:
        world = self._world
        if step.kind is Kind.IN:
            packets = []
            for phrase in step.phrases:
                if phrase.word == "CONNECT" and phrase.fields.get("resume") != "yes":
                    phrase = self._connecting(phrase)
                of_attachment = phrase.word == "LISTEN_STATE" or phrase.fields.get("destination") == "0"
                party = NOBODY if of_attachment else world.party(phrase.connection)
                packets.append(build(phrase, party))
            world.history.append(f"{clock(world.now)}  {step.text}")
            world.receive(packets)
            return
        for phrase in step.phrases:
            world.history.append(f"{clock(world.now)}  {phrase}")
            if phrase.word == "open":
                self._open(phrase, step)
            elif phrase.word != "config" or step is not self._first:
                run_command(world, phrase)
            world.settle()

    def _connecting(self, phrase: Phrase) -> Phrase:
        """Handle CONNECT@name TARGET from a peer: the first CONNECT of that name makes the party."""
        fields = dict(phrase.fields)
        base = Fields(Phrase("", fields={"base": fields.pop("base")})).number("base") if "base" in fields else None
        if phrase.connection not in self._world.parties:
            target = phrase.arguments[0] if phrase.arguments else "svc"
            self._world.new_party(phrase.connection, target, base, initiator=False)
        return replace(phrase, fields=fields)

    def _open(self, phrase: Phrase, step: Step) -> None:
        kind = phrase.arguments[0] if phrase.arguments else "initiator"
        fields = dict(phrase.fields)
        connect = f"base={fields.pop('base')}" if "base" in fields else ""
        text = OPENINGS[kind].format(
            name=phrase.connection,
            connect=connect,
            fields=" ".join(f"{key}={value}" for key, value in fields.items()),
        )
        if kind == "acceptor" and not self._listening:
            self._listening = True
            text = LISTENING + text
        for inner in parse_steps(text, "open"):
            self._world.settle()
            self._act(replace(inner, line=step.line))

    # expectations

    def _expect(self, step: Step, queue: deque[tuple[int, Shown]], what: str) -> None:
        world = self._world
        if step.phrases[0].word == "nothing":
            if queue:
                raise ScriptError(_difference("nothing", _list(queue)))
            return
        for phrase in step.phrases:
            if not queue:
                raise ScriptError(_difference(f"{phrase} at {clock(world.now)}", f"no {what}"))
            came_us, shown = queue[0]
            if came_us != world.now or not matches(phrase, shown):
                raise ScriptError(_difference(f"{phrase} at {clock(world.now)}", _list(queue)))
            queue.popleft()

    def _check_fact(self, phrase: Phrase) -> None:
        fact = FACTS.get(phrase.word)
        if fact is None or not phrase.arguments:
            raise ValueError(f"no such fact: {phrase}")
        actual = fact(self._world, phrase)
        if not agrees(phrase.arguments[-1], actual):
            known = "none" if actual is None else str(actual)
            raise ScriptError(_difference(f"{phrase.word} {' '.join(phrase.arguments)}", known))

    def _nothing_left(self) -> None:
        """Raise ScriptError if a packet or an event is left that no line has expected."""
        for queue in (self._world.sent, self._world.events):
            if queue:
                raise ScriptError(_difference("nothing more before this line", _list(queue)))

    def _fail(self, error: Exception) -> None:
        step = self._step
        line, text = (step.line, step.text) if step is not None else (0, "")
        history = "\n".join(f"    {entry}" for entry in self._world.history[-HISTORY_LINES:])
        message = str(error) if isinstance(error, ScriptError | ValueError) else f"unknown: {error}"
        raise ScriptError(f"{self._path}:{line}: {text}\n{message}\n  so far:\n{history}") from error


def _difference(expected: str, actual: str) -> str:
    return f"  expected: {expected}\n  actual:   {actual}"


def _list(queue: deque[tuple[int, Shown]]) -> str:
    shown = [f"{item} at {clock(time_us)}" for time_us, item in list(queue)[:4]]
    more = [f"and {len(queue) - 4} more"] if len(queue) > 4 else []
    return "\n            ".join(shown + more)
