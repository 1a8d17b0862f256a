"""docs/REFERENCES.md: what its tables cite exists, some of its figures, and a section for each reference document."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from loadtests.experiments.message_loss import sender
from loadtests.experiments.message_loss.protocol import MAIN, publish
from tunnel.core.constants import EARLY_BYTES_MAX
from tunnel.exchange.config import TROUBLE_US
from tunnel.exchange.lanes import health
from tunnel.messages.packets import assembler, pacing, parts, session

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "REFERENCES.md").read_text()
SECTIONS = [section for section in TEXT.split("\n## ")[1:] if not section.startswith("Words\n")]
PROTOCOL = (ROOT / "docs" / "PROTOCOL.md").read_text()
DOCUMENTS = [
    "http-tunnel-protocol.txt",
    "message-sets-and-senders.md",
    "packet-assembler.txt",
    "remoting-and-backlog.md",
    "core-message-loss.md",
]
BASES = {"http-tunnel-protocol.txt": "", "core-message-loss.md": "loadtests/experiments/message_loss"}
"""Where the paths of a section begin; those of the others are below tunnel/messages."""
TOPS = ("tunnel/", "servlet/", "client/", "loadtests/", "tests/", "docs/", "examples/")


@dataclass(frozen=True)
class Cell:
    """The second column of a row."""

    document: str
    text: str

    @property
    def base(self) -> Path:
        return ROOT / BASES.get(self.document, "tunnel/messages")

    @property
    def quoted(self) -> list[str]:
        return re.findall(r"`([^`]+)`", self.text)

    def path(self, name: str) -> Path:
        return ROOT / name if name.startswith(TOPS) else self.base / name


def cells() -> list[Cell]:
    found = []
    for section in SECTIONS:
        for line in section.splitlines():
            columns = [column.strip() for column in line.strip("|").split(" | ")]
            if line.startswith("| ") and len(columns) > 1 and columns[0] != "statement":
                found.append(Cell(section.partition("\n")[0], columns[1]))
    return found


CELLS = [cell for cell in cells() if cell.text]


def is_path(word: str) -> bool:
    return word.endswith((".py", ".md")) or word.startswith(TOPS)


def sources(cell: Cell) -> list[Path]:
    """Return the files in which the names of a cell must be: those that it names, else all below the section's base.

    If that base is the whole repository, they are those below tunnel/wire.
    """
    named = [cell.path(word) for word in cell.quoted if is_path(word)]
    if not named:
        named = [cell.base] if cell.base != ROOT else [ROOT / "tunnel" / "wire"]
    return [file for path in named for file in ([path] if path.is_file() else sorted(path.rglob("*.py")))]


def is_defined(name: str, texts: list[str]) -> bool:
    """Return whether each part of a dotted name is a class, a function, a field or a parameter of one of the files."""
    *above, last = name.split(".")
    names = [
        *(rf"class {part}\b" for part in above),
        rf"(?:def|class) {last}\b|\b{last}\b\s*(?::[^=\n]|=)|^    {last}\b",
    ]
    return any(all(re.search(each, text, re.MULTILINE) for each in names) for text in texts)


def missing(cell: Cell) -> Iterator[str]:
    """Yield the names in a cell of what does not exist."""
    texts = [file.read_text() for file in sources(cell)]
    for word in cell.quoted:
        if word.startswith("python -m "):
            module = ROOT / word.removeprefix("python -m ").split()[0].replace(".", "/")
            if not module.is_dir() and not module.with_suffix(".py").is_file():
                yield word
        elif is_path(word):
            if not cell.path(word).exists():
                yield word
        elif re.fullmatch(r"[A-Za-z_][\w.]*", word) and not is_defined(word, texts):
            yield word


@pytest.mark.parametrize("document", DOCUMENTS)
def test_everything_that_a_row_cites_exists(document: str) -> None:
    rows = [cell for cell in CELLS if cell.document == document]
    assert rows
    assert [(cell.text[:40], word) for cell in rows for word in missing(cell)] == []


def test_each_row_on_the_protocol_cites_clauses_and_they_exist() -> None:
    for cell in [cell for cell in CELLS if cell.document == DOCUMENTS[0]]:
        clauses = re.findall(r"\b(\d+\.\d+)\b", re.sub(r"`[^`]*`", "", cell.text))
        assert clauses, cell.text
        assert [clause for clause in clauses if f"**{clause}**" not in PROTOCOL] == [], cell.text


def test_each_reference_document_has_a_section_with_rows() -> None:
    assert [section.partition("\n")[0] for section in SECTIONS] == DOCUMENTS
    for document in DOCUMENTS:
        assert f"`{document}`" in TEXT
        assert f"| {document} |" in (ROOT / "examples/seeds/README.md").read_text()
        assert sum(cell.document == document for cell in CELLS) > 10


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("`gone.py`", ["gone.py"]),
        ("`kept/log.py` `Gone`", ["Gone"]),
        ("`kept/log.py` `Log.gone`", ["Log.gone"]),
        ("`python -m loadtests.gone`", ["python -m loadtests.gone"]),
        ("`Gone`", ["Gone"]),
        ("`kept/log.py` `Log.read`, `LogConfig`", []),
    ],
)
def test_a_row_that_is_wrong_is_found(text: str, found: list[str]) -> None:
    assert list(missing(Cell("remoting-and-backlog.md", text))) == found


def test_the_deviations_are_named() -> None:
    assert re.findall(r"\*\*Deviation: ([^*]+)\.\*\*", TEXT) == [
        "the type byte",
        "the envelope",
        "who stops acknowledging when",
    ]


def test_the_figures_are_those_of_the_code() -> None:
    assert health._FAILURES == 3
    fastest = (session._PART_BYTES_MAX, session._PART_BYTES_MAX + parts.PART_HEADER_BYTES)
    for text in (
        f"{parts.PART_BYTES_MIN:,} bytes on request (any size up to {parts.PART_BYTES_MAX // 1024} KiB)",
        f"from {parts.PART_BYTES_MIN // 1024} KiB to {fastest[0]:,} bytes ({fastest[1] // 1024} KiB with the header)",
        f"steers it to {pacing.TARGET_US // 1000} ms of waiting",
        f"never goes below {pacing.WINDOW_BYTES_MIN // 1024} KiB",
        f"Above {assembler.SPOOL_BYTES // 1024**2} MiB, in a file",
        f"failed three times and {TROUBLE_US / 1_000_000:.2f} s have passed since the first failure",
        f"The buffer has {sender.BUFFER_BYTES // 1024} KiB",
        f"{len(publish(MAIN, 12_345, bytes(12_288))):,} here",
        f"The client may send up to {EARLY_BYTES_MAX // 1024} KiB at once",
    ):
        assert text in TEXT
