"""Certificates for tests, made on the spot."""

from __future__ import annotations

from pathlib import Path

import trustme


def certificate(folder: Path) -> dict[str, str]:
    """A certificate of an authority that nobody knows, made out to two names, and its key: as settings."""
    folder.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA()
    made = authority.issue_cert("instar.home", "localhost")
    cert, key = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    key.write_bytes(made.private_key_pem.bytes())
    authority.cert_pem.write_to_path(str(folder / "authority.pem"))
    return {"tls_cert": str(cert), "tls_key": str(key)}
