"""Objects that do nothing until they are entered or started warn if they are dropped before that."""

import gc
import warnings
from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.support.loops import in_loop
from tunnel.ground.unused import WarnsIfUnused, let_go
from tunnel.messages import AsyncProducer, ChannelTable, GroupConsumer, OutboxSender

NOTHING = cast("Any", None)


class Thing(WarnsIfUnused):
    """Does nothing until `use` is called."""

    _advice = "call use()"

    def __init__(self, *, fail: bool = False) -> None:
        if fail:
            raise LookupError
        self._expect_use()

    def use(self) -> None:
        self._mark_used()


def test_a_dropped_object_warns_at_the_line_that_drops_it() -> None:
    with pytest.warns(RuntimeWarning, match=r"Thing was dropped before it was used: call use\(\)") as caught:
        Thing()
    assert [warning.filename for warning in caught] == [__file__]


def test_a_used_object_and_one_that_was_never_made_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Thing().use()
        let_go(Thing())
        with pytest.raises(LookupError):
            Thing(fail=True)
        gc.collect()


def listener() -> object:
    async def handle(message: object) -> None:
        pass

    return GroupConsumer(ChannelTable(), "127.0.0.1:1", "billing", "orders").register_message_listener(handle)


@pytest.mark.parametrize("make", [listener, lambda: AsyncProducer(NOTHING), lambda: OutboxSender(NOTHING, NOTHING)])
@in_loop
async def test_what_needs_a_start_warns_without_one(make: Callable[[], object]) -> None:
    def drop() -> None:
        make()
        gc.collect()

    with pytest.warns(RuntimeWarning, match=r"use it in `async with`, or call `start\(\)`"):
        drop()
