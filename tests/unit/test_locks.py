"""The keys of Triton's locked calls: how they are made, kept, found and kept out of sight."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from gourmet.errors import GourmetError
from gourmet.stack import api_keys, run_file
from gourmet.stack.api_keys import headers, headers_for, make_key
from gourmet.stack.connect import connect
from gourmet.stack.triton_server import TritonOptions
from gourmet.triton_client.grpc import Grpc
from gourmet.triton_client.http import Http

KEY = "a" * 16


def kept_key(key: str, *ports: int) -> AbstractContextManager[Path]:
    return run_file.run_file_for(ports, {"admin": key})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No keys but the test's own."""
    for name in (api_keys.ADMIN_ENV, run_file.FOLDER_ENV):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
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


def test_each_address_is_sent_the_keys_that_are_known_for_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, str, Mapping[str, str]]] = []

    def call(
        self: Http | Grpc, operation: str, _: str, __: object, keys: Mapping[str, str], *___: object
    ) -> None:
        sent.append((f"{type(self).__name__} {self.address}", operation, keys))

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
