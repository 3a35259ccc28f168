"""What a session in AgentCore Memory costs, here and with other clients of it: calls, bytes and price, against our emulator.

Run it with `make bench-agentcore`, which makes the environment it needs.
"""
