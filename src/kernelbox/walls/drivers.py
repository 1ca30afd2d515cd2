"""What of a profile nobody can build yet: that is refused, in words, before anything is started."""

from __future__ import annotations

from kernelbox.walls.profiles import Profile


def cannot_enforce(profile: Profile) -> str:
    """What of a profile no wall of ours holds yet, in words; empty if all of it is enforced."""
    if profile.network == "host":
        return "a sandbox never has the host's network; use network='on' or 'off'"
    if profile.driver not in ("process", "gvisor"):
        return f"there is no driver {profile.driver!r} in this version; use 'process' or 'gvisor'"
    if profile.driver == "gvisor":
        from kernelbox.walls import gvisor

        if words := gvisor.cannot_enforce(profile):
            return words
    if profile.secrets:
        from kernelbox.walls import authority

        if words := authority.missing():
            return words
    if profile.network == "raw":
        from kernelbox.walls import pasta

        if words := pasta.missing():
            return words
    return ""
