"""The secrets of a family on their way from its caller to its gate: the warden holds them until the
walls are ordered, and nobody inside ever does."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence

from kernelbox.errors import BadInput, Unsupported
from kernelbox.walls import authority, trees, vault
from kernelbox.walls.bindings import Secret, hide, placeholders
from kernelbox.walls.plan import TRUSTED, Plan


class Strongbox:
    """Values, what stands for them inside, and the certificate by which the gate ends TLS."""

    def __init__(
        self, bound: Sequence[Secret], values: Mapping[str, str], caller: Mapping[str, str]
    ) -> None:
        """``caller``: the environment of whoever wants the sandbox."""
        for secret in bound:
            if secret.name not in values:
                raise BadInput(
                    f"the value of the secret {secret.name} did not come along with the request; "
                    "ask for the kernel by the version of KernelBox that runs here"
                )
        bundle = authority.trusted_by_the_host(caller)
        made = authority.certificate_for(secret.host for secret in bound)
        self._values = {secret.name: values[secret.name] for secret in bound}
        self._stand = placeholders(self._values)
        self.trust = (made.authority, bundle)
        bindings = [
            vault.Binding(self._stand[secret.name], values[secret.name], secret.host, secret.port)
            for secret in bound
        ]
        self._content = vault.write(bindings, chain=made.chain, key=made.key, bundle=bundle)

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """What code gets to see. Nobody asks twice: the values are forgotten here."""
        hidden = hide(environ, self._values, self._stand) | authority.environment(TRUSTED)
        self._values, self._stand = {}, {}
        return hidden

    def hand_over(self) -> int:
        """A descriptor for the gate, with all of it to be read."""
        near, far = socket.socketpair()
        with near:
            near.setblocking(False)
            try:
                sent = near.send(self._content)
            except BlockingIOError:
                sent = 0
        if sent < len(self._content):
            far.close()
            raise Unsupported(
                f"the secrets are too much to hand over: {len(self._content)} bytes, and this "
                f"machine takes {sent}. Bind fewer"
            )
        self._content = b""
        return far.detach()


def check_unseen(bound: Sequence[Secret], plan: Plan) -> None:
    """A file that the sandbox sees is no place for what it must not."""
    seen = [*trees.SYSTEM, *plan.shown, *(source for source, _, _ in plan.mounts)]
    for secret in bound:
        if secret.file is None:
            continue
        real = os.path.realpath(secret.file)
        within = [tree for tree in seen if trees.inside(real, [tree])]
        if within and not trees.inside(real, plan.masked):
            raise BadInput(
                f"the file {secret.file} of the secret {secret.name} is in {within[0]}, which the "
                "sandbox sees: keep it in a folder that it does not, ~/.config/kernelbox say",
                field="secrets",
            )
