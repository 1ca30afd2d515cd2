"""Boot a machine with a stock kernel and run tests in it; exit with 0 if they passed everywhere.

``scripts/vm`` prepares what this needs, and says how it is told what to do.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import NoReturn

from scripts.virtual_machine import initramfs

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent.parent
CACHE = PROJECT / ".vm"
_PLACES = "root user session systemd"
_SAID = re.compile(r"vm: (\w+): exit (-?\d+) after")


def main() -> int:
    """Fetch, build, boot, and read what the machine says."""
    places = os.environ.get("KERNELBOX_VM_PLACES", _PLACES).split()
    if unknown := set(places) - set(_PLACES.split()):
        _fail(f"KERNELBOX_VM_PLACES takes {_PLACES}; not {' '.join(sorted(unknown))}")
    if "systemd" in places and not os.path.exists("/lib/systemd/systemd"):
        _say("there is no systemd here to try; going on without")
        places.remove("systemd")
    for program, package in (("qemu-system-x86_64", "qemu-system-x86"), ("dpkg-deb", "dpkg")):
        if shutil.which(program) is None:
            _fail(f"{program} is missing: install {package}, or run this as root")
    CACHE.mkdir(exist_ok=True)
    kernel = _unpacked(_kernel_package(os.environ.get("KERNELBOX_VM_KERNEL", "linux-image-amd64")))
    (busybox,) = _unpacked("busybox-static").glob("**/bin/busybox")
    codes: dict[str, int] = {}
    # One machine for all that is done by hand, and one in which systemd is pid 1.
    for init in ("guest", "systemd"):
        if here := [place for place in places if (place == "systemd") == (init == "systemd")]:
            codes |= _run_in_machine(kernel, busybox, init=init, places=here)
    missing = [place for place in places if place not in codes]
    failed = [place for place, code in codes.items() if code]
    for what, names in (("ended before it was done", missing), ("failed", failed)):
        if names:
            _say(f"{what}: {', '.join(names)}")
    if not missing and not failed:
        _say(f"all is well: {', '.join(places)}")
    return 1 if missing or failed else 0


def _run_in_machine(kernel: Path, busybox: Path, *, init: str, places: list[str]) -> dict[str, int]:
    """Boot one, and let it end; how pytest ended in each place."""
    (image,) = kernel.glob("boot/vmlinuz-*")
    others = {
        "init": (HERE / "init.sh").read_bytes(),
        "kernelbox-vm.service": (HERE / "kernelbox-vm.service").read_bytes(),
        "order": _order(init, places).encode(),
        "closed": "".join(f"{folder}\n" for folder in _closed()).encode(),
    }
    archive = CACHE / f"initramfs-{os.getpid()}"
    try:
        files = initramfs.files(busybox=busybox, kernel=kernel, others=others)
        initramfs.write(archive, files)
        return _boot(_command(image, archive))
    finally:
        archive.unlink(missing_ok=True)


def _closed() -> list[str]:
    """The folders on the way to what is run that an ordinary user may not enter."""
    ends = (sys.executable, os.path.realpath(sys.executable), str(PROJECT))
    folders = {str(folder) for end in ends for folder in Path(end).parents}
    return sorted(folder for folder in folders if os.stat(folder).st_mode & 0o005 != 0o005)


def _kernel_package(name: str) -> str:
    """A path as it is; a name that only points to the current package is followed."""
    if name.endswith(".deb"):
        return name
    if shutil.which("apt-cache") is None:
        _fail("there is no apt here: name a kernel's package, KERNELBOX_VM_KERNEL=path/to.deb")
    asked = subprocess.run(
        ["apt-cache", "depends", name], capture_output=True, text=True, check=False
    )
    found = re.search(r"Depends: (linux-image-\S+)", asked.stdout)
    return found[1] if found else name


def _unpacked(package: str) -> Path:
    """The folder of what is in a package, which is fetched by its name if it is not there yet."""
    folder = CACHE / Path(package).name.removesuffix(".deb")
    if folder.is_dir():
        return folder
    draft = CACHE / f"draft-{os.getpid()}"
    draft.mkdir()
    try:
        file = Path(package) if package.endswith(".deb") else _download(package, draft)
        _run(["dpkg-deb", "--extract", str(file), str(draft / "files")], cwd=draft)
        (draft / "files").rename(folder)
    except (OSError, subprocess.CalledProcessError) as reason:
        _fail(f"could not get {package}: {reason}. Is the name right, and is apt-get update done?")
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def _download(package: str, folder: Path) -> Path:
    _say(f"fetching {package}")
    # apt's own helper may be somebody who cannot write here.
    _run(["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", package], cwd=folder)
    (file,) = folder.glob("*.deb")
    return file


def _order(init: str, places: list[str]) -> str:
    """For ``init.sh``, and through the environment for ``guest.py``."""
    order = {"places": places, "words": sys.argv[1:], "project": str(PROJECT)}
    words = {
        "KERNELBOX_VM_INIT": init,
        "KERNELBOX_VM_PYTHON": sys.executable,
        "KERNELBOX_VM_GUEST": str(HERE / "guest.py"),
        "KERNELBOX_VM_ORDER": json.dumps(order),
    }
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in words.items())


def _command(image: Path, archive: Path) -> list[str]:
    accel = os.environ.get("KERNELBOX_VM_ACCEL", "tcg")
    return [
        *("qemu-system-x86_64", "-M", "q35", "-accel", accel, "-cpu", "max", "-smp", "2"),
        *("-m", "4G", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-serial", "stdio", "-kernel", str(image), "-initrd", str(archive)),
        *("-append", "console=ttyS0 loglevel=2 panic=-1 random.trust_cpu=on mitigations=off"),
        # Its root sees what whoever runs this may read, and writes nothing.
        *("-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"),
        *("-device", "virtio-9p-pci,fsdev=host,mount_tag=host"),
    ]


def _boot(command: list[str]) -> dict[str, int]:
    """Show what the machine says; how pytest ended, in each place that it got to."""
    minutes = float(os.environ.get("KERNELBOX_VM_MINUTES", "60"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    codes: dict[str, int] = {}
    machine = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace"
    )
    alarm = threading.Timer(minutes * 60, machine.kill)
    alarm.start()
    try:
        assert machine.stdout is not None
        for line in machine.stdout:
            print(line.rstrip(), flush=True)
            if found := _SAID.match(line):
                codes[found[1]] = int(found[2])
    finally:
        alarm.cancel()
        machine.kill()
        machine.wait()
    return codes


def _run(command: list[str], *, cwd: Path) -> None:
    subprocess.run(command, check=True, cwd=cwd, stdout=sys.stderr)


def _say(text: str) -> None:
    print(f"· {text}", file=sys.stderr, flush=True)


def _fail(text: str) -> NoReturn:
    _say(text)
    sys.exit(2)


if __name__ == "__main__":
    sys.exit(main())
