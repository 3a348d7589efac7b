"""A paid provider on loopback that does real work and keeps its own bill.

The demo and the tests call it as they would call a stranger: over HTTP. Nothing in the runtime imports it;
its bill is the judge of "paid once", so it must not share code with what it judges.
"""

from streams.sandbox.bill import BillLine, Summary
from streams.sandbox.contacts import generate_contacts
from streams.sandbox.faults import Fault, FaultKind
from streams.sandbox.process import SandboxFailed, SandboxProcess
from streams.sandbox.server import Sandbox

__all__ = [
    "BillLine",
    "Fault",
    "FaultKind",
    "Sandbox",
    "SandboxFailed",
    "SandboxProcess",
    "Summary",
    "generate_contacts",
]
