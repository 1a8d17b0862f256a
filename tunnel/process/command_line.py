"""The parts that all commands of tunnel share: the log, the layout of help texts, error messages and exit codes."""

import argparse
import difflib
import errno
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn, TextIO

import msgspec

from tunnel.ground.carrier_limits import LINKS_MAX, check_links, pull_interval_us
from tunnel.ground.defaults import ATTACHING_LOG
from tunnel.ground.exit_codes import INTERNAL, INTERRUPTED, USAGE
from tunnel.ground.printable import ascii_json, printable, printable_lines

__all__ = [
    "LOG_LEVELS",
    "CommandAdder",
    "CommandParser",
    "add_carrier_limits",
    "add_events_option",
    "configure_log",
    "exit_code_of",
    "may_escape",
    "queued_log",
    "show",
    "show_json",
    "show_payload",
    "show_step",
    "shows_people",
    "tell",
    "writes_events",
]

_QUOTE_LETTERS = 300  # an unexpected error may quote a page: print this much of its text
LOG_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_CHOICE = re.compile(r"(?:argument COMMAND: )?invalid choice: '([^']*)' \(choose from (.*)\)$")
_OPTION = re.compile(r"-(?!-?$)(?!\.?\d)\S*$")  # what argparse takes for an option: -1 and "- x" are values
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)  # faults of a disk, which no code caused
_WORD = re.compile(r"[\w-]+")
_TOKEN = re.compile(r"tnl_[0-9a-f]{8}_")
_HOST = re.compile(r"(?!-)(?=.*[^\d])[\w.-]+")
_DASHES = len("--")
_SURPLUS = "unrecognized arguments: "
_DUMB_TERMINALS = ("dumb", "unknown")


def may_escape(stream: TextIO) -> bool:
    """Whether escape codes, such as those of colours, may be written to the stream.

    They may only if it is a terminal, TERM does not say that the terminal is dumb, and NO_COLOR is not set
    (no-color.org).
    """
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") not in _DUMB_TERMINALS


def configure_log(level: str, stream: TextIO | None = None) -> None:
    """Write one log line for each event to `stream` (default: standard error), as JSON unless it is a terminal."""
    from tunnel.logs.setup import configure  # here: commands that log nothing start sooner without structlog

    file = sys.stderr if stream is None else stream
    configure(LOG_LEVELS[level], file, colors=may_escape(file))


def queued_log(
    level: str, source_of: Callable[[str], str] = str, *, is_events: bool = False
) -> AbstractContextManager[None]:
    """Do as `configure_log`, but let a thread write the log to standard error while the context lasts.

    So the process goes on when its log is not read; lines beyond a limit are then dropped and counted. At the end, the
    lines that still wait get 2 s to be written. `source_of` returns the source to which an address belongs, such as its
    network. `is_events`: write the log to standard output, each line a JSON object, for a program that reads it.
    """
    from tunnel.logs.setup import queued

    stream = sys.stdout if is_events else sys.stderr
    return queued(LOG_LEVELS[level], stream, colors=may_escape(stream), source_of=source_of, is_events=is_events)


def add_events_option(
    parser: argparse.ArgumentParser, examples: str = "listening, disconnected and reconnected"
) -> None:
    """Add --json, which every command that runs until it is stopped has: `queued_log` then writes events."""
    parser.add_argument(
        "--json",
        action="store_true",
        dest="events",
        help=f"write each event, such as {examples}, as one line of JSON to standard output, and no lines for people "
        "(default: lines for people on a terminal, otherwise a JSON log on standard error)",
    )


def shows_people() -> bool:
    """Whether a person reads standard error on a terminal, so that lines for people replace log events there."""
    return sys.stderr.isatty() and not writes_events()


def writes_events() -> bool:
    """Whether the log goes to a program (--json). Then nothing is written for people."""
    setup = sys.modules.get("tunnel.logs.setup")
    return setup is not None and setup.writes_events()


# --- All that the commands write for people, or for a program that may be a terminal, leaves through these functions.
# They escape the characters that could control a terminal: other machines and other users may have written a part of
# the text. A part that must stay on its line, such as a cell of a table, passes `printable` as well.


def tell(text: str) -> None:
    """Write a line for people to standard error. Within `queued_log` it goes to the log, and never waits for a reader.

    The text may have several lines.
    """
    text = printable_lines(text)
    setup = sys.modules.get("tunnel.logs.setup")
    if setup is None:
        print(text, file=sys.stderr, flush=True)
    else:
        setup.tell(text)


def show(text: str, *, end: str = "\n", codes: str = "", flush: bool = False) -> None:
    """Write text to standard output. `codes`: escape codes of the command itself, which are written before it."""
    encoding = sys.stdout.encoding or "utf-8"  # which may lack a letter
    text = printable_lines(text).encode(encoding, "backslashreplace").decode(encoding)
    print(codes + text, end=end, flush=flush)


