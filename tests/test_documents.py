"""Everything that the documents name exists: linked files, tests, paths and modules."""

import re
from pathlib import Path

from tests.support.text_files import text_files

ROOT = Path(__file__).parent.parent
PATTERNS = (
    "*.md",
    ".github/**/*.md",
    "docs/**/*.md",
    "changes/README.md",
    "examples/*/README.md",
    "tests/**/README.md",
)
DOCUMENTS = sorted(file for pattern in PATTERNS for file in ROOT.glob(pattern) if "node_modules" not in file.parts)
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
NAMED_TEST = re.compile(r"`(tests/[\w/]+\.(?:py|trace))(?:::(\w+))?`")


def test_linked_files_exist() -> None:
    found = [(document, link) for document in DOCUMENTS for link in LINK.findall(document.read_text())]
    assert [(document.name, link) for document, link in found if not (document.parent / link).exists()] == []


def test_the_list_of_documents_is_complete() -> None:
    listed = set(LINK.findall((ROOT / "docs" / "README.md").read_text()))
    assert {path.name for path in ROOT.glob("docs/*.md")} - {"README.md"} <= listed
    assert {f"../{path.name}" for path in ROOT.glob("*.md")} <= listed


def test_named_tests_exist() -> None:
    for document in DOCUMENTS:
        for file, test in NAMED_TEST.findall(document.read_text()):
            assert (ROOT / file).exists(), f"{document}: {file}"
            assert not test or f"def {test}(" in (ROOT / file).read_text(), f"{document}: {file}::{test}"


TOP = "tunnel|servlet|client|loadtests|tests|docs|deploy|examples"
NAMED_PATH = re.compile(rf"`((?:{TOP})/[\w./-]*)`")
NAMED_MODULE = re.compile(r"(?:-m |`)((?:tunnel|tunnel_client|tunnel_servlet|loadtests|tests)(?:\.\w+)+)\b")


BUILT = ("tunnel.pyz",)  # files that look like modules


NAME = r"(?m)(?:def|class) {0}\b|^{0}\b|\"{0}\""


def exists(module: str) -> bool:
    """Return whether the dotted name is a module of the project, or a name within one."""
    parts = module.split(".")
    folder = {"tunnel_client": ROOT / "client", "tunnel_servlet": ROOT / "servlet"}.get(parts[0], ROOT)
    for length in (len(parts), len(parts) - 1, len(parts) - 2):
        path = folder.joinpath(*parts[:length])
        found = [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists()]
        if length and (found or path.is_dir()):
            inner = parts[length:]  # a name of the module, and perhaps an attribute of that name
            return not inner or any(re.search(NAME.format(inner[0]), file.read_text()) for file in found)
    return False


def is_there(path: Path) -> bool:
    """Return whether it is a file, a module without its suffix, or a folder with a source file in it. A folder in which
    only a cache is left does not count."""
    if path.is_dir():
        return any(file.is_file() and "__pycache__" not in file.parts for file in path.rglob("*"))
    return path.exists() or path.with_name(f"{path.name}.py").exists()


def test_named_paths_and_modules_exist() -> None:
    texts = [(document.name, document.read_text()) for document in DOCUMENTS]
    missing = [(name, path) for name, text in texts for path in NAMED_PATH.findall(text) if not is_there(ROOT / path)]
    missing += [
        (name, module)
        for name, text in texts
        for module in NAMED_MODULE.findall(text)
        if module not in BUILT
        and not exists(module)
        and not module.rpartition(".")[2].isupper()  # as in loadtests.experiments.NAME
    ]
    assert missing == []


def test_the_name_of_a_removed_module_is_found() -> None:
    assert exists("tunnel.core.send.rtt")
    assert exists("tunnel.attach")
    assert exists("loadtests.experiments.killrelay")
    assert not exists("tunnel.core.rtt.gone")
    assert not exists("servlet.app")
    assert not exists("tunnel_servlet.app")


def test_a_folder_without_files_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "room" / "__pycache__").mkdir(parents=True)
    (tmp_path / "room" / "__pycache__" / "left.pyc").touch()
    assert not is_there(tmp_path / "room")
    (tmp_path / "room" / "module.py").touch()
    assert is_there(tmp_path / "room")
    assert is_there(tmp_path / "room" / "module")


def tables(document: Path) -> dict[str, list[str]]:
    """Return the rows of the document's tables, by their first cells."""
    rows = [line.strip("|").split("|") for line in document.read_text().splitlines() if line.startswith("|")]
    found: dict[str, list[str]] = {}
    for first, *rest in rows:
        found.setdefault(first.strip(), []).extend(cell.strip() for cell in rest)
    return found


def test_the_comparison_in_the_readme_is_that_of_the_measurements() -> None:
    """The README has a part of the cells of docs/measurements/peers.md, in another order of its columns."""
    names = {
        "tunnel": ("**tunnel** (picks its carrier)", "**tunnel** (link)"),
        "tunnel, plain exchanges alone": ("**tunnel**, plain exchanges alone",) * 2,
        "chisel": ("chisel 44310b6 (2026-03)", "chisel"),
        "wstunnel": ("wstunnel 10.6.2", "wstunnel"),
        "Xray, XHTTP": ("Xray 26.3.27, XHTTP packet-up", "Xray, XHTTP packet-up"),
        "GNU httptunnel": ("GNU httptunnel 3.3", "GNU httptunnel"),
    }
    shown, measured = tables(ROOT / "README.md"), tables(ROOT / "docs" / "measurements" / "peers.md")
    assert {name for name, cells in shown.items() if len(cells) == 7} - {"", "---"} == set(names)
    for name, (failing, working) in names.items():
        survived = [cell.partition(" at ")[0] for cell in measured[failing][1:5]]
        assert shown[name] == [*survived, *measured[working][-4:-1]], name


HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
ANCHOR = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)#([^)\s]+)\)")


def anchors(document: Path) -> set[str]:
    """Return the anchors of the document's headings, as GitHub makes them."""
    heads = (re.sub(r"[`*]|\]\([^)]*\)|\[", "", head) for head in HEADING.findall(document.read_text()))
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_the_headings_that_links_name_exist() -> None:
    found = [(document, *link) for document in DOCUMENTS for link in ANCHOR.findall(document.read_text())]
    assert [
        (document.name, file, head)
        for document, file, head in found
        if head not in anchors(document.parent / file if file else document)
    ] == []


IN_SOURCES = re.compile(r"\b((?:docs/(?:[\w-]+/)*[\w-]+|README|CONTRIBUTING|SECURITY|CHANGELOG)\.md)(?:#([\w-]+))?")


def test_the_documents_that_the_tree_names_exist_with_their_headings() -> None:
    """In comments, docstrings and messages to people, where no link is checked."""
    named = {
        (str(file.relative_to(ROOT)), document, heading)
        for file in text_files()
        for document, heading in IN_SOURCES.findall(file.read_text())
        if not (file.parent / document).exists()  # a file beside this one, such as tests/scripted/README.md
    }
    assert len(named) > 50  # the search finds something
    assert [
        (file, document, heading)
        for file, document, heading in sorted(named)
        if not (ROOT / document).is_file() or (heading and heading not in anchors(ROOT / document))
    ] == []
