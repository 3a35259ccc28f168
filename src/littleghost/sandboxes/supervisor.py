"""The process that starts commands and sees to it that nothing they started outlives them. Run as a script; see `processes`.

It stands between the application and its commands because on Linux the only way to find a daemon that left its session and was
orphaned twice is to be the *subreaper* it falls back to, and that is a property of a whole process: the application itself would
inherit, and have to reap, processes it knows nothing of.

::

    application ── supervisor ─┬─ keeper ── command ── whatever it starts
                               ├─ keeper ── command …
                               └─ keeper (waiting for the next command)

A keeper serves one command. It is forked ahead of time, takes its job from a socket that all waiting keepers share, starts the
command, and waits for it, for an order to kill, or for the application's end, whichever comes first. Then it stops and kills its
descendants until ``waitpid`` says that there are none: on Linux that is proof, because every orphan below a subreaper becomes its child.
A keeper that is itself killed leaves its orphans to the supervisor, which kills them.

Only the standard library, and as little of it as possible: this starts in milliseconds. The job arrives on a stream socket of the
command's own, whose end is also the sign that nobody waits for the command any more.
"""

import _socket  # `socket` brings `selectors` and `enum`, which cost more than all the rest
import errno
import os
import select
import sys
import time

CONTROL = 3  # the socket to the application
SPARE = 1  # keepers that wait ahead of need
FIRST = 10  # the number the first extra descriptor has in the command
_LINUX = sys.platform == "linux"

SIGKILL, SIGSTOP, SIGCONT = 9, 19 if _LINUX else 17, 18 if _LINUX else 19
# What Python itself ignores, and a command expects to be as it was.
DEFAULT_SIGNALS = (13, 25)  # SIGPIPE, SIGXFSZ


def prctl(option, value):
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def become_subreaper():
    """Adopt orphaned descendants, and keep descendants from gaining rights by which they could not be killed."""
    if _LINUX:
        prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
        prctl(38, 1)  # PR_SET_NO_NEW_PRIVS; inherited by everything below


def children(pid):
    """Return the pids of the children of ``pid``."""
    found = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += [int(child) for child in file.read().split()]
    except FileNotFoundError:
        if not os.path.exists("/proc/self/task/%d/children" % os.getpid()) and os.path.isdir("/proc/self"):
            return children_by_parent(pid)  # a kernel without CONFIG_PROC_CHILDREN
    except OSError:
        pass
    return found


def children_by_parent(parent):
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent:
                found.append(int(entry))
    return found


def descendants(pid, but=()):
    """Return the pids of everything below ``pid``, without the trees of ``but``."""
    found, pending = [], [pid]
    while pending:
        for child in children(pending.pop()):
            if child not in but:
                found.append(child)
                pending.append(child)
    return found


