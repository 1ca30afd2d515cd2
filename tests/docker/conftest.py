"""The container without an engine: the service runs under the settings of docker-compose.yml, read
from that file, either in podman or in namespaces made by hand.

The root file system is an empty tree with the host's ``/usr`` and Python mounted into it, and our
environment where the Dockerfile has it; so nothing is fetched and nothing is built.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import secrets
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dockerfile_parse
import psutil
import pytest
import yaml
from processes import wait_until

import kernelbox

ROOT = Path(__file__).parent.parent.parent
VENV = "/opt/kernelbox"
TOKEN = "a-token-for-this-test"
# The client is inside, where the service is; there is no way in or out of that network.
CLIENT = """
import http.client, json, os, sys
method, path, body, token = json.loads(sys.argv[1])
connection = http.client.HTTPConnection("127.0.0.1", 8080, timeout=60)
headers = {"Authorization": f"Bearer {token}"} if token else {}
if body is not None:
    headers["Content-Type"] = "application/json"
connection.request(method, path, None if body is None else json.dumps(body), headers)
answer = connection.getresponse()
print(json.dumps([answer.status, answer.read().decode()]))
"""


@dataclass(frozen=True)
class Plan:
    """What the two files say: how the service is run, and under which restrictions."""

    service: dict[str, Any]
    environment: dict[str, str]
    command: list[str]
    workdir: str

    @classmethod
    def read(cls) -> Plan:
        with (ROOT / "docker-compose.yml").open() as file:
            service = yaml.safe_load(file)["services"]["kernelbox"]
        image = dockerfile_parse.DockerfileParser(path=str(ROOT), cache_content=True)
        last = {step["instruction"]: step["value"] for step in image.structure}
        environment = dict(image.envs)
        # The parser knows no PATH to put ours in front of.
        environment["PATH"] = f"{VENV}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        return cls(
            service,
            environment,
            [*json.loads(last["ENTRYPOINT"]), *json.loads(last["CMD"])],
            last["WORKDIR"],
        )

    @property
    def user(self) -> int:
        return int(self.service["user"].partition(":")[0])

    @property
    def tmpfs(self) -> list[tuple[str, str]]:
        """Places and their mount options."""
        return [tuple(entry.split(":", 1)) for entry in self.service["tmpfs"]]

    @property
    def health_check(self) -> list[str]:
        form, *command = self.service["healthcheck"]["test"]
        assert form == "CMD"
        return command

    @property
    def open_files(self) -> int:
        """As many as compose says, or as this machine allows."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        wanted = int(self.service["ulimits"]["nofile"])
        return wanted if most == resource.RLIM_INFINITY else min(wanted, most)


