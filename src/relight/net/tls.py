"""Implements mutual TLS: each node presents a certificate that the job's certificate authority has
signed.

Names in certificates are not checked, because agents identify each other by address. This module is
imported only when TLS is enabled.
"""

import socket
import ssl

from relight.base.errors import UsageError


def contexts(cert: str, key: str, ca: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the TLS contexts for the listening side and the connecting side. `flags/rdzv_conf`
    has checked that the files can be read.

    Args:
        cert: the file with this node's certificate. It may include the chain up to the certificate
            authority.
        key: the file with the certificate's key.
        ca: the file with the certificates of the authority that has signed all nodes' certificates.

    Raises:
        UsageError: if a file is malformed.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(ca)
        except (ssl.SSLError, OSError):
            raise UsageError(f"tls_ca: {ca} contains no PEM certificate") from None
        try:
            context.load_cert_chain(cert, key, password=no_password)
        except KeyLocked:
            raise UsageError(
                f"tls_key: {key} is encrypted with a password",
                hint=f"decrypt it with openssl pkey -in {key} -out FILE",
            ) from None
        except (ssl.SSLError, OSError) as error:
            raise UsageError(_why_no_pair(cert, key, error)) from None
    return server, client


class TlsChannel:
    """TLS over a non-blocking socket.

    A call that would block raises BlockingIOError. Repeat the call when the socket is readable (or
    writable, if `wants_write` is set).

    Attributes:
        sock: the TLS socket, which replaces the one that was passed in.
        shaking: whether the handshake is still in progress, so that nothing may be sent yet.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, server_side: bool) -> None:
        self.sock = context.wrap_socket(
            sock, server_side=server_side, do_handshake_on_connect=False
        )
        self.shaking = True
        self.wants_write = False

    def shake_hands(self) -> bool:
        """Continue the handshake, and return True once it is complete."""
        self.wants_write = False
        try:
            self.sock.do_handshake()
        except OSError as error:
            raise self._translated(error) from None
        self.shaking = False
        return True

    def recv(self, size: int) -> bytes:
        """Return the received bytes. The argument `size` must be larger than a TLS record."""
        self.wants_write = False
        try:
            return self.sock.recv(size)
        except OSError as error:
            raise self._translated(error) from None

    def send(self, data: bytes | bytearray) -> int:
        """Send at least the beginning of `data`, and return the number of bytes sent. After a
        BlockingIOError, pass the same bytes again.
        """
        try:
            return self.sock.send(data)
        except OSError as error:
            raise self._translated(error) from None

    def _translated(self, error: OSError) -> OSError:
        if isinstance(error, ssl.SSLWantReadError):
            return BlockingIOError()
        if isinstance(error, ssl.SSLWantWriteError):
            self.wants_write = True
            return BlockingIOError()
        if isinstance(error, ssl.SSLCertVerificationError):
            return OSError(f"the peer's certificate is not trusted: {error.verify_message}")
        # Python 3.11.2 reports an end of file as SSLZeroReturnError during the handshake.
        closed = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
        if isinstance(error, ssl.SSLError) and not closed:
            reason = (error.reason or "unknown").lower().replace("_", " ")
            if "alert" in reason:
                return OSError(f"the peer does not accept our certificate: {reason}")
            return OSError(f"no TLS with the peer: {reason} (does it use TLS?)")
        if self.shaking:
            return OSError("the peer closed the connection during the TLS handshake")
        return error


class KeyLocked(Exception):  # noqa: N818
    """The key is encrypted with a password."""


def no_password() -> str:
    """Refuse to ask for a password on the terminal, as OpenSSL would.

    Raises:
        KeyLocked: always.
    """
    raise KeyLocked


def _why_no_pair(cert: str, key: str, error: OSError) -> str:
    """Describe which of the two files is invalid."""
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return f"tls_key: {key} is not the key for {cert}"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cert)
    except (ssl.SSLError, OSError):
        return f"tls_cert: {cert} contains no PEM certificate"
    return f"tls_key: {key} contains no PEM key"
