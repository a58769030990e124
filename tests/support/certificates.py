"""Certificates for tests: a CA of the run, and one of strangers."""

from __future__ import annotations

from pathlib import Path

import trustme

from configs.tls import Tls


def make_tls(folder: Path, *, name: str = "run", mutual: bool = True, host: str = "127.0.0.1") -> Tls:
    """Files of a new CA and of a certificate for ``host``."""
    folder.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA(organization_name=name)
    issued = authority.issue_cert(host)
    certificate, key, ca = (folder / f"{name}.{part}.pem" for part in ("certificate", "key", "ca"))
    authority.cert_pem.write_to_path(ca)
    issued.private_key_pem.write_to_path(key)
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    return Tls(certificate=certificate, key=key, ca=ca, mutual=mutual)


def keys_of(tls: Tls) -> dict[str, object]:
    """As config keys of the rig."""
    return {
        "security__tls_certificate": tls.certificate,
        "security__tls_key": tls.key,
        "security__tls_ca": tls.ca,
        "security__tls_mutual": tls.mutual,
    }
