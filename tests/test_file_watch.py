"""Any change of a watched file is noticed exactly once, and not before the file is whole."""

from pathlib import Path

import pytest

from tests.support.loops import in_loop
from tunnel.system.file_watch import FileWatch


class Changes:
    """Counts the changes that were noticed, and says whether the files could be used."""

    def __init__(self, *, usable: bool = True) -> None:
        self.count = 0
        self.usable = usable

    def __call__(self) -> bool:
        self.count += 1
        return self.usable


def test_a_change_is_noticed_once(tmp_path: Path) -> None:
    path = tmp_path / "a"
    changes = Changes()
    watch = FileWatch([path], changes)
    watch.look()
    assert changes.count == 0
    path.write_text("x")
    watch.look()
    watch.look()
    watch.look()
    assert changes.count == 1
    path.with_suffix(".new").write_text("x")
    path.with_suffix(".new").replace(path)
    watch.look()
    path.unlink()
    watch.look()
    assert changes.count == 3


def test_a_file_that_is_written_in_place_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("x")
    changes = Changes()
    watch = FileWatch([path], changes)
    for length in range(5):
        path.write_text("y" * length)
        watch.look()
    assert changes.count == 0
    watch.look()
    watch.look()
    assert changes.count == 1


def test_files_that_cannot_be_used_are_tried_again_until_they_can(tmp_path: Path) -> None:
    path = tmp_path / "a"
    changes, repeats = Changes(usable=False), Changes(usable=False)
    watch = FileWatch([path], changes, repeats)
    path.write_text("x")
    for _ in range(12):
        watch.look()
    assert (changes.count, repeats.count) == (1, 1)
    repeats.usable = True
    for _ in range(30):
        watch.look()
    assert (changes.count, repeats.count) == (1, 2)


def test_other_files_are_followed_and_a_new_one_counts_as_changed(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in "abc")
    for path in (first, second, third):
        path.write_text("x")
    changes = Changes()
    watch = FileWatch([first, second], changes)
    watch.follow([first])
    second.write_text("longer")
    watch.look()
    watch.look()
    assert changes.count == 0
    watch.follow([first, third])
    watch.look()
    watch.look()
    assert changes.count == 1


@in_loop
async def test_a_watch_checks_periodically_until_it_is_stopped() -> None:
    watch = FileWatch([Path("missing")], Changes())
    watch.start()
    first = watch._timer
    watch.look(reschedule=True)
    assert watch._timer is not None
    assert watch._timer is not first
    assert not watch._timer.cancelled()
    assert first is not None
    first.cancel()
    watch.stop()
    assert watch._timer.cancelled()
    idle = FileWatch([], Changes())
    idle.start()
    idle.stop()


@in_loop
async def test_an_error_does_not_end_the_watch(tmp_path: Path) -> None:
    def fail() -> bool:
        raise RuntimeError

    path = tmp_path / "a"
    path.write_text("x")
    watch = FileWatch([path], fail)
    path.unlink()
    with pytest.raises(RuntimeError):
        watch.look(reschedule=True)
    assert watch._timer is not None
    assert not watch._timer.cancelled()
    watch.stop()
