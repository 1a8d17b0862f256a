"""The step that finds out who issued the certificate that is shown: a public authority, a private one, or a hop."""

import asyncio

from tunnel.carriers.dialing.failures import Failure
from tunnel.carriers.probes.probe import ProbeError, Prober
from tunnel.carriers.probes.probe_certificate import issuer_of
from tunnel.ground.exit_codes import UNREACHABLE
from tunnel_client.doctor.findings import Report, Verdict
from tunnel_client.doctor.trials import ANSWER_S

__all__ = ["INTERCEPTORS", "examine_certificate"]

# Names in the certificates that TLS-inspecting products issue.
INTERCEPTORS = (
    "avast, barracuda, bitdefender, blue coat, bluecoat, burp, charles proxy, check point, cisco umbrella, eset, "
    "fiddler, forcepoint, fortigate, fortinet, kaspersky, mcafee, mitmproxy, netskope, palo alto, portswigger, "
    "skyhigh, sophos, squid, symantec web, trend micro, untangle, watchguard, websense, zscaler"
).split(", ")
# Names of the authorities that browsers trust. They issue no certificate for the relay to a device on the way.
_PUBLIC = (
    "actalis, affirmtrust, amazon, anf, apple public, asseco, atos trustedroot, buypass, camerfirma, certainly, "
    "certigna, certsign, certum, chunghwa, comodo, cybertrust, d-trust, digicert, e-tugra, entrust, firmaprofesional, "
    "gdca, geotrust, globalsign, godaddy, go daddy, google trust, gts, harica, hellenic academic, hongkong post, "
    "identrust, izenpe, let's encrypt, microsec, microsoft azure, microsoft tls, netlock, quovadis, rapidssl, secom, "
    "sectigo, sk id, ssl corporation, ssl.com, starfield, swisssign, t-systems, telekom security, telia, thawte, "
    "trustwave, trustcor, twca, usertrust, wisekey, zerossl"
).split(", ")
_DANGER = "the device that does this can read the token and the traffic"


async def examine_certificate(
    report: Report, prober: Prober, failures: list[Failure], devices: list[str], ca: str | None
) -> None:
    """Report on the certificate. `devices`: the forward proxies that wrote into answers inside the TLS connection."""
    refused = next((failure for failure in failures if failure.is_about_certificate), None)
    if refused is None and prober.attached is None:
        return
    try:
        async with asyncio.timeout(ANSWER_S):
            issuer = await issuer_of(prober.dialing)
    except (ProbeError, TimeoutError):
        issuer = "an unknown issuer"
    name = issuer.lower()
    if refused is not None:
        text = f"{refused.text}; {issuer} issued it"
        data = {"issuer": issuer, "trusted": False, "kind": refused.kind}
        report.add("TLS", Verdict.PROBLEM, text, refused.advice, exit_code=UNREACHABLE, **data)
    elif any(known in name for known in INTERCEPTORS):
        text = f"TLS is decrypted on the path by {issuer}, which this machine trusts"
        report.add("TLS", Verdict.NOTE, text, _DANGER, issuer=issuer, trusted=True, intercepted=True)
    elif any(known in name for known in _PUBLIC):
        text = f"the certificate comes from {issuer}"
        report.add("TLS", Verdict.OK, text, issuer=issuer, trusted=True, intercepted=False)
    elif devices:
        names = ", ".join(devices)
        text = f"TLS is decrypted on the path by {names}, with certificates of {issuer}, which is trusted here"
        report.add("TLS", Verdict.NOTE, text, _DANGER, issuer=issuer, trusted=True, intercepted=True)
    else:
        _private(report, issuer, ca)


def _private(report: Report, issuer: str, ca: str | None) -> None:
    why = f"the file {ca} names it" if ca else "it was added to this machine"
    text = f"the certificate comes from {issuer}, which is no public authority and is trusted because {why}"
    advice = (
        "ask the relay's operator whether it is the relay's; if not, a device of your network decrypts it on the path"
    )
    report.add("TLS", Verdict.NOTE, text, advice, issuer=issuer, trusted=True, intercepted=None)
