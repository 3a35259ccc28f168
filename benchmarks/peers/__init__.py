"""What a session costs here and in other frameworks: the same work, in the same run, beside its floor.

Run it with `make bench-peers`, which makes the environment it needs.
"""
