"""The step that tries to reach a target through the tunnel."""

import time

from tunnel import DeniedError, NotAuthenticatedError, RefusedError, TunnelError
from tunnel.exit_codes import LOST, UNREACHABLE
from tunnel_client.doctor.findings import Report, Verdict
from tunnel_client.places import Address
from tunnel_client.settings import RelaySettings

__all__ = ["examine_target"]

TARGET_S = 15.0
_STRANGER = "not from a relay"  # in the text of an error that an answer of something else on the way caused


async def examine_target(report: Report, settings: RelaySettings, target: Address) -> None:
    """Open a connection to the target, and report how that ended."""
    report.target = str(target)
    try:
        async with settings.attach(attach_timeout=TARGET_S) as attachment:
            began = time.monotonic()
            _, writer = await attachment.open_connection(target.host, target.port, timeout=TARGET_S)
            milliseconds = round((time.monotonic() - began) * 1e3, 1)
            writer.transport.abort()
    except (DeniedError, NotAuthenticatedError) as error:
        if _STRANGER in str(error):
            text = f"the target was not tried, because a hop refused the request: {error}"
            advice = "the lines above say what limits the path"
            report.add("target", Verdict.PROBLEM, text, advice, exit_code=UNREACHABLE, reason="path")
        else:
            report.add("target", Verdict.PROBLEM, str(error), exit_code=error.exit_code, reason="denied")
    except RefusedError as error:
        report.add("target", Verdict.PROBLEM, str(error), exit_code=LOST, reason=error.reason.name.lower())
    except (TunnelError, TimeoutError) as error:
        text = str(error) or f"no answer within {TARGET_S:g} s"
        report.add("target", Verdict.PROBLEM, text, exit_code=LOST, reason="lost")
    else:
        text = f"{report.target} is allowed, and answers within {milliseconds:g} ms"
        report.add("target", Verdict.OK, text, connect_ms=milliseconds)
