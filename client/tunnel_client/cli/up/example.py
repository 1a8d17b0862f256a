"""The file that `tunnel up --example` writes."""

__all__ = ["EXAMPLE"]

EXAMPLE = """\
# The file of `tunnel up`. It is read again when it changes: entries that did not change keep their connections.
# `tunnel up --check` says whether it can be used, `tunnel status` shows what each entry does.
# A relative path is relative to the directory of this file.

[relay]
# Without these lines, what `tunnel login` stored is used.
#url = "https://relay.example"
#token-file = "token"              # mode 0600, as every file with a secret
#proxy = "http://proxy.example:3128"
#proxy-file = "proxy.url"          # http://user:password@proxy.example:3128
#header-file = "gateway.headers"   # one header for a gateway on each line
#ca = "company.pem"
#carrier = "auto"
#links = 1
#user-timeout = 300                # seconds without an answer; then connections are lost
#key = "service.key"               # encrypts exposed services from end to end; made if missing
#rate = "20 MiB/s"                 # all entries together, in each direction
#same-users = true                 # at all relays, so connections to exposed services may move between them

# Another relay, for the time when the first one does not answer.
#[[relay.further]]
#url = "https://other.example"
#token-file = "other-token"

# Local ports that lead to targets and services beyond the relay, as for `tunnel forward`.
[forward]
postgres = "5432:db.internal:5432"
reports = "8081:reports"
#dns = "udp/5353:ns.internal:53"

# An entry with further settings is a table.
[forward.backup]
spec = "9000:backup.internal:9000"
rate = "2 MiB/s"

# Local services that other users reach under these names, as for `tunnel expose`.
[expose]
#my-notebook = "127.0.0.1:8888"

# SOCKS and HTTP proxies whose connections go through the tunnel, as for `tunnel proxy`.
[proxy]
browser = "1080"
"""
