"""Packages for kernels: the host resolves and downloads them under a policy, into layers."""
