"""A Triton that is elsewhere: its address, TLS, where secrets go, and what verbs change for it."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import pty
import ssl
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from support.cli import gourmet, said
from support.listener import Listen, http, serving, tensor
from support.needs import need
from support.no_stack import no_stack, stack
from support.no_stack import runs as runs_in_block
from support.stopping import everything
from support.tls import Certificates, TlsDoor

from app.web.settings import Settings, SettingsError
from gourmet.bench.workload import Addresses, wire_for
from gourmet.errors import GourmetError, UsageError
from gourmet.repository.models import DEFAULT_REPOSITORY
from gourmet.repository.versions import version_numbers
from gourmet.stack import api_keys, run_file
from gourmet.stack.api_keys import headers, headers_for, make_key
from gourmet.stack.connect import connect
from gourmet.stack.preflight import free_ports
from gourmet.stack.run_file import RunningStack
from gourmet.stack.triton_server import TritonOptions
from gourmet.triton_client import address
from gourmet.triton_client.address import Address
from gourmet.triton_client.errors import TritonUnreachable
from gourmet.triton_client.grpc import Grpc
from gourmet.triton_client.http import Http
from gourmet.triton_client.triton import Triton

__all__ = ["no_stack"]  # the fixture

Runs = Callable[[RunningStack], None]


@pytest.fixture
def runs() -> Iterator[Runs]:
    with contextlib.ExitStack() as kept:

        def run(running: RunningStack) -> None:
            kept.enter_context(runs_in_block(running))

        yield run


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The addresses and operations of the requests, which no server answers."""
    seen: list[tuple[str, str]] = []

    def call(self: Any, operation: str, *_: object) -> None:
        seen.append((self.address, operation))
        raise TritonUnreachable.at(self.address, "it is a test's")

    monkeypatch.setattr("gourmet.triton_client.http.Http.call", call)
    return seen


def two_versions(folder: Path) -> Path:
    """Make a repository whose model m has two versions."""
    for number in ("1", "2"):
        (folder / "m" / number).mkdir(parents=True)
    (folder / "m" / "config.pbtxt").write_text('name: "m"\nbackend: "onnxruntime"\n')
    return folder


