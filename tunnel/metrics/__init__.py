"""The metrics of a process, for Prometheus: their names and meanings, what every process measures, and the page.

`metric.py` says what a metric is, `page.py` renders samples with the library prometheus-client, `process.py` measures
the process, `endpoint.py` the endpoints of clients and exits. Those of relays are in `tunnel_servlet.web.metrics`.
"""

__all__: list[str] = []
