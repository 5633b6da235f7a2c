"""A Triton that is elsewhere: its address, TLS, and where the secrets of the environment go."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.listener import Listen, http, listen
from support.needs import need
from support.tls import Certificates, TlsDoor

from app.web.settings import Settings, SettingsError
from gourmet.cli import main
from gourmet.errors import UsageError
from gourmet.stack.api_keys import headers_for
from gourmet.stack.preflight import free_ports
from gourmet.triton_client import address
from gourmet.triton_client.address import Address
from gourmet.triton_client.errors import TritonUnreachable
from gourmet.triton_client.triton import Triton

__all__ = ["listen"]
TOKEN = "token-of-the-test"
LIVE = {"/v2/health/live": http({}), "/v2": http({"name": "triton", "version": "9"})}


@pytest.fixture(autouse=True)
def _nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No stack, no keys, no certificates and no token but the test's own."""
    for name in [name for name in os.environ if name.startswith(("TRITON_", "GOURMET_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    address._say.cache_clear()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    need("openssl")
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def door(certificates: Certificates, listen: Listen) -> Iterator[TlsDoor]:
    with TlsDoor(listen(LIVE).url, certificates.context()) as opened:
        yield opened


def asked(*arguments: str) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("there:9000", "there:9000"),
        (" http://there:9000/", "there:9000"),
        ("https://there", "https://there:443"),
        ("grpc://there:8001", "grpc://there:8001"),
        ("grpcs://[::1]:1", "grpcs://[::1]:1"),
    ],
)
def test_an_address_names_the_protocol_and_tls(text: str, shown: str) -> None:
    assert str(Address.of(text)) == shown
    assert Settings.from_env({"TRITON_SERVER_URL": text}).triton_url == text.strip()


@pytest.mark.parametrize(
    "text",
    [
        "there",
        "http://there",
        "ftp://there:1",
        "https://there/models",
        "there:99999",
        "a b:1",
        "s3://b:1",
        "",
    ],
)
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not an address of a Triton: write it as host:port"):
        Address.of(text)


def test_a_password_in_an_address_is_not_repeated() -> None:
    with pytest.raises(UsageError) as caught:
        Address.of("https://me:secret@there:1")
    with pytest.raises(SettingsError) as refused:
        Settings.from_env({"TRITON_SERVER_URL": "https://me:secret@there:1"})
    assert "secret" not in f"{caught.value} {refused.value}"


def test_https_needs_a_certificate_of_a_known_ca_and_the_right_name(
    certificates: Certificates, door: TlsDoor, listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"https://{door.address}"
    with (
        Triton(url) as triton,
        pytest.raises(TritonUnreachable, match=r"certificate is refused.*TRITON_CA_FILE"),
    ):
        triton.check_live()
    assert b"HTTP" not in door.asked, "a server without a known certificate is sent nothing"
    monkeypatch.setenv("TRITON_CA_FILE", str(certificates.ca))
    with Triton(url) as triton:
        assert triton.version() == "triton 9"
        door.hang_up()  # a kept connection that ended is opened again
        assert triton.version() == "triton 9"
    another = certificates.context("another", "DNS:another.example")
    with TlsDoor(listen(LIVE).url, another) as wrong, Triton(f"https://{wrong.address}") as triton:
        with pytest.raises(TritonUnreachable, match=r"certificate is refused.*127\.0\.0\.1"):
            triton.check_live()
        assert b"HTTP" not in wrong.asked


def test_grpcs_sends_nothing_to_a_server_with_a_wrong_name_or_ca(
    certificates: Certificates, listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_TOKEN", TOKEN)
    spoke_http2 = []
    for ca, san in ((True, "IP:127.0.0.1"), (True, "DNS:another.example"), (False, "IP:127.0.0.1")):
        monkeypatch.setenv("TRITON_CA_FILE", str(certificates.ca) if ca else "")
        with TlsDoor(listen(LIVE).url, certificates.context("grpc", san)) as door:
            with Triton(f"grpcs://{door.address}", 5.0, 1.0) as triton, pytest.raises(TritonUnreachable):
                triton.check_live()  # what is behind the door knows no gRPC
            spoke_http2.append(b"HTTP/2" in door.asked)
    assert spoke_http2 == [True, False, False]


def test_the_named_client_certificate_is_sent_to_a_server_that_requires_one(
    certificates: Certificates, listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = certificates.context("strict")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificates.ca)
    monkeypatch.setenv("TRITON_CA_FILE", str(certificates.ca))
    with TlsDoor(listen(LIVE).url, context) as door:
        with Triton(f"https://{door.address}") as triton, pytest.raises(TritonUnreachable):
            triton.check_live()
        certificate, key = certificates.sign("client", "DNS:client")
        monkeypatch.setenv("TRITON_CLIENT_CERT", str(certificate))
        monkeypatch.setenv("TRITON_CLIENT_KEY", str(key))
        with Triton(f"https://{door.address}") as triton:
            triton.check_live()


@pytest.mark.parametrize(
    ("variable", "scheme"),
    [("TRITON_CA_FILE", "https"), ("TRITON_CLIENT_CERT", "grpcs"), ("TRITON_CLIENT_KEY", "https")],
)
def test_invalid_certificate_files_end_verbs_and_the_app_with_a_sentence(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, scheme: str
) -> None:
    (tmp_path / "empty.pem").touch()
    certificate, key = certificates.sign("mine", "DNS:mine")
    monkeypatch.setenv("TRITON_CLIENT_CERT", str(certificate))
    monkeypatch.setenv("TRITON_CLIENT_KEY", str(key))
    for wrong in (tmp_path / "empty.pem", tmp_path / "nowhere.pem"):
        monkeypatch.setenv(variable, str(wrong))
        with pytest.raises(UsageError, match=r"TRITON_CA_FILE, TRITON_CLIENT_CERT, .*cannot be used"):
            Triton(f"{scheme}://there:1")
        with pytest.raises(SettingsError, match="cannot be used"):
            Settings.from_env({"TRITON_SERVER_URL": f"{scheme}://there:1"})


def test_a_key_with_a_password_is_refused_and_asks_no_terminal(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = certificates.sign("locked", "DNS:locked")
    locked = tmp_path / "locked.key"
    certificates._openssl("ec", "-in", key, "-aes256", "-passout", "pass:secret", "-out", locked)
    monkeypatch.setenv("TRITON_CLIENT_CERT", str(certificate))
    monkeypatch.setenv("TRITON_CLIENT_KEY", str(locked))
    with pytest.raises(UsageError, match="has no password"):
        Triton("https://there:1")


def test_the_token_goes_with_each_question_and_into_no_message(
    certificates: Certificates,
    door: TlsDoor,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("TRITON_CA_FILE", str(certificates.ca))
    monkeypatch.setenv("TRITON_TOKEN", TOKEN)
    with Triton(f"https://{door.address}") as triton, caplog.at_level(logging.DEBUG):
        triton.version()
        triton.version()
        lines = [str(vars(triton._wire)), caplog.text]
    assert door.asked.count(b"authorization: Bearer %b\r\n" % TOKEN.encode()) == 2
    monkeypatch.setenv("TRITON_TOKEN", f"{TOKEN}\r\nEvil: 1")
    with pytest.raises(UsageError, match="TRITON_TOKEN has characters") as caught:
        Triton("https://there:1")
    assert TOKEN not in str(caught.value)
    assert "warning" not in caplog.text.lower(), lines


def test_secrets_of_the_environment_are_for_the_hosts_that_it_names(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("TRITON_TOKEN", "TRITON_ADMIN_KEY"):
        monkeypatch.setenv(name, TOKEN)
    assert Address.of("https://any:1").authorization(), "with no host named, the one that is asked is meant"
    monkeypatch.setenv("TRITON_SERVER_URL", "https://mine:1")
    monkeypatch.setenv("TRITON_GRPC_URL", "grpcs://ours:1")
    for meant in ("https://mine:2", "grpcs://ours:1"):
        assert Address.of(meant).authorization() == {"authorization": f"Bearer {TOKEN}"}
        assert headers_for(meant)
    assert not caplog.text
    for other in ("https://theirs:1", "https://mine.theirs:1", "127.0.0.1:8000"):
        assert not Address.of(other).authorization()
        assert not headers_for(other)
        assert (
            f"TRITON_TOKEN is for the hosts of TRITON_SERVER_URL, and is not sent to {other}" in caplog.text
        )
    assert TOKEN not in caplog.text


def test_a_secret_sent_without_tls_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TRITON_TOKEN", TOKEN)
    for safe in ("127.0.0.1:1", "localhost:1", "grpc://[::1]:1", "https://there:1", "grpcs://there:1"):
        assert Address.of(safe).authorization()
    assert not caplog.text
    for open_to_all in ("there:1", "there:1", "grpc://there:1"):
        assert Address.of(open_to_all).authorization()
    assert caplog.text.count("without TLS, where it can be read on the way") == 2
    monkeypatch.setenv("TRITON_ADMIN_KEY", TOKEN)
    headers_for("there:1")
    assert "TRITON_ADMIN_KEY goes to there:1 without TLS" in caplog.text
    assert TOKEN not in caplog.text


def test_an_unreachable_triton_is_reported_with_the_step_for_its_host() -> None:
    port = free_ports(1)[0]
    for url, step in ((f"127.0.0.1:{port}", "gourmet up"), (f"127.0.0.2:{port}", "see that it runs")):
        with Triton(url) as triton, pytest.raises(TritonUnreachable, match=step):
            triton.check_live()