@dataclass
class Tree:
    """A root file system: a folder, and what is mounted into it."""

    root: Path
    data: Path
    mounts: dict[str, str] = field(default_factory=dict)

    @classmethod
    def make(cls, folder: Path, plan: Plan) -> Tree:
        tree = cls(folder / "root", folder / "data")
        for name in (
            "dev",
            "etc",
            "opt/packages",
            "opt/source",
            "proc",
            "run",
            "sys",
            "tmp",
            "usr",
        ):
            (tree.root / name).mkdir(parents=True)
        for name in ("bin", "lib", "lib32", "lib64", "sbin"):
            host = Path("/", name)
            if host.is_symlink():
                (tree.root / name).symlink_to(host.readlink())
            elif host.is_dir():
                tree.mount(str(host))
        tree.mount("/usr")
        if not Path(sys.base_prefix).is_relative_to("/usr"):
            tree.mount(sys.base_prefix)
        tree.mount(sysconfig.get_path("purelib"), "/opt/packages")
        tree.mount(str(Path(kernelbox.__file__).parent.parent), "/opt/source")
        (tree.root / "etc/passwd").write_text(
            f"root:x:0:0::/root:/bin/bash\nkernelbox:x:{plan.user}:{plan.user}::/data:/bin/bash\n"
        )
        with contextlib.suppress(FileNotFoundError):
            shutil.copy("/etc/ld.so.cache", tree.root / "etc")
        tree._make_environment()
        tree._make_volume(plan)
        # As the image has them: a tmpfs of podman's takes over the mode of what it covers.
        for place, _ in plan.tmpfs:
            covered = tree.root / place.lstrip("/")
            covered.mkdir(parents=True, exist_ok=True)
            covered.chmod(0o1777)
        return tree

    def mount(self, source: str, target: str | None = None) -> None:
        target = target or source
        self.mounts[source] = target
        place = self.root / target.lstrip("/")
        place.mkdir(parents=True, exist_ok=True)

    def _make_environment(self) -> None:
        """Where and as the Dockerfile makes it, but with the packages of the one that we run in."""
        place = self.root / VENV.lstrip("/")
        venv.EnvBuilder(system_site_packages=True, symlinks=True).create(place)
        (packages,) = place.glob("lib/python*/site-packages")
        (packages / "host.pth").write_text("/opt/packages\n/opt/source\n")
        script = place / "bin/kernelbox"
        script.write_text(
            f"#!{VENV}/bin/python\nimport sys\nfrom kernelbox.cli.entry import main\nsys.exit(main())\n"
        )
        script.chmod(0o755)

    def _make_volume(self, plan: Plan) -> None:
        """A new volume starts with what the image has there."""
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        for name in ("home", "work", f"python/lib/{version}/site-packages"):
            (self.data / name).mkdir(parents=True)
        for folder in (self.data, *self.data.rglob("*")):
            os.chown(folder, plan.user, plan.user)
        self.data.chmod(0o700)
        (self.root / "data").mkdir()


class Container(ABC):
    """The service, running in its tree under the restrictions of the plan."""

    def __init__(self, plan: Plan, tree: Tree, token: str | None) -> None:
        self.plan = plan
        self.tree = tree
        self.token = token
        self.environment = {**plan.environment, "KERNELBOX_API_TOKEN": token or ""}

    @abstractmethod
    def start(self) -> None:
        """Run the image's command."""

    @abstractmethod
    def command(self, inside: list[str]) -> list[str]:
        """What to run here in order to run that inside, as the service's user."""

    @abstractmethod
    def stop(self) -> int:
        """Ask the service to end, as the engine does; its exit code."""

    @abstractmethod
    def words(self) -> str:
        """All that the service has printed."""

    @abstractmethod
    def remove(self) -> None:
        """Whatever happened, leave nothing behind."""

    def run(self, *inside: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(list(inside)), capture_output=True, text=True, timeout=timeout
        )

    def ask(
        self, method: str, path: str, body: object = None, *, token: str | None = TOKEN
    ) -> tuple[int, Any]:
        """Send a request from inside; status and decoded answer."""
        request = json.dumps([method, path, body, token])
        done = self.run("python", "-s", "-c", CLIENT, request)
        assert done.returncode == 0, f"{done.stderr}\n{self.words()}"
        status, text = json.loads(done.stdout)
        return status, json.loads(text) if text[:1] in "{[" else text

    def execute(self, kernel: str, code: str, **fields: Any) -> dict[str, Any]:
        status, result = self.ask("POST", f"/kernels/{kernel}/execute", {"code": code, **fields})
        assert status == 200, result
        assert result["status"] == "success", result
        return result

    def wait_until_healthy(self) -> None:
        try:
            wait_until(
                lambda: self.run(*self.plan.health_check).returncode == 0,
                what="the health check to pass",
                seconds=60,
            )
        except AssertionError as late:
            raise AssertionError(f"{late}; the service said:\n{self.words()}") from None


