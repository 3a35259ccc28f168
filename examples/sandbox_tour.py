"""What a program can do in each sandbox of this machine: the same five attempts, side by side.

python examples/sandbox_tour.py
"""

import asyncio
import tempfile
from pathlib import Path

from littleghost import BubblewrapSandbox, HostSandbox, Sandbox
from littleghost.errors import ConfigurationError

ATTEMPTS = {
    "read a file outside": "cat {secret}",
    "write the workspace": "echo x > made",
    "see other processes": "[ $(ls -d /proc/[0-9]* | wc -l) -gt 10 ]",
    "have a network": "[ $(grep -c : /proc/net/dev) -gt 1 ]",
    "leave a daemon": "( setsid sleep 1000 & ) ; true",
}


async def tour(kind: type[Sandbox], folder: Path) -> dict[str, str]:
    secret = folder / "secret"
    secret.write_text("secret")
    async with kind(folder / kind.__name__) as sandbox:  # not writable
        found = {}
        for name, command in ATTEMPTS.items():
            done = await sandbox.execute(command.format(secret=secret), timeout=10)
            found[name] = "yes" if done.success else "no"
        found["leave a daemon"] = "no, it is killed" if "kill_tree" in sandbox.capabilities else "perhaps"
        return found


async def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        for kind in (HostSandbox, BubblewrapSandbox):
            print(kind.__name__)
            try:
                for attempt, result in (await tour(kind, Path(name))).items():
                    print(f"  {attempt:22} {result}")
            except ConfigurationError as error:
                print(f"  not here: {error}")


if __name__ == "__main__":
    asyncio.run(main())
