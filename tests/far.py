"""A sandbox whose worker is another process of this machine: the halves as container, SSH and service have them, with nothing between."""

from __future__ import annotations

import asyncio
import sys

from littleghost.sandboxes.far import guest
from littleghost.sandboxes.far.line import PipeTransport, Transport
from littleghost.sandboxes.far.sandbox import FarSandbox
from littleghost.sandboxes.policy import EffectivePolicy

OFFERED = frozenset(
    "files bytes ranges stat glob grep named_paths scope local_files git_read_only write delete move make_directory "
    "execute start_program kill_tree".split()
)


class WorkerSandbox(FarSandbox):
    """It has a worker, and isolates nothing."""

    python = sys.executable

    def _offers(self) -> frozenset[str]:
        return OFFERED

    def stated(self) -> EffectivePolicy:
        return self.told.in_force

    async def _prepare(self) -> None:
        await self.workspace.open()

    async def _release(self) -> None:
        await self.workspace.close()

    async def _lay(self) -> tuple[Transport, bytes]:
        pipe = asyncio.subprocess.PIPE
        self.worker = worker = await asyncio.create_subprocess_exec(
            *guest.command(self.python), stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )

        async def end() -> None:
            await asyncio.wait_for(worker.wait(), 60)

        transport = PipeTransport(worker.stdout, worker.stdin, worker.stderr, end)
        try:
            return transport, await guest.begin(transport, "the guest")
        except BaseException:
            await transport.close()
            raise
