"""What an agent may do with files and processes: the contract and its backends."""

from __future__ import annotations

from littleghost.sandboxes.bubblewrap import BubblewrapSandbox
from littleghost.sandboxes.contract import Check, Execution, FileInfo, Probe, Process, Sandbox, SandboxLimits
from littleghost.sandboxes.host import HostSandbox
from littleghost.sandboxes.native import native_sandbox
from littleghost.sandboxes.policy import EffectivePolicy, Policy

__all__ = [
    "BubblewrapSandbox",
    "Check",
    "EffectivePolicy",
    "Execution",
    "FileInfo",
    "HostSandbox",
    "Policy",
    "Probe",
    "Process",
    "Sandbox",
    "SandboxLimits",
    "native_sandbox",
]
