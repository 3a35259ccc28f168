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
    from collections.abc import Callable, Collection, Iterable

CONTROL = 3  # the socket to the application
SPARE = 1  # keepers that wait ahead of need
FIRST = 10  # the number the first extra descriptor has in the command
MOST = 253  # descriptors of a job; the kernel takes no more at a time
LINUX = sys.platform == "linux"

SIGKILL = 9
SIGSTOP = 19  # Linux's number; it is used nowhere else
DEFAULT_SIGNALS = (
    13,
    25,
)  # SIGPIPE and SIGXFSZ, which Python ignores and a command expects to be as they were


def become_subreaper() -> None:
    """Adopt orphaned descendants, and keep descendants from gaining rights by which they could not be killed."""
    if LINUX:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
        prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
        prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS; everything below inherits it


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
    group: int, on_exit: Callable[[int, int], None], but: Collection[int] = (), seconds: float = 10.0
) -> bool:
    """Kill all descendants but the trees of ``but``, and return whether none is left.

    They are stopped first, and killed only when no new ones appear, so that nothing can fork its way past.
    """
    if group:
        try:
            os.killpg(group, SIGKILL)
        except OSError:
            pass
    end = time.monotonic() + (seconds if LINUX else 1.0)
    pause = 0.0002
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
                setsigdef=DEFAULT_SIGNALS,
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


def keep(descriptors: list[int], life: int | None) -> None:
    """Serve one command.

    Args:
        descriptors: Its socket, its three streams, its directory where it has one, and extra ones.
        life: A pidfd of the application, where there are pidfds.
    """
    become_subreaper()
    connection = _socket.socket(fileno=descriptors[0])
    connection.setblocking(True)
    exits: list[int] = []
    started = 0
    reported = False

    def on_exit(pid: int, status: int) -> None:
        if pid == started:
            exits.append(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))

    try:
        connection.sendall(b"K%d\n" % os.getpid())  # by which the application ends a keeper that was stopped
        length = int.from_bytes(receive_exactly(connection, 8), "little")
        fields = receive_exactly(connection, length).split(b"\0")
        has_directory, count, variables, places = (int(field) for field in fields[:4])
        ends = [4, 4 + count, 4 + count + variables, 4 + count + variables + places]
        arguments, pairs, search = (fields[ends[i] : ends[i + 1]] for i in range(3))
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
            started = start(arguments, environment, search, actions)
        except OSError as error:
            connection.sendall(b"E%d\n" % (error.errno or 0))
            return
        finally:
            for descriptor in moved:
                os.close(descriptor)
        connection.sendall(b"S%d\n" % started)
        wait(connection, life, started, on_exit, exits)
        if exits:
            reported = True
            connection.sendall(b"X%d\n" % exits[0])
    except (OSError, EOFError):
        pass  # nobody waits for the command any more
    finally:
        clean = sweep(started, on_exit)
        try:
            if exits and not reported:
                connection.sendall(b"X%d\n" % exits[0])
            connection.sendall(b"D\n" if clean else b"L\n")
        except OSError:
            pass


def wait(
    connection: _socket.socket,
    life: int | None,
    started: int,
    on_exit: Callable[[int, int], None],
    exits: list[int],
) -> None:
    """Return when the command has ended, or must."""
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
    while not exits:
        ready = [descriptor for descriptor, _ in poller.poll(timeout)]
        reap(on_exit)
        if connection.fileno() in ready or life in ready:
            return


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

    def on_exit(pid: int, _status: int) -> None:
        idle.discard(pid)
        pidfd = keepers.pop(pid, None)
        if pidfd is not None:
            poller.unregister(pidfd)
            os.close(pidfd)

    def strays() -> bool:
        return any(pid not in keepers for pid in children(os.getpid()))

    while True:
        while len(idle) < SPARE:
            pid = os.fork()
            if pid == 0:
                be_keeper(control, take, life)
            idle.add(pid)
            keepers[pid] = None
            if life is not None:  # a keeper's death leaves orphans that want killing at once
                keepers[pid] = pidfd = os.pidfd_open(pid)
                poller.register(pidfd, select.POLLIN)
        ready = [descriptor for descriptor, _ in poller.poll(1000 if life is not None else 50)]
        if taken in ready:
            told = os.read(taken, 10 * 64)
            idle.difference_update(int(told[at : at + 10]) for at in range(0, len(told), 10))
        reap(on_exit)
        if control.fileno() in ready or life in ready or os.getppid() != parent:
            break
        if strays():
            sweep(0, on_exit, keepers)
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


def be_keeper(control: _socket.socket, take: int, life: int | None) -> None:
    """Wait for a job, do it, and exit."""
    code = 0
    try:
        descriptors = receive_job(control)
        if descriptors:
            os.write(take, b"%10d" % os.getpid())
            os.close(take)
            control.close()
            keep(descriptors, life)
    except BaseException:  # noqa: BLE001 (nobody is there to hear of it, and the fork must not go on as its parent)
        code = 1
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve()
