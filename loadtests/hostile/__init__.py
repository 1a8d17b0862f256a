"""Users and unauthenticated clients that try to harm a relay, and a user that must not notice: `loadtests.hostile`."""

__all__: list[str] = []
