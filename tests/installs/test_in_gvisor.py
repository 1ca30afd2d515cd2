"""Packages in gVisor: the host fills a folder that is shown to a kernel of its own."""

from __future__ import annotations

import pytest

from kernelbox import Box
from kernelbox.walls import gvisor
from kernelbox.walls.profiles import named


@pytest.mark.slow
def test_what_is_installed_while_it_runs_is_seen_and_cannot_be_written_to(shared_box: Box) -> None:
    if obstacle := gvisor.obstacle():
        pytest.skip(f"no sandbox of gVisor can be had here: {obstacle}")
    kernel = shared_box.get_or_create(
        "packages-in-gvisor", profile=named("restrictive").but(driver="gvisor")
    )
    try:
        assert not shared_box.execute(kernel, "import kbx_plain").ok
        report = shared_box.install(kernel, "kbx-plain==1.0")
        assert [package.name for package in report.installed] == ["kbx-plain"]
        seen = shared_box.execute(kernel, "import kbx_plain; kbx_plain.__file__")
        assert seen.ok, seen.error
        assert (seen.return_value or "").startswith("'/packages/")
        shared_box.execute(kernel, "%pip install kbx-needs")
        assert shared_box.execute(kernel, "import kbx_needs").ok
        written = shared_box.execute(kernel, "open(kbx_plain.__file__, 'a').write('x')")
        assert written.error is not None
        assert written.error.ename in ("PermissionError", "OSError")
        shared_box.restart(kernel)
        assert shared_box.execute(kernel, "import kbx_needs, kbx_plain").ok
    finally:
        shared_box.destroy(kernel)
