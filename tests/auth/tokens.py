"""Who signs tokens in tests: a pair of keys of each kind, and the JWKS of their public halves."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

RSA = rsa.generate_private_key(65_537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
SECRET = bytes(range(64))
SIGNERS: dict[str, Any] = {"RS256": RSA, "ES256": EC, "EdDSA": ED, "HS256": SECRET}


def pem(key: Any) -> bytes:
    """The public half."""
    found: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return found


def jwk(algorithm: str, **more: Any) -> dict[str, Any]:
    """The public half as a JWK; of `HS256` the secret."""
    if algorithm == "HS256":
        k = base64.urlsafe_b64encode(SECRET).rstrip(b"=").decode()
        return {"kty": "oct", "k": k, "kid": algorithm, **more}
    made = jwt.get_algorithm_by_name(algorithm)
    found = json.loads(made.to_jwk(SIGNERS[algorithm].public_key()))
    return {**found, "kid": algorithm, **more}


def write(file: Path, *algorithms: str) -> str:
    """A JWKS with the keys of these."""
    file.write_text(json.dumps({"keys": [jwk(one) for one in algorithms]}))
    return str(file)


def signed(algorithm: str = "EdDSA", header: Any = None, key: Any = None, **claims: Any) -> bytes:
    """A token of `ann`, good for a minute unless the claims say otherwise; None leaves one out."""
    said = {"sub": "ann", "exp": int(time.time()) + 60, **claims}
    said = {name: value for name, value in said.items() if value is not None}
    return jwt.encode(said, key or SIGNERS[algorithm], algorithm, header).encode()
