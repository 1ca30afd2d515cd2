"""Packages are a way in: names that a cell makes up, wheels that somebody has put on an index, and a
folder that is shared with the host. None of them is a way out."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from wheels import Shop

from kernelbox import Box, InstallFailed, KernelRecord, Mount, Settings
from kernelbox.walls import entry
from kernelbox.walls.profiles import named

WALLED = ("restrictive", "moderate", "permissive")


@pytest.fixture(scope="module", autouse=True)
def needed() -> None:
    pytest.importorskip("uv", reason="uv is not installed: pip install uv packaging")
    if obstacle := entry.obstacle():
        pytest.skip(f"no walls can be built here: {obstacle}")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    shop = Shop(tmp_path_factory.mktemp("shop"))
    shop.offer("kbx-plain", "1.0")
    return shop


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory, shop: Shop) -> Iterator[Box]:
    base = tmp_path_factory.mktemp("installs")
    home = base / "user"
    (home / ".cache").mkdir(parents=True)
    settings = Settings(
        registry_path=str(base / "home" / "registry.json"),
        runtime_dir=str(base / "home" / "runtime"),
        install_indexes=(shop.address,),
        install_allow=("kbx-*",),
        install_block=("kbx-blocked",),
        spares=0,
        keeper_linger=0.1,
    )
    # The default place, in a home that a profile shows.
    with pytest.MonkeyPatch.context() as patch, Box(settings) as made:
        patch.setenv("HOME", str(home))
        patch.delenv("XDG_CACHE_HOME", raising=False)
        yield made
        made.wipe()


Make = Callable[..., KernelRecord]


@pytest.fixture
def make(box: Box, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    made: list[KernelRecord] = []

    def new(profile: object, **more: object) -> KernelRecord:
        name = f"{request.node.originalname[:60]}-{len(made)}"
        kernel = box.get_or_create(name, cwd=str(tmp_path), profile=profile, **more)  # type: ignore[arg-type]
        made.append(kernel)
        return kernel

    yield new
    for kernel in made:
        box.destroy(kernel)


def cell(box: Box, kernel: KernelRecord, code: str) -> str:
    """What it prints, and its error if there is one."""
    result = box.execute(kernel, code, timeout=30)
    return f"{result.output}{result.stderr}{result.error or ''}"


WRITES = r"""
import ctypes, kbx_plain, os, shutil
folder = os.path.dirname(os.path.dirname(kbx_plain.__file__))
def tries():
    yield "new", lambda: open(f"{folder}/new.py", "w")
    yield "old", lambda: open(kbx_plain.__file__, "a")
    yield "chmod", lambda: os.chmod(kbx_plain.__file__, 0o777)
    yield "utime", lambda: os.utime(kbx_plain.__file__)
    yield "unlink", lambda: os.unlink(kbx_plain.__file__)
    yield "rename", lambda: os.rename(folder, f"{folder}-x")
    yield "mkdir", lambda: os.mkdir("/packages/evil")
    yield "link", lambda: os.link(kbx_plain.__file__, "/packages/evil.py")
    yield "out", lambda: os.link(kbx_plain.__file__, "/tmp/evil.py")
    yield "symlink", lambda: os.symlink("/etc", "/packages/evil")
    yield "rmtree", lambda: shutil.rmtree("/packages/1")
    yield "xattr", lambda: os.setxattr(kbx_plain.__file__, "user.x", b"1")
    yield "mmap", lambda: os.open(kbx_plain.__file__, os.O_RDWR)
    yield "proc", lambda: open(f"/proc/self/root{kbx_plain.__file__}", "a")
    def remount():
        if ctypes.CDLL(None).mount(b"none", b"/packages", None, 32 | 4096, None) != 0:
            raise OSError("refused")
    yield "remount", remount
for name, attempt in tries():
    try:
        attempt()
    except OSError:
        print("denied", name)
    else:
        print("BREACH", name)
