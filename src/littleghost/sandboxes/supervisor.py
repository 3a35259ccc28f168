"""The process that starts commands and sees to it that nothing they started outlives them.

It runs as a script, beside the application; `processes` is the application's side. It stands between the application and its
commands because on Linux the only way to find a daemon that left its session and was orphaned twice is to be the *subreaper* it
falls back to, and that is a property of a whole process: the application itself would inherit, and have to reap, processes it
knows nothing of.

::

    application ── supervisor ─┬─ keeper ── command ── whatever it starts
                               ├─ keeper ── command …
                               └─ keeper (waiting for the next command)

A keeper serves one command. It is forked ahead of time, takes its job from a socket that all waiting keepers share, starts the
command, and waits for it, for an order to kill, or for the application's end, whichever comes first. Then it stops and kills its
descendants until ``waitpid`` says that there are none: on Linux that is proof, because every orphan below a subreaper becomes its
child. A keeper that is itself killed leaves its orphans to the supervisor, which kills them.

Only the standard library, and as little of it as possible: this starts in milliseconds. The job arrives on a stream socket of the
command's own, whose end is also the sign that nobody waits for the command any more.
"""

from __future__ import annotations

import _socket  # `socket` brings `selectors` and `enum`, which cost more than all the rest
import errno
import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable, Collection, Iterable
else:
    import _signal  # for the same reason

CONTROL = 3  # the socket to the application
SPARE = 2  # keepers that wait ahead of need: one serves, while another is made
PAUSE = 3  # milliseconds
MOMENT = 20  # milliseconds
LOOKS = 5  # how often the namespaces of a command are looked for, a moment apart
FIRST = 10  # the number the first extra descriptor has in the command
MOST = 253  # descriptors of a job; the kernel takes no more at a time
LINUX = sys.platform == "linux"

SIGKILL = 9
SIGTERM = 15
SIGSTOP = 19  # Linux's number; it is used nowhere else
# All that can be caught but what tells of children, and SIGCONT: a command may send them to all it can reach.
IGNORED = tuple(_signal.valid_signals() - ({SIGKILL, 17, 18, SIGSTOP} if LINUX else {SIGKILL, 17, 19, 20}))


def become_subreaper() -> None:
    """Adopt orphaned descendants, and keep them from gaining rights by which they could not be killed, and from this process's memory."""
    if LINUX:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
        prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
        prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS; everything below inherits it
        seal()


def seal(*, on: bool = True) -> None:
    """Let no program of the same user read or steer this process, by ``/proc`` or otherwise; see PR_SET_DUMPABLE in prctl(2).

    Nor can it then write its own ``/proc/self``, unless it is root's. What it starts is not sealed.
    """
    if LINUX:
        import ctypes

        ctypes.CDLL(None).prctl(4, not on, 0, 0, 0)


def children(pid: int) -> list[int]:
    """Return the pids of the children of ``pid``."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += [int(child) for child in file.read().split()]
    except OSError:
        own = os.getpid()
        if LINUX and not os.path.exists(f"/proc/{own}/task/{own}/children"):
            return children_by_parent(pid)  # a kernel without CONFIG_PROC_CHILDREN
    return found


def children_by_parent(parent: int) -> list[int]:
    """Return the same from everybody's parent."""
    found: list[int] = []
    for entry in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent:
                found.append(int(entry))
    return found


def descendants(pid: int, but: Collection[int]) -> list[int]:
    """Return the pids of everything below ``pid``, without the trees of ``but``."""
    found: list[int] = []
    pending = [pid]
    while pending:
        for child in children(pending.pop()):
            if child not in but:
                found.append(child)
                pending.append(child)
    return found


def stopped(pids: Iterable[int]) -> list[int]:
    """Return which of ``pids`` have been stopped, by a signal or a tracer."""
    found: list[int] = []
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                if file.read().rpartition(b")")[2].split()[0] in (b"T", b"t"):
                    found.append(pid)
        except OSError:
            pass
    return found


def send(pids: Iterable[int], number: int) -> None:
    """Send a signal to whoever of ``pids`` is there."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            pass


def reap(on_exit: Callable[[int, int], None]) -> bool:
    """Collect what has died, and return whether any child is left."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
        on_exit(pid, status)


