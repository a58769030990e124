"""How do our own connections get their TLS? Certificates of the config, as contexts for whoever listens or connects.

One CA vouches for all processes of a run: it is what clients check servers against and, with mutual TLS (the default),
what servers check clients against. Files are read when a process starts to use them. Used by the lighthouse, its
client, the lifelines, peer transfer and the metrics ports; what torch and torchft send among themselves is not ours to
encrypt.
"""

from __future__ import annotations

import argparse
import dataclasses
import ssl
from pathlib import Path

from configs.schema import Config
from configs.words import Exit, ExitRequest


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tls:
    """This process's certificate, and whom it trusts. All files are PEM."""

    certificate: Path
    """With its chain. Its names must cover the addresses that others connect to."""
    key: Path
    ca: Path
    mutual: bool = True
    """Servers let nobody in without a certificate of the CA."""

    def server(self) -> ssl.SSLContext:
        """For who listens."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self.certificate, self.key)
        if self.mutual:
            context.load_verify_locations(self.ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client(self) -> ssl.SSLContext:
        """For who connects; checks the server's name, and shows its own certificate when it is asked for it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(self.ca)
        context.load_cert_chain(self.certificate, self.key)
        return context

    def options(self) -> list[str]:
        """The options that tell another process of ours of it."""
        files = {"certificate": self.certificate, "key": self.key, "ca": self.ca}
        words = [word for name, path in files.items() for word in (f"--tls-{name}", str(path))]
        return words if self.mutual else [*words, "--tls-any-client"]

    def checked(self) -> Tls:
        """Itself, once both contexts could be made. Raises ExitRequest(2) naming the file that cannot be used."""
        for name, path in (("tls_certificate", self.certificate), ("tls_key", self.key), ("tls_ca", self.ca)):
            try:
                path.read_bytes()
            except OSError as error:
                text = f"security.{name} = {str(path)!r} cannot be read: {error.strerror}"
                raise ExitRequest(Exit.BAD_CONFIG, text) from error
        try:
            self.server()
            self.client()
        except ssl.SSLError as error:
            text = f"security.tls_certificate, tls_key and tls_ca do not make TLS: {error.reason or error}"
            raise ExitRequest(Exit.BAD_CONFIG, text) from error
        return self


def add_tls_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``Tls.options``."""
    parser.add_argument("--tls-certificate", type=Path, metavar="FILE", help="PEM; speak TLS, with --tls-key, --tls-ca")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="PEM")
    parser.add_argument("--tls-ca", type=Path, metavar="FILE", help="PEM of the CA that clients must be vouched for by")
    parser.add_argument("--tls-any-client", action="store_true", help="let in clients without a certificate")


def tls_from(options: argparse.Namespace) -> Tls | None:
    """What the options say. Raises ExitRequest(2) for a part of it, and for files that cannot be used."""
    files = {"certificate": options.tls_certificate, "key": options.tls_key, "ca": options.tls_ca}
    missing = [f"--tls-{name}" for name, path in files.items() if path is None]
    if len(missing) == len(files):
        return None
    if missing:
        raise ExitRequest(Exit.BAD_CONFIG, f"{', '.join(missing)} missing: TLS needs all three files")
    return Tls(**files, mutual=not options.tls_any_client).checked()


def tls_of(config: Config) -> Tls | None:
    """The TLS that the config asks for. Raises ExitRequest(2) for files that cannot be used."""
    section = config.security
    if section.tls_certificate is None or section.tls_key is None or section.tls_ca is None:
        return None
    return Tls(
        certificate=Path(section.tls_certificate).expanduser(),
        key=Path(section.tls_key).expanduser(),
        ca=Path(section.tls_ca).expanduser(),
        mutual=section.tls_mutual,
    ).checked()
