"""The Python modules whose connections a library in C opens, so that no replaced socket of Python sees them.

This file needs only the standard library and Python 3.8: programs that borrow a tunnel load it by its path.
"""

from __future__ import annotations

__all__ = ["C_CLIENTS"]

# A module that is imported only together with the library, and the name under which people know it.
C_CLIENTS = {
    "psycopg.pq": "psycopg",
    "psycopg2._psycopg": "psycopg2",
    "MySQLdb._mysql": "mysqlclient",
    "_mysql_connector": "mysql-connector-python",
    "pymssql._pymssql": "pymssql",
    "pyodbc": "pyodbc",
    "oracledb.thick_impl": "oracledb",
    "cx_Oracle": "cx_Oracle",
    "ibm_db": "ibm_db",
    "grpc._cython.cygrpc": "grpcio",
    "pycurl": "pycurl",
    "curl_cffi._wrapper": "curl_cffi",
    "confluent_kafka.cimpl": "confluent-kafka",
    "pylibmc": "pylibmc",
    "zmq.backend.cython": "pyzmq",
    "_ldap": "python-ldap",
    "pygit2._pygit2": "pygit2",
    "_pulsar": "pulsar-client",
}
