"""Sessions in Amazon Bedrock AgentCore Memory."""

from littleghost.sessions.agentcore.store import AgentCoreMemoryStore, StoredSession

__all__ = ["AgentCoreMemoryStore", "StoredSession"]
