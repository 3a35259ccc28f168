"""Mounts in which root's files belong to an ordinary user, so that what works on them need not be root.

The directory itself is not changed, and a file that is made through such a mount is root's. It takes root, Linux 5.12, and a file
system that knows of it (ext4, xfs, btrfs, tmpfs since 6.3; not overlayfs). See mount_setattr(2), user_namespaces(7).
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import sys
from contextlib import ExitStack, suppress

from littleghost.errors import CapabilityError

__all__ = ["attach", "detach"]

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442  # the same on all architectures but alpha
_EMPTY_PATH, _CLONE, _CLOEXEC = 0x1000, 1, os.O_CLOEXEC
_IDMAP = 0x100000
_NO_DEVICES = 0x2 | 0x4  # MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV
_FROM_EMPTY_PATH = 4
_DETACH = 2

_HOLD = """
import ctypes, os, sys
if ctypes.CDLL(None).unshare(0x10000000):  # CLONE_NEWUSER
    sys.exit(1)
os.write(1, b"x")
os.read(0, 1)
"""


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("namespace", ctypes.c_uint64),
    )


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: object) -> int:
    result = int(_libc().syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


@functools.cache
def _namespace(user: int) -> int:
    """Return a descriptor of a user namespace that has root's number for ``user``, kept while this process lives."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-B", "-c", _HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as holder:
        try:
            if holder.stdout is None or holder.stdout.read(1) != b"x":
                raise OSError(1, "no user namespace can be made")
            for kind in ("uid_map", "gid_map"):
                with open(f"/proc/{holder.pid}/{kind}", "w", encoding="ascii") as file:
                    file.write(f"0 {user} 1\n")
            return os.open(f"/proc/{holder.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            holder.kill()


def attach(directory: int, where: str, user: int, *, name: str) -> None:
    """Mount a directory, without what is mounted below it, so that what is root's there is ``user``'s.

    Args:
        directory: A descriptor of it.
        where: An empty directory.
        user: The number of the user and of their group.
        name: What the directory is called in the error.

    Raises:
        CapabilityError: That cannot be done here.
    """
    with ExitStack() as release:
        try:
            tree = _call(_OPEN_TREE, directory, b"", ctypes.c_uint(_CLONE | _CLOEXEC | _EMPTY_PATH))
            release.callback(os.close, tree)
            given = _Attributes(_IDMAP | _NO_DEVICES, 0, 0, _namespace(user))
            size = ctypes.c_size_t(ctypes.sizeof(given))
            _call(_MOUNT_SETATTR, tree, b"", ctypes.c_uint(_EMPTY_PATH), ctypes.byref(given), size)
            flags = ctypes.c_uint(_FROM_EMPTY_PATH)
            _call(_MOVE_MOUNT, tree, b"", -100, os.fsencode(where), flags)
        except OSError as error:
            raise CapabilityError(
                f"{name} belongs to root, and programs in a container are not to be root on the host. To let an ordinary user work on "
                f"root's files takes a mount that cannot be made here ({error.strerror}); give the directory to another user "
                "(chown -R 1000:1000 …), or name one who may use it: user='1000:1000'"
            ) from error


def detach(where: str) -> None:
    """Take a mount away again, and the directory it was on. What was made from it stays."""
    with suppress(OSError):
        _libc().umount2(os.fsencode(where), _DETACH)
        os.rmdir(where)