"""


@pytest.mark.parametrize("profile", WALLED)
def test_packages_cannot_be_written_to_from_inside(box: Box, make: Make, profile: str) -> None:
    kernel = make(named(profile).but(network="off"))
    box.install(kernel, "kbx-plain")
    said = cell(box, kernel, WRITES)
    assert "BREACH" not in said
    assert said.count("denied") == 15, said


def test_the_same_works_without_walls(box: Box, make: Make) -> None:
    kernel = make("open")
    box.install(kernel, "kbx-plain")
    assert "BREACH new" in cell(box, kernel, WRITES)


@pytest.mark.parametrize("profile", WALLED)
def test_no_family_sees_the_packages_of_another(box: Box, make: Make, profile: str) -> None:
    mine, other = make(named(profile).but(network="off")), make("restrictive")
    box.install(other, "kbx-plain")
    root = f"{os.environ['HOME']}/.cache/kernelbox/packages"
    assert Path(root, "families", other.kernel_id, "1").is_dir()
    code = (
        "import glob, os\n"
        f"seen = glob.glob('/packages/*') + glob.glob({root!r} + '/*') + glob.glob({root!r} + '/*/*')\n"
        "print(seen)\n"
        "try:\n    import kbx_plain; print('BREACH')\nexcept ImportError: print('denied')"
    )
    assert cell(box, mine, code) == "[]\ndenied\n"


def test_a_mount_of_the_profile_does_not_bring_the_cache_in(box: Box, make: Make) -> None:
    home = os.environ["HOME"]
    box.install(make("open"), "kbx-plain")
    profile = named("restrictive").but(mounts=(Mount(f"{home}/.cache", "/data", "rw"),))
    kernel = make(profile)
    assert cell(box, kernel, "import os; print(os.listdir('/data'))") == "['kernelbox']\n"
    said = cell(box, kernel, "print(os.listdir('/data/kernelbox/packages'))")
    assert "layers" not in said


# -- what a cell says ---------------------------------------------------------------------------

FORGERIES = [
    {"requirements": "kbx-plain"},
    {"requirements": [1, None, {}]},
    {"requirements": []},
    {},
    {"requirements": ["kbx-plain"] * 5000},
    {"requirements": ["k" * 100_000]},
    {"requirements": ["--index-url=http://127.0.0.1:1/", "kbx-plain"]},
    {"requirements": ["kbx-plain\n--find-links /"]},
    {"requirements": ["kbx-plain @ file:///etc/passwd"]},
    {"requirements": ["/etc/passwd"]},
    {"requirements": ["kbx-blocked"]},
    {"requirements": ["six"], "settings": {"install_allow": ["*"]}, "cell": False},
    {"requirements": ["six"], "policy": {"allow": ["*"]}, "environ": {"UV_DEFAULT_INDEX": "x"}},
]

FORGE = """
import json
from kernelbox.inside.shell import outbox
line = outbox.lifeline
line.send({{"op": "install", "id": 7, **json.loads({frame!r})}})
while True:
    line.wait()
    frame, _ = line.receive()
    if frame.get("op") == "installed":
        print(frame["ok"], frame["words"])
        break
"""


@pytest.mark.parametrize("number", range(len(FORGERIES)))
def test_what_a_hostile_cell_asks_for_is_refused_in_words(
    box: Box, make: Make, shop: Shop, number: int
) -> None:
    shop.offer("kbx-blocked")
    kernel = make("restrictive")
    said = cell(box, kernel, FORGE.format(frame=json.dumps(FORGERIES[number])))
    assert said.startswith("False "), said
    assert len(said.splitlines()) == 1
    assert cell(box, kernel, "import os; print(os.listdir('/packages'))") == "[]\n"


def test_a_flood_of_wishes_is_answered_and_the_kernel_lives(box: Box, make: Make) -> None:
    kernel = make("restrictive")
    code = """
from kernelbox.inside.shell import outbox
line = outbox.lifeline
for number in range(1000):
    line.send({"op": "install", "id": number, "requirements": ["kbx-plain"]})
refused = 0
while refused < 999:
    frame, _ = line.receive()
    refused += frame.get("op") == "installed" and not frame["ok"]
