"""Which clauses of the store kit are not tried everywhere."""

LARGE = {
    "a-commit-of-a-thousand-messages-can-be-repeated",
    "a-commit-of-a-thousand-messages-is-one-commit",
    "a-fork-of-a-large-commit-ends-anywhere",
    "a-fork-parts-no-call-of-a-large-commit",
    "a-reader-sees-large-commits-whole",
    "a-tail-is-a-slice-of-any-history",
    "a-tail-of-a-large-commit-begins-and-ends-anywhere",
    "twenty-megabytes-in-one-message-are-stored-or-refused",
}
"""Clauses that take half of the kit's time, and are tried where they are to fail and on stores without a fault."""
