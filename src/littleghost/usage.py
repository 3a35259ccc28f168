"""Tokens a model read and wrote."""

from __future__ import annotations

from typing import Self

from msgspec import Struct

__all__ = ["Usage"]


class Usage(Struct, frozen=True, gc=False, kw_only=True):
    """Tokens of one model call or, added up, of a run. The five counts do not overlap.

    Attributes:
        input_tokens: Read, and not from a cache.
        output_tokens: Written, and visible.
        cache_read_tokens: Read from the provider's cache.
        cache_write_tokens: Read and put into the provider's cache.
        reasoning_tokens: Written as private reasoning.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """All five together."""
        return (
            self.input_tokens
            + self.output_tokens
            + self.cache_read_tokens
            + self.cache_write_tokens
            + self.reasoning_tokens
        )

    def __add__(self, other: Self) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
        )
