"""The command line: ``kernelbox …``. Each command imports only what it uses."""
