"""Tables that say when a stream is encrypted. For an acceptor without a key, code decides (`Encryption.take_up`)."""

import enum

__all__ = ["ACCEPTING", "OPENING", "Accepting", "Answer", "Mode", "Opening"]


class Mode(enum.Enum):
    """The setting `encryption`."""

    OFF = "off"
    """In clear, always."""
    AUTO = "auto"
    """Encrypted if the other side can. With a peer whose key is known: encrypted, or not at all."""
    REQUIRE = "require"
    """Encrypted, or not at all."""


class Answer(enum.Enum):
    """The answer to a CONNECT that offered encryption, as its initiator finds it."""

    CLEAR = "the acceptor does not encrypt"
    NEW_KEY = "the acceptor encrypts; no key of this peer is known"
    SAME_KEY = "the acceptor encrypts with a known key"
    OTHER_KEY = "the acceptor encrypts with another key than the known ones"


class Opening(enum.Enum):
    """The decision of the initiator."""

    GO_ON_CLEAR = "use the stream in clear"
    ENCRYPT = "use the stream, encrypted"
    TRUST = "use the stream, encrypted, and remember the key"
    REFUSE_CLEAR = "end the connection: it is not encrypted"
    REFUSE_KEY = "end the connection: the key has changed"


class Accepting(enum.Enum):
    """The decision of the acceptor."""

    CLEAR = "accept the stream in clear"
    ENCRYPT = "accept the stream, encrypted"
    REFUSE = "refuse the connection: it does not offer encryption"


OPENING: dict[tuple[Mode, bool, Answer], Opening] = {
    # mode, whether a key of the peer is known, answer
    (Mode.AUTO, False, Answer.CLEAR): Opening.GO_ON_CLEAR,
    (Mode.AUTO, False, Answer.NEW_KEY): Opening.TRUST,
    (Mode.AUTO, True, Answer.CLEAR): Opening.REFUSE_CLEAR,
    (Mode.AUTO, True, Answer.SAME_KEY): Opening.ENCRYPT,
    (Mode.AUTO, True, Answer.OTHER_KEY): Opening.REFUSE_KEY,
    (Mode.REQUIRE, False, Answer.CLEAR): Opening.REFUSE_CLEAR,
    (Mode.REQUIRE, False, Answer.NEW_KEY): Opening.TRUST,
    (Mode.REQUIRE, True, Answer.CLEAR): Opening.REFUSE_CLEAR,
    (Mode.REQUIRE, True, Answer.SAME_KEY): Opening.ENCRYPT,
    (Mode.REQUIRE, True, Answer.OTHER_KEY): Opening.REFUSE_KEY,
}
"""With mode OFF nothing is offered, so that nothing is to be decided."""

ACCEPTING: dict[tuple[Mode, bool], Accepting] = {
    # mode, whether CONNECT offers encryption
    (Mode.OFF, False): Accepting.CLEAR,
    (Mode.OFF, True): Accepting.CLEAR,
    (Mode.AUTO, False): Accepting.CLEAR,
    (Mode.AUTO, True): Accepting.ENCRYPT,
    (Mode.REQUIRE, False): Accepting.REFUSE,
    (Mode.REQUIRE, True): Accepting.ENCRYPT,
}
