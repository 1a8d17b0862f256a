"""The table of services: which attachments listen under which name, in rotation (PROTOCOL 2.8, 3.2)."""

from collections.abc import Callable

from tunnel.wire import ListenState, ListenStatus, Options, PublicPlace
from tunnel_servlet.switch.config import SwitchConfig
from tunnel_servlet.switch.decisions import MayListen, Publisher
from tunnel_servlet.switch.model import Listener, ServedAttachment
from tunnel_servlet.switch.routes.owners import NameOwners

__all__ = ["Services"]

_TAKEN = (
    "another user has this name: choose another one, or ask the operator of the relay to list it under each user who "
    "may share it, in a line listen = [{}]"
)
_TOO_MANY = "this endpoint listens under {} names already: give one up, or ask the operator of the relay for more"


class Services:
    """All listeners. Those of one name take turns. `changed` is called with a name whose listeners have changed.

    The listeners of a name belong to one user, or to users for whom `may_share(user, name)` is true.
    """

    def __init__(
        self,
        config: SwitchConfig,
        may_listen: MayListen,
        changed: Callable[[str], None],
        may_share: MayListen = lambda user, name: True,
        publisher: Publisher | None = None,
    ) -> None:
        self._config = config
        self._may_listen = may_listen
        self._may_share = may_share
        self._changed = changed
        self._publisher = publisher or Publisher()
        self._owners = NameOwners(config.attachment_timeout_us, config.names_per_attachment_max)
        self._up: dict[str, list[Listener]] = {}  # in rotation: the first one gets the next CONNECT

    def __len__(self) -> int:
        return sum(map(len, self._up.values()))

    def announce(self, attachment: ServedAttachment, state: ListenState, now: int) -> ListenState | None:
        """Apply LISTEN_STATE and return the answer, the present state. Return None if the packet is out of date."""
        listener = attachment.listeners.get(state.name)
        if listener is not None and state.version < listener.version:
            return None
        if state.state != ListenStatus.UP:
            if listener is not None and state.version > listener.version:
                listener.version = state.version
                self._take_down(listener, now)
            is_up = listener is not None and listener.is_up  # true only for a repeated version, which changes nothing
            return _answer(state, ListenStatus.UP if is_up else ListenStatus.DOWN, public=_public(listener))
        if attachment.is_leaving and not attachment.is_exit:
            return _answer(state, ListenStatus.DOWN)  # it comes late: the endpoint has ended (6.10)
        user = attachment.account.user
        if not self._may_listen(user, state.name):
            return _answer(state, ListenStatus.REFUSED)
        if self._is_taken(user, state.name, now):
            return _answer(state, ListenStatus.REFUSED, _taken(state.name))
        public = state.options.public
        is_news = listener is None or state.version > listener.version
        if public is not None and is_news:
            why = self._why_elsewhere(attachment, state.name, public)
            why = why or self._publisher.publish(user, state.name, public)
            if why:
                return _answer(state, ListenStatus.REFUSED, why)
        if listener is None:
            if not self._make_room(attachment):
                self._withdraw(state.name)
                return _answer(state, ListenStatus.REFUSED, _TOO_MANY.format(len(attachment.listeners)))
            listener = attachment.listeners[state.name] = Listener(attachment, state.name)
        elif state.version == listener.version:
            return _answer(state, ListenStatus.UP if listener.is_up else ListenStatus.DOWN, public=_public(listener))
        listener.version = state.version
        listener.backlog = state.backlog
        listener.public = public
        if not listener.is_up:
            listener.is_up = True
            turns = self._up.setdefault(state.name, [])
            if not turns:
                self._owners.take(state.name, user)
            turns.append(listener)
        self._withdraw(state.name)
        self._changed(state.name)
        return _answer(state, ListenStatus.UP, public=public)

    def may_listen(self, user: str, name: str) -> bool:
        """Whether the rules let the user listen under the name, announced or not."""
        return self._may_listen(user, name)

    def candidates(self, name: str, owner: str = "") -> list[Listener]:
        """Return the listeners of this name in rotation order, the next one first.

        With `owner`, only those that accept strangers who come to a service of this user (2.11).
        """
        return [listener for listener in self._up.get(name, ()) if listener.takes(owner)]

    def on_chosen(self, listener: Listener) -> None:
        """Move a listener that was handed a CONNECT to the end of the rotation."""
        turns = self._up[listener.name]
        turns.remove(listener)
        turns.append(listener)

    def forget(self, attachment: ServedAttachment, now: int) -> None:
        """Remove all listeners of an attachment that was removed."""
        self.take_down(attachment, now)
        attachment.listeners.clear()

    def take_down(self, attachment: ServedAttachment, now: int) -> None:
        """Let the attachment listen under no name."""
        for listener in attachment.listeners.values():
            self._take_down(listener, now)

    # --- changed rules

    def refuse(self, attachment: ServedAttachment, may_listen: MayListen, now: int) -> list[ListenState]:
        """Take the attachment's listeners down that the rules no longer allow. Return what to tell the endpoint.

        If users shared a name and may no longer do so, the user to whom it belongs keeps it.
        """
        user = attachment.account.user
        told: list[ListenState] = []
        for listener in [listener for listener in attachment.listeners.values() if listener.is_up]:
            text = None if may_listen(user, listener.name) else ""
            if text is None and self._is_taken(user, listener.name, now):
                text = _taken(listener.name)
            if text is None and listener.public is not None:
                text = self._publisher.why_denied(user, listener.public) or None
            if text is not None:
                self._take_down(listener, now)
                told.append(ListenState(listener.version, ListenStatus.REFUSED, 0, listener.name, text))
        return told

    def free_names(self, is_allowed: Callable[[str, str], bool]) -> None:
        """Free the names that are kept for users who may not use them, as `is_allowed(user, name)` says."""
        self._owners.forget_unless(is_allowed)

    # --- inside

    def _is_taken(self, user: str, name: str, now: int) -> bool:
        """Whether the name belongs to another user, and the rules do not let the two share it."""
        return self._owners.owner(name, now) not in ("", user) and not self._may_share(user, name)

    def _take_down(self, listener: Listener, now: int) -> None:
        if not listener.is_up:
            return
        name = listener.name
        listener.is_up = False
        listener.public = None
        turns = self._up[name]
        turns.remove(listener)
        if not turns:
            del self._up[name]
            self._owners.on_left(name, now)
        elif all(other.attachment.account.user != self._owners.owner(name, now) for other in turns):
            self._owners.take(name, turns[0].attachment.account.user)
        self._withdraw(name)
        self._changed(name)

    def _why_elsewhere(self, attachment: ServedAttachment, name: str, place: PublicPlace) -> str:
        """Return why the place is refused, if another endpoint made the service public elsewhere; else empty."""
        others = [one.public for one in self._up.get(name, ()) if one.attachment is not attachment]
        found = next((other for other in others if other not in (None, place)), None)
        advice = "already, through another endpoint: stop that one, or choose another name"
        return "" if found is None else f"{name} is public at {found} {advice}"

    def _withdraw(self, name: str) -> None:
        """Close the public place of the name if no listener wants it any more."""
        if all(listener.public is None for listener in self._up.get(name, ())):
            self._publisher.withdraw(name)

    def _make_room(self, attachment: ServedAttachment) -> bool:
        """Make room for another name, by forgetting the oldest one that is down if necessary.

        Return False if that is not possible.
        """
        listeners = attachment.listeners
        if len(listeners) < self._config.names_per_attachment_max:
            return True
        down = next((name for name, listener in listeners.items() if not listener.is_up), None)
        if down is None:
            return False
        del listeners[down]
        return True


def _answer(state: ListenState, status: ListenStatus, text: str = "", public: PublicPlace | None = None) -> ListenState:
    options = Options(public=public if status == ListenStatus.UP else None)
    return ListenState(state.version, status, 0, state.name, text, options)


def _public(listener: Listener | None) -> PublicPlace | None:
    return None if listener is None else listener.public


def _taken(name: str) -> str:
    return _TAKEN.format(f'"{name}"')
