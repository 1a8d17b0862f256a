"""Tests of the runner: it must notice every error that a script is there to notice."""

from pathlib import Path

import pytest

from tests.scripted.language import Kind, Phrase, ScriptError, parse_number, parse_script, parse_steps
from tests.scripted.runner import play_file

HEADER = "# PROTOCOL 4.6\n# A sentence.\n"


def played(folder: Path, body: str) -> str:
    """Return the runner's message about a script; "" if the script passes."""
    path = folder / "a.trace"
    path.write_text(HEADER + body)
    try:
        play_file(path)
    except ScriptError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("0x10", 16),
        ("1.5s", 1_500_000),
        ("25ms", 25_000),
        ("300us", 300),
        ("2min", 120_000_000),
        ("64K", 65536),
    ],
)
def test_numbers_have_units(text: str, value: int) -> None:
    assert parse_number(text) == value
    assert parse_number(f"-{text}") == -value


@pytest.mark.parametrize("text", ["", "x", "1h", "1.5us", "0x", "1..2"])
def test_text_that_is_no_number_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        parse_number(text)


def test_a_line_has_a_time_a_mark_and_phrases() -> None:
    (step,) = parse_steps("+5ms > DATA@b seq=1..2 len=3 ; ACK cum=4  # a remark", "here")
    assert (step.kind, step.after_us, step.at_us, step.line) == (Kind.OUT, 5000, None, 1)
    assert step.phrases == (
        Phrase("DATA", "b", (), {"seq": "1", "len": "3"}),
        Phrase("DATA", "b", (), {"seq": "2", "len": "3"}),
        Phrase("ACK", "c", (), {"cum": "4"}),
    )
    (alone,) = parse_steps("\n@2s\n", "here")
    assert (alone.phrases, alone.at_us, alone.line) == ((Phrase("wait"),), 2_000_000, 2)


@pytest.mark.parametrize("line", ["+x write 1", "write 1 ;", "< ACK cum=1 cum=2", "< DATA seq=1 times=99999"])
def test_an_error_names_the_line_that_breaks_the_language(line: str) -> None:
    with pytest.raises(ScriptError, match="here:1: "):
        parse_steps(line, "here")


@pytest.mark.parametrize("text", ["", "open\n", "# 4.6\n# A sentence.\n", "# PROTOCOL 4.6\nopen\n"])
def test_a_script_needs_its_header(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.trace"
    path.write_text(text)
    with pytest.raises(ScriptError, match="a script starts with"):
        parse_script(path)


FAULTS = [
    ("open\nwrite 10\n", "expected: nothing more before this line\n  actual:   DATA seq=1"),
    (
        "open\nwrite 10\n> DATA seq=1 len=11\n",
        "expected: DATA seq=1 len=11 at 0s\n  actual:   DATA seq=1 attempt=0 len=10",
    ),
    ("open\nwrite 10\n> DATA seq=1 attempt=1\n", "actual:   DATA seq=1 attempt=0"),
    ("open\nwrite 10\n> DATA seq=1\n+999ms > DATA seq=1 attempt=1\n", "actual:   no packet"),
    ("open\nwrite 10\n> DATA seq=1\n+1001ms > DATA seq=1 attempt=1\n", "len=10 source"),
    ("open\nwrite 10\n> nothing\n", "expected: nothing\n"),
    ("open@b\nopen@d\nwrite@b 1\n> DATA@d seq=1\n", "actual:   DATA@b seq=1"),
    ("open\n< DATA seq=2 len=1\n> ACK cum=0\n", "sack=2"),
    ("open\n< FINISH seq=1\n> ACK\n", "actual:   PeerFinished"),
    ("open\n! Readable\n", "expected: Readable at 0s\n  actual:   no event"),
    ("open\n= state CLOSING\n", "expected: state CLOSING\n  actual:   OPEN"),
    ("open\n= timer RETRANSMIT 1s\n", "actual:   none"),
    ("open\n= timer LUNCH none\n", "no timer LUNCH"),
    ("open\n= mood good\n", "no such fact: mood good"),
    ("open\nread 1\n", "read gave 0 bytes, not 1"),
    ("open\nwrite 1 takes=2\n", "write took 1 bytes, not 2"),
    ("open\nfinish\n> FINISH\nwrite 1\n", "raised LocalProtocolError"),
    ("open\nwrite 1 raises=LocalProtocolError\n", "LocalProtocolError was not raised"),
    ("open\ndance\n", "no command dance"),
    ("open\n< DATA seq=1\n", "packet 1 needs a length"),
    ("open\n< DATA seq=1 len=1 colour=red\n", "unknown fields: colour"),
    ("open\n< TELEGRAM\n", "unknown: 'TELEGRAM'"),
    ("write 1\n", "no connection c in this script yet"),
    ("open\nbatch\n", "no batch left"),
    ("open\nreceipt 99\n", "there is no batch 99"),
    ("open\n+2s\n@1s write 1\n", "1s is over: it is 2s"),
    ("config mood=good\n", "unknown settings: mood"),
    ("open\nconfig keepalive=0\n", "no command config"),
]


@pytest.mark.parametrize(("body", "message"), FAULTS)
def test_an_error_names_file_and_line(tmp_path: Path, body: str, message: str) -> None:
    said = played(tmp_path, body)
    assert message in said
    lines = body.count("\n") + HEADER.count("\n")
    assert said.startswith(f"{tmp_path}/a.trace:{lines}: ")


def test_a_correct_script_passes(tmp_path: Path) -> None:
    assert played(tmp_path, "open\nwrite 10\n> DATA seq=1 len=10\n+1s > DATA seq=1 len=10 attempt=1\n") == ""
