"""The program of the root: warm up, then fork a family for each request of the keeper.

Started by the keeper as ``python -m kernelbox.warden CONTROL_FD IPYTHON_DIR [MODULE…]``. All code
that a warden will need is imported here, before any fork: it is shared by all of them, and an
upgrade of the files on disk cannot pull the rug from under a running kernel.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile

import zmq  # noqa: F401  (imported here so that every warden shares it)

from kernelbox.inside import linux, root
from kernelbox.inside.channel import Channel
from kernelbox.inside.workingset import WorkingSet
from kernelbox.warden.family import Family
from kernelbox.warden.rehearsal import learn_pages, rehearse
from kernelbox.wire import encode


def main(argv: list[str]) -> None:
    control = socket.socket(fileno=int(argv[1]))
    linux.set_name("kb-root")
    linux.die_with_parent()  # a module that hangs while it is preloaded must not keep us for ever
    os.makedirs(argv[2], mode=0o700, exist_ok=True)
    interpreter, failures = root.build(argv[2], argv[3:])
    warden_pages = WorkingSet()
    with tempfile.TemporaryDirectory(dir=argv[2], prefix="rehearsal-") as stage:
        try:
            rehearse(stage)
            root.freeze()
            warden_pages = learn_pages(stage)
            interpreter.learn_pages()
        except Exception as error:  # noqa: BLE001 - a root that could not rehearse is a root too
            sys.stderr.write(f"kernelbox: the rehearsal failed: {error!r}\n")
    root.freeze()

    def become_warden(
        request: socket.socket, control: socket.socket, stub_pid: int, channel: Channel
    ) -> None:
        warden_pages.claim()
        Family(request, control, stub_pid, channel, notes=failures).run()

    try:
        control.sendall(encode({"op": "warm"}))
        root.serve(control, interpreter, become_warden)
    except ConnectionError:
        os._exit(0)  # the keeper is gone, and with it everyone we could work for


if __name__ == "__main__":
    main(sys.argv)