@pytest.mark.parametrize("by", ["--url", "TRITON_SERVER_URL"])
@pytest.mark.parametrize(
    "verb",
    [["rollback", "m"], ["deploy", "food11"], ["new", "plums", "--labels", "a,b"]],
    ids=lambda verb: verb[0],
)
def test_no_verb_changes_the_checkout_s_repository_for_a_triton_elsewhere(
    runs: Runs,
    loaded: list[tuple[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    systems_folder: Path,
    verb: list[str],
    by: str,
) -> None:
    runs(stack(repositories=[str(two_versions(tmp_path / "models"))]))
    before = everything(tmp_path / "models")
    if by == "--url":
        verb = [*verb, "--url", "there:8000"]
    else:
        monkeypatch.setenv(by, "there:8000")
    output = said(*verb, status=2)
    assert not loaded
    assert "the repository of the Triton at there:8000: name its folder with --repository" in output
    assert everything(tmp_path / "models") == before
    assert not list(systems_folder.iterdir())
    assert not (tmp_path / "home").exists()


def test_a_named_repository_is_changed_and_its_server_reloads(
    runs: Runs, loaded: list[tuple[str, str]], tmp_path: Path
) -> None:
    runs(stack())
    gourmet("rollback", "m", "--url", "https://there", "--repository", two_versions(tmp_path / "theirs"))
    assert loaded[0] == ("https://there:443", "is_server_live")
    assert {address for address, _ in loaded} == {"https://there:443"}


def test_another_stack_has_its_own_repository(
    runs: Runs, loaded: list[tuple[str, str]], tmp_path: Path
) -> None:
    runs(stack(9100))
    runs(stack(9200, repositories=[str(two_versions(tmp_path / "theirs").resolve())]))
    refused = gourmet("rollback", "m", "--url", "127.0.0.1:9200", "--repository", DEFAULT_REPOSITORY)
    assert "the Triton at 127.0.0.1:9200 does not serve" in refused.output
    gourmet("rollback", "m", "--url", "localhost:9200")
    assert loaded[0] == ("localhost:9200", "is_server_live"), "its own repository alone has a model m"
    assert "stacks run here" not in gourmet("doctor", "--url", "127.0.0.1:9200").output


def test_a_bucket_is_refused_as_a_repository() -> None:
    for verb in (["rollback", "m", "--repository"], ["config", "m", "--reset", "--model-repository"]):
        output = said(*verb, "s3://bucket/models", "--url", "there:8000", status=2)
        assert "s3://bucket/models is not a folder of this machine: mount it" in output


def test_a_reset_takes_no_config_of_the_local_stack_to_a_triton_elsewhere(runs: Runs, listen: Listen) -> None:
    runs(stack())
    config = http({"name": "digits", "backend": "python", "max_batch_size": 1})
    index = http([{"name": "digits", "version": "1", "state": "READY"}])
    remote = listen({"/config": config, "/index": index, "/load": http({})})
    reset = ("config", "digits", "--reset", "--url", remote.url)
    assert "name that with --repository" in said(*reset, status=2)
    assert not [path for path in remote.asked if path.endswith("/load")]
    output = gourmet(*reset, "--repository", DEFAULT_REPOSITORY).output
    assert [path for path in remote.asked if path.endswith("/load")], output


def test_doctor_looks_at_the_given_server_and_not_at_this_machine(runs: Runs, listen: Listen) -> None:
    runs(stack())
    index = http([{"name": "digits", "version": "0", "state": "READY"}])
    about = http({"name": "triton", "version": "9"})
    remote = listen({"/v2": about, "/live": http({}), "/index": index})
    output = gourmet("doctor", "--url", remote.url).output
    assert {line.split()[1] for line in output.splitlines()} == {"server", "served", "answers"}
    assert "latest on disk" not in output
    output = gourmet("doctor", "--url", remote.url, "--repository", DEFAULT_REPOSITORY).output
    assert {"models", "manifests"} <= {line.split()[1] for line in output.splitlines()}
    assert f"gourmet config digits --reset --url {remote.url}" in output


def test_a_measurement_over_grpc_alone_says_what_it_needs() -> None:
    load: Any = type("Load", (), {"protocol": "http", "through": "triton", "model": "m"})
    with pytest.raises(UsageError, match="--protocol grpc"):
        wire_for(Addresses(url="grpc://there:8001"), load, None)  # type: ignore[arg-type]


def test_contradictory_options_for_a_remote_triton_are_refused(tmp_path: Path) -> None:
    assert "--url is the Triton that --web-only asks" in gourmet("up", "--url", "there:8000").output
    refused = gourmet("rollback", "m", "--to", two_versions(tmp_path), "--send")
    assert "--send is for a Triton elsewhere" in refused.output
    assert version_numbers(tmp_path / "m") == (1, 2)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SENTENCES", "[[1e999, 1, 1]]"),
        ("SENTENCES", f"[[0, 1, {10**400}]]"),
        ("TOKENS", "inf"),
        ("SCORE", "nan"),
        ("SCORE", "much"),
    ],
)
def test_invalid_numbers_from_a_remote_triton_end_a_verb_with_an_error(
    name: str, text: str, listen: Listen, tmp_path: Path
) -> None:
    answer = {"TRANSLATION": "yes", "TOKENS": "1", "SCORE": "-1", "SENTENCES": "[[0, 3, -1]]", name: text}
    outputs = [tensor(output, "BYTES", content) for output, content in answer.items()]
    remote = listen(serving("translator", [tensor("TEXT", "BYTES")], outputs, max_batch_size=1))
    done = gourmet("translate", "да", "--out", tmp_path / "out.jsonl", "--url", remote.url)
    assert (done.exit_code, type(done.exception)) == (1, SystemExit), repr(done.exception)
    assert "'translator' does not answer as translators do: " in done.output


@pytest.mark.parametrize("verb", ["list", "config m --raw", "translate да", "doctor"])
def test_control_characters_of_a_remote_triton_do_not_reach_the_terminal(listen: Listen, verb: str) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J"
    names = ("TRANSLATION", "TOKENS", "SCORE")
    outputs = [tensor(name, "BYTES", content) for name, content in zip(names, (evil, "1", "1"), strict=True)]
    config = {"name": "m", "backend": evil, "platform": evil, "parameters": {evil: {"string_value": evil}}}
    ready = {"name": f"translator{evil}", "version": "1", "state": "READY", "reason": evil}
    remote = listen(
        {
            "/config": http(config),
            "/index": http([ready, ready | {"name": "m"}]),
            "/stats": http({"model_stats": [{**ready, "inference_stats": {}}]}),
            **serving("translator", [tensor("TEXT", "BYTES", shape=(-1, 1))], outputs),
            "/v2": http({"name": evil, "version": evil, "extensions": []}),
        }
    )
    done = gourmet(*verb.split(), "--url", remote.url)
    assert not {"\x1b", "\x07"} & set(done.output), done.output
    assert "owned" in done.output


# Addresses, TLS and secrets
TOKEN = "token-of-the-test"
LIVE = {"/v2/health/live": http({}), "/v2": http({"name": "triton", "version": "9"})}


@pytest.fixture(autouse=True)
def _says_each_once_more() -> None:
    address._say.cache_clear()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    need("openssl")
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def door(certificates: Certificates, listen: Listen) -> Iterator[TlsDoor]:
    with TlsDoor(listen(LIVE).url, certificates.context()) as opened:
        yield opened


