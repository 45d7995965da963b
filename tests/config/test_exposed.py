"""Files with secrets that everybody can read are said, and nothing is said of the others."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from hubbub.auth.passwords import add_user
from hubbub.config.cluster import Cluster
from hubbub.config.exposed import complaints
from hubbub.config.identity import Jwt, Tls
from hubbub.config.settings import Api, Bridge, Journal, Listener, Settings
from hubbub.config.sources import load
from hubbub.runtime.node import Node


def secret(folder: Path, name: str, mode: int = 0o644) -> str:
    file = folder / name
    file.write_text("x")
    file.chmod(mode)
    return str(file)


def test_each_file_with_a_secret_is_named_once(tmp_path: Path) -> None:
    def named(mode: int) -> list[str]:
        place = Listener(
            address="127.0.0.1:0", password_file=secret(tmp_path, "users", mode),
            jwt=Jwt(keys=secret(tmp_path, "jwks", mode)),
            tls=Tls(certificate=secret(tmp_path, "cert", mode), key=secret(tmp_path, "key", mode)),
        )  # fmt: skip
        bridge = Bridge(name="b", addresses=("h:1",), topics=("#",),
                        certificate=secret(tmp_path, "both", mode))  # fmt: skip
        given = Settings(
            listen=(), listener=(place, place), bridge=(bridge,),
            api=Api(token_file=secret(tmp_path, "token", mode)),
            dynamic_security=secret(tmp_path, "dynamic", mode),
            cluster=Cluster(credentials=secret(tmp_path, "creds", mode),
                            certificate=secret(tmp_path, "node", mode)),
        )  # fmt: skip
        return complaints(given)

    assert named(0o600) == named(0o640) == []
    names = ["token", "dynamic", "creds", "node", "users", "jwks", "key", "both"]
    assert [one.rpartition("/")[2] for one in named(0o644)] == names, "not `cert`: the key is apart"
    assert "may read and change" in named(0o646)[0] and named(0o646)[0].startswith("api.token_file")


@pytest.mark.parametrize("text", ['[api]\ntoken = "secret"\n',
                                  '[cluster]\nurl = ["nats://plant:secret@a"]\n'])  # fmt: skip
def test_the_configuration_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    file = tmp_path / "hub.toml"
    file.write_text(text)
    file.chmod(0o644)
    load(file)
    assert f"the configuration: every user of this machine may read {file}" in caplog.text
    caplog.clear()
    file.chmod(0o600)
    load(file)
    file.write_text('[cluster]\nurl = ["nats://a"]\n')
    file.chmod(0o644)
    load(file)
    assert caplog.text == ""


async def test_the_hub_says_so_when_it_starts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    add_user(tmp_path / "users", "ann", b"secret")
    given = Settings(
        listen=("127.0.0.1:0",), password_file=str(tmp_path / "users"),
        journal=Journal(record="none"),
    )  # fmt: skip
    async with Node(given):
        assert caplog.text == ""
    (tmp_path / "users").chmod(0o644)
    async with Node(given):
        assert f"password_file: every user of this machine may read {tmp_path}" in caplog.text