def sweep(
    group: int,
    on_exit: Callable[[int, int], None],
    but: Collection[int] = (),
    seconds: float = 10.0,
    *,
    namespaced: bool = False,
) -> bool:
    """Kill all descendants but the trees of ``but``, and return whether none is left.

    They are stopped first, and killed only when no new ones appear, so that nothing can fork its way past. With ``namespaced``, what is
    directly below is the first process of a namespace, or what waits for it: with that, the kernel kills all.
    """
    if group:
        try:
            os.killpg(group, SIGKILL)
        except OSError:
            pass
    end = time.monotonic() + (seconds if LINUX else 1.0)
    pause = 0.00005
    if namespaced and reap(on_exit):
        send(children(os.getpid()), SIGKILL)
        time.sleep(pause)
    while reap(on_exit):
        if LINUX:
            found: set[int] = set()
            while time.monotonic() < end:
                fresh = [pid for pid in descendants(os.getpid(), but) if pid not in found]
                if not fresh:
                    break
                send(fresh, SIGSTOP)
                found.update(fresh)
            if but and not found:
                return True
            send(found, SIGKILL)
        if time.monotonic() >= end:
            return not LINUX  # elsewhere, only the group is promised
        time.sleep(pause)
        pause = min(pause * 2, 0.02)
    return True


