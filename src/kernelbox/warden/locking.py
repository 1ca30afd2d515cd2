"""A family that is locked in, where user namespaces are closed, as its warden sees it: its folder,
its environment, and what the locks do not hold."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from kernelbox.errors import Unsupported
from kernelbox.walls import locks, ownfolder
from kernelbox.walls.profiles import Profile
from kernelbox.walls.surroundings import environment_for
from kernelbox.wire import Frame


class LockedIn:
    """One profile, held by locks, around one family."""

    def __init__(self, profile: Profile, stub_pid: int) -> None:
        if words := locks.obstacle():
            raise Unsupported(
                f"the profile {profile.name!r} cannot be had here: user namespaces are closed, and "
                f"so are locks without them: {words}"
            )
        self._profile = profile
        self._uid = locks.uid_for(stub_pid)
        try:
            self.folder, self._lock = ownfolder.make(self._uid)
        except OSError as error:
            raise Unsupported(str(error.strerror)) from None

    def plan(self, *, shown: Sequence[str], private: Iterable[str]) -> locks.Locks:
        return locks.locks_for(
            self._profile, folder=self.folder, shown=shown, private=private, uid=self._uid
        )

    def environ(self, frame: Frame, *, path: str) -> dict[str, str]:
        """That of the profile, with folders that can be written to."""
        given = dict(frame.get("given_environ") or {})
        home = os.path.join(self.folder, "home")
        made = environment_for(self._profile, frame["environ"], home=home, path=path, given=given)
        return {**made, "TMPDIR": os.path.join(self.folder, "tmp"), **given}

    @property
    def alone(self) -> bool:
        """Whether its uid is nobody else's, so that a limit of it is one of the family."""
        return locks.is_alone(self._uid)

    def leaks(self) -> list[str]:
        return locks.leaks(disk=self._profile.disk is not None)

    def notes(self, why: str) -> list[str]:
        return [
            f"walls by Landlock and seccomp alone: user namespaces are closed here ({why})",
            *(f"walls leave open: {leak}" for leak in self.leaks()),
        ]

    def remove(self) -> None:
        """When all processes of the family have ended."""
        ownfolder.remove(self.folder)
        os.close(self._lock)