@pytest.mark.parametrize(
    ("text", "shown"),
    [
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
    "text", ["there", "http://there", "ftp://there:1", "https://there/models", "there:99999", "there:0", ""]
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
    refused = pytest.raises(TritonUnreachable, match=r"certificate is refused.*TRITON_CA_FILE")
    with Triton(url) as triton, refused:
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
    doors = (True, "IP:127.0.0.1", 10.0), (True, "DNS:another.example", 1.0), (False, "IP:127.0.0.1", 1.0)
    for ca, san, connect_s in doors:
        monkeypatch.setenv("TRITON_CA_FILE", str(certificates.ca) if ca else "")
        with TlsDoor(listen(LIVE).url, certificates.context("grpc", san)) as door:
            with (
                Triton(f"grpcs://{door.address}", 20.0, connect_s) as triton,
                pytest.raises(TritonUnreachable),
            ):
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
    program = "from gourmet.triton_client.triton import Triton; Triton('https://there:1')"
    ours, its = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", program],
        stdin=its,
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # which OpenSSL would ask
        check=False,
    )
    os.close(ours)
    os.close(its)
    assert "has no password" in done.stderr.splitlines()[-1]


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
    assert door.asked.count(b"authorization: Bearer %b\r\n" % TOKEN.encode()) == 2
    monkeypatch.setenv("TRITON_TOKEN", f"{TOKEN}\r\nEvil: 1")
    with pytest.raises(UsageError, match="TRITON_TOKEN has characters") as caught:
        Triton("https://there:1")
    assert TOKEN not in str(caught.value)
    assert "warning" not in caplog.text.lower()


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


# Keys of Triton's locked calls
KEY = "a" * 16


def kept_key(key: str, *ports: int) -> AbstractContextManager[Path]:
    return run_file.run_file_for(ports, {"admin": key})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "gourmet"


def test_each_start_makes_a_new_key_unless_one_is_given() -> None:
    assert make_key({}) != make_key({})
    assert make_key({api_keys.ADMIN_ENV: "given-admin-key-1"}) == "given-admin-key-1"
    assert KEY not in f"{TritonOptions((), key=KEY)}"
    with pytest.raises(GourmetError, match="TRITON_ADMIN_KEY is too short"):
        make_key({api_keys.ADMIN_ENV: "short"})


def test_a_kept_key_is_found_by_its_user_s_programs_while_triton_runs(folder: Path) -> None:
    with kept_key(KEY, 8000, 8001) as path:
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        for url in ("localhost:8000", "127.0.0.1:8000", "localhost:8001"):
            assert headers_for(url) == headers(KEY)
        assert headers_for("localhost:9000") == {}
        assert headers_for("triton.example.org:8000") == {}  # what this machine's Triton wants is its secret
        with kept_key("b" * 16, 9000, 9001):
            assert headers_for("localhost:9000")["gourmet-admin-key"] == "b" * 16
    assert headers_for("localhost:8000") == {}
    assert not folder.exists()


def test_each_address_is_sent_the_keys_for_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[str, str, Mapping[str, str]]] = []

    def call(self: Http | Grpc, operation: str, *more: Any) -> None:
        sent.append((f"{type(self).__name__} {self.address}", operation, more[2]))

    for protocol in (Http, Grpc):
        monkeypatch.setattr(protocol, "call", call)
    with kept_key(KEY, 8000, 8001), connect("localhost:8000") as here:
        here.load("digits")
        here.unload("digits")
        here.check_live()
        for url in ("http://triton:9000", "https://localhost:8000"):
            with connect(url) as elsewhere:
                elsewhere.unload("digits")
        monkeypatch.setenv("TRITON_SERVER_URL", "triton:9000")
        monkeypatch.setenv("TRITON_GRPC_URL", "triton:9001")
        for url in ("http://triton:9000", "grpcs://triton:9001"):
            with connect(url) as elsewhere:
                elsewhere.load("digits")
    assert sent == [
        ("Grpc localhost:8001", "load_model", headers(KEY)),
        ("Grpc localhost:8001", "unload_model", headers(KEY)),
        ("Http localhost:8000", "is_server_live", {}),
        ("Http triton:9000", "unload_model", {}),
        ("Http https://localhost:8000", "unload_model", headers(KEY)),
        ("Grpc triton:9001", "load_model", {}),
        ("Grpc grpcs://triton:9001", "load_model", {}),
    ]


def test_a_folder_that_was_named_tells_for_other_hosts_too_and_the_environment_goes_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(run_file.FOLDER_ENV, str(tmp_path / "named"))
    with kept_key(KEY, 8000, 8001):
        assert headers_for("triton:8000") == headers(KEY)
        monkeypatch.setenv(api_keys.ADMIN_ENV, "e" * 16)
        assert headers_for("triton:8000")["gourmet-admin-key"] == "e" * 16
        monkeypatch.delenv(api_keys.ADMIN_ENV)
        monkeypatch.setenv("TRITON_SERVER_URL", "triton:8000")
        assert headers_for("triton:8000") == headers(KEY)
        assert headers_for("theirs:8000") == {}, "which is not what the folder was named for"


def test_a_folder_that_others_can_write_to_is_refused(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(GourmetError, match="remove it"), kept_key(KEY, 8000):
        pass
