"""Runs a notebook with nbclient on kernels of a gateway: ``run_notebook.py URL NOTEBOOK``."""

from __future__ import annotations

import sys

import nbformat
from jupyter_server.gateway.gateway_client import GatewayClient
from jupyter_server.gateway.managers import GatewayKernelManager
from nbclient import NotebookClient


def main() -> None:
    url, path = sys.argv[1:]
    GatewayClient.instance().url = url
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=60, kernel_manager_class=GatewayKernelManager).execute()
    nbformat.write(notebook, path)


main()
