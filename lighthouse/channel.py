"""What connection does a client make to the gateway? In the clear, or with the certificates it was given."""

from __future__ import annotations

import grpc

from configs.tls import Tls

_OPTIONS = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.use_local_subchannel_pool", 1),  # a channel that was closed must not leave its back-off to the next
    ("grpc.max_receive_message_length", -1),
]


def open_channel(target: str, tls: Tls | None) -> grpc.Channel:
    """A channel to ``HOST:PORT`` that notices at once when the gateway is gone, and soon when it is back."""
    if tls is None:
        return grpc.insecure_channel(target, options=_OPTIONS)
    files = (tls.ca.read_bytes(), tls.key.read_bytes(), tls.certificate.read_bytes())
    return grpc.secure_channel(target, grpc.ssl_channel_credentials(*files), options=_OPTIONS)
