"""The registry of attachments: owners, names, and replaced endpoints (PROTOCOL 6.1, 6.4)."""

from typing import Any

from tunnel_servlet.switch.config import SwitchConfig
from tunnel_servlet.switch.context import SwitchContext
from tunnel_servlet.switch.model import Attention
from tunnel_servlet.switch.registry import Registry


def registry(**settings: Any) -> tuple[Registry, SwitchContext]:
    context = SwitchContext(SwitchConfig(**settings), None)
    return Registry(context, Attention()), context


def test_6_1_an_attachment_exists_only_for_its_user() -> None:
    found, _ = registry()
    attachment = found.add(b"1", "ann", is_exit=False)
    assert found.find(b"1", "ann") is attachment
    assert found.find(b"1", "bob") is None
    assert found.find(b"2", "ann") is None


def test_limits_hold_per_user_and_in_total() -> None:
    found, _ = registry(attachments_per_user_max=2, attachments_max=3)
    for number, user in enumerate(("ann", "ann", "bob")):
        assert found.has_room(user)
        found.add(bytes([number]), user, is_exit=False)
    assert not found.has_room("bob")
    found.remove(found.by_id[b"\x02"])
    assert found.has_room("bob")
    assert not found.has_room("ann")


def test_exits_are_listed_and_have_no_user_budget() -> None:
    found, context = registry()
    exit_ = found.add(b"1", "exits", is_exit=True)
    client = found.add(b"2", "exits", is_exit=False)
    for _ in range(2):
        found.serve(exit_)
        found.serve(client)
    assert found.exits == [exit_]
    assert list(exit_.mailbox.budget.levels())[1:] == [context.budget]
    assert list(client.mailbox.budget.levels())[1:] == [client.account.budget, context.budget]
    found.remove(exit_)
    found.remove(client)
    assert found.exits == []
    assert found.accounts == {}
    assert exit_.is_gone


def test_6_4_a_name_belongs_to_one_attachment() -> None:
    found, _ = registry()
    first, second = (found.add(bytes([number]), "ann", is_exit=False) for number in range(2))
    found.rename(first, "one")
    assert found.holder_of("ann", "one") is first
    assert found.holder_of("bob", "one") is None
    found.rename(second, "one")
    found.rename(first, "")
    assert found.holder_of("ann", "one") is second
    assert found.holder_of("ann", "") is None
    found.rename(second, "two")
    assert found.holder_of("ann", "one") is None
    found.remove(first)
    found.remove(second)
    assert found.holder_of("ann", "two") is None


def test_6_4_replaced_endpoints_are_remembered_for_a_while() -> None:
    found, context = registry(replaced_max=2)
    later = 1 + context.config.attachment_timeout_us
    for identity in (b"1", b"2", b"3"):
        found.note_replaced(identity, 1)
    assert [found.was_replaced(identity, later - 1) for identity in (b"1", b"2", b"3")] == [False, True, True]
    assert not found.was_replaced(b"3", later)


def test_6_4_the_names_that_a_user_has_left_push_out_no_other_users_and_are_few() -> None:
    found, context = registry(replaced_max=8, attachments_per_user_max=3)
    later = context.config.attachment_timeout_us
    found.note_left("ann", "exit", b"ann", 1)
    for number in range(100):
        found.note_left("eve", f"tool {number}", bytes([number]), 1)
    assert [found.take_left("eve", f"tool {number}", 1) for number in (96, 97, 99)] == [None, b"a", b"c"]
    assert found.take_left("ann", "exit", 1) == b"ann"
    assert found.take_left("ann", "exit", 1) is None
    assert found.take_left("eve", "tool 98", 1 + later) is None
    for number in range(100):
        found.note_left(f"user {number}", "exit", bytes([number]), 1)
    kept = [number for number in range(100) if found.take_left(f"user {number}", "exit", 1) is not None]
    assert kept == list(range(92, 100))
    found.note_left("ann", "", b"ann", 1)
    assert found.take_left("ann", "", 1) is None