class Podman(Container):
    """In podman, with each setting of the compose file as the flag that it stands for."""

    base = ("podman", "--cgroup-manager", "cgroupfs")

    def start(self) -> None:
        self.name = f"kernelbox-test-{secrets.token_hex(4)}"
        self.call(*self.flags(), str(self.tree.root), *self.plan.command)

    def flags(self) -> list[str]:
        service = self.plan.service
        flags = ["run", "--detach", "--name", self.name, "--rootfs", "--network", "none"]
        flags += ["--user", service["user"], "--workdir", self.plan.workdir]
        flags += [f"--read-only={str(service['read_only']).lower()}", "--read-only-tmpfs=false"]
        flags += [f"--cap-drop={name}" for name in service["cap_drop"]]
        flags += [
            f"--security-opt={option.removesuffix(':true')}" for option in service["security_opt"]
        ]
        flags += [f"--tmpfs={place}:{options}" for place, options in self.plan.tmpfs]
        flags += [f"--pids-limit={service['pids_limit']}", f"--memory={service['mem_limit']}"]
        most = self.plan.open_files
        flags += [f"--ulimit=nofile={most}:{most}", "--ulimit=nproc=4096:4096"]
        if service["init"] and _has_init():
            flags += ["--init"]
        for source, target in self.tree.mounts.items():
            flags += ["--volume", f"{source}:{target}:ro"]
        flags += ["--volume", f"{self.tree.data}:/data"]
        for name, value in self.environment.items():
            flags += ["--env", f"{name}={value}"]
        return flags

    def command(self, inside: list[str]) -> list[str]:
        return [*self.base, "exec", self.name, *inside]

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        runtime = ("--runtime", "runc") if shutil.which("runc") else ()
        done = subprocess.run(
            [*self.base, *runtime, *arguments], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"podman {shlex.join(arguments)}\n{done.stderr}"
        return done

    def stop(self) -> int:
        self.call("stop", "--time", "30", self.name)
        return int(self.call("inspect", "--format", "{{.State.ExitCode}}", self.name).stdout)

    def words(self) -> str:
        done = subprocess.run(
            [*self.base, "logs", self.name],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return done.stdout

    def remove(self) -> None:
        subprocess.run([*self.base, "rm", "--force", "--time", "0", self.name], capture_output=True)


class Namespaces(Container):
    """In namespaces of our own, by what util-linux has: the same walls, without limits."""

    def start(self) -> None:
        self.log = self.tree.root.parent / "service.log"
        root = shlex.quote(str(self.tree.root))
        steps = ["set -e", "mount --make-rprivate /", f"mount --bind {root} {root}"]
        for source, target in self.tree.mounts.items():
            steps.append(f"mount --rbind -o ro {shlex.quote(source)} {root}{shlex.quote(target)}")
            steps.append(f"mount -o remount,bind,ro {root}{shlex.quote(target)}")
        steps.append(f"mount --bind {shlex.quote(str(self.tree.data))} {root}/data")
        steps.append(f"mount -t proc proc {root}/proc")
        # The few devices that every engine provides.
        steps.append(f"mount -t tmpfs -o mode=0755,size=64k dev {root}/dev")
        for device in ("null", "zero", "full", "random", "urandom", "tty"):
            steps.append(f"touch {root}/dev/{device}")
            steps.append(f"mount --bind /dev/{device} {root}/dev/{device}")
        steps.append(f"ln -s /proc/self/fd {root}/dev/fd")
        steps.append(
            f"mkdir {root}/dev/shm && mount -t tmpfs -o mode=1777,size=64m shm {root}/dev/shm"
        )
        for place, options in self.plan.tmpfs:
            hard = f"nosuid,nodev,noexec,{options}"
            steps.append(f"mount -t tmpfs -o {hard} tmpfs {root}{place}")
        assert self.plan.service["read_only"]
        steps.append(f"mount -o remount,bind,ro {root}")
        steps.append(f"{shlex.quote(sys.executable)} -c {shlex.quote(LOOPBACK_UP)}")
        steps.append("exec " + shlex.join(self._walled(self.plan.command)))
        with self.log.open("w") as log:
            apart = ("--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child")
            self.outer = subprocess.Popen(
                ["unshare", *apart, "sh", "-c", "\n".join(steps)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait_until(
            lambda: self._inner() or self.outer.poll() is not None,
            what="the namespaces to be there",
        )
        assert self.outer.poll() is None, self.words()

    def _inner(self) -> int | None:
        """The service, once it has become itself: before that it has no tree of its own."""
        for child in psutil.Process(self.outer.pid).children():
            with contextlib.suppress(psutil.Error, OSError):
                if os.readlink(f"/proc/{child.pid}/root") == str(self.tree.root):
                    return child.pid
        return None

    def _walled(self, command: list[str]) -> list[str]:
        service, user = self.plan.service, str(self.plan.user)
        walled = ["env", "-i", *(f"{name}={value}" for name, value in self.environment.items())]
        walled += ["/usr/sbin/chroot", str(self.tree.root), "/usr/bin/setpriv"]
        walled += ["--reuid", user, "--regid", user, "--clear-groups"]
        if "ALL" in service["cap_drop"]:
            walled += ["--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]
        if "no-new-privileges:true" in service["security_opt"]:
            walled += ["--no-new-privs"]
        enter = f'cd {self.plan.workdir} && exec "$@"'
        return [*walled, "/bin/sh", "-c", enter, "sh", *command]

    def command(self, inside: list[str]) -> list[str]:
        pid = str(self._inner())
        enter = ["nsenter", "--target", pid, "--mount", "--pid", "--net", "--ipc", "--uts"]
        return [*enter, *self._walled(inside)]

    def stop(self) -> int:
        pid = self._inner()
        assert pid is not None
        psutil.Process(pid).terminate()
        return self.outer.wait(30)

    def words(self) -> str:
        return self.log.read_text()

    def remove(self) -> None:
        # The first process of a PID namespace takes all the others along.
        if (pid := self._inner() if self.outer.poll() is None else None) is not None:
            psutil.Process(pid).kill()
        self.outer.kill()
        self.outer.wait()


LOOPBACK_UP = """
import fcntl, socket, struct
with socket.socket() as sock:
    SIOCSIFFLAGS, IFF_UP = 0x8914, 1
    fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
"""

ENGINES: dict[str, type[Container]] = {"podman": Podman, "namespaces": Namespaces}


def _has_init() -> bool:
    return any(
        shutil.which("catatonit", path=path)
        for path in (None, "/usr/libexec/podman", "/usr/lib/podman")
    )


def missing(engine: str) -> str | None:
    """Why this machine cannot run that engine, if it cannot."""
    if os.geteuid() != 0:
        return "needs root, to own files as the container's user"
    if engine == "podman":
        if shutil.which("podman") is None:
            return "podman is not installed"
        probe = ["podman", "--cgroup-manager", "cgroupfs", "info"]
    else:
        programs = ("unshare", "nsenter", "setpriv", "chroot")
        if absent := [name for name in programs if shutil.which(name) is None]:
            return f"not installed: {', '.join(absent)}"
        probe = ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "true"]
    done = subprocess.run(probe, capture_output=True, text=True, timeout=60)
    return (
        None if done.returncode == 0 else f"{probe[0]} cannot be used here: {done.stderr.strip()}"
    )


@pytest.fixture(scope="session")
def plan() -> Plan:
    return Plan.read()


@contextlib.contextmanager
def running(engine: str, plan: Plan, folder: Path, token: str | None) -> Iterator[Container]:
    if reason := missing(engine):
        pytest.skip(f"{engine}: {reason}")
    container = ENGINES[engine](plan, Tree.make(folder, plan), token)
    try:
        container.start()
        container.wait_until_healthy()
        yield container
    finally:
        container.remove()


@pytest.fixture(scope="module", params=list(ENGINES))
def container(
    request: pytest.FixtureRequest, plan: Plan, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Container]:
    """The service as compose runs it, with a token."""
    with running(request.param, plan, tmp_path_factory.mktemp(request.param), TOKEN) as made:
        yield made


@pytest.fixture(params=list(ENGINES))
def tokenless(request: pytest.FixtureRequest, plan: Plan, tmp_path: Path) -> Iterator[Container]:
    """The same without a token in .env."""
    with running(request.param, plan, tmp_path, None) as made:
        yield made
