"""The table of attachments: their ids, users, names, replacement and limits (PROTOCOL 6.1 to 6.4, 9.6)."""

from collections import OrderedDict

from tunnel.wire import is_inline_exit
from tunnel_servlet.switch.context import SwitchContext
from tunnel_servlet.switch.decisions import SeparateExits
from tunnel_servlet.switch.inline_id import is_own_name
from tunnel_servlet.switch.mailboxes.budgets import Budget
from tunnel_servlet.switch.model import ANY_TOKEN, Account, Attention, Credential, ServedAttachment

__all__ = ["Registry"]


class Registry:
    """All attachments and their users. An id belongs to the user who first attached with it, for as long as the
    attachment exists."""

    def __init__(
        self, context: SwitchContext, attention: Attention, separate_exits: SeparateExits | None = None
    ) -> None:
        self.by_id: dict[bytes, ServedAttachment] = {}
        self.accounts: dict[str, Account] = {}
        self.exits: list[ServedAttachment] = []  # in rotation: the first one gets the next connection
        self.expected = separate_exits or SeparateExits()
        self._newest = 0
        self._names: dict[tuple[str, str], ServedAttachment] = {}
        self._replaced: OrderedDict[bytes, int] = OrderedDict()  # by id: the time until which it is refused
        # By user and name: the id of the endpoint that had the name until it left, and until when that is known. The
        # user with the newest one comes last, and so does each user's newest one.
        self._left: OrderedDict[str, OrderedDict[str, tuple[bytes, int]]] = OrderedDict()
        self._left_count = 0
        self._context = context
        self._attention = attention

    def find(self, identity: bytes, user: str) -> ServedAttachment | None:
        """Return the attachment of this id, or None if there is none or it is another user's (6.1)."""
        attachment = self.by_id.get(identity)
        return attachment if attachment is not None and attachment.account.user == user else None

    def has_room(self, user: str) -> bool:
        """Whether the user may have another attachment."""
        config = self._context.config
        account = self.accounts.get(user)
        used = account.attachments if account is not None else 0
        return used < config.attachments_per_user_max and len(self.by_id) < config.attachments_max

    def fits(self, account: Account) -> bool:
        """Whether the user and the relay have at most as many attachments as are allowed, not counting those of this
        user that are to replace others."""
        config, beyond = self._context.config, len(account.beyond)
        used = account.attachments - beyond
        return used <= config.attachments_per_user_max and len(self.by_id) - beyond <= config.attachments_max

    def add(self, identity: bytes, user: str, credential: Credential = ANY_TOKEN, *, is_exit: bool) -> ServedAttachment:
        """Create an attachment, which has no name yet. The caller checks the limits."""
        config = self._context.config
        account = self.accounts.get(user)
        if account is None:
            size = config.user_bytes_max
            # Endpoints in the relay's own process belong to no user, and their traffic is a carrier's.
            traffic = self._context.counters.in_process if is_own_name(user) else None
            account = Account(user, Budget(size, config.pool_bytes(size), self._context.budget), traffic)
            self.accounts[user] = account
        account.attachments += 1
        attachment = ServedAttachment(identity, account, self._context, self._attention, credential, is_exit=is_exit)
        self._newest += 1
        attachment.number = self._newest
        self.by_id[identity] = attachment
        return attachment

    def count_heard(self, attachment: ServedAttachment) -> None:
        """Count an attachment from which something has come for the limit of its token, until it is removed."""
        attachment.is_heard = True
        credential, heard = attachment.credential, attachment.account.heard
        if credential.endpoints_max:
            heard[credential.token] = heard.get(credential.token, 0) + 1

    def has_token_room(self, user: str, credential: Credential) -> bool:
        """Whether another endpoint of the user may attach with this token."""
        account = self.accounts.get(user)
        return account is None or account.has_room(credential)

    def serve(self, attachment: ServedAttachment) -> None:
        """Let an exit that has taken its name get connections from now on, unless it leaves. Has no effect on other
        attachments."""
        if attachment.is_exit and not attachment.is_leaving and attachment not in self.exits:
            is_first = len(self.exits) > 0 and not self.has_separate_exits()
            self.exits.append(attachment)
            if is_first and self.has_separate_exits():
                self.expected.took_over(attachment.account.user, attachment.claim)

    def has_separate_exits(self) -> bool:
        """Whether there is an exit in another process than the relay's."""
        return any(not is_inline_exit(one.identity) for one in self.exits)

    def leave(self, attachment: ServedAttachment) -> None:
        """Let an exit get no further connections (6.10)."""
        attachment.is_leaving = True
        if attachment in self.exits:
            self.exits.remove(attachment)
            if self.exits and not is_inline_exit(attachment.identity) and not self.has_separate_exits():
                self.expected.on_last_left()

    def remove(self, attachment: ServedAttachment) -> None:
        """Remove the attachment. The caller must have released its routes."""
        attachment.is_gone = True
        attachment.mailbox.end()
        del self.by_id[attachment.identity]
        self.leave(attachment)
        account = attachment.account
        if self._names.get((account.user, attachment.name)) is attachment:
            del self._names[account.user, attachment.name]
        credential = attachment.credential
        if attachment.is_heard and credential.endpoints_max:
            account.heard[credential.token] -= 1
            if not account.heard[credential.token]:
                del account.heard[credential.token]
        account.attachments -= 1
        account.beyond.pop(attachment, None)
        if not account.attachments:
            del self.accounts[account.user]

    # --- names

    def holder_of(self, user: str, name: str) -> ServedAttachment | None:
        """Return the user's attachment with this name, or None if there is none or the name is empty."""
        return self._names.get((user, name)) if name else None

    def rename(self, attachment: ServedAttachment, name: str) -> None:
        """Give the attachment this name in place of its previous one. The name's previous holder loses it."""
        key = attachment.account.user, attachment.name
        if self._names.get(key) is attachment:
            del self._names[key]
        attachment.name = name
        if name:
            self._names[attachment.account.user, name] = attachment

    # --- attachments that have left or were replaced

    def note_left(self, user: str, name: str, identity: bytes, now: int) -> None:
        """Remember which endpoint had this name until it left. It was not replaced yet: it may come back (6.4).

        No user can push out what is remembered of others: each has at most as many such names as attachments.
        """
        if not name:
            return
        config = self._context.config
        names = self._left.setdefault(user, OrderedDict())
        self._left_count += name not in names
        names[name] = identity, now + config.attachment_timeout_us
        names.move_to_end(name)
        self._left.move_to_end(user)
        if len(names) > config.attachments_per_user_max:
            self._forget_left(user, next(iter(names)))
        while self._left_count > config.replaced_max:
            oldest = next(iter(self._left))
            self._forget_left(oldest, next(iter(self._left[oldest])))

    def take_left(self, user: str, name: str, now: int) -> bytes | None:
        """Forget and return the id of the endpoint that had this name until it left; None if there is none."""
        names = self._left.get(user)
        found = names.get(name) if names is not None else None
        if found is None:
            return None
        self._forget_left(user, name)
        identity, until_us = found
        return identity if until_us > now else None

    def _forget_left(self, user: str, name: str) -> None:
        names = self._left[user]
        del names[name]
        self._left_count -= 1
        if not names:
            del self._left[user]

    def note_replaced(self, identity: bytes, now: int) -> None:
        """Remember that the endpoint of this id was replaced, so that resumes to it are refused at once (6.4)."""
        config = self._context.config
        self._replaced[identity] = now + config.attachment_timeout_us
        self._replaced.move_to_end(identity)
        while len(self._replaced) > config.replaced_max:
            self._replaced.popitem(last=False)

    def was_replaced(self, identity: bytes, now: int) -> bool:
        """Whether the endpoint of this id was replaced within the last attachment timeout."""
        return self._replaced.get(identity, now) > now