def receive_exactly(connection: _socket.socket, count: int) -> bytes:
    """Return the next ``count`` bytes; `EOFError` where they do not come."""
    parts: list[bytes] = []
    while count:
        part = connection.recv(min(count, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def receive_job(control: _socket.socket) -> list[int]:
    """Return the descriptors of the next job, none when the application is gone."""
    flags: int = getattr(_socket, "MSG_CMSG_CLOEXEC", 0)
    _, ancillary, told, _ = control.recvmsg(1, _socket.CMSG_SPACE(4 * MOST), flags)
    descriptors: list[int] = []
    for level, kind, content in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            whole = len(content) - len(content) % 4
            descriptors += [int.from_bytes(content[at : at + 4], sys.byteorder) for at in range(0, whole, 4)]
    if told & _socket.MSG_CTRUNC:
        raise OSError(errno.EMFILE, "some descriptors of the job are missing")
    if not flags:
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
    return descriptors


def scored(score: bytes) -> bytes:
    """Say how soon this process is to be killed when memory runs out (see proc_pid_oom_score_adj(5)); return what it was, if anything."""
    try:
        seal(on=False)
        try:
            descriptor = os.open("/proc/self/oom_score_adj", os.O_RDWR)
        finally:
            seal()
        try:
            before = os.read(descriptor, 16).strip()
            if score:
                os.pwrite(descriptor, score, 0)
            return before
        finally:
            os.close(descriptor)
    except OSError:
        return b""


def start(
    arguments: list[bytes],
    environment: dict[bytes, bytes],
    search: list[bytes],
    actions: list[tuple[int, int, int]],
) -> int:
    """Start the program and return its pid, or raise the `OSError` that says why it cannot be."""
    program = arguments[0]
    places = [place for place in search if place.startswith(b"/")]
    candidates = [program] if b"/" in program else [place + b"/" + program for place in places]
    failure: OSError = FileNotFoundError(errno.ENOENT, "not found")
    for candidate in candidates:
        try:
            return os.posix_spawn(
                candidate,
                arguments,
                environment,
                file_actions=actions,
                setsid=True,
                setsigmask=(),
                setsigdef=IGNORED,
            )
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            failure = error
    raise failure


def placed(streams: list[int], extra: list[int]) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Move descriptors out of the way of the numbers they are to have; return them and how each gets its number."""
    import fcntl

    moved: list[int] = []
    for descriptor in [*streams, *extra]:
        moved.append(fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FIRST + len(extra)))
        os.close(descriptor)
    numbers = [0, 1, 2, *range(FIRST, FIRST + len(extra))]
    pairs = zip(moved, numbers, strict=True)
    return moved, [(os.POSIX_SPAWN_DUP2, descriptor, number) for descriptor, number in pairs]


class Groups:
    """The control groups of one command.

    Args:
        restraints: What is asked for: ``rlimit`` with number, soft and hard; ``cpu`` with nanoseconds; ``watch`` with a file that tells how
            many were killed for their memory; ``shut`` with a name and numbers of descriptors, and ``still`` with devices, see `shut`; else
            a group's parent directory and ``file=value`` lines, of which one that begins with ``?`` is left out where there is no such
            file.
    """

    def __init__(self, restraints: list[list[str]]) -> None:
        self.rlimits = [
            tuple(int(part) for part in lines[1:]) for lines in restraints if lines[0] == "rlimit"
        ]
        self.cpu = next((int(lines[1]) for lines in restraints if lines[0] == "cpu"), 0)
        self.shut = [
            (lines[1], int(number)) for lines in restraints if lines[0] == "shut" for number in lines[2:]
        ]
        self.still = [path for lines in restraints if lines[0] == "still" for path in lines[1:]]
        self.watched = {lines[1]: number(lines[1], "oom_kill") for lines in restraints if lines[0] == "watch"}
        self.binding = any(lines[0] != "watch" for lines in restraints)
        self.folders: list[str] = []
        self._wanted = [lines for lines in restraints if lines[0].startswith("/")]

    def make(self, take: int) -> None:
        """Make them, and tell the supervisor of each through ``take``: if this process is killed, it removes them."""
        name = f"littleghost-{os.getppid()}-{os.getpid()}"
        for parent, *settings in self._wanted:
            folder = f"{parent}/{name}"
            if folder not in self.folders:
                os.write(take, b"%d %s\n" % (os.getpid(), os.fsencode(folder)))
                os.mkdir(folder)
                self.folders.append(folder)
            for setting in settings:
                file, _, value = setting.partition("=")
                if not file.startswith("?") or os.path.exists(f"{folder}/{file[1:]}"):
                    put(f"{folder}/{file.lstrip('?')}", value)

    def enter(self) -> None:
        """Put this process into them, and under the resource limits."""
        for folder in self.folders:
            put(f"{folder}/cgroup.procs", "0")
        if self.rlimits:
            import resource

            for number, soft, hard in self.rlimits:
                resource.setrlimit(number, (soft, hard))

    def overspent(self) -> bool:
        """Return whether more CPU time was used than there is."""
        return bool(self.cpu) and any(
            number(f"{folder}/cpuacct.usage") + 1000 * number(f"{folder}/cpu.stat", "usage_usec") > self.cpu
            for folder in self.folders
        )

    def starved(self) -> bool:
        """Return whether something was killed for its memory."""
        return any(
            number(f"{folder}/{file}", "oom_kill") > 0
            for folder in self.folders
            for file in ("memory.oom_control", "memory.events")
        ) or any(number(file, "oom_kill") > before for file, before in self.watched.items())

    def kill(self) -> None:
        """Kill what is in them, where there is a way to."""
        for folder in self.folders:
            try:
                put(f"{folder}/cgroup.kill", "1")
            except OSError:
                pass

    def remove(self) -> None:
        """Remove them; what is killed may take a moment to be out of them."""
        for _ in range(200):
            remove(self.folders)
            if not self.folders:
                return
            time.sleep(0.005)


def remove(folders: list[str]) -> None:
    """Remove the control groups that nothing is in, and take them off the list."""
    for folder in list(folders):
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            folders.remove(folder)
        except OSError:
            continue
        else:
            folders.remove(folder)


def put(path: str, value: str) -> None:
    """Write ``value`` into a file of the kernel."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


def number(path: str, name: str = "") -> int:
    """Return the number a file of the kernel says, or says of ``name``; 0 where there is none."""
    try:
        with open(path, encoding="ascii") as file:
            for line in file:
                words = line.split()
                if not name or words[0] == name:
                    return int(words[-1])
    except (OSError, ValueError):
        pass
    return 0


def start_restrained(
    groups: Groups,
    arguments: list[bytes],
    environment: dict[bytes, bytes],
    search: list[bytes],
    actions: list[tuple[int, int, int]],
) -> int:
    """Do as `start` does, in the groups and under the limits: what they are for cannot happen before they are in force."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        failure = b"B"
        try:
            os.setsid()
            groups.enter()
            for _, descriptor, wanted in actions:
                os.dup2(descriptor, wanted)
            if groups.shut or groups.still:
                shut(groups.shut, groups.still)
            failure = b"E"
            for signal_number in IGNORED:
                _signal.signal(signal_number, _signal.SIG_DFL)
            program = arguments[0]
            places = [place for place in search if place.startswith(b"/")]
            error = FileNotFoundError(errno.ENOENT, "not found")
            for path in [program] if b"/" in program else [place + b"/" + program for place in places]:
                try:
                    os.execve(path, arguments, environment)  # noqa: S606 (no shell is wanted)
                except (FileNotFoundError, NotADirectoryError):
                    continue
                except PermissionError as denied:
                    error = denied
            raise error
        except BaseException as error:  # noqa: BLE001 (the fork must not go on as its parent)
            os.write(writing, failure + b"%d" % ((isinstance(error, OSError) and error.errno) or 0))
        finally:
            os._exit(127)
    os.close(writing)
    said = os.read(reading, 64)
    os.close(reading)
    if said:
        os.waitpid(pid, 0)
        raise OSError(int(said[1:]), "" if said[:1] == b"E" else "limits")
    return pid


def shut(folders: list[tuple[str, int]], devices: list[str]) -> None:
    """Make some things read-only for this process and all it starts, in a user and a mount namespace.

    Nobody can lead it astray: each mount goes from a descriptor onto the same descriptor, so a link that takes the place of a name
    meanwhile is not followed, and nothing is made. In the namespace a mount point can be neither renamed nor deleted. What is not
    there is left out, and so is a link. See open_tree(2), mount_setattr(2) and move_mount(2).

    Args:
        folders: Names, of one component, and the number of a descriptor of the directory of each.
        devices: Paths of devices: they stay in use, and their modes and times cannot be changed.

    Raises:
        OSError: It cannot be done here, or another directory has taken the place of one.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)

    def done(result: int) -> int:
        if result < 0:
            raise OSError(ctypes.get_errno(), "a mount")
        return result

    def read_only(path: str, folder: int | None, attributes: int) -> None:
        try:
            target = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            return
        if os.fstat(target).st_mode & 0o170000 != 0o120000:
            flags = ctypes.c_uint
            # OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC, AT_EMPTY_PATH, AT_RECURSIVE
            tree = done(libc.syscall(428, target, b"", flags(1 | os.O_CLOEXEC | 0x1000 | 0x8000)))
            wanted = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
            done(libc.syscall(442, tree, b"", flags(0x1000 | 0x8000), wanted, ctypes.c_size_t(32)))
            done(libc.syscall(429, tree, b"", target, b"", flags(0x04 | 0x40)))  # from and to an empty path
            os.close(tree)
        os.close(target)

    seal(on=False)
    user, group = os.getuid(), os.getgid()
    known = [(name, os.readlink(f"/proc/self/fd/{number}"), os.fstat(number)) for name, number in folders]
    done(libc.unshare(0x10000000 | 0x00020000))  # CLONE_NEWUSER, CLONE_NEWNS
    put("/proc/self/setgroups", "deny")
    put("/proc/self/uid_map", f"{user} {user} 1")
    put("/proc/self/gid_map", f"{group} {group} 1")
    for name, path, status in known:  # by name: a descriptor from before is of the namespace outside
        folder = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        found = os.fstat(folder)
        if (found.st_dev, found.st_ino) != (status.st_dev, status.st_ino):
            raise OSError(errno.ESTALE, "another directory")
        read_only(name, folder, 1 | 2 | 4)  # MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV
        os.close(folder)
    for path in devices:
        read_only(path, None, 1 | 2)


class Inside:
    """What shortens the end of a command in namespaces, where they have been there for a moment.

    To take a mount namespace apart is slow work for the kernel, and falls to the last process in it as it exits; where something is mounted
    in ``/proc`` there, also to who reaps the first process. The end of a command would have to wait for both. So the mount namespaces are
    held by descriptors, which puts no process in them, and let go when everybody knows of the end.
    """

    def __init__(self) -> None:
        self._first = 0
        self._pidfd = -1
        self._mounts: list[int] = []

    def hold(self, started: int) -> bool:
        """Hold those of ``started`` and of its child, the first process in there; return whether that is done, or cannot be."""
        for first in children(started)[:1]:
            try:
                self._pidfd = os.pidfd_open(first)
                for pid in (first, started):
                    self._mounts.append(os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC))
                self._first = first
            except (AttributeError, OSError):
                pass  # it ends, or may not be looked at
            return True
        return False

    def ended(self) -> bool:
        """Kill all in there, and return whether they are dead, and this process has no other child. It has not reaped the first one.

        The first process of a namespace is dead only when all others in it are gone. See pid_namespaces(7).
        """
        if not self._first:
            return False
        try:
            _signal.pidfd_send_signal(self._pidfd, SIGKILL)
        except OSError:
            pass
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return bool(poller.poll(MOMENT)) and children(os.getpid()) == [self._first]

    def release(self) -> None:
        """Let go."""
        for descriptor in self._mounts:
            os.close(descriptor)


