"""Sandboxes of this library inside other frameworks; see the modules, each of which needs its framework."""