def show_json(value: object, *, is_indented: bool = False) -> None:
    """Write a value to standard output as one line of JSON, or as several, in ASCII."""
    encoded = msgspec.json.encode(value)
    print(ascii_json((msgspec.json.format(encoded) if is_indented else encoded).decode()))


def show_payload(payload: bytes) -> None:
    """Write a line of bytes to standard output: to a terminal as `show` does, and to a pipe or a file as they are."""
    if sys.stdout.isatty():
        show(payload.decode(errors="backslashreplace"))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(payload + b"\n")


def show_step(text: str) -> None:
    """Replace the present line of standard error by the step that the command is at, if that is a terminal."""
    if may_escape(sys.stderr):
        print(f"\r\x1b[K{printable(text)}", end="", file=sys.stderr, flush=True)


def exit_code_of(
    program: str,
    run: Callable[[], int],
    usage_errors: tuple[type[Exception], ...] = (),
    *,
    has_details: bool = False,
    reword: Callable[[str], str] = str,
) -> int:
    """Run a command and return its exit code; print an error, after `reword`, as one line on standard error.

    An error that no code expected is a defect, or a fault of this machine. Its traceback is printed only if
    `has_details` is set, that is, under `--log debug`.
    """
    import logging

    from tunnel.core.errors import TunnelError  # here, since it imports the core

    attaching = logging.getLogger(ATTACHING_LOG)
    was_disabled, attaching.disabled = attaching.disabled, True  # commands say themselves what they wait for
    try:
        return run()
    except usage_errors as error:
        tell(f"{program}: {reword(str(error))}")
        return USAGE
    except TunnelError as error:
        tell(f"{program}: {reword(str(error))}")
        return int(getattr(error, "exit_code", INTERNAL))
    except BrokenPipeError:
        return INTERNAL
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if has_details:
            tell(traceback.format_exc().rstrip())
        return _unexpected(program, error)
    finally:
        attaching.disabled = was_disabled


def _unexpected(program: str, error: Exception) -> int:
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    cause = f"{type(error).__name__}: {first[:_QUOTE_LETTERS]}".rstrip(": ")
    if isinstance(error, OSError) and error.filename is not None:
        tell(f"{program}: {error.filename} cannot be used: {error.strerror}: check the path and its permissions")
        return USAGE
    if isinstance(error, OSError) and error.errno in _FULL:
        advice = "make room there, or write elsewhere"
        tell(f"{program}: a file, or the output, cannot be written: {error.strerror}: {advice}")
        return USAGE
    advice = "run the command again with --log debug before its name, and report the output as a defect"
    tell(f"{program}: internal error: {cause}: {advice}")
    return INTERNAL


