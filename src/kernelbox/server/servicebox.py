"""The service's box: an AsyncBox that can also look a kernel up, and load a session behind walls of
somebody else's choice. Both are for strangers, whose word does not count."""

from __future__ import annotations

from kernelbox.async_box import AsyncBox
from kernelbox.client import sessions
from kernelbox.client.meaning import KernelLike, ProfileLike
from kernelbox.result import KernelRecord


class ServiceBox(AsyncBox):
    """See :class:`AsyncBox`."""

    async def find(self, kernel: KernelLike) -> KernelRecord:
        """What the keeper knows of a kernel. Raises :class:`KernelNotFound`."""
        return await self._driver.run(self._calls.find(kernel))

    async def load_behind(
        self, name: str, path: str, *, profile: ProfileLike, cwd: str, trust: bool = False
    ) -> KernelRecord:
        """:meth:`load`, behind these walls and in this folder, whatever the file says."""
        loading = sessions.load(self._calls, name, path, trust=trust, profile=profile, cwd=cwd)
        return await self._driver.run(loading)
