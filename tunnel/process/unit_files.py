"""What the commands `install-unit` share: their options, the words of the command that a unit runs, and its file."""

import argparse
import os
import pwd
import shlex
import stat
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import tunnel
from tunnel.ground.exit_codes import OK
from tunnel.process.command_line import show, show_json, tell
from tunnel.process.units import CREDENTIALS, WRITTEN_BY, Unit, unit_text
from tunnel.system.private_files import create_private, is_open_to_others, make_private_directory, require_trusted

__all__ = ["HIDDEN", "add_unit_options", "command_words", "install", "is_system", "program_files"]

_SYSTEM_FOLDER = "/etc/systemd/system"
_SECRETS = ("--token-file", "--key", "--cert")  # options that name a file with a secret
_AT_FILES = ("--proxy", "--header")  # options that may name one after an @
_RELAY = "--relay"
_PLACES = ("-c", "--config", "--ca")  # options that name a file to read
HIDDEN = ("/tmp", "/var/tmp")
_OWN_OPTIONS = {"--system", "--user", "--print", "--run-as", "--to"}  # that no command of a unit has
_FOLDERS = ("--dir", "--trace")  # options that name a folder to write
_NOBODY_YET = -1  # the number of a user whom systemd makes up


@dataclass(slots=True)
class _Words:
    """The words of a command as a unit runs it: with whole paths, and with secrets as credentials."""

    words: list[str] = field(default_factory=list)
    credentials: dict[str, Path] = field(default_factory=dict)
    reads: list[Path] = field(default_factory=list)
    writes: list[Path] = field(default_factory=list)

    def add(self, option: str, value: str, *, makes_credentials: bool) -> None:
        """Add an option of the command, with its value. Raise ValueError if a unit cannot have it."""
        if option in _AT_FILES:
            value = self._checked(option, value)
            if value.startswith("@"):
                value = f"@{self._secret(option, value[1:], makes_credentials=makes_credentials)}"
        elif option in _SECRETS:
            value = self._secret(option, value, makes_credentials=makes_credentials)
        elif option in (*_PLACES, *_FOLDERS):
            path = _whole(value)
            (self.writes if option in _FOLDERS else self.reads).append(path)
            value = str(path)
        elif option == _RELAY and "@" in value:
            raise ValueError(f"{option}: all users can read a unit: remove user and password from the URL")
        self.words += [option, value]

    def _checked(self, option: str, value: str) -> str:
        if option == "--header" and not value.startswith("@"):
            raise ValueError(f"{option}: all users can read a unit: put the header into a file, and name it with @FILE")
        if "@" in value[1:]:
            raise ValueError(f"{option}: all users can read a unit: put the URL into a file, and name it with @FILE")
        return value

    def _secret(self, option: str, value: str, *, makes_credentials: bool) -> str:
        path = _whole(value)
        try:
            is_open = is_open_to_others(path.stat())
        except OSError as error:
            raise ValueError(f"{option} {path} cannot be read: {error.strerror}: create it first") from None
        if is_open:
            raise ValueError(f"{option} {path} is open to other users: run `chmod 600 {shlex.quote(str(path))}`")
        if not makes_credentials:
            self.reads.append(path)
            return str(path)
        kind = option.strip("-").removesuffix("-file")
        same = sum(name.partition("-")[0] == kind for name in self.credentials)
        name = f"{kind}-{same + 1}" if same else kind
        self.credentials[name] = path
        return f"{CREDENTIALS}/{name}"


def _place_words(words: Sequence[str], *, makes_credentials: bool) -> _Words:
    """Return the words with whole paths; `makes_credentials`: files with secrets become credentials.

    Raise ValueError if a unit would show a secret, or if a file with one is missing or open to others.
    """
    found = _Words()
    known = (*_SECRETS, *_AT_FILES, *_PLACES, *_FOLDERS, _RELAY)
    rest = list(words)
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        if word.startswith("-c") and not word.startswith("--") and len(word) > 2:
            option, equals, value = "-c", "=", word[2:]
        if option not in known:
            found.words.append(word)
        elif equals or rest:
            found.add(option, value if equals else rest.pop(0), makes_credentials=makes_credentials)
    return found


