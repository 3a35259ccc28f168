"""Local stand-ins for services that a test or a laptop cannot or should not reach."""
