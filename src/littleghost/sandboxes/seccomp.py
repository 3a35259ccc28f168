"""A seccomp filter for isolated programs, made without a library.

It denies a list, and whatever is newer than that list, and allows the rest. Denied is what a program in a namespace can still use to
reach the kernel's rarely tested parts, the terminal, or sockets of the host that lie in a bound directory. See seccomp(2) and the
kernel's ``include/uapi/linux/filter.h``.
"""

from __future__ import annotations

import errno
import platform
import struct
import sys

__all__ = ["DENIED", "filter_for"]

# Numbers on x86_64 and on aarch64; None where the architecture does not have the call.
_CALLS: dict[str, tuple[int | None, int | None]] = {
    # other processes' memory
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "userfaultfd": (323, 282),
    # large and rarely needed
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "fanotify_init": (300, 262),
    "lookup_dcookie": (212, 18),
    # keys, which no namespace separates
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # mounts and namespaces
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "open_by_handle_at": (304, 265),
    "unshare": (272, 97),
    "setns": (308, 268),
    # the machine
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
}
# By where the mode is; a file that is made or changed must not get the setuid or setgid bit (see `filter_for`).
_MODES: dict[str, tuple[int | None, int | None, int]] = {
    "chmod": (90, None, 1),
    "fchmod": (91, 52, 1),
    "fchmodat": (268, 53, 2),
    "fchmodat2": (452, 452, 2),
    "mkdir": (83, None, 1),
    "mkdirat": (258, 34, 2),
    "mknod": (133, None, 1),
    "mknodat": (259, 33, 2),
    "creat": (85, None, 1),
}
# The same where there is a mode only with certain flags, whose position is given first.
_OPENS: dict[str, tuple[int | None, int | None, int, int]] = {
    "open": (2, None, 1, 2),
    "openat": (257, 56, 2, 3),
}
_SETID = 0o6000
_CREATES = (
    0o100 | 0o20000000
)  # O_CREAT, and what O_TMPFILE has beside O_DIRECTORY; the same on both architectures
_OPENAT2 = 437
_NEWEST = 469  # file_setattr, of Linux 6.17. What came later was not looked at here. The numbers are those of both architectures.
_CLONE, _CLONE3, _IOCTL, _SOCKET, _SOCKETPAIR = (56, 220), (435, 435), (16, 29), (41, 198), (53, 199)
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

_NEW_NAMESPACES = 0x7E020000  # every CLONE_NEW… flag that clone takes
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C  # put text into a terminal as if it had been typed there
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_STREAM, _SEQPACKET = 1, 5

_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _GREATER, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06

DENIED = tuple(_CALLS)
"""The names of the calls that are denied whatever their arguments."""

_Instruction = tuple[int, int, int, int]


def filter_for(*, network: bool, machine: str | None = None) -> bytes | None:
    """Return the filter's program, or ``None`` for an architecture it is not written for.

    No file gets the setuid or setgid bit, as with systemd's ``RestrictSUIDSGID=``: it would keep it on the host, where it would run with
    the application's rights. ``openat2`` is said not to exist, for its mode is in memory, where a filter cannot look.

    Args:
        network: Whether the program shares the host's network. Without it, sockets are those of the Internet only: no AF_UNIX,
            which would reach a host's service through a socket file in the workspace, and no netlink.
        machine: The architecture, as ``uname -m`` says it.
    """
    architecture = _ARCHITECTURES.get(machine or platform.machine())
    if architecture is None or sys.byteorder != "little":
        return None
    index, audit = architecture

    body: list[_Instruction] = []

    def when(number: int, block: list[_Instruction]) -> None:
        body.append((_EQUAL, 0, len(block), number))
        body.extend(block)

    def give(value: int) -> _Instruction:
        return (_RETURN, 0, 0, value)

    def argument(position: int) -> _Instruction:
        return (_LOAD, 0, 0, 16 + 8 * position)

    def refuse(number: int) -> _Instruction:
        return give(_ERRNO | number)

    # Told that they do not exist, programs do without, as on an older kernel.
    body += [(_GREATER, 0, 1, _NEWEST + 1), refuse(errno.ENOSYS)]
    for numbers in _CALLS.values():
        number = numbers[index]
        if number is not None:
            when(number, [refuse(errno.EPERM)])
    # Their flags are in memory; told that they do not exist, libraries take clone and openat.
    when(_CLONE3[index], [refuse(errno.ENOSYS)])
    when(_OPENAT2, [refuse(errno.ENOSYS)])
    no_setid = [(_ANY_BIT, 0, 1, _SETID), refuse(errno.EPERM), give(_ALLOW)]
    for *numbers, mode in _MODES.values():
        number = numbers[index]
        if number is not None:
            when(number, [argument(mode), *no_setid])
    for *numbers, flags, mode in _OPENS.values():
        number = numbers[index]
        if number is not None:
            when(
                number, [argument(flags), (_ANY_BIT, 1, 0, _CREATES), give(_ALLOW), argument(mode), *no_setid]
            )
    when(_CLONE[index], [argument(0), (_ANY_BIT, 0, 1, _NEW_NAMESPACES), refuse(errno.EPERM), give(_ALLOW)])
    when(
        _IOCTL[index],
        [
            argument(1),
            (_EQUAL, 1, 0, _TIOCSTI),
            (_EQUAL, 0, 1, _TIOCLINUX),
            refuse(errno.EPERM),
            give(_ALLOW),
        ],
    )
    families = [_INET, _INET6, *((_UNIX, _NETLINK) if network else ())]
    checks = [(_EQUAL, len(families) - position, 0, family) for position, family in enumerate(families)]
    when(_SOCKET[index], [argument(0), *checks, refuse(errno.EACCES), give(_ALLOW)])
    if not network:  # a datagram pair, which SOCK_RAW gives too, can be told to send to a socket file
        kinds = [(_EQUAL, 2, 0, _STREAM), (_EQUAL, 1, 0, _SEQPACKET)]
        pair = [argument(1), (_AND, 0, 0, 0xF), *kinds, refuse(errno.EACCES), give(_ALLOW)]
        when(_SOCKETPAIR[index], pair)

    program: list[_Instruction] = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, audit), give(_KILL), (_LOAD, 0, 0, 0)]
    if index == 0:
        program += [
            (_GREATER, 0, 1, 0x40000000),
            give(_KILL),
        ]  # the x32 numbers, a second way to the same calls
    program += [*body, give(_ALLOW)]
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)