def send(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            pass


def reap(on_exit=None):
    """Collect what has died; return whether any child is left."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
        if on_exit is not None:
            on_exit(pid, status)


def sweep(group=None, on_exit=None, but=(), seconds=10.0):
    """Kill all descendants, and return whether none is left.

    They are stopped first, and only when no new ones appear killed, so that nothing can fork its way past.
    """
    if group:
        try:
            os.killpg(group, SIGKILL)
        except OSError:
            pass
    if not _LINUX:
        end = time.monotonic() + 1.0
        while reap(on_exit) and time.monotonic() < end:
            time.sleep(0.005)
        return True
    if not reap(on_exit):
        return True
    end = time.monotonic() + seconds
    pause = 0.0002
    while True:
        stopped = set()
        while time.monotonic() < end:
            fresh = [pid for pid in descendants(os.getpid(), but) if pid not in stopped]
            if not fresh:
                break
            send(fresh, SIGSTOP)
            stopped.update(fresh)
        send(stopped, SIGKILL)
        alive = reap(on_exit)
        if not alive or (but and not [pid for pid in children(os.getpid()) if pid not in but]):
            return True
        if time.monotonic() >= end:
            return False
        time.sleep(pause)
        pause = min(pause * 2, 0.02)


def receive_exactly(connection, count):
    data = b""
    while len(data) < count:
        part = connection.recv(min(count - len(data), 1 << 20))
        if not part:
            raise EOFError
        data += part
    return data


def receive_job(control):
    """Return the descriptors of the next job, or ``None`` when the application is gone."""
    size = 4 * 32
    flags = getattr(_socket, "MSG_CMSG_CLOEXEC", 0)
    data, ancillary, _, _ = control.recvmsg(1, _socket.CMSG_SPACE(size), flags)
    if not data:
        return None
    descriptors = []
    for level, kind, content in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            content = content[: len(content) - len(content) % 4]
            descriptors += [int.from_bytes(content[i : i + 4], sys.byteorder) for i in range(0, len(content), 4)]
    if not flags:
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
    return descriptors


def exit_code(status):
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def start(arguments, environment, search, actions):
    """Start the program, or raise the `OSError` that says why it cannot be."""
    program = arguments[0]
    if b"/" in program:
        candidates = [program]
    else:
        candidates = [directory + b"/" + program for directory in search if directory.startswith(b"/")]
    failure = FileNotFoundError(errno.ENOENT, "not found")
    for candidate in candidates:
        try:
            return os.posix_spawn(
                candidate, arguments, environment, file_actions=actions, setsid=True, setsigmask=(), setsigdef=DEFAULT_SIGNALS
            )
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            failure = error
    raise failure


def keep(descriptors, life):
    """Serve one command: descriptors are its socket, its three streams, its directory (or none), and extra ones."""
    become_subreaper()
    connection = _socket.socket(fileno=descriptors[0])
    connection.setblocking(True)
    exited = []
    started = 0
    reported = False

    def on_exit(pid, status):
        if pid == started:
            exited.append(exit_code(status))

    try:
        length = int.from_bytes(receive_exactly(connection, 8), "little")
        fields = receive_exactly(connection, length).split(b"\0")
        counts = [int(field) for field in fields[:4]]
        has_directory, count, variables, places = counts
        arguments = fields[4 : 4 + count]
        pairs = fields[4 + count : 4 + count + variables]
        search = fields[4 + count + variables : 4 + count + variables + places]
        environment = dict(pair.split(b"=", 1) for pair in pairs)

        streams, extra = descriptors[1:4], descriptors[4:]
        if has_directory:
            os.fchdir(extra[0])
            os.close(extra.pop(0))
        actions = []
        high = []
        for index, descriptor in enumerate([*streams, *extra]):  # out of the way of the numbers they are to have
            high.append(os.dup2(descriptor, 200 + index, inheritable=False))
            os.close(descriptor)
        for index, descriptor in enumerate(high):
            actions.append((os.POSIX_SPAWN_DUP2, descriptor, index if index < 3 else FIRST + index - 3))
        try:
            started = start(arguments, environment, search, actions)
        except OSError as error:
            connection.sendall(b"E%d\n" % (error.errno or 0))
            return
        finally:
            for descriptor in high:
                os.close(descriptor)
        connection.sendall(b"S%d\n" % started)
        wait(connection, life, started, on_exit, exited)
        if exited:
            reported = True
            connection.sendall(b"X%d\n" % exited[0])
    except (OSError, EOFError):
        pass  # nobody waits for the command any more
    finally:
        clean = sweep(started, on_exit)
        try:
            if exited and not reported:
                connection.sendall(b"X%d\n" % exited[0])
            connection.sendall(b"D\n" if clean else b"L\n")
        except OSError:
            pass


def wait(connection, life, started, on_exit, exited):
    """Return when the command has ended, or must."""
    poller = select.poll()
    poller.register(connection.fileno(), select.POLLIN | select.POLLHUP)
    if life is not None:
        poller.register(life, select.POLLIN)
    timeout = 20
    try:
        pidfd = os.pidfd_open(started)
        poller.register(pidfd, select.POLLIN)
        timeout = 500  # orphans that died want reaping now and then
    except (AttributeError, OSError):
        pass
    while not exited:
        ready = [descriptor for descriptor, _ in poller.poll(timeout)]
        reap(on_exit)
        if connection.fileno() in ready or (life is not None and life in ready) or (life is None and os.getppid() == 1):
            return


def serve():
    os.closerange(CONTROL + 1, 65_536)  # what the application left inheritable is no business of any command
    become_subreaper()
    os.chdir("/")
    parent = os.getppid()
    try:
        life = os.pidfd_open(parent)
    except (AttributeError, OSError):
        life = None
    if os.getppid() != parent:
        return
    control = _socket.socket(fileno=CONTROL)
    os.set_inheritable(CONTROL, False)
    taken, take = os.pipe()  # a keeper says here that it has a job, so that another is made
    poller = select.poll()
    poller.register(taken, select.POLLIN)
    poller.register(control.fileno(), select.POLLHUP)
    if life is not None:
        poller.register(life, select.POLLIN)
    keepers = {}  # pid: pidfd or None
    idle = set()

    def on_exit(pid, _status):
        idle.discard(pid)
        pidfd = keepers.pop(pid, None)
        if pidfd is not None:
            poller.unregister(pidfd)
            os.close(pidfd)

    while True:
        while len(idle) < SPARE:
            pid = os.fork()
            if pid == 0:
                code = 0
                try:
                    os.close(taken)
                    descriptors = receive_job(control)
                    if descriptors:
                        os.write(take, b"%10d" % os.getpid())
                        os.close(take)
                        control.close()
                        keep(descriptors, life)
                except BaseException:
                    code = 1
                finally:
                    os._exit(code)
            idle.add(pid)
            keepers[pid] = None
            if life is not None:  # so there are pidfds; a keeper's death leaves orphans that want killing at once
                keepers[pid] = os.pidfd_open(pid)
                poller.register(keepers[pid], select.POLLIN)
        ready = [descriptor for descriptor, _ in poller.poll(1000 if life is not None else 50)]
        if taken in ready:
            told = os.read(taken, 10 * 64)
            idle.difference_update(int(told[i : i + 10]) for i in range(0, len(told), 10))
        reap(on_exit)
        if control.fileno() in ready or (life is not None and life in ready) or os.getppid() != parent:
            return  # every keeper sees the same, and clears up its own
        if any(pid not in keepers for pid in children(os.getpid())):
            sweep(None, on_exit, but=keepers)


if __name__ == "__main__":
    serve()
