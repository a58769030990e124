"""The shared secret: where it comes from, and what is not accepted as one."""

from __future__ import annotations

import socket

import pytest

from configs.secret import guarded_address, is_loopback, read_secret, seal, secret_key
from configs.words import Exit, ExitRequest


def written(folder, text="open sesame\n", *, mode=0o600):
    path = folder / "secret"
    path.write_text(text)
    path.chmod(mode)
    return path


def refusal(**env: object) -> str:
    with pytest.raises(ExitRequest) as caught:
        read_secret({name: str(value) for name, value in env.items()})
    assert caught.value.code == Exit.BAD_CONFIG
    return caught.value.reason


def test_it_comes_from_the_environment_or_from_a_file(tmp_path):
    path = written(tmp_path)
    assert read_secret({}) == ""
    assert read_secret({"PHALANX_SECRET": "open sesame"}) == "open sesame"
    assert read_secret({"PHALANX_SECRET_FILE": str(path)}) == "open sesame"
    assert read_secret({"PHALANX_SECRET_FILE": str(path), "PHALANX_SECRET": "open sesame"}) == "open sesame"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_file_that_others_may_use_is_named_with_its_mode(tmp_path, mode):
    text = refusal(PHALANX_SECRET_FILE=written(tmp_path, mode=mode))
    assert str(tmp_path / "secret") in text
    assert f"{mode:04o}" in text
    assert "open sesame" not in text


def test_two_different_secrets_are_refused(tmp_path):
    assert "different" in refusal(PHALANX_SECRET_FILE=written(tmp_path), PHALANX_SECRET="open barley")


@pytest.mark.parametrize("text", ["", "\n", "a\nb", " open", "open\n\n", "ö", "x" * 5000])
def test_what_cannot_be_a_secret_is_refused_without_being_told(tmp_path, text):
    said = refusal(PHALANX_SECRET_FILE=written(tmp_path, text))
    assert "PHALANX_SECRET_FILE" in said
    if text.strip():
        assert "open" not in said


def test_a_file_that_is_not_there_is_named(tmp_path):
    assert str(tmp_path / "none") in refusal(PHALANX_SECRET_FILE=tmp_path / "none")
    assert "is not a file" in refusal(PHALANX_SECRET_FILE="/dev/null")


def test_the_key_of_digests_is_none_without_a_secret(monkeypatch):
    monkeypatch.delenv("PHALANX_SECRET", raising=False)
    assert secret_key() is None
    monkeypatch.setenv("PHALANX_SECRET", "a")
    assert secret_key() == b"a"


def test_a_seal_is_of_all_its_parts_and_the_secret():
    assert seal("", "rank", 1) == ""
    seals = {seal("a", "rank", 1, "n"), seal("b", "rank", 1, "n"), seal("a", "rank", 11, "n"), seal("a", "rank", "1n")}
    assert len(seals) == 4


def test_off_loopback_an_interface_needs_a_secret(monkeypatch):
    monkeypatch.delenv("PHALANX_SECRET", raising=False)
    assert guarded_address("lo") == "127.0.0.1"
    monkeypatch.setattr("configs.secret.address_of", lambda interface: "10.1.2.3")
    with pytest.raises(ExitRequest, match=r"'eth7' \(10.1.2.3\) is not a loopback address: set PHALANX_SECRET"):
        guarded_address("eth7")
    monkeypatch.setenv("PHALANX_SECRET", "a")
    assert guarded_address("eth7") == "10.1.2.3"


def test_loopback_is_told_from_what_is_not():
    assert is_loopback("127.3.2.1")
    assert is_loopback("::1")
    assert is_loopback("::ffff:127.0.0.1")
    assert not is_loopback("::ffff:10.0.0.1")
    assert not is_loopback("0.0.0.0")
    with pytest.raises(socket.gaierror):
        is_loopback("no such host")
