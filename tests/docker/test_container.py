"""The service under the container's user, read-only root, capabilities and tmpfs, for real."""

from __future__ import annotations

import ast
import os
import re
import zipfile
from typing import Any

import pytest

# Starts containers or namespaces, a service and kernels in each.
pytestmark = pytest.mark.slow

FACTS = """
import os
def writable(folder):
    try:
        open(os.path.join(folder, ".try"), "w").close()
        os.unlink(os.path.join(folder, ".try"))
    except OSError:
        return False
    return True
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
mounts = {line.split()[1]: line.split()[3].split(",") for line in open("/proc/self/mounts")}
{
    "user": (os.getuid(), os.getgid(), os.getgroups()),
    "capabilities": {name: int(status[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")},
    "no_new_privs": int(status["NoNewPrivs"]),
    "root": mounts["/"][0],
    "writable": [f for f in ("/", "/etc", "/opt", "/usr", "/run", "/data", "/tmp") if writable(f)],
    "sockets": os.path.isdir(f"/run/user/{os.getuid()}/kernelbox"),
}
"""


def test_a_kernel_is_made_and_remembers(container: Any) -> None:
    status, made = container.ask("POST", "/kernels", {"name": "agent"})
    assert (status // 100, made["name"]) == (2, "agent")
    container.execute("agent", "x = [1, 2, 3]")
    assert container.execute("agent", "sum(x)")["return_value"] == "6"
    assert container.execute("agent", "echo $HOME", language="bash")["output"] == "/data\n"


def test_a_cell_has_the_user_and_the_walls_of_the_compose_file(container: Any) -> None:
    container.ask("POST", "/kernels", {"name": "walls"})
    facts = ast.literal_eval(container.execute("walls", FACTS)["return_value"])
    user = container.plan.user
    assert facts["user"][:2] == (user, user)
    assert 0 not in facts["user"][2]
    assert set(facts["capabilities"].values()) == {0}
    assert facts["no_new_privs"] == 1
    assert facts["root"] == "ro"
    assert facts["writable"] == ["/data", "/tmp"]
    assert facts["sockets"]


def test_a_cell_cannot_become_root(container: Any) -> None:
    container.ask("POST", "/kernels", {"name": "climber"})
    code = "import os\ntry:\n    os.setuid(0)\nexcept OSError as no:\n    print(type(no).__name__)"
    assert container.execute("climber", code)["output"] == "PermissionError\n"


def test_nobody_comes_in_without_the_token(container: Any) -> None:
    for token in (None, "a-wrong-token"):
        status, answer = container.ask("GET", "/kernels", token=token)
        assert status == 401
        assert answer["error"]


def test_the_health_check_needs_no_token(container: Any) -> None:
    done = container.run(*container.plan.health_check)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_command_line_in_the_container_sees_the_same_kernels(container: Any) -> None:
    container.ask("POST", "/kernels", {"name": "shared"})
    container.execute("shared", "x = 41")
    done = container.run("kernelbox", "exec", "--name", "shared", "x + 1")
    assert '"return_value": "42"' in done.stdout, done.stderr


def test_a_full_tmp_keeps_no_kernel_from_starting(container: Any) -> None:
    container.ask("POST", "/kernels", {"name": "hoarder"})
    fill = (
        "import errno, os\nfacts = os.statvfs('/tmp')\nhoard = open('/tmp/hoard', 'wb')\n"
        "os.posix_fallocate(hoard.fileno(), 0, facts.f_bavail * facts.f_frsize)\n"
        "os.statvfs('/tmp').f_bavail"
    )
    assert container.execute("hoarder", fill)["return_value"] == "0"
    try:
        status, answer = container.ask("POST", "/kernels", {"name": "later"})
        assert status // 100 == 2, answer
        assert container.execute("later", "6 * 7")["return_value"] == "42"
    finally:
        container.execute("hoarder", "hoard.close()\nos.unlink('/tmp/hoard')")


def test_packages_installed_by_a_cell_are_on_the_volume(container: Any) -> None:
    wheel = container.tree.data / "work" / "kbgreeting-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("kbgreeting.py", "words = 'hello from the volume'\n")
        info = "kbgreeting-1.0.dist-info"
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: kbgreeting\nVersion: 1.0\n")
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", "")
    os.chmod(wheel, 0o644)
    container.ask("POST", "/kernels", {"name": "installer"})
    container.execute(
        "installer",
        "import subprocess, sys\n"
        f"subprocess.run([sys.executable, '-m', 'pip', 'install', '--no-index', '/data/work/{wheel.name}'], check=True)",
    )
    container.ask("POST", "/kernels", {"name": "reader"})
    told = container.execute("reader", "import kbgreeting\nkbgreeting.words, kbgreeting.__file__")
    words, place = ast.literal_eval(told["return_value"])
    assert words == "hello from the volume"
    assert place.startswith("/data/python/")


def test_without_a_token_the_service_makes_one_and_prints_it(tokenless: Any) -> None:
    assert tokenless.ask("GET", "/kernels", token=None)[0] == 401
    found = re.findall(r"[\w-]{20,}", tokenless.words())
    assert any(tokenless.ask("GET", "/kernels", token=word)[0] == 200 for word in found), (
        tokenless.words()
    )
    # As `docker compose down` does it: asked to end, it ends by itself, kernels and all.
    tokenless.ask("POST", "/kernels", {"name": "agent"}, token=found[-1])
    assert tokenless.stop() == 0, tokenless.words()
