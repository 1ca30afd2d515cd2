"""Promise: walls that cannot be had are refused, in words that say what to do, and leave nothing."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from probes import LOCKED
from processes import wait_until

from kernelbox import BadInput, Box, BoxError, Settings
from kernelbox.keeper.home import locate
from kernelbox.walls import gvisor
from kernelbox.walls.profiles import Mount, Profile, named

RESTRICTIVE = named("restrictive")


def refusal(box: Box, **options: Any) -> str:
    with pytest.raises(BoxError) as caught:
        box.get_or_create("refused", **options)
    assert "refused" not in [record.name for record in box.list_kernels()]
    runtime = Path(locate(box.settings).runtime_dir)
    assert not list(runtime.glob("kernel-*.json")) or box.list_kernels()
    return str(caught.value)


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        ("restrictve", "did you mean 'restrictive'"),
        ("", None),
        ("strict", "There are open, permissive, moderate, restrictive"),
        ("./no-such-file.toml", "cannot be read"),
        ({"security": {"walls": "high"}}, "has no key 'walls'"),
        ({"securty": {}}, "security"),
        (5, "a profile is a name"),
        (replace(RESTRICTIVE, memory=512), "memory of a profile takes"),
        (replace(RESTRICTIVE, network="host"), "network"),
        (replace(RESTRICTIVE, driver="none"), "driver"),
        (replace(RESTRICTIVE, mounts=(Mount("/proc", "/host"),)), "/proc cannot be"),
        (replace(RESTRICTIVE, mounts=(Mount("/", "/host"),)), "cannot be the source"),
        (replace(RESTRICTIVE, mounts=(Mount("/tmp/../etc", "/x"),)), "without .."),
        (replace(RESTRICTIVE, mounts=(Mount("/etc", "/proc/x"),)), "cannot be the target"),
    ],
    ids=lambda value: str(value)[:40] if not isinstance(value, Profile) else "profile",
)
def test_a_profile_that_means_nothing(shared_box: Box, profile: Any, words: str | None) -> None:
    if words is None:
        record = shared_box.get_or_create("empty", profile=profile)
        assert record.profile == "open", "an empty name is no name"
        shared_box.destroy(record)
        return
    assert words in refusal(shared_box, profile=profile)


def test_a_driver_that_is_not_there(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with Box(Settings.from_environment()) as box:
        said = refusal(box, profile=RESTRICTIVE.but(driver="gvisor"))
        assert "needs the program runsc" in said
        assert "apt-get install runsc" in said
        assert "driver='process'" in said, "what to use instead"
        box.wipe()


def test_what_gvisor_does_not_count(shared_box: Box) -> None:
    if obstacle := gvisor.obstacle():
        pytest.skip(obstacle)
    said = refusal(shared_box, profile=RESTRICTIVE.but(driver="gvisor", soft_memory=100 << 20))
    assert "soft_memory" in said


def test_the_network_of_the_host(shared_box: Box) -> None:
    with pytest.raises(BadInput, match="network"):
        RESTRICTIVE.but(network="host")


@pytest.mark.skipif(LOCKED, reason="where there are locks alone, nothing is mounted")
def test_a_mount_of_what_is_not_there(shared_box: Box) -> None:
    profile = RESTRICTIVE.but(mounts=(Mount("/no/such/folder", "/data"),))
    assert "there is no /no/such/folder" in refusal(shared_box, profile=profile)


def test_a_template_with_walls_of_its_own(shared_box: Box) -> None:
    template = shared_box.get_or_create("template")
    try:
        said = refusal(shared_box, profile="restrictive", template=template)
        assert "leave profile out" in said
    finally:
        shared_box.destroy(template)


def test_a_kernel_that_is_not_ours(shared_box: Box) -> None:
    with Box(replace(shared_box.settings, kernel_type="bash")) as box:
        assert "only python3 can" in refusal(box, profile="restrictive")


def test_a_profile_in_the_environment_is_taken_as_seriously(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELBOX_PROFILE", "restrictive")
    with Box(Settings.from_environment()) as box:
        record = box.get_or_create("walled")
        assert record.profile == "restrictive"
        assert box.status(record)["walls"]["profile"]["name"] == "restrictive"
        assert box.execute(record, "open('/etc/shadow')").error is not None
        box.wipe()
    monkeypatch.setenv("KERNELBOX_PROFILE", "restrictiv")
    with pytest.raises(BoxError, match="restrictiv"), Box(Settings.from_environment()) as box:
        box.get_or_create("mistyped")


def test_a_refusal_leaves_no_process_and_no_group(shared_box: Box) -> None:
    from kernelbox.walls import cgroups

    hierarchy = cgroups.find()
    if isinstance(hierarchy, str):
        pytest.skip(hierarchy)
    profile = RESTRICTIVE.but(mounts=(Mount("/no/such/folder", "/data"),))
    before = {name for parent in hierarchy.parents.values() for name in os.listdir(parent)}
    refusal(shared_box, profile=profile)

    def left() -> set[str]:
        """Some may be somebody else's, who tests beside us; those have processes."""
        after = {name for parent in hierarchy.parents.values() for name in os.listdir(parent)}
        known = {f"kernelbox-{record.kernel_id}" for record in shared_box.list_kernels()}
        new = {name for name in after - before - known if name.startswith("kernelbox-")}
        return {name for name in new if not _has_processes(hierarchy, name)}

    wait_until(lambda: not left(), what="the control group of what was refused to go", seconds=5)


def _has_processes(hierarchy: Any, name: str) -> bool:
    return any(
        os.path.exists(f"{folder}/cgroup.procs") and Path(f"{folder}/cgroup.procs").read_text()
        for folder in hierarchy.folders(name).values()
    )
