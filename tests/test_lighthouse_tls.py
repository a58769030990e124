"""TLS of the gateway, its pages and its relay: who has no certificate of the run's CA gets no word out of them."""

from __future__ import annotations

import dataclasses
import socket
import ssl
import threading
import urllib.error
import urllib.request

import grpc
import pytest

from configs.protocol import Unreachable
from configs.tls import tls_of
from configs.words import Exit, ExitRequest
from lighthouse.__main__ import main
from lighthouse.client import Control
from lighthouse.protos import torchft_pb2, torchft_pb2_grpc
from lighthouse.relay import Relay
from tests.support.certificates import make_tls
from tests.support.lighthouse import LIMIT_S, InThread, terms


@pytest.fixture
def tls(tmp_path):
    return make_tls(tmp_path / "tls")


@pytest.fixture
def lighthouse(tmp_path, tls):
    made = InThread(tmp_path, tls=tls)
    yield made
    made.stop()


def page(url, context):
    with urllib.request.urlopen(f"{url}/status.json", timeout=LIMIT_S, context=context) as answer:
        return answer.status


def test_with_the_runs_certificates_everything_is_reached(lighthouse, tls):
    assert lighthouse.url.startswith("https://127.0.0.1:")
    assert Control(lighthouse.url, tls=tls).join(terms(), group="g0").incarnation == 1
    assert page(lighthouse.http_url, tls.client()) == 200


def test_a_stranger_with_a_ca_of_his_own_is_not_let_in_and_not_believed(lighthouse, tls, tmp_path):
    stranger = make_tls(tmp_path / "stranger", name="stranger")
    fooled = dataclasses.replace(stranger, ca=tls.ca)  # trusts the run's servers, but is nobody to them
    for wrong in (stranger, fooled):
        with pytest.raises(Unreachable):
            Control(lighthouse.url, tls=wrong).status()
        with pytest.raises((ssl.SSLError, urllib.error.URLError, ConnectionError)):
            page(lighthouse.http_url, wrong.client())
    assert Control(lighthouse.url, tls=tls).status()["groups"] == []


def test_talk_in_the_clear_is_not_answered(lighthouse, tls):
    for url in (lighthouse.url, lighthouse.http_url):
        host, _, port = url.removeprefix("https://").rpartition(":")
        with socket.create_connection((host, int(port)), timeout=LIMIT_S) as line:
            line.sendall(b"GET /status.json HTTP/1.1\r\n\r\n")
            said = b""
            try:
                while data := line.recv(4096):
                    said += data
            except ConnectionError:
                pass
            assert b"HTTP/1.1 200" not in said
    assert page(lighthouse.http_url, tls.client()) == 200


def test_without_mutual_tls_a_client_needs_no_certificate(tmp_path):
    tls = make_tls(tmp_path / "tls", mutual=False)
    lighthouse = InThread(tmp_path, tls=tls)
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        assert page(lighthouse.http_url, context) == 200
    finally:
        lighthouse.stop()


@pytest.mark.parametrize("secure", [True, False])
def test_a_url_that_does_not_go_with_the_certificates_is_refused(tls, secure):
    url, own = ("https://127.0.0.1:1", None) if secure else ("http://127.0.0.1:1", tls)
    with pytest.raises(ExitRequest, match=r"security\.tls_") as caught:
        Control(url, tls=own)
    assert caught.value.code == Exit.BAD_CONFIG


def ask(url, replica_id):
    """What torchft's manager sends, without waiting for the answer."""
    channel = grpc.insecure_channel(url.removeprefix("http://"))
    member = torchft_pb2.QuorumMember(replica_id=replica_id, step=0, world_size=1)
    request = torchft_pb2.LighthouseQuorumRequest(requester=member)
    return channel, torchft_pb2_grpc.LighthouseServiceStub(channel).Quorum.future(request)


def test_the_relay_passes_its_own_incarnations_requests_and_no_others(lighthouse, tls):
    control = Control(lighthouse.url, tls=tls)
    control.join(terms(), group="g0")
    relay = Relay(control, replica_id="g0:1")
    channel, other = ask(relay.url, "g1:1")
    assert other.exception(LIMIT_S).code() is grpc.StatusCode.PERMISSION_DENIED
    channel.close()
    channel, own = ask(relay.url, "g0:1")
    gateway = lighthouse.lighthouse.gateway

    def waits():
        return [str(who) for who in gateway.quorums.waiting.members()]

    pause = threading.Event()
    while waits() != ["g0:1"]:
        assert not own.done(), own.exception()
        pause.wait(0.01)
    own.cancel()  # the manager leaves, and so does its request
    while waits():
        pause.wait(0.01)
    channel.close()
    relay.close()


@pytest.mark.parametrize("secret", ["", "another"])
def test_with_tls_torchfts_service_needs_the_secret_too(tmp_path, secret):
    """Where clients need no certificate, nobody else keeps a stranger from speaking under a living id."""
    tls = make_tls(tmp_path / "tls", mutual=False)
    lighthouse = InThread(tmp_path, tls=tls, secret="of the test")
    try:
        own = Control(lighthouse.url, secret="of the test", tls=tls)
        own.join(terms(), group="g0")
        stranger = Control(lighthouse.url, secret=secret, tls=tls)
        member = torchft_pb2.QuorumMember(replica_id="g0:1", step=0, world_size=1)
        asked = stranger.torchft_quorum(torchft_pb2.LighthouseQuorumRequest(requester=member))
        assert asked.exception(LIMIT_S).code() is grpc.StatusCode.UNAUTHENTICATED
    finally:
        lighthouse.stop()


def test_a_part_of_the_certificates_and_files_that_cannot_be_used_are_refused(rig_config, tls, tmp_path, capsys):
    assert main(["--tls-key", str(tls.key)]) == Exit.BAD_CONFIG
    assert "--tls-certificate, --tls-ca missing" in capsys.readouterr().err
    (tmp_path / "nonsense.pem").write_text("nonsense")
    wrong = {"certificate": tmp_path / "nonsense.pem", "key": tls.key, "ca": tls.ca}
    assert main([word for name, path in wrong.items() for word in (f"--tls-{name}", str(path))]) == Exit.BAD_CONFIG
    assert "do not make TLS" in capsys.readouterr().err
    gone = tmp_path / "gone.pem"
    with pytest.raises(ExitRequest, match=f"security.tls_ca = '{gone}' cannot be read: No such file"):
        tls_of(rig_config(tls_certificate=str(tls.certificate), tls_key=str(tls.key), tls_ca=str(gone)))


@pytest.fixture
def rig_config():
    from configs.load import parse_text

    def make(**keys):
        lines = "\n".join(f'{key} = "{value}"' for key, value in keys.items())
        return parse_text(f"[security]\n{lines}\n")

    return make
