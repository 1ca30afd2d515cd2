"""The installer: a process of its own, for one install. An order comes in as JSON, an answer goes
out as JSON.

It is started by a warden, outside all walls, and runs no code of any package (unless the policy
allows builds). What it is told by a cell are names, which it reads as hostile input.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from kernelbox.inside import linux
from kernelbox.installs import base, finishing
from kernelbox.installs.failing import Failed, in_one_line
from kernelbox.installs.indexes import environment_for_uv
from kernelbox.installs.layers import Cache, Layer, lend
from kernelbox.installs.policy import Policy, plain_name
from kernelbox.installs.requirements import Wanted, read, read_all
from kernelbox.installs.uv import Uv

PROGRAM = "from kernelbox.installs.worker import main; main()"

_FRESH = 24 * 3600.0
"""Seconds for which an answer is as good as a new one: what "pandas" means today."""
_PIN = re.compile(r"([A-Za-z0-9._-]+)==([A-Za-z0-9._+!-]+)")


class Install:
    """One install, step by step."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self.policy = Policy.from_wire(order["policy"])
        self.upgrade = bool(order.get("upgrade"))
        self.family = str(order["family"])
        self.generation = int(order["generation"])
        self.present: dict[str, str] = dict(order["present"])
        self.deadline = time.monotonic() + self.policy.timeout
        self.environ = environment_for_uv(order["environ"], self.policy)
        self.notes: list[str] = []
        self.cached = True
        self._order = order
        self._earlier: list[Wanted] = []
        self._base: dict[str, str] = {}
        self._carrying: set[str] = set()

    def run(self) -> dict[str, Any]:
        started = time.monotonic()
        if words := self.policy.refuses_everything(cell=bool(self._order.get("cell"))):
            raise Failed("blocked", words)
        try:
            wanted = read_all(self._order["requirements"], self.policy)
            self._earlier = [read(text) for text in self._order["earlier"]]
        except ImportError:
            raise Failed(
                "no_uv", "packages are read by packaging: pip install uv packaging"
            ) from None
        self._base, self._carrying = base.installed(), base.carrying()
        new = [each for each in wanted if not self._is_there(each)]
        merged = {each.name: each.text for each in (*self._earlier, *new)}
        packages, folder = self.present, None
        if new:
            self.cache = Cache(str(self._order["cache"]))
            self.cache.sweep()
            pins = self._resolve(sorted(merged.values()), [each.name for each in new])
            for name in pins:
                if words := self.policy.refuses(name, asked_for=False):
                    raise Failed("blocked", f"{words}; one of the packages depends on it")
            packages = {name: v for name, v in pins.items() if self._base.get(name) != v}
            if packages != self.present:
                folder = self._furnish(packages)
        added = {name: v for name, v in packages.items() if self.present.get(name) != v}
        return {
            "folder": folder,
            "requirements": sorted(merged.values()),
            "packages": packages,
            "report": {
                "requested": [each.text for each in wanted],
                "installed": [{"name": n, "version": v} for n, v in sorted(added.items())],
                "seconds": round(time.monotonic() - started, 3),
                "cached": self.cached,
                "notes": self.notes,
            },
        }

    def _is_there(self, wanted: Wanted) -> bool:
        """Whether the kernel's own Python has it, so that nothing need be done."""
        version = self._base.get(wanted.name)
        fits = version is not None and base.satisfies(version, wanted.specifier)
        if wanted.name in self._carrying and version is not None:
            if not fits:
                raise Failed(
                    "blocked",
                    f"{wanted.name} {version} is what this kernel runs on; no other version can be "
                    f"put under it. Ask for {wanted.name} without a version, or leave it out",
                )
        elif self.upgrade or wanted.extras or any(e.name == wanted.name for e in self._earlier):
            return False
        if fits:
            self.notes.append(f"{wanted.name} {version} is there already")
        return fits

    # -- resolving --------------------------------------------------------------------------

    def _resolve(self, wanted: Sequence[str], new: Sequence[str]) -> dict[str, str]:
        key = self._key("answer", *wanted, *_pins(self._base), *_pins(self.present))
        found = self.cache.answer(key)
        if found is not None and found[1] < _FRESH and not self.upgrade:
            return found[0]
        try:
            with self.cache.slot(self.deadline), self.cache.draft() as draft:
                pins = self._ask_uv(draft, wanted, new)
        except Failed as failure:
            if failure.reason != "unreachable" or found is None:
                raise
            days = found[1] / 86400
            self.notes.append(f"the index cannot be reached; as resolved {days:.1f} days ago")
            return found[0]
        self.cache.keep_answer(key, pins)
        return pins

    def _ask_uv(self, draft: str, wanted: Sequence[str], new: Sequence[str]) -> dict[str, str]:
        """The versions of all that it takes. What is there already is preferred, and what the
        kernel runs on stays."""
        paths = {name: os.path.join(draft, f"{name}.txt") for name in ("wanted", "fixed", "pins")}
        fixed = {name: self._base[name] for name in self._carrying if name in self._base}
        _write_lines(paths["wanted"], wanted)
        _write_lines(paths["fixed"], _pins(fixed))
        _write_lines(paths["pins"], _pins({**self._base, **self.present}))
        upgrades = [f"--upgrade-package={name}" for name in new] if self.upgrade else []
        self._uv().run(
            *("pip", "compile", "--python", sys.executable, "--no-header", "--no-annotate"),
            *self._building(),
            *upgrades,
            *("--constraints", paths["fixed"], "--output-file", paths["pins"], paths["wanted"]),
        )
        pins = {}
        with open(paths["pins"]) as file:
            for line in file:
                if (match := _PIN.fullmatch(line.split(";")[0].strip())) is not None:
                    pins[plain_name(match[1])] = match[2]
                elif line.strip():
                    raise Failed("failed", f"uv wants {line.strip()!r}, which is not of an index")
        return pins

    # -- making -----------------------------------------------------------------------------

    def _furnish(self, packages: dict[str, str]) -> str:
        """The layer of these packages in the family's folder; its name there."""
        name = str(self.generation)
        if not packages:  # the environment has all of it by now; what was there before must go
            os.mkdir(os.path.join(self.family, name), 0o755)
            return name
        key = self._key("layer", *_pins(packages))
        for _ in range(2):
            layer = self.cache.find(key) or self._make(key, packages)
            if lend(layer, os.path.join(self.family, name)):
                self.notes += layer.notes
                return name
            self.cache.discard(key)  # somebody has written to it
        raise Failed("failed", "the layer was changed while it was being used; ask again")

    def _make(self, key: str, packages: dict[str, str]) -> Layer:
        with self.cache.locked(key, self.deadline):
            if (layer := self.cache.find(key)) is not None:
                return layer  # somebody else was faster
            self.cached = False
            with self.cache.slot(self.deadline), self.cache.draft() as draft:
                whole = os.path.join(draft, "layer")
                files = os.path.join(whole, "files")
                os.makedirs(files)
                pins = os.path.join(draft, "pins.txt")
                _write_lines(pins, _pins(packages))
                self._uv().run(
                    *("pip", "install", "--python", sys.executable, "--target", files),
                    # Copies: what is in a layer may be linked into a kernel that can write to it.
                    *("--no-deps", "--compile-bytecode", "--link-mode", "copy"),
                    *self._building(),
                    *("--requirements", pins),
                )
                facts = finishing.finish(
                    files, packages, carrying=self._carrying, largest=self.policy.size
                )
                self.cache.publish(key, whole, facts)
            self.cache.make_room(self.policy.cache_size, spare=key)
        layer = self.cache.find(key)
        if layer is None:
            raise Failed("failed", "the layer vanished; ask again")
        return layer

    def _uv(self) -> Uv:
        return Uv(
            self.environ,
            folder=self.cache.root,
            cache=self.cache.path("uv"),
            deadline=self.deadline,
            largest=self.policy.size,
            earlier=[each.text for each in self._earlier],
        )

    def _building(self) -> list[str]:
        return [] if self.policy.source else ["--no-build"]

    def _key(self, *parts: str) -> str:
        """What else it depends on: the Python, where packages come from, and whether they may be
        built."""
        ways = ("HOME", "PATH", "USER", "LANG", "LC_ALL", "TMPDIR")
        where = sorted(f"{n}={v}" for n, v in self.environ.items() if n not in ways)
        all_parts = [base.fingerprint(), str(self.policy.source), *where, "--", *parts]
        return hashlib.sha256("\0".join(all_parts).encode()).hexdigest()[:40]


def _pins(packages: Mapping[str, str]) -> list[str]:
    return [f"{name}=={version}" for name, version in sorted(packages.items())]


def _write_lines(path: str, lines: Sequence[str]) -> None:
    with open(path, "w") as file:
        file.writelines(f"{line}\n" for line in lines)


def answer(order: Mapping[str, Any]) -> dict[str, Any]:
    """What came of it; whatever goes wrong is an answer, too."""
    try:
        return {"ok": True, **Install(order).run()}
    except Failed as failure:
        return {"ok": False, "reason": failure.reason, "error": failure.words}
    except OSError as error:
        full = error.errno in (27, 28, 122)
        words = f"{'the disk is full' if full else 'the host cannot do it'}: {error}"
        return {
            "ok": False,
            "reason": "disk_full" if full else "failed",
            "error": in_one_line(words),
        }


def main() -> None:
    linux.die_with_parent()
    os.umask(0o022)
    order = json.load(sys.stdin.buffer)
    json.dump(answer(order), sys.stdout)
    sys.stdout.flush()