def add_unit_options(parser: argparse.ArgumentParser, name: str, commands: Collection[str], default: str) -> None:
    """Add the options of `install-unit`, and the command that the unit runs. `name`: of the unit."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--system",
        action="store_true",
        default=None,
        help=f"a unit of the system, in {_SYSTEM_FOLDER} (default if you are root)",
    )
    group.add_argument(
        "--user",
        dest="system",
        action="store_false",
        help="a unit of your user, in ~/.config/systemd/user (default if you are not root)",
    )
    parser.add_argument("--print", dest="prints", action="store_true", help="print the unit instead of writing it")
    parser.add_argument("--name", default="", metavar="NAME", help=f"name of the unit (default: {name})")
    parser.add_argument(
        "--run-as",
        default="",
        metavar="USER",
        help="the user who runs a unit of the system (default: the owner of a relay's configuration; for all else, a "
        "user that systemd makes up)",
    )
    parser.add_argument("--to", default="", metavar="DIR", help="write the unit into this folder")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument(
        "words",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help=f"the command that the unit runs, with its options: {' or '.join(commands)} (default: {default})",
    )


def is_system(arguments: argparse.Namespace) -> bool:
    """Whether the unit is one of the system."""
    return os.geteuid() == 0 if arguments.system is None else bool(arguments.system)


def command_words(arguments: argparse.Namespace, error: type[Exception]) -> list[str]:
    """Return the words of the command that the unit runs. Raise `error` for an option of `install-unit` among them."""
    words = [word for word in arguments.words if word != "--"]
    for option in _OWN_OPTIONS & {word.partition("=")[0] for word in words}:
        raise error(
            f"{option} is an option of install-unit: write it before {words[0]}, as in install-unit {option} ..."
        )
    return words


def install(
    arguments: argparse.Namespace,
    unit: Unit,
    words: Sequence[str],
    program: tuple[str, str],
    error: Callable[[str], Exception],
) -> int:
    """Write the unit that runs these words of the program, or print it, and say what to run next.

    `program`: its name and its module. Raise `error` if the unit cannot be written or run.
    """
    try:
        placed = _place_words(words, makes_credentials=is_system(arguments))
        whole = replace(
            unit,
            command=[*_program_of(*program), *placed.words],
            is_system=is_system(arguments),
            user=unit.user or arguments.run_as,
            credentials=placed.credentials,
            reads=placed.reads,
            writes=[*unit.writes, *placed.writes],
        )
        return _install(arguments, whole)
    except ValueError as refused:
        raise error(str(refused)) from None


def _program_of(name: str, module: str) -> list[str]:
    """Return the words that start the program which runs now."""
    started = Path(sys.argv[0])
    if started.suffix == ".pyz":
        return [sys.executable, str(started.absolute())]
    if started.name == name and started.is_file():
        return [str(started.absolute())]
    return [sys.executable, "-m", module]


def program_files(unit: Unit) -> list[Path]:
    """Return a file of each part of the program of a unit, which is the one that runs now."""
    interpreter = Path(sys.executable)
    return [Path(unit.command[0]), interpreter, interpreter.resolve(), Path(tunnel.__file__)]


def _check_system(unit: Unit, programs: Collection[Path]) -> None:
    """Check what the user of a system unit may do with the files of its command. Raise ValueError, with advice."""
    user, groups = _numbers(unit.user) if unit.user else (_NOBODY_YET, [])
    for path in (*unit.reads, *unit.writes):
        if any(path.is_relative_to(folder) for folder in HIDDEN):
            raise ValueError(f"{path} is below a folder for temporary files, which the unit does not see: move it")
    for path in programs:
        if (closed := _closed_folder(path, user, groups)) is not None:
            who = unit.user or "the user whom systemd makes up"
            raise ValueError(
                f"{who} cannot run {path}, since {closed} is closed to other users: install the program in a folder "
                "that is open to all, such as one below /opt, or name the user who owns it, with --run-as"
            )
    if unit.user:
        for path in unit.writes:
            if not path.exists() and not unit.is_given(path):
                raise ValueError(f"{path} does not exist: create it for {unit.user}, and run this again")
        return
    for path in unit.writes:
        if not unit.is_given(path):
            raise ValueError(
                f"{path} is not below {unit.state}, the only folder in which the unit may write: name a folder there, "
                "or the user who owns this one, with --run-as"
            )
    for path in unit.reads:
        if path.exists() and not path.stat().st_mode & stat.S_IROTH:
            raise ValueError(
                f"{path} is not readable for the user whom systemd makes up: run `chmod o+r {shlex.quote(str(path))}` "
                "if it holds no secret, or name the user who owns it, with --run-as"
            )


def _numbers(user: str) -> tuple[int, list[int]]:
    """Return the numbers of a user and of its groups."""
    try:
        found = pwd.getpwnam(user)
    except KeyError:
        advice = f"run `useradd --system --shell /usr/sbin/nologin {shlex.quote(user)}`"
        raise ValueError(f"there is no user {user}: {advice}") from None
    return found.pw_uid, os.getgrouplist(user, found.pw_gid)


def _closed_folder(path: Path, user: int, groups: Collection[int]) -> Path | None:
    """Return the first folder on the way to a file that the user may not pass; None if there is none."""
    for folder in reversed(path.parents):
        if not folder.exists():
            return None
        found = folder.stat()
        needed = stat.S_IXUSR if found.st_uid == user else stat.S_IXGRP if found.st_gid in groups else stat.S_IXOTH
        if user and not found.st_mode & needed:
            return folder
    return None


def _install(arguments: argparse.Namespace, unit: Unit) -> int:
    if arguments.name:
        unit = replace(unit, name=arguments.name.removesuffix(".service"))
    if not unit.name.replace("-", "").replace("_", "").replace(".", "").isalnum() or not unit.name.isascii():
        raise ValueError(f"--name {unit.name}: write letters, digits, and - _ . between them")
    programs = program_files(unit)
    if unit.is_system:
        unit = replace(unit, reads=[*unit.reads, *programs])
    elif unit.user:
        raise ValueError("--run-as is for units of the system: give --system, too")
    text = unit_text(unit)
    if unit.is_system:
        _check_system(unit, programs)
    path = _folder(arguments, unit) / unit.file_name
    if not arguments.prints:
        _write(path, text)
    control = f"systemctl{'' if unit.is_system else ' --user'}"
    then = [f"{control} daemon-reload", f"{control} enable --now {unit.name}"]
    if arguments.json:
        written = None if arguments.prints else str(path)
        show_json({"unit": unit.name, "file": written, "text": text, "user": unit.user, "next": then})
    elif arguments.prints:
        show(text, end="")
    else:
        show(f"{path} is written; now run:\n  " + "\n  ".join(then))
        if not unit.is_system:
            tell("it runs while you are logged in; `loginctl enable-linger` lets it run from the machine's start on")
    return OK


def _folder(arguments: argparse.Namespace, unit: Unit) -> Path:
    if arguments.to:
        return Path(arguments.to)
    if unit.is_system:
        return Path(_SYSTEM_FOLDER)
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".config") / "systemd" / "user"


def _write(path: Path, text: str) -> None:
    try:
        if not path.parent.exists():
            make_private_directory(path.parent)
        if path.exists() and not path.read_text().startswith(WRITTEN_BY):
            raise ValueError(f"{path} exists, and is not from this command: move it away, or give another --name")
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        with open(create_private(draft), "w") as file:  # another user may have made a link of this name
            file.write(text)
            os.fchmod(file.fileno(), 0o644)
        os.replace(draft, path)
    except OSError as error:
        advice = "run this as root, or give --user or --to DIR" if isinstance(error, PermissionError) else "check it"
        raise ValueError(f"{path} cannot be written: {error.strerror}: {advice}") from None


def _whole(name: str) -> Path:
    path = Path(os.path.abspath(name))
    require_trusted(path)
    return path
