"""A server on loopback that speaks the S3 protocol, and what a process must know to find it."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Iterator

import fsspec
from moto.server import ThreadedMotoServer


@contextlib.contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """The environment of its clients."""
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # a line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
    finally:
        server.stop()


def new_bucket() -> str:
    """The URL of a folder in a bucket of its own. Needs the environment, and the same one for the whole process."""
    bucket = uuid.uuid4().hex
    fsspec.filesystem("s3").mkdir(bucket)
    return f"s3://{bucket}/run"
