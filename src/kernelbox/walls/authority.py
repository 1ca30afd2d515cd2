"""A certificate authority for one sandbox, which signs one certificate and is forgotten.

The gate has to read requests to the domains that secrets are bound to, so it ends TLS there, with a
certificate that only this sandbox trusts. What could sign another one is gone when
:func:`certificate_for` returns.
"""

from __future__ import annotations

import datetime
import importlib.util
import os
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelbox.errors import BadInput, Unsupported

if TYPE_CHECKING:
    from cryptography import x509

_YEARS = 5
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM: ``authority`` is for the sandbox to trust, the others are for the gate."""

    authority: str
    chain: str
    key: str


def missing() -> str:
    """Why no certificate can be made here, in words; empty if it can."""
    try:
        found = importlib.util.find_spec("cryptography.x509")
    except ImportError:
        found = None
    if found is None:
        return (
            "secrets need the package 'cryptography' in the Python that runs the kernels: "
            "install kernelbox[secrets]"
        )
    return ""


def certificate_for(hosts: Iterable[str]) -> Certificate:
    """One certificate for all of these names."""
    if words := missing():
        raise Unsupported(words)
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    names = list(dict.fromkeys(hosts))
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    signer = ec.generate_private_key(ec.SECP256R1())
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "KernelBox: this sandbox only")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "KernelBox: the gate")])

    def draft(name: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - day)
            .not_valid_after(now + 365 * _YEARS * day)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
                critical=False,
            )
        )

    authority = (
        draft(issuer, signer.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signing=False), critical=True)
        .sign(signer, hashes.SHA256())
    )
    leaf = (
        draft(subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signing=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False
        )
        .sign(signer, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    return Certificate(
        authority=authority.public_bytes(pem).decode(),
        chain=leaf.public_bytes(pem).decode(),
        key=key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode(),
    )


def _usage(*, signing: bool) -> x509.KeyUsage:
    """Of the leaf, to sign its side of a handshake; of the authority, certificates."""
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=signing,
        key_cert_sign=not signing,
        crl_sign=not signing,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def trusted_by_the_host(environ: Mapping[str, str]) -> str:
    """The file of the authorities that this machine trusts, or that the caller names by
    SSL_CERT_FILE; tried, because who swaps secrets must know whom it speaks to."""
    found = environ.get("SSL_CERT_FILE") or ""
    if not found:
        places = (ssl.get_default_verify_paths().cafile or "", *_BUNDLES)
        found = next((place for place in places if os.path.isfile(place)), "")
    if not found:
        raise Unsupported(
            "secrets need to know which servers to trust, and this machine has no list of "
            "certificate authorities: install the package ca-certificates, or name a file by "
            "SSL_CERT_FILE"
        )
    found = os.path.realpath(found)
    try:
        ssl.create_default_context(cafile=found)
    except (OSError, ValueError) as error:
        raise BadInput(
            f"secrets need to know which servers to trust, and {found} cannot be read as a list "
            f"of certificate authorities: {error}"
        ) from None
    return found


def environment(bundle: str) -> dict[str, str]:
    """What makes programs in a sandbox trust its authority: Python and OpenSSL, requests, curl,
    git, Node, pip, cargo, AWS, Deno."""
    names = (
        *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"),
        *("NODE_EXTRA_CA_CERTS", "PIP_CERT", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "DENO_CERT"),
    )
    return dict.fromkeys(names, bundle)
