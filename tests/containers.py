"""Containers for tests: podman with a storage of its own, and an image made of this machine's busybox and Python. No registry is asked."""

from __future__ import annotations

import glob
import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

IMAGE = "localhost/littleghost-test:1"
HOW = "apt-get install podman runc conmon busybox-static python3"
PYTHON = "/usr/bin/python3"

# No more than a machine without systemd, with either version of control groups, can do.
_CONTAINERS = """
[containers]
netns = "none"
log_driver = "k8s-file"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "none"
"""
_STORAGE = """
[storage]
driver = "{driver}"
graphroot = "{folder}/root"
runroot = "{folder}/run"
"""
_SKIPPED = (
    "/test",
    "/dist-packages",
    "/idlelib",
    "/tkinter",
    "/ensurepip",
    "/lib2to3",
    "/config-",
)
_PASSWD = b"root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home:/bin/sh\n"


def missing() -> str | None:
    """Return which program is not here, if any is not."""
    programs = ("podman", "runc", "conmon", "busybox")
    absent = [name for name in programs if shutil.which(name) is None]
    asked = [PYTHON, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
    if not os.path.exists(PYTHON) or subprocess.run(asked).returncode != 0:
        absent.append(f"{PYTHON} of version 3.11 or newer")
    return ", ".join(absent) or None


class Containers(msgspec.Struct, frozen=True, kw_only=True):
    """Podman, ready for use.

    Attributes:
        image: An image with a shell and a Python.
        bare: One with a shell only.
        environment: What podman needs in its environment.
        folder: Where all of it is.
    """

    image: str
    bare: str
    environment: dict[str, str]
    folder: Path

    def podman(self, *arguments: str) -> str:
        """Run podman to its end and return what it printed."""
        environment = {**os.environ, **self.environment}
        done = subprocess.run(
            ["podman", *arguments], env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def make_image(file: Path, *, python: bool = True) -> None:
    """Write the files of an image as a tar file."""
    with tarfile.open(file, "w") as tar:

        def entry(
            name: str, kind: bytes = tarfile.REGTYPE, mode: int = 0o755, **fields: object
        ) -> tarfile.TarInfo:
            info = tarfile.TarInfo(name)
            info.type, info.mode = kind, mode
            for field, value in fields.items():
                setattr(info, field, value)
            return info

        for folder in (
            "bin",
            "etc",
            "dev",
            "proc",
            "sys",
            "root",
            "home",
            "usr",
            "usr/bin",
            "usr/lib",
            "workspace",
            "paths",
        ):
            tar.addfile(entry(folder, tarfile.DIRTYPE))
        tar.addfile(entry("tmp", tarfile.DIRTYPE, 0o1777))
        busybox = shutil.which("busybox") or "/bin/busybox"
        tar.add(os.path.realpath(busybox), "bin/busybox")
        applets = subprocess.run(
            [busybox, "--list"], capture_output=True, text=True, check=True
        ).stdout.split()
        for applet in applets:
            if applet != "busybox":
                tar.addfile(entry(f"bin/{applet}", tarfile.SYMTYPE, linkname="busybox"))
        for name, content in (("etc/passwd", _PASSWD), ("etc/group", b"root:x:0:\nuser:x:1000:\n")):
            tar.addfile(entry(name, mode=0o644, size=len(content)), io.BytesIO(content))
        if python:
            _add_python(tar, entry)


def _add_python(tar: tarfile.TarFile, entry: object) -> None:
    program, shell = os.path.realpath(PYTHON), os.path.realpath("/bin/bash")
    version = os.path.basename(program)
    library = f"/usr/lib/{version}"
    libraries: set[str] = set()
    for file in [program, shell, *glob.glob(f"{library}/lib-dynload/*.so")]:
        told = subprocess.run(["ldd", file], capture_output=True, text=True).stdout
        libraries.update(match[1] for match in re.finditer(r"(?:=> )?(/\S+) \(0x", told))
    tar.add(program, program[1:])
    tar.add(shell, "bin/bash")
    link = tarfile.TarInfo("usr/bin/python3")
    link.type, link.linkname = tarfile.SYMTYPE, version
    tar.addfile(link)
    tar.add(
        library,
        library[1:],
        filter=lambda info: None if any(part in f"/{info.name}" for part in _SKIPPED) else info,
    )
    for file in sorted(libraries):
        tar.add(os.path.realpath(file), file[1:])


@contextmanager
def containers() -> Iterator[Containers]:
    """Make the images, in a storage that is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="littleghost-containers-"))
    environment = {
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
    }
    folder.joinpath("containers.conf").write_text(_CONTAINERS)
    folder.joinpath("storage.conf").write_text(_STORAGE.format(driver="overlay", folder=folder))
    found = Containers(
        image=IMAGE, bare="localhost/littleghost-bare:1", environment=environment, folder=folder
    )
    try:
        for name, python in ((found.image, True), (found.bare, False)):
            make_image(folder / "image.tar", python=python)
            found.podman(
                "import", "--quiet", "--change", "ENV PATH=/usr/bin:/bin", str(folder / "image.tar"), name
            )
            folder.joinpath("image.tar").unlink()
        yield found
    finally:
        environment = {**os.environ, **environment}
        subprocess.run(
            ["podman", "rm", "--all", "--force", "--time", "0"],
            env=environment,
            capture_output=True,
            timeout=120,
        )
        subprocess.run(
            ["podman", "rmi", "--all", "--force"], env=environment, capture_output=True, timeout=120
        )
        for mounted in (folder / "root" / "overlay", folder / "root"):
            subprocess.run(["umount", "-l", str(mounted)], capture_output=True, timeout=20)
        shutil.rmtree(folder, ignore_errors=True)