def keep(descriptors: list[int], life: int | None, take: int) -> None:
    """Serve one command.

    Args:
        descriptors: Its socket, its three streams, its directory where it has one, and extra ones.
        life: A pidfd of the application, where there are pidfds.
        take: Where the supervisor hears of the control groups. It is closed here.
    """
    connection = _socket.socket(fileno=descriptors[0])
    connection.setblocking(True)
    exits: list[int] = []
    groups = Groups([])
    inside = Inside()
    over = False
    started = depth = 0
    reported = False
    score = b""

    def on_exit(pid: int, status: int) -> None:
        if pid == started:
            exits.append(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))

    try:
        connection.sendall(b"K%d\n" % os.getpid())  # by which the application ends a keeper that was stopped
        length = int.from_bytes(receive_exactly(connection, 8), "little")
        fields = receive_exactly(connection, length).split(b"\0")
        has_directory, depth, *counts = (int(field) for field in fields[:6])
        ends = [6 + sum(counts[:i]) for i in range(5)]
        arguments, pairs, search, restraints = (fields[ends[i] : ends[i + 1]] for i in range(4))
        environment = {name: value for name, _, value in (pair.partition(b"=") for pair in pairs)}
        streams, extra = descriptors[1:4], descriptors[4:]
        if has_directory:
            os.fchdir(extra[0])
            os.close(extra.pop(0))
        poller = select.poll()
        poller.register(connection.fileno(), select.POLLIN | select.POLLHUP)
        if poller.poll(0):
            return  # it took so long that nobody waits for the command any more
        moved, actions = placed(streams, extra)
        try:
            groups = Groups([os.fsdecode(lines).split("\n") for lines in restraints])
            score = scored(b"1000")  # what is started has it too
            if groups.binding:
                try:
                    groups.make(take)
                except OSError as error:
                    raise OSError(error.errno, "limits") from error
                started = start_restrained(groups, arguments, environment, search, actions)
            else:
                started = start(arguments, environment, search, actions)
        except OSError as error:
            connection.sendall((b"B%d\n" if error.strerror == "limits" else b"E%d\n") % (error.errno or 0))
            return
        finally:
            scored(score)
            for descriptor in (*moved, take):
                os.close(descriptor)
        connection.sendall(b"S%d\n" % started)
        wait(connection, life, started, depth, on_exit, exits, groups, inside)
        over = bool(exits) and not groups.folders and inside.ended()
        if exits and not over and reap(on_exit):  # else all is over, which is said in one go
            reported = True
            connection.sendall(b"X%d\n" % exits[0])
    except (OSError, EOFError):
        pass  # nobody waits for the command any more
    finally:
        groups.kill()
        clean = over or sweep(started, on_exit, namespaced=depth > 0)
        starved = groups.starved()
        groups.remove()
        try:
            code = b"X%d\n" % exits[0] if exits and not reported else b""
            connection.sendall(code + (b"M\n" if starved else b"") + (b"D\n" if clean else b"L\n"))
        except OSError:
            pass
        inside.release()
        reap(on_exit)


