"""Ways out by the network and by sockets of the host."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest


class Ears:
    """What listens on the host: it tells whether anything was heard."""

    def __init__(self) -> None:
        self.stack = ExitStack()
        self.sockets: list[socket.socket] = []

    def open(self, family: int, kind: int, address: object) -> object:
        listener = self.stack.enter_context(socket.socket(family, kind))
        listener.bind(address)
        if kind == socket.SOCK_STREAM:
            listener.listen()
        listener.setblocking(False)
        self.sockets.append(listener)
        return listener.getsockname()

    def heard(self) -> list[object]:
        found: list[object] = []
        for listener in self.sockets:
            try:
                if listener.type == socket.SOCK_STREAM:
                    listener.accept()[0].close()
                else:
                    listener.recv(100)
            except BlockingIOError:
                continue
            found.append(listener.getsockname())
        return found


@pytest.fixture
def ears() -> Iterator[Ears]:
    ears = Ears()
    with ears.stack:
        yield ears


REACH = """
import ctypes, socket, struct
tcp, udp, unix = given
socket.setdefaulttimeout(2)
def tried(name, attempt):
    try:
        attempt(); found.append(name)
    except (OSError, ValueError):
        pass
for address in tcp:
    def attempt():
        with socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET) as s:
            s.connect(tuple(address)); s.send(b"x")
    tried(f"tcp {address}", attempt)
for address in udp:
    def attempt():
        with socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.connect(tuple(address)); s.send(b"x"); s.recv(100)
    tried(f"udp {address}", attempt)
for path in unix:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        tried(f"unix {path!r}", lambda: socket.socket(socket.AF_UNIX, kind).connect(path))
        tried(f"pair to {path!r}", lambda: socket.socketpair(socket.AF_UNIX, kind)[0].sendto(b"x", path))
for name, family, kind, protocol in (
    ("packet", 17, socket.SOCK_RAW, 0), ("raw", socket.AF_INET, socket.SOCK_RAW, 1), ("netlink", 16, socket.SOCK_RAW, 0),
    ("vsock", 40, socket.SOCK_STREAM, 0), ("bluetooth", 31, socket.SOCK_RAW, 1), ("alg", 38, socket.SOCK_SEQPACKET, 0),
    ("xdp", 44, socket.SOCK_RAW, 0), ("can", 29, socket.SOCK_RAW, 1), ("rds", 21, socket.SOCK_SEQPACKET, 0),
    ("tipc", 30, socket.SOCK_STREAM, 0), ("smc", 43, socket.SOCK_STREAM, 0), ("kcm", 41, socket.SOCK_DGRAM, 0),
    ("qipcrtr", 42, socket.SOCK_DGRAM, 0), ("key", 15, socket.SOCK_RAW, 2),
):
    tried(name, lambda: socket.socket(family, kind, protocol))
for name in ("example.com", "localhost.localdomain.example", "metadata.google.internal"):
    tried(f"dns {name}", lambda: socket.getaddrinfo(name, 80))
found += [line.split()[0] for line in open("/proc/net/route").read().splitlines()[1:]]
names = [line.split(":")[0].strip() for line in open("/proc/net/dev").read().splitlines()[2:]]
found += [name for name in names if name != "lo"]
# those without a name are pairs, of which the worker in a container has some
found += [line for line in open("/proc/net/unix").read().splitlines()[1:] if len(line.split()) > 7]
"""
ELSEWHERE = [
    ("169.254.169.254", 80),
    ("169.254.170.2", 80),
    ("fd00:ec2::254", 80),
    ("192.0.2.1", 80),
    ("8.8.8.8", 53),
    ("1.1.1.1", 443),
]


async def test_nothing_is_reached_over_the_network(attack, ears: Ears) -> None:
    """The host's loopback and addresses by TCP and UDP, names, the addresses of metadata services, and every other kind of socket."""
    tcp = [
        ears.open(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
        ears.open(socket.AF_INET, socket.SOCK_STREAM, ("0.0.0.0", 0)),
    ]
    udp = [ears.open(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0))]
    if socket.has_ipv6 and Path("/proc/net/if_inet6").exists() and Path("/proc/net/if_inet6").read_text():
        tcp.append(ears.open(socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0))[:2])
    port = tcp[1][1]
    own = {entry[4][0] for entry in socket.getaddrinfo(socket.gethostname(), None)} | {
        "127.0.0.2",
        "::ffff:127.0.0.1",
        "0.0.0.0",
    }
    tcp += [(address, port) for address in own]
    names = ["127.0.0.53"]
    if Path("/etc/resolv.conf").exists():
        names += [
            line.split()[1]
            for line in Path("/etc/resolv.conf").read_text().splitlines()
            if line.startswith("nameserver ")
        ]
    udp += [(address, 53) for address in names]
    async with attack() as trial:
        if not trial.claims("network_none"):
            assert trial.sandbox.effective_policy.network == "inherit"
            return
        assert await trial.inside(REACH, tcp + ELSEWHERE, udp, [], timeout=60) == []
    assert ears.heard() == []


async def test_no_socket_of_the_host_is_reached(attack, ears: Ears, monkeypatch) -> None:
    """Socket files in the workspace, which the kernel does not tie to a network, and abstract names, of all kinds."""
    paths: list[str] = []

    def plant(root: Path, outside: Path) -> None:
        monkeypatch.chdir(root)  # the address of a socket has 108 bytes
        for name, kind in (("stream", socket.SOCK_STREAM), ("datagram", socket.SOCK_DGRAM)):
            ears.open(socket.AF_UNIX, kind, name)
            ears.open(socket.AF_UNIX, kind, f"\0littleghost-{name}-{os.getpid()}")
            paths.extend([name, f"\0littleghost-{name}-{os.getpid()}"])
        os.symlink("stream", root / "linked")
        paths.append("linked")

    async with attack(before=plant) as trial:
        if not (trial.claims("network_none") and trial.claims("seccomp")):
            return
        paths.extend(
            [
                "/run/docker.sock",
                "/var/run/docker.sock",
                "/run/dbus/system_bus_socket",
                "/run/systemd/private",
                "/tmp/.X11-unix/X0",
            ]
        )
        assert await trial.inside(REACH, [], [], paths) == []
    assert ears.heard() == []


async def test_its_own_loopback_works(attack) -> None:
    """What is denied is denied by walls, and not by a network that is broken."""
    code = """
import socket
with socket.socket() as s, socket.socket() as c:
    s.bind(("127.0.0.1", 0)); s.listen(); c.connect(s.getsockname()); found.append("heard" if s.accept() else "")
a, b = socket.socketpair()
a.send(b"pair"); found.append(b.recv(10).decode())
"""
    async with attack() as trial:
        assert await trial.inside(code) == ["heard", "pair"]
