"""``python -m kernelbox`` is the command line."""

import sys

from kernelbox.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