def wait(
    connection: _socket.socket,
    life: int | None,
    started: int,
    depth: int,
    on_exit: Callable[[int, int], None],
    exits: list[int],
    groups: Groups,
    inside: Inside,
) -> None:
    """Return when the command has ended, or must. Meanwhile, pass on what the application asks of it."""
    poller = select.poll()
    poller.register(connection.fileno(), select.POLLIN | select.POLLHUP)
    timeout = 20
    try:
        poller.register(os.pidfd_open(started), select.POLLIN)
        timeout = 500  # orphans that died want reaping now and then
    except (AttributeError, OSError):
        pass
    if life is not None:
        poller.register(life, select.POLLIN)
    if groups.cpu:
        timeout = min(timeout, 50)
    looks = LOOKS if depth and LINUX else 0
    while not exits:
        ready = [descriptor for descriptor, _ in poller.poll(min(timeout, MOMENT) if looks else timeout)]
        reap(on_exit)
        if looks and not exits:
            looks = 0 if inside.hold(started) else looks - 1
        if life in ready:
            return
        if groups.overspent():
            connection.sendall(b"C\n")
            return
        if connection.fileno() in ready:
            if not connection.recv(64):
                return
            terminate(started, depth, exits)


def terminate(started: int, depth: int, exits: list[int]) -> None:
    """Ask the command to end: the process ``depth`` levels below ``started``, and its group."""
    found = started
    for _ in range(depth):
        found = next(iter(children(found)), 0)
    if found and not exits:  # else the number may be another process's
        try:
            os.killpg(os.getpgid(found), SIGTERM)
        except OSError:
            pass


