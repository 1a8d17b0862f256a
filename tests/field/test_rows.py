"""The table of rows: names, configurations, and the selection of rows."""

import pytest

from tests.field.document import FILE
from tests.field.hops.hop import CONFIG, fill
from tests.field.results import PARTS
from tests.field.rows import CARRIERS, ROWS, find_rows
from tests.field.scripted import BEHAVIOURS

SOURCES = [*(CONFIG.parent / "hops").glob("*.py"), CONFIG.parent / "rows.py"]


def test_names_and_titles_are_unique() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert len({row.title for row in ROWS}) == len(ROWS)


def test_known_faults_name_a_part_and_a_reason() -> None:
    for row in ROWS:
        for key, reason in row.known.items():
            carrier, _, part = key.rpartition(":")
            assert part in PARTS, row.name
            assert carrier in ("", *CARRIERS), row.name
            assert reason, row.name


def test_every_configuration_is_used() -> None:
    text = "".join(source.read_text() for source in SOURCES)
    unused = [file.name for file in CONFIG.iterdir() if f'"{file.name}"' not in text]
    assert unused == []


def test_every_behaviour_has_a_row_or_a_sentence_about_what_was_measured() -> None:
    rows, document = (CONFIG.parent / "rows.py").read_text(), FILE.read_text()
    unmeasured = [name for name in BEHAVIOURS if f'scripted("{name}")' not in rows and f"`{name}`" not in document]
    assert unmeasured == []


def test_a_configuration_with_a_missing_value_is_an_error() -> None:
    with pytest.raises(KeyError, match="upstream"):
        fill("nginx-plain.conf", port=1)


def test_rows_are_selected_by_name_in_the_order_of_the_table() -> None:
    assert [row.name for row in find_rows("caddy,apache")] == ["apache", "caddy"]
    assert find_rows("") == ROWS
    assert find_rows("", half=1) + find_rows("", half=2) == ROWS
    assert abs(len(find_rows("", half=1)) - len(find_rows("", half=2))) <= 1
    assert find_rows(f"{ROWS[0].name},{ROWS[-1].name}", half=2) == ROWS[-1:]
    with pytest.raises(ValueError, match="no row is named cady: --list prints the names"):
        find_rows("caddy,cady")
