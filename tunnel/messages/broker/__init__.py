"""Brokers: one log that is served by calls (`log_broker`), and the broker with topics, groups and replicas.

`server` has the class `Broker`. This module exports the names of `log_broker`: both kinds of brokers, and the consumers
of both, use them.
"""

from tunnel.messages.broker.log_broker import (
    APPEND,
    BEHIND_BYTES,
    BEHIND_MESSAGES,
    CORRUPT,
    FETCH,
    MALFORMED,
    BrokerConfig,
    LogBroker,
    Replica,
    check_range,
    count_messages,
    place_fields,
)

__all__ = [
    "APPEND",
    "BEHIND_BYTES",
    "BEHIND_MESSAGES",
    "CORRUPT",
    "FETCH",
    "MALFORMED",
    "BrokerConfig",
    "LogBroker",
    "Replica",
    "check_range",
    "count_messages",
    "place_fields",
]
