"""Users and strangers who try to harm a relay, and the user beside them who must not notice: `loadtests.hostile`."""

__all__: list[str] = []
