"""Every verb that reads somebody's file is fed with hostile ones: each ends in a sentence, and does nothing.

support/fed_verb.py runs the verbs, and says what each wrote outside its own folder, started and connected to.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from support import fed_cases
from support.fed_cases import Case
from support.feeding import ASKING, ELSEWHERE, asks_first, feed_all, feeding, what_reads_files

from gourmet.cli import VERBS
from gourmet.errors import GourmetError
from gourmet.result_store import ResultStore

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


@pytest.mark.slow
def test_every_verb_that_reads_files_of_somebody_is_fed_forty_hostile_ones(tmp_path: Path) -> None:
    """But those that ask a server first (served/test_hostile_verbs.py), and most weights: the next test's."""
    fed = feed_all(tmp_path, fed_cases.QUICK)
    often = {verb for verb in VERBS if fed[verb] >= 40}
    assert often == VERBS.keys() - {*ASKING, *ELSEWHERE}
    assert {place for place in what_reads_files() if not asks_first(place)} <= fed.keys()


@pytest.mark.slow
def test_verbs_that_read_weights_and_networks_of_every_kind(tmp_path: Path) -> None:
    kinds = (fed_cases.of_weights, fed_cases.of_networks)
    fed = feed_all(tmp_path, [partial(each, all_of_them=True) for each in kinds])
    assert fed["train"] > 40


def test_the_reporter_hears_what_a_hostile_file_would_do(tmp_path: Path) -> None:
    """A file that is opened as no file of somebody's may be, so that the tests above would fail."""
    from support.hostile_files import torchscript_that_writes

    victim = tmp_path / "victim" / "written"
    victim.parent.mkdir()
    script = torchscript_that_writes(tmp_path / "w.pt", victim)
    victim.unlink(missing_ok=True)
    code = "import torch, subprocess; subprocess.run(['true'])\nopen('/dev/full', 'w').close()\n"
    code += f"torch.jit.load({str(script)!r})"
    system = tmp_path / "systems" / "owned"
    system.mkdir(parents=True)
    (system / "contract.py").write_text(code)
    case = Case(
        "new",
        "",
        ["new", "a1", "--labels", "a,b", "--like", "owned"],
        more={"env": {"GOURMET_SYSTEMS": str(system.parent)}},
    )
    with feeding(tmp_path) as feed:
        came = feed(case, 0)
    assert any("starts ['true']" in each for each in came["found"])
    assert any("open /dev/full" in each for each in came["found"])
    assert any(str(victim) in each for each in came["changed"])


def test_results_are_not_kept_through_a_link_to_another_file(tmp_path: Path) -> None:
    """Without its last line's end, the file that it leads to would lose that line."""
    victim = tmp_path / "keys"
    victim.write_text("a key without an end of its line")
    (tmp_path / "results.jsonl").symlink_to(victim)
    with pytest.raises(GourmetError, match="it is a link"):
        ResultStore(tmp_path, {"model": "m"}, dict)
    assert victim.read_text() == "a key without an end of its line"
