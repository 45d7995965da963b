"""What is wrong with how a node is to connect is said at the start, by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from hubbub.cluster.connecting import check_urls, context_of
from hubbub.config.cluster import Cluster
from hubbub.errors import SettingError


@pytest.mark.parametrize("url", ["nat://a:4222", "http://a:4222", "://a"])
def test_a_url_of_another_scheme_is_refused(url: str) -> None:
    with pytest.raises(SettingError, match="none of nats://, tls://"):
        check_urls(Cluster(url=("nats://a", url), name="a"))


def test_urls_of_nats_are_taken() -> None:
    check_urls(Cluster(url=("nats://a", "tls://u:p@a:4222", "wss://a", "a:4222"), name="a"))


def test_the_file_that_is_missing_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    with pytest.raises(SettingError, match="cluster.ca '.*missing.pem': .*No such file"):
        context_of(Cluster(url=("tls://a",), name="a", ca=missing))
    with pytest.raises(SettingError, match="cluster.certificate '.*missing.pem'"):
        context_of(Cluster(url=("tls://a",), name="a", certificate=missing))
