"""Giving a kernel packages."""

from __future__ import annotations

import os
from collections.abc import Sequence

from kernelbox.client.calls import START_MARGIN, Calls
from kernelbox.client.effects import Call
from kernelbox.client.meaning import KernelLike
from kernelbox.config.checks import check_flag
from kernelbox.errors import BadInput
from kernelbox.installs.indexes import host_environment
from kernelbox.result import InstallReport


def install(
    calls: Calls, kernel: KernelLike, requirements: Sequence[str], *, upgrade: bool
) -> Call[InstallReport]:
    if not requirements or not all(isinstance(each, str) for each in requirements):
        raise BadInput("name the packages to install, each a text like 'pandas==2.*'")
    request = {
        "op": "install",
        "requirements": list(requirements),
        "upgrade": check_flag("upgrade", upgrade),
        "settings": calls.settings_told,
        "environ": host_environment(os.environ),
    }
    # The warden gives up first, and says why. Others of the family may be before us.
    patience = 4 * (calls.settings.install_timeout + START_MARGIN)
    reply = yield from calls.kernel(kernel, request, patience=patience)
    return InstallReport.from_wire(reply["report"])
