"""Defaults of the public functions, apart from the modules that use them: importing this module takes no time."""

__all__ = ["ATTACHING_LOG", "ATTACH_TIMEOUT_S", "BACKLOG", "LIMIT_BYTES", "LINGER_S", "USER_TIMEOUT_S"]

ATTACHING_LOG = "tunnel.attaching"  # the logger of attachments that wait for their relay
ATTACH_TIMEOUT_S = 30.0
BACKLOG = 1024  # how many CONNECTs to a service may be unanswered at once; others wait at the relay
LIMIT_BYTES = 256 * 1024  # the `limit` of a stream reader: the largest payload of a packet that we send
LINGER_S = 10.0  # how long `Attachment.close` waits for written bytes to arrive
USER_TIMEOUT_S = 300.0  # without an answer, a connection is lost after this time; CONNECT carries it
