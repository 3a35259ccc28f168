"""A local emulator of the data plane of Amazon Bedrock AgentCore Memory.

It answers CreateEvent, GetEvent, ListEvents, DeleteEvent, ListSessions and ListActors on this machine, for boto3 and for anything else
that speaks the AWS API: no account, no network, no cost. It needs the extra ``agentcore``, for botocore's model of the service.
"""

from __future__ import annotations

from littleghost.emulators.agentcore.emulator import AgentCoreEmulator
from littleghost.emulators.agentcore.faults import Fault
from littleghost.emulators.agentcore.recording import Call
from littleghost.emulators.agentcore.storage import DEFAULT_MEMORY

__all__ = ["DEFAULT_MEMORY", "AgentCoreEmulator", "Call", "Fault"]