print(refused)
"""
    assert cell(box, kernel, code) == "999\n"
    assert cell(box, kernel, "print(1)") == "1\n"
    assert "installed kbx-plain" in cell(box, kernel, "%pip install kbx-plain")
    again = """
for number in range(300):
    line.send({"op": "install", "id": number, "requirements": []})
    line.receive()
"""
    cell(box, kernel, again)
    assert "too often" in cell(box, kernel, "%pip install -U kbx-plain")
    box.install(kernel, "kbx-plain")  # who runs the kernel still can


def test_a_copy_of_a_cell_and_a_thread_cannot_ask(box: Box, make: Make) -> None:
    kernel = make("restrictive")
    forked = "import os, sys\nif os.fork() == 0:\n    get_ipython().run_line_magic('pip', 'install kbx-plain')"
    cell(box, kernel, forked)
    thread = """
import threading
from kernelbox.inside import pip_lines
def ask(): pip_lines.run(["kbx-plain"])
t = threading.Thread(target=ask); t.start(); t.join()
"""
    assert "not by a thread" in cell(box, kernel, thread)
    assert cell(box, kernel, "print(1)") == "1\n"


@pytest.mark.parametrize("option", ["--index-url http://127.0.0.1:1/", "--target /tmp", "-e ."])
def test_a_cell_does_not_choose_the_index_or_the_place(box: Box, make: Make, option: str) -> None:
    kernel = make("restrictive")
    assert "the host decides" in cell(box, kernel, f"%pip install {option} kbx-plain")
    assert "the host decides" in cell(box, kernel, f"!pip install {option} kbx-plain")


# -- what a wheel brings ------------------------------------------------------------------------


def test_a_wheel_does_not_stand_before_python_or_us(box: Box, make: Make, shop: Shop) -> None:
    evil = "raise SystemExit('evil')\n"
    shadows = (
        "random", "json/__init__", "site", "sitecustomize", "usercustomize", "kernelbox/__init__",
        "IPython/__init__", "traitlets/__init__", "cloudpickle/__init__",
    )  # fmt: skip
    files = {f"{name}.py": evil for name in shadows}
    shop.offer("kbx-shadow", files={**files, "kbx_shadow.py": "x = 1\n", "kbx.pth": "import sys\n"})
    for profile in ("open", "restrictive"):
        kernel = make(profile)
        report = box.install(kernel, "kbx-shadow")
        assert any("random" in note for note in report.notes)
        code = (
            "import kbx_shadow, os, random, subprocess, sys\n"
            "print(sorted(n for n in os.listdir(os.path.dirname(kbx_shadow.__file__)) if 'info' not in n))\n"
            "import json, IPython, kernelbox, cloudpickle; json.dumps(1)\n"
            "subprocess.run([sys.executable, '-c', 'import kbx_shadow, IPython, random; print(random.random() < 1)'])"
        )
        assert cell(box, kernel, code) == "['__pycache__', 'kbx.pth', 'kbx_shadow.py']\nTrue\n"
        box.restart(kernel)
        assert cell(box, kernel, "print(1)") == "1\n"


def test_no_code_of_a_wheel_runs_outside(box: Box, make: Make, shop: Shop, tmp_path: Path) -> None:
    mark = tmp_path / "RAN-OUTSIDE"
    code = f"open({str(mark)!r}, 'w').close()\n"
    shop.offer(
        "kbx-eager",
        files={
            "kbx_eager/__init__.py": code,
            "kbx_eager.pth": f"import os; {code}",
            "sitecustomize.py": code,
            "kbx_eager/__main__.py": code,
            "conftest.py": code,
        },
    )
    kernel = make("restrictive")
    box.install(kernel, "kbx-eager")
    box.install(make("open"), "kbx-eager")
    assert not mark.exists()


@pytest.mark.parametrize("target", ["/etc/passwd", "../../../../../../etc/passwd", "/"])
def test_a_link_in_a_wheel_leads_nowhere(box: Box, make: Make, shop: Shop, target: str) -> None:
    shop.offer("kbx-links", files={"kbx_links/__init__.py": ""}, links={"kbx_links/out": target})
    kernel = make("open")
    with contextlib.suppress(InstallFailed):  # it may be refused, too
        box.install(kernel, "kbx-links", upgrade=True)
    code = (
        "import glob, os, sys\n"
        "for folder in sys.path:\n"
        "    for path in glob.glob(folder + '/kbx_links/out'):\n"
        "        print(os.path.islink(path), os.path.isdir(path), 'root' in open(path).read())\n"
    )
    assert cell(box, kernel, code) in ("", "False False False\n")


@pytest.mark.parametrize("path", ["../evil.py", "/tmp/kbx-evil.py", "kbx/../../evil.py"])
def test_a_wheel_does_not_unpack_elsewhere(
    box: Box, make: Make, shop: Shop, path: str, tmp_path: Path
) -> None:
    shop.offer("kbx-climbs", files={"kbx_climbs.py": "", path: "evil = 1\n"})
    root = Path(os.environ["HOME"], ".cache/kernelbox/packages")
    kernel = make("open")
    with contextlib.suppress(InstallFailed):
        box.install(kernel, "kbx-climbs", upgrade=True)
    assert not Path("/tmp/kbx-evil.py").exists()
    outside = [
        found for found in root.rglob("evil.py") if "uv" not in found.relative_to(root).parts
    ]
    assert all("files" in found.parts or "families" in found.parts for found in outside)
    assert not (root / "families" / "evil.py").exists()
    assert not (root / "layers" / "evil.py").exists()


def test_rights_of_files_in_a_wheel_do_not_count(box: Box, make: Make, shop: Shop) -> None:
    files = {"kbx_modes/__init__.py": "", "kbx_modes/tool": "#!/bin/sh\n"}
    shop.offer("kbx-modes", files=files, modes={"kbx_modes/tool": 0o6777})
    kernel = make("restrictive")
    box.install(kernel, "kbx-modes")
    code = "import kbx_modes, os; print(oct(os.stat(kbx_modes.__path__[0] + '/tool').st_mode & 0o7777))"
    assert cell(box, kernel, code) in ("0o555\n", "0o444\n")


def test_what_another_index_had_is_not_taken_from_the_cache(
    box: Box, make: Make, shop: Shop, tmp_path: Path
) -> None:
    shop.offer("kbx-twin", files={"kbx_twin.py": "where = 'ours'\n"})
    theirs = Shop(tmp_path / "theirs")
    theirs.offer("kbx-twin", files={"kbx_twin.py": "where = 'theirs'\n"})
    changed = {**box.settings.to_wire(), "install_indexes": [theirs.address]}
    first, second = make("open"), make("restrictive")
    with Box(Settings.from_wire(changed)) as other:
        other.install(first, "kbx-twin")
    box.install(second, "kbx-twin")
    assert cell(box, first, "import kbx_twin; print(kbx_twin.where)") == "theirs\n"
    assert cell(box, second, "import kbx_twin; print(kbx_twin.where)") == "ours\n"


def test_nothing_is_built_unless_the_policy_allows_it(box: Box, make: Make, shop: Shop) -> None:
    shop.offer_source("kbx-source")
    with pytest.raises(InstallFailed, match="no wheel"):
        box.install(make("open"), "kbx-source")
    assert not (shop.folder / "BUILT").exists()


def test_nothing_is_left_of_a_family_that_was_killed(box: Box, make: Make) -> None:
    root = Path(os.environ["HOME"], ".cache/kernelbox/packages/families")
    kernel = make("restrictive")
    box.install(kernel, "kbx-plain")
    (warden,) = [p["pid"] for p in box.status(kernel)["processes"] if p["role"] == "warden"]
    os.kill(warden, 9)
    long_ago = 1_000_000_000
    os.utime(root / kernel.kernel_id, (long_ago, long_ago))
    other = make("open")
    box.install(other, "kbx-plain", upgrade=True)
    assert not (root / kernel.kernel_id).exists()
    assert (root / other.kernel_id).exists()
