"""The packages of one kernel: what was asked for, where it is, and who has been told."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelbox.warden.bash_member import BashMember
    from kernelbox.warden.member import Member
    from kernelbox.wire import Frame


class Packages:
    """Nothing, in most kernels. An interpreter is told before its next job, whatever became of the
    one before: a restarted, rewound or branched one has not heard of it, or of less."""

    def __init__(self) -> None:
        self.folder: str | None = None
        """As the kernel's own processes see it; None: it has none."""
        self.requirements: list[str] = []
        self.present: dict[str, str] = {}
        self._told: tuple[object, str | None] = (None, None)
        self._told_shell: tuple[object, str | None] = (None, None)

    def copy(self) -> Packages:
        """For a branch, which goes its own way from now on."""
        other = Packages()
        other.folder = self.folder
        other.requirements = list(self.requirements)
        other.present = dict(self.present)
        return other

    def changed(self, folder: str | None, answer: Frame) -> None:
        self.folder = folder or self.folder
        self.requirements = list(answer["requirements"])
        self.present = dict(answer["packages"])

    def tell(self, member: Member) -> None:
        """Between two jobs."""
        if self._told != (member, self.folder):
            self._told = (member, self.folder)
            member.send({"op": "packages", "folder": self.folder})

    def knows(self, member: Member) -> None:
        """It has just been told in another way."""
        self._told = (member, self.folder)

    def for_shell(self, shell: BashMember) -> str:
        """What to put before a command, on its own line: a shell cannot be told otherwise."""
        if self.folder is None or self._told_shell == (shell, self.folder):
            return ""
        self._told_shell = (shell, self.folder)
        folder = shlex.quote(self.folder)
        return (
            f'export PYTHONPATH={folder}"${{PYTHONPATH:+:$PYTHONPATH}}" PATH={folder}/bin:"$PATH"; '
        )
