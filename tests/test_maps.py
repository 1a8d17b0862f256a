"""The docstrings of the large packages are maps: they name each module of their folder and its rooms, and no other. No
folder is a crowd, and no room holds a single module. The pictures of docs/ARCHITECTURE.md name classes that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAPPED = (
    "tunnel/core",
    "tunnel/exchange",
    "tunnel/carriers",
    "tunnel/messages",
    "tunnel/messages/broker",
    "tunnel/analysis",
    "servlet/tunnel_servlet/access",
    "servlet/tunnel_servlet/audit",
    "servlet/tunnel_servlet/switch",
    "servlet/tunnel_servlet/web",
    "client/tunnel_client/cli",
    "client/tunnel_client/doctor",
)
FILE = re.compile(r"(?<![\w/])(\w+)\.py\b")  # with a path before it, it is a file elsewhere


def map_of(folder: str) -> str:
    return ast.get_docstring(ast.parse((ROOT / folder / "__init__.py").read_text())) or ""


def rooms_of(folder: str) -> list[Path]:
    """The folders below, besides those with a map of their own."""
    found = {path.parent for path in (ROOT / folder).rglob("__init__.py")} - {ROOT / folder}
    return sorted(path for path in found if str(path.relative_to(ROOT)) not in MAPPED)


def modules_in(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.py") if not path.stem.startswith("__")}


@pytest.mark.parametrize("folder", MAPPED)
def test_each_module_is_on_the_map(folder: str) -> None:
    words = set(re.findall(r"[a-z_0-9]+", map_of(folder)))
    modules = modules_in(ROOT / folder).union(*map(modules_in, rooms_of(folder)))
    assert modules - words == set()


@pytest.mark.parametrize("folder", MAPPED)
def test_each_room_is_on_the_map(folder: str) -> None:
    assert [room.name for room in rooms_of(folder) if f"{room.name}/" not in map_of(folder)] == []


MODULES_MAX = 18
# Folders with more. A number may only fall; a new module gets a room, together with others of its concept.
CROWDS = {
    "client/tunnel_client/doctor": 20,
    "tunnel/messages/broker": 23,
}


def sizes() -> dict[str, int]:
    packages = {path.parent for top in ("tunnel", "servlet", "client") for path in (ROOT / top).rglob("__init__.py")}
    return {str(package.relative_to(ROOT)): len(modules_in(package)) for package in sorted(packages)}


def test_no_folder_is_a_crowd() -> None:
    crowds = {folder: size for folder, size in sizes().items() if size > MODULES_MAX}
    assert {folder: size for folder, size in crowds.items() if size > CROWDS.get(folder, 0)} == {}
    assert CROWDS.keys() - crowds.keys() == set()


def test_no_room_holds_a_single_module() -> None:
    rooms = [folder for folder in sizes() if (ROOT / folder / "../__init__.py").exists()]
    assert [room for room in rooms if sizes()[room] == 1] == []


@pytest.mark.parametrize("folder", MAPPED)
def test_the_map_names_no_module_that_does_not_exist(folder: str) -> None:
    names = FILE.findall(map_of(folder))
    assert len(names) > 6
    assert [name for name in names if not list((ROOT / folder).rglob(f"{name}.py"))] == []


@pytest.mark.parametrize("folder", MAPPED)
def test_the_map_says_where_to_start(folder: str) -> None:
    assert re.search(r"^(Where things are|Where to start)\n-+$", map_of(folder), re.MULTILINE)


# --- pictures

SCREEN = 25  # lines


def pictures() -> list[str]:
    return re.findall(r"```mermaid\n(.*?)```", (ROOT / "docs/ARCHITECTURE.md").read_text(), re.DOTALL)


def test_each_picture_fits_on_a_screen() -> None:
    assert [len(picture.splitlines()) <= SCREEN for picture in pictures()] == [True, True, True]


def test_arrows_of_pictures_join_boxes() -> None:
    for picture in pictures():
        boxes = set(re.findall(r"(\w+)(?:\[|\(\[)", picture))
        bare = re.sub(r'"[^"]*"|\|[^|]*\|', "", picture)
        ends = set(re.findall(r"(\w+)\W*-->", bare)) | set(re.findall(r"--> *(\w+)", bare))
        assert ends <= boxes, ends - boxes


def test_classes_and_files_in_pictures_exist() -> None:
    sources = {path: path.read_text() for top in ("tunnel", "servlet") for path in (ROOT / top).rglob("*.py")}
    classes = {name for text in sources.values() for name in re.findall(r"^class (\w+)", text, re.MULTILINE)}
    for picture in pictures():
        labels = " ".join(re.findall(r'"([^"]*)"', picture))
        named = set(re.findall(r"\b[A-Z][a-z]+[A-Z]\w+", labels))
        assert named <= classes, named - classes
        for file in re.findall(r"[\w/]+\.py", labels):
            assert any(str(path).endswith(f"/{file}") for path in sources), file
