"""Brokers: one log that is served by calls (`log_broker`), and the broker with topics, groups and replicas.

Where to start
--------------

`server.py` for the broker, `client.py` and `listener.py` for its clients, `protocol.py` for the calls between them.

    both kinds of brokers
      log_broker.py       one log: clients append and fetch; this module exports its names
    the broker
      server.py           the class `Broker`: connections, and the parts below
      settings.py         topics and limits, as an operator sets them
      connection.py, intake.py   one connection; its input, bounded
      users.py            turns, and what each user holds
      topics.py, partition.py   what is kept, on disk or in memory; readers.py says who has read it
      storing.py          how requests get into topics: all checks first
      groups.py, positions.py   who reads which partition, and how far
      replication.py      copies the topics of a master
      deleting.py, disk_room.py   removes topics; refuses before the disk is full
      in_parts.py, unbroken.py   long work in parts; work that goes on when its client is gone
    the clients
      client.py           a producer whose sends are answered, and calls
      listener.py         a group's member, which calls a handler for each message
      delivery.py, progress.py   what a handler gets and answers; what is settled
    both
      protocol.py         codes, fields and limits of the calls; events.py has the events for logs
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
