"""Conversations and the stores that keep them."""