class CommandParser(argparse.ArgumentParser):
    """A parser of a command or of its subcommand. Its errors are one line, which says what is wrong and what to do.

    The usage follows only where that line cannot say what to write instead: a person would have to look above it.
    """

    def __init__(self, *, outer: "CommandParser | None" = None, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        self.commands: dict[str, CommandParser] = {}
        self._outer = outer  # the parser of the command that this one is a subcommand of

    def error(self, message: str) -> NoReturn:
        """Print the message, and the usage of this very command if that helps, and exit with code 2."""
        choice = _CHOICE.search(message)
        near = difflib.get_close_matches(choice[1], _WORD.findall(choice[2]), n=1) if choice else []
        guess = f": did you mean {near[0]}?" if near else ""
        if choice and not choice.start() and self.commands:
            guess = guess or f": the commands are {', '.join(self.commands)}"
            self._refuse(f"unknown command {choice[1]}{guess}")
        if guess:
            self._refuse(f"{message}{guess}")
        self._refuse(f"{message}{self._see_help}", shows_usage=not message.startswith("argument "))

    def parse_known_args(  # type: ignore[override]  # the namespace is never of another class
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse as argparse does, but refuse unknown arguments here: the outer parser would show its own usage.

        An unknown option is named before everything else that may be wrong, since its value can pass for an argument.
        """
        words = sys.argv[1:] if args is None else list(args)
        option = self._unknown_option(words)
        if option:
            hint = self._hint(option, words)
            self._refuse(f"unknown option {option}{hint or self._see_help}", shows_usage=not hint)
        found, unknown = super().parse_known_args(words, namespace)
        if unknown:
            hint = _surplus(unknown, words, self.option_names)
            self._refuse(hint or f"{_SURPLUS}{' '.join(unknown)}{self._see_help}", shows_usage=not hint)
        return found, unknown

    def describe(self, names: Collection[str], text: str) -> None:
        """Use `text` as the help of the options with these names, as far as the parser has them."""
        for action in self._actions:
            if action.dest in names:
                action.help = text

    @property
    def option_names(self) -> Collection[str]:
        """The options of this very command, in all their spellings."""
        return self._option_string_actions.keys()

    def owner_of(self, option: str) -> str:
        """Return the words of the command that has the option, this one or one around it; empty if none has it."""
        if option in self.option_names:
            return self.prog
        return "" if self._outer is None else self._outer.owner_of(option)

    @property
    def _see_help(self) -> str:
        return f"; see {self.prog} --help"

    def _refuse(self, message: str, *, shows_usage: bool = False) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {printable_lines(message)}\n{self.format_usage() if shows_usage else ''}")

    def _unknown_option(self, words: Sequence[str]) -> str:
        """Return the first option that this parser does not have; empty if there is none, or if help is wanted.

        Words after the name of a subcommand, or of a program with its arguments, are not this parser's.
        """
        unknown = ""
        ends_at_argument = any(action.nargs in (argparse.PARSER, argparse.REMAINDER) for action in self._actions)
        takes_next = False
        for word in words:
            if not _OPTION.match(word):
                if word == "--" or (ends_at_argument and not takes_next):
                    break
                takes_next = False
                continue
            name = word.partition("=")[0]
            action = self._option_string_actions.get(name) or self._option_string_actions.get(word[:2])
            if action is None:
                unknown = unknown or name
            elif action.dest == "help":
                return ""
            takes_next = action is not None and action.nargs is None and word in action.option_strings
        return unknown

    def _hint(self, option: str, words: Sequence[str]) -> str:
        owner = self.owner_of(option)
        if owner:
            return f": write it before the command, as in {owner} {option} ...{self.prog.removeprefix(owner)}"
        inner = self
        for word in words:
            inner = inner.commands.get(word, inner)
        if inner is self:
            inner = next((each for each in self.commands.values() if option in each.option_names), self)
        near = _near(option, {*inner.option_names, *self.option_names})
        if not near:
            return ""
        if near[0] in self.option_names:
            return f": did you mean {near[0]}?"
        place = f"after the command, as in {inner.prog} {near[0]} ..."
        return f": write it {place}" if near[0] == option else f": did you mean {near[0]}, {place}?"


def _near(option: str, known: Collection[str]) -> list[str]:
    """Return the option that was meant, in a list; empty if none is evident. A part of a name is tried first."""
    begun = sorted((each for each in known if each.startswith(option)), key=len) if len(option) > _DASHES else []
    return begun[:1] or difflib.get_close_matches(option, known, n=1)


def _surplus(unknown: Sequence[str], words: Sequence[str], options: Collection[str]) -> str:
    """Return what to say of arguments that no option and no command takes; empty if nothing special is evident."""
    if any(map(_TOKEN.match, unknown)) and "--token-file" in options:  # it is not repeated: logs keep what is printed
        return (
            "a token does not belong into a command line, which all users of this machine can see: write it into a "
            "file of mode 0600, and name that with --token-file FILE"
        )
    if len(unknown) > 1:
        return ""
    (word,) = unknown
    before = words[words.index(word) - 1]  # the command itself is not among the words, so another word may be before
    if word.isdecimal() and before != word and _HOST.fullmatch(before):
        return f"{_SURPLUS}{word}: did you mean {before}:{word}?"
    if word.endswith(".toml") and "-c" in options:
        return f"{_SURPLUS}{word}: did you mean -c {word}?"
    return ""


def add_carrier_limits(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the options that set the number of links and the interval of pulls, with the bounds of `tunnel.attach`."""
    parser.add_argument(
        "--links",
        type=_links,
        metavar="N",
        help="number of links to keep open, from 1 to 4. They share the load, so that they carry more than one where "
        "a path limits each connection; when one is lost, the others go on (default: 1)",
    )
    parser.add_argument(
        "--pull-interval",
        type=_interval,
        metavar="S",
        help="seconds between pulls, which are the requests that fetch data while neither a link nor a WebSocket is "
        "open. 0: a pull waits at the relay until data comes. More than 0: the relay answers each pull at once; it may "
        "choose another interval (default: 0)",
    )


def _links(text: str) -> int:
    try:
        check_links(int(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {LINKS_MAX}") from None
    return int(text)


def _interval(text: str) -> float:
    try:
        return pull_interval_us(float(text)) / 1_000_000
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither 0 nor a number of seconds above 0.001") from None


class CommandAdder:
    """Adds commands to a parser, each with help in the same layout: what it does, its arguments, an example."""

    def __init__(self, parser: CommandParser) -> None:
        self._parser = parser
        self._commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=CommandParser)

    def add(self, name: str, what: str, example: str) -> CommandParser:
        """Add the command `name` and return its parser. `what`: its description, in lower case without a full stop."""
        parser = self._commands.add_parser(
            name,
            help=what,
            description=what[0].upper() + what[1:] + ".",
            epilog=f"example: {example}",
            outer=self._parser,
        )
        self._parser.commands[name] = parser
        return parser
