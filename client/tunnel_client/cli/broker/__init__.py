"""The command `tunnel-broker`: `main` has its arguments, `serve` runs a broker, `look` asks a running one."""

__all__: list[str] = []
