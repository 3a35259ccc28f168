"""One run of an agent: the loop, what drives it, and what comes out of it."""
