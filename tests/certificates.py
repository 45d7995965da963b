"""Certificates for tests: an authority of our own, and what it signs."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

HOUR = datetime.timedelta(hours=1)
PRIVATE = (
    serialization.Encoding.PEM,
    serialization.PrivateFormat.PKCS8,
    serialization.NoEncryption(),
)


class Authority:
    """Signs certificates into a folder. `file` is its own; each other has its key inside."""

    def __init__(
        self, folder: Path, name: str = "Test authority", above: Authority | None = None,
        hours: int = 24,
    ) -> None:  # fmt: skip
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.key = ec.generate_private_key(ec.SECP256R1())
        above = above or self
        certificate = (
            above._begin(self.name, self.key, hours)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_CA_USAGE, critical=True)
            .sign(above.key, hashes.SHA256())
        )
        self.file = folder / "authority.pem"
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def authority(self, name: str) -> Authority:
        """Another one below it."""
        return Authority(self.folder / name.lower(), name, self)

    def _begin(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, hours: int = 24
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        identifier = x509.SubjectKeyIdentifier.from_public_key(self.key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + min(hours - 1, -1) * HOUR)
            .not_valid_after(now + hours * HOUR)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), False
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        )

    def sign(
        self, common_name: str, organization: str = "", server: bool = False, hours: int = 24
    ) -> Path:
        """A certificate with its key in one file, for so many hours; a server's is for here."""
        names = {NameOID.ORGANIZATION_NAME: organization, NameOID.COMMON_NAME: common_name}
        parts = [x509.NameAttribute(kind, name) for kind, name in names.items() if name]
        key = ec.generate_private_key(ec.SECP256R1())
        usage = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = self._begin(x509.Name(parts), key, hours).add_extension(
            x509.ExtendedKeyUsage([usage]), False
        )
        if server:
            here = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
            machine = x509.SubjectAlternativeName([x509.DNSName("localhost"), here])
            builder = builder.add_extension(machine, False)
        certificate = builder.sign(self.key, hashes.SHA256())
        file = self.folder / f"{common_name or 'nameless'}.pem"
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        file.write_bytes(pem + key.private_bytes(*PRIVATE))
        return file

    def revoke(self, *files: Path, hours: int = 24) -> Path:
        """The revocation list that names these certificates, good for so many hours."""
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.name)
            .last_update(now + min(hours - 1, -1) * HOUR)
            .next_update(now + hours * HOUR)
        )
        for file in files:
            number = x509.load_pem_x509_certificate(file.read_bytes()).serial_number
            one = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(now)
            builder = builder.add_revoked_certificate(one.build())
        crl = builder.sign(self.key, hashes.SHA256())
        path = self.folder / "revoked.pem"
        path.write_bytes(crl.public_bytes(serialization.Encoding.PEM))
        return path

    def client(self, certificate: Path | None = None) -> ssl.SSLContext:
        """The context of a client that trusts this authority."""
        context = ssl.create_default_context(cafile=str(self.file))
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context


_CA_USAGE = x509.KeyUsage(
    digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
    key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
    decipher_only=False,
)  # fmt: skip
