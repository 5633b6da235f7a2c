"""Verbs that ask a server, fed as those of unit/test_hostile_verbs.py are, which says what is looked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fed_asking import CasesAtTriton
from support.feeding import ASKING, asks_first, feed_all, what_reads_files
from support.triton import RunningTriton

from gourmet.cli import VERBS
from gourmet.serving.connect import connect

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


@pytest.mark.slow
def test_every_verb_that_asks_before_it_reads_is_fed_forty_hostile_files(
    triton: RunningTriton, tmp_path: Path
) -> None:
    with connect(triton.http_url) as server:
        before = server.config("digits"), server.index()
        fed = feed_all(tmp_path, CasesAtTriton(triton).makes)
        assert (server.config("digits"), server.index()) == before
    assert {verb for verb in VERBS if fed[verb] >= 40} == {verb.split()[0] for verb in ASKING}
    assert {place for place in what_reads_files() if asks_first(place)} <= fed.keys()
