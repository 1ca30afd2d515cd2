"""What each command takes besides a kernel."""

from __future__ import annotations

from kernelbox.cli.parser import Parser


def create(parser: Parser) -> None:
    add = parser.add_argument
    add("--session", metavar="TEXT", help="a session's name, kept in the record")
    add(
        "--tag",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="kept in the record; KEY=VALUE or a word, as often as you like",
    )
    add("--cwd", metavar="FOLDER", help="where the kernel starts (default: this folder)")
    add(
        "--env",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="add to the kernel's environment, which is this process's otherwise",
    )
    add("--template", metavar="KERNEL", help="start as a copy of this live kernel, data and all")
    add(
        "--profile",
        metavar="PROFILE",
        help="walls around a new kernel: a name (see kernelbox profile) or a file",
    )


def listing(parser: Parser) -> None:
    parser.add_argument("--refresh", action="store_true", help="ask each kernel how it is now")


def execute(parser: Parser) -> None:
    add = parser.add_argument
    add("-f", "--file", metavar="FILE", help="run the code in this file")
    add("--bash", action="store_true", help="the code is for the kernel's bash session")
    add("--timeout", metavar="SECONDS", type=float, help="interrupt the code after this long")
    add("--atomic", action="store_true", help="if the code fails, the kernel is as it was before")
    add("--expect-epoch", metavar="N", type=int, help="run only if the kernel is at this epoch")
    add("--execution-id", metavar="ID", help="what to call this execution in logs and interrupt")
    add("--idempotency-key", metavar="KEY", help="the same again under this key is not run again")
    add(
        "--stream",
        action="store_true",
        help="print what the code puts out as it happens, a JSON object per line, the result last; "
        "with --human the text itself",
    )


def branch(parser: Parser) -> None:
    add = parser.add_argument
    add("--to", metavar="NAME", action="append", default=[], help="a branch's name; repeatable")
    add("--reseed", action="store_true", help="give the branch random numbers of its own")
    add(
        "--files",
        choices=("share", "copy"),
        default="share",
        help="share the working folder (default), or give the branch a copy",
    )
    add(
        "--method",
        choices=("auto", "fork", "copy"),
        default="auto",
        help="fork, or copy by pickling where threads forbid a fork (default: auto)",
    )


def checkpoint(parser: Parser) -> None:
    parser.add_argument("--label", metavar="TEXT", help="a name to rewind to")
    parser.add_argument("--drop", metavar="ID", help="forget this checkpoint instead")


def rewind(parser: Parser) -> None:
    parser.add_argument("--to", metavar="ID", help="the checkpoint's id or label")


def undo(parser: Parser) -> None:
    parser.add_argument(
        "-n", metavar="N", dest="cells", type=int, default=1, help="how many cells (default: 1)"
    )


def save(parser: Parser) -> None:
    parser.add_argument("-f", "--file", metavar="FILE", help="the file to write")


def load(parser: Parser) -> None:
    parser.add_argument("-f", "--file", metavar="FILE", help="the file that save wrote")
    parser.add_argument(
        "--trust", action="store_true", help="load a file of another home; it can run any code"
    )


def install(parser: Parser) -> None:
    parser.add_argument(
        "-U", "--upgrade", action="store_true", help="newer versions of what is there already"
    )


def interrupt(parser: Parser) -> None:
    parser.add_argument("--execution", metavar="ID", help="only this execution, waiting or running")


def logs(parser: Parser) -> None:
    add = parser.add_argument
    add("--execution", metavar="ID", help="what this execution printed (default: the running one)")
    add("--stderr", action="store_true", help="its standard error instead of its output")
    add("--search", metavar="PATTERN", help="only the lines that match a regular expression")
    add("--limit", metavar="N", type=int, default=100, help="most lines found (default: 100)")
    add(
        "--start",
        metavar="N",
        type=int,
        default=0,
        help="from this character on; below 0: from the end",
    )
    add("--length", metavar="N", type=int, help="this many characters (default: all)")
    add("--lines", metavar="N", type=int, default=200, help="of the keeper's log (default: 200)")


def audit(parser: Parser) -> None:
    add = parser.add_argument
    add("--event", metavar="KIND", help="only these, like execution, kernel.ended or denial")
    add("--lines", metavar="N", type=int, default=100, help="the latest (default: 100)")
    add("--file", metavar="FILE", help="another log than that of KERNELBOX_AUDIT_LOG")


def serve(parser: Parser) -> None:
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)")
    add("--port", type=int, default=8080, help="the port to listen on (default: 8080)")
    add("--reload", action="store_true", help="start again when the code changes, for development")
    add("--tokens", metavar="FILE", help="a file of tenants, a name:token per line")
    add("--tls-cert", metavar="FILE", help="serve HTTPS with this certificate")
    add("--tls-key", metavar="FILE", help="the key of that certificate")
    add(
        "--on-exit",
        choices=("keep", "wipe"),
        help="what becomes of the kernels when the server ends (default: keep)",
    )
    add("--drain", metavar="SECONDS", type=float, help="time for running cells when it ends")
    add("--access-log", action="store_true", help="a line on standard error for each request")


def top(parser: Parser) -> None:
    parser.add_argument("--once", action="store_true", help="look once and leave")
    parser.add_argument(
        "--interval", metavar="SECONDS", type=float, default=1.0, help="between looks (default: 1)"
    )


def doctor(parser: Parser) -> None:
    parser.add_argument(
        "--no-kernel", action="store_true", help="do not start a kernel to see that it works"
    )
