"""The check of our English: what it finds, and what it leaves alone."""

import pytest

from tests import prose
from tests.prose import check_document, check_python


@pytest.mark.parametrize(
    "text",
    [
        "Whoever calls this owns it.",
        "Nobody reads it any more.",
        "It is read. Who discards has always room.",
        "What it took too much it waits for.",
        "All lanes start anew.",
        "It is repeated ever more seldom.",
        "So many bytes may wait.",
        "The application is told of it.",
        "A receiver heeds the window.",
    ],
)
def test_a_tell_tale_is_found_wherever_it_stands(text: str) -> None:
    words = text.split()
    wrapped = "\n".join([" ".join(words[:2]), " ".join(words[2:])])
    assert check_document("a.md", text)
    assert check_document("a.md", f"# A title\n\nA paragraph.\n\n- {wrapped}\n")
    assert check_document("a.md", f"| name | {text} |")
    assert check_python("a.py", f'"""{wrapped}"""\n')
    assert check_python("a.py", f'def f():\n    """Return.\n\n    {text}\n    """\n')
    assert check_python("a.py", f"x = 1  # {text}\n")
    assert check_python("a.py", f"# {words[0]}\n# {' '.join(words[1:])}\nx = 1\n")


@pytest.mark.parametrize(
    "text",
    [
        "What does a report cost? Who ends a route?",
        "The peer that discards data always has room.",
        "It waits for `nobody` and `what is told`.",
        "There are so many small packets that it waits.",
    ],
)
def test_plain_sentences_questions_and_code_are_left_alone(text: str) -> None:
    assert check_document("a.md", text) == []
    assert check_python("a.py", f'"""{text}"""\n# {text}\n') == []


def test_a_finding_names_its_line() -> None:
    (found,) = check_document("a.md", "One.\n\nTwo lines\nsay that nobody\nreads.\n")
    assert str(found).startswith("a.md:4: 'nobody': ")
    (found,) = check_python("a.py", 'X = 1\n"""One.\n\nNobody reads it."""\n')
    assert found.line == 4


def test_long_lines_are_found_outside_tables_and_code() -> None:
    line = "word " * 21
    assert [finding.line for finding in check_document("a.md", f"short\n\n{line}\n")] == [3]
    assert check_document("a.md", f"| {line} |\n\n```\n{line}\nnobody\n```\n") == []


def test_text_after_a_code_block_is_checked() -> None:
    assert check_document("a.md", "```\nx\n```\nNobody reads it.\n")


def test_findings_are_printed_and_fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    files = list(prose.checked_files())
    assert len(files) > 700
    monkeypatch.setattr(prose, "checked_files", lambda: iter(files[:1]))
    monkeypatch.setattr(prose, "check_document", lambda path, text: check_document(path, "Nobody reads it."))
    assert prose.main() == 1
    assert "README" not in capsys.readouterr().out.splitlines()[-1]
    monkeypatch.setattr(prose, "check_document", lambda path, text: [])
    assert prose.main() == 0
    assert capsys.readouterr().out == "prose: 1 files, 0 findings in documents, 0 in code\n"


def test_a_finding_in_code_is_advice(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(prose, "checked_files", lambda: iter([prose.ROOT / "tunnel/system/clock.py"]))
    monkeypatch.setattr(prose, "check_python", lambda path, text: check_python(path, "# Nobody reads it."))
    assert prose.main() == 0
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("tunnel/system/clock.py:1: ")
    assert first.endswith("(advice)")
    assert last == "prose: 1 files, 0 findings in documents, 1 in code"


def test_single_files_can_be_checked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(prose, "check_document", lambda path, text: check_document(path, "Nobody reads it."))
    assert prose.main([str(prose.ROOT / "README.md"), str(prose.ROOT / "tunnel/system/clock.py")]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("prose: 2 files, 1 findings")


def test_lists_and_code_that_were_wrapped_into_a_paragraph_are_found() -> None:
    text = "There are two cases:\n- The first, with `a: - B` in it.\n- The second - or none.\n"
    assert check_document("a.md", text) == []
    assert [finding.line for finding in check_document("a.md", text.replace("\n- The s", " - The s"))] == [2]
    block = "Run this:\n\n```text\npython -m pytest -q\n```\n"
    assert check_document("a.md", block) == []
    assert [finding.line for finding in check_document("a.md", block.replace("text\npython", " python"))] == [3]
