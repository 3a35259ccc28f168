"""What a backend claims is what it is expected to claim, and what it does not claim it says."""

from __future__ import annotations


async def test_what_is_claimed_and_what_is_not(attack, backend) -> None:
    async with attack() as trial:
        claimed = {wall for wall in trial.walls if trial.claims(wall)}
        assert claimed == backend.claims
        stated = trial.sandbox.effective_policy
        if "isolation" not in claimed:
            assert (stated.network, stated.root_filesystem) == ("inherit", "host")
            assert "all of that user's rights" in stated.processes
