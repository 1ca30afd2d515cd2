"""Which kernels tenants may have: always behind walls, and such as show nothing of this machine.

Tenants are strangers to each other and to the operator. What they ask for is checked here, at
whichever door they ask; ``Guest`` makes no kernel without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kernelbox.config import Settings
from kernelbox.errors import BadInput
from kernelbox.server.errors import Refused
from kernelbox.server.settings import ServerSettings
from kernelbox.walls import kernelcalls, ways
from kernelbox.walls.profiles import PROFILES, Profile, named, resolve, shown

_BOUNDED = ("memory", "cpus", "processes", "open_files", "file_size", "disk")
_NETWORKS = ("off", "on", "raw")
"""The one that reaches least first."""
_VARIABLES = "KERNEL_"
"""How the variables begin that a tenant may give: gateway clients send these unasked."""


class Tenancy:
    """The walls that tenants may have, by what the machine can do and its operator has set."""

    def __init__(self, settings: Settings, server: ServerSettings) -> None:
        """Settings that let a tenant out are refused: :class:`BadInput`."""
        _check(settings)
        self._server = server
        self.obstacle = _obstacle()
        """Why there can be no kernels for tenants on this machine; empty if there can."""
        self.default = self._default(settings.profile)
        """What a tenant gets who asks for no walls in particular, and the most that any gets."""

    def _default(self, wanted: str) -> Profile:
        profile = resolve(wanted)
        if not profile.walled:
            return PROFILES["moderate"]
        # The operator's own word, and still: it was perhaps meant for the operator's own code.
        if words := self._reaches(profile):
            raise BadInput(
                f"KERNELBOX_PROFILE={shown(wanted)} cannot be for tenants: {words}. Set it to "
                "'moderate', 'restrictive' or a file with walls that show nothing of the host",
                variable="KERNELBOX_PROFILE",
            )
        return profile

    def allowed(self, wanted: str | Profile | None) -> Profile:
        """The walls that are meant, if a tenant may have them; :class:`Refused` if not. Who builds
        them is for the operator to say."""
        if wanted is None:
            return self.default
        profile = named(wanted) if isinstance(wanted, str) else wanted.check()
        if words := self._reaches(profile) or self._exceeds(profile):
            raise Refused(
                403,
                "NotAllowed",
                f"a tenant's kernel cannot have the walls {shown(profile.name)}: {words}",
                hint=f"leave profile out for {self.default.name!r}, or ask for less than that has",
            )
        return replace(profile, driver="gvisor") if self.default.driver == "gvisor" else profile

    def claimed(self, values: object) -> Profile:
        """The walls for a session that says it was saved behind these, which may be a lie: those,
        if the tenant may have them, or the default for one that was saved without any."""
        if values is None:
            return self.default
        if not isinstance(values, Mapping):
            raise BadInput("the walls that it was saved behind cannot be read")
        profile = Profile.from_wire(values)
        return self.allowed(profile) if profile.walled else self.default

    def check_variables(self, given: Mapping[str, str]) -> None:
        """Refuse variables that a tenant may not give. Some have an effect outside of the walls: on
        how an interpreter is started (LD_PRELOAD, PYTHONPATH), and on where packages come from."""
        others = sorted(name for name in given if not name.startswith(_VARIABLES))
        if others:
            raise Refused(
                403,
                "NotAllowed",
                f"a tenant's kernel is given no variables but {_VARIABLES}…, and "
                f"{shown(others[0])} is another",
                hint="set it in the first cell: os.environ[…] = …",
            )

    def _reaches(self, profile: Profile) -> str:
        """What of the host could be reached behind such walls, in words; empty if nothing."""
        if not profile.walled:
            return "it has none, and code would have the rights of the service"
        if profile.name == "open":
            return "'open' means none, and these are some; give them another name"
        found = []
        if profile.cwd != "none":
            found.append(f"cwd={profile.cwd!r} shows a folder of the host")
        if profile.home != "none":
            found.append(f"home={profile.home!r} shows the home of the service's user")
        if profile.environment != "minimal":
            found.append(f"environment={profile.environment!r} passes variables of the service on")
        if profile.secrets:
            found.append("secrets are those of the host")
        if profile.syscalls == "all":
            found.append("syscalls='all' takes the filter of system calls away")
        found += [
            f"{mount.source} ({mount.mode}) is not in KERNELBOX_HTTP_MOUNTS"
            for mount in profile.mounts
            if not self._server.may_mount(mount.source, mount.mode)
        ]
        return "; ".join(found)

    def _exceeds(self, profile: Profile) -> str:
        """What is more than the operator's walls let, in words; empty if nothing."""
        default, found = self.default, []
        for field in _BOUNDED:
            most, value = getattr(default, field), getattr(profile, field)
            if most is not None and (value is None or value > most):
                said = "no limit" if value is None else f"{value:,}"
                found.append(f"{field} may be {most:,} at most, and is {said}")
        if _NETWORKS.index(profile.network) > _NETWORKS.index(default.network):
            found.append(f"the network may be {default.network!r}, and is {profile.network!r}")
        elif default.network == "on":
            found += [
                f"{wanted} is not among the domains that may be reached"
                for wanted in profile.allow
                if not any(_covers(pattern, wanted) for pattern in default.allow)
            ]
        if default.syscalls == "allow-list" != profile.syscalls:
            found.append("syscalls may be 'allow-list' only")
        return "; ".join(found)


def _covers(pattern: str, wanted: str) -> bool:
    """Whether one pattern means all domains that another means."""
    name, _, port = pattern.partition(":")
    other, _, others_port = wanted.partition(":")
    if port != others_port:
        return False
    return name in ("*", other) or (name.startswith("*.") and other.endswith(name[1:]))


def _check(settings: Settings) -> None:
    """What no walls can make good."""
    if settings.kernel_type != "python3":
        raise BadInput(
            "there are tenants, whose kernels must have walls, and kernels of the type "
            f"{settings.kernel_type!r} cannot have any: unset KERNELBOX_KERNEL_TYPE, or serve "
            "without KERNELBOX_HTTP_TOKENS_FILE",
            variable="KERNELBOX_KERNEL_TYPE",
        )
    if settings.install_source != "never":
        raise BadInput(
            "there are tenants, and KERNELBOX_INSTALL_SOURCE=allow would run code of packages that "
            "they name outside of all walls: unset it, or serve without KERNELBOX_HTTP_TOKENS_FILE",
            variable="KERNELBOX_INSTALL_SOURCE",
        )


def _obstacle() -> str:
    if not kernelcalls.supported():
        return "the system calls of this machine are not known"
    way = ways.look()
    if way.kind == "locks":
        # They keep code from reading and writing. It still learns which files and processes there
        # are, those of other tenants among them.
        return f"user namespaces are closed here ({way.why}), and less is not enough for tenants"
    return ""
