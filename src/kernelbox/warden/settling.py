"""What a root does when it has served its first kernel and nobody waits: it settles.

Whoever waits for the first kernel of all waits for nothing that can be done later. It is done in
steps, and between two of them a request that has come meanwhile is served.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator

from kernelbox.inside import imprint, root
from kernelbox.inside.interpreter import Interpreter
from kernelbox.inside.workingset import WorkingSet
from kernelbox.warden import rehearsal

Learn = Callable[[WorkingSet], None]


class Settling:
    """Imports, rehearsals, the imprint, and lessons about what forks will write to."""

    def __init__(
        self, interpreter: Interpreter, folder: str, *, on_wardens: Learn, on_interpreters: Learn
    ) -> None:
        """What is learned of a kind of fork is handed to ``on_…``."""
        self.readers: dict[int, Callable[[], None]] = {}
        self.over = False
        self._interpreter = interpreter
        self._folder = folder
        self._on_wardens = on_wardens
        self._on_interpreters = on_interpreters
        self._steps = self._work()

    def step(self) -> None:
        """Do the next thing. One that fails is told in the log: a root without it is a root too."""
        try:
            next(self._steps)
        except StopIteration:
            self.over = True
        except Exception as error:  # noqa: BLE001
            sys.stderr.write(f"kernelbox: the root did not settle: {error!r}\n")
            self.over = True

    def _work(self) -> Iterator[None]:
        with contextlib.suppress(ImportError):  # in the midst of an upgrade: who needs it, hears it
            from kernelbox.warden import sandbox

            sandbox.prepare()
            yield
        stage = tempfile.mkdtemp(dir=self._folder, prefix="rehearsal-")
        try:
            rehearsal.rehearse(stage)
        except Exception as error:  # noqa: BLE001
            sys.stderr.write(f"kernelbox: the rehearsal failed: {error!r}\n")
        yield
        root.warm_up_further(self._interpreter)
        yield
        imprint.imprint()
        yield
        about_wardens, about_interpreters = rehearsal.lesson(stage), self._interpreter.lesson()

        def learn_of_wardens() -> None:
            self._on_wardens(about_wardens.finish())
            shutil.rmtree(stage, ignore_errors=True)

        self.readers = {
            about_wardens.reader: learn_of_wardens,
            about_interpreters.reader: lambda: self._on_interpreters(about_interpreters.finish()),
        }
