"""The payer of work before a token is known, and the cost of work that is not measured."""

__all__ = ["REQUEST_US", "UNAUTHENTICATED"]

# Processor time for the HTTP part of one request, a fixed value found in a benchmark of aiohttp. The time for its
# packets is measured each time.
REQUEST_US = 300
UNAUTHENTICATED = "@unauthenticated"  # pays for connections on which no valid token came yet; no user has this name