def close_from(first: int) -> None:
    """Close all descriptors from ``first`` up, however many there may be."""
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd" if LINUX else "/dev/fd")]
        last = max(numbers, default=first)
    except OSError:
        last = min(os.sysconf("SC_OPEN_MAX"), 1 << 20)
    os.closerange(first, last + 1)


def serve() -> None:
    """Have a keeper wait for the next command, and kill what killed keepers leave, until the application is gone."""
    for signal_number in IGNORED:
        _signal.signal(signal_number, _signal.SIG_IGN)
    close_from(CONTROL + 1)  # what the application left inheritable is no business of any command
    become_subreaper()
    os.chdir("/")
    parent = os.getppid()
    try:
        life = os.pidfd_open(parent)
    except (AttributeError, OSError):
        life = None
    if os.getppid() != parent:
        return
    os.set_inheritable(CONTROL, False)
    control = _socket.socket(fileno=CONTROL)
    taken, take = os.pipe()  # a keeper says here that it has a job, so that another is made
    poller = select.poll()
    poller.register(taken, select.POLLIN)
    poller.register(control.fileno(), select.POLLHUP)
    if life is not None:
        poller.register(life, select.POLLIN)
    keepers: dict[int, int | None] = {}  # the pidfd of each, where there are pidfds
    idle: set[int] = set()
    groups: dict[int, list[str]] = {}  # the control groups of each
    left: list[str] = []  # those of keepers that are gone; each keeper removes its own, unless it was killed

    def on_exit(pid: int, _status: int) -> None:
        idle.discard(pid)
        left.extend(groups.pop(pid, ()))
        pidfd = keepers.pop(pid, None)
        if pidfd is not None:
            poller.unregister(pidfd)
            os.close(pidfd)

    def strays() -> bool:
        return any(pid not in keepers for pid in children(os.getpid()))

    while True:
        while len(idle) < SPARE:
            if idle:
                awaited(control)
            try:
                pid = os.fork()
            except OSError:  # there are too many processes, for now
                break
            if pid == 0:
                be_keeper(control, take, life)
            idle.add(pid)
            keepers[pid] = None
            if life is not None:  # a keeper's death leaves orphans that want killing at once
                keepers[pid] = pidfd = os.pidfd_open(pid)
                poller.register(pidfd, select.POLLIN)
        short = left or len(idle) < SPARE
        ready = [descriptor for descriptor, _ in poller.poll(1000 if life is not None and not short else 50)]
        if taken in ready:
            for line in os.read(taken, 1 << 16).splitlines():  # all there is; each was written at once
                pid, _, folder = line.partition(b" ")
                idle.discard(int(pid))
                if folder:
                    groups.setdefault(int(pid), []).append(os.fsdecode(folder))
        reap(on_exit)
        if control.fileno() in ready or life in ready or os.getppid() != parent:
            break
        if strays():
            sweep(0, on_exit, keepers)
        remove(left)
    control.close()
    end = time.monotonic() + 12.0  # every keeper has seen the same, and clears up its own
    pause = 0.001
    while reap(on_exit) and time.monotonic() < end:
        send(stopped(keepers), SIGKILL)  # all but one that a program of its own has stopped
        if strays():
            sweep(0, on_exit, keepers)
        time.sleep(pause)
        pause = min(pause * 2, 0.02)
    send(list(keepers), SIGKILL)
    sweep(0, on_exit, seconds=5.0)
    left += [folder for folders in groups.values() for folder in folders]
    for _ in range(200):
        remove(left)
        if not left:
            return
        time.sleep(0.005)


def awaited(control: _socket.socket) -> None:
    """Return when there is a job for the next keeper, or soon: a fork right now would slow down the command that has just begun."""
    poller = select.poll()
    poller.register(control.fileno(), select.POLLIN | select.POLLHUP)
    poller.poll(PAUSE)


def be_keeper(control: _socket.socket, take: int, life: int | None) -> None:
    """Wait for a job, do it, and exit."""
    code = 0
    try:
        become_subreaper()
        __import__("fcntl")  # now, and not when a command waits for it
        descriptors = receive_job(control)
        if descriptors:
            os.write(take, b"%d\n" % os.getpid())
            control.close()
            keep(descriptors, life, take)
    except BaseException:  # noqa: BLE001 (nobody is there to hear of it, and the fork must not go on as its parent)
        code = 1
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve()
