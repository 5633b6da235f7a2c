from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gourmet.cli import main
from gourmet.errors import UsageError
from gourmet.repository.config_change import VARIANTS, Change, changed
from gourmet.repository.config_file import model_config, tensor
from gourmet.triton_client.model_config import as_pbtxt, parse, summary


def config(**more: Any) -> dict[str, Any]:
    return {
        "name": "soup",
        "max_batch_size": 16,
        "instance_group": [{"name": "soup_0", "kind": "KIND_CPU", "count": 2}],
        **more,
    }


def test_a_change_leaves_the_rest_and_the_original_alone() -> None:
    before = config(parameters={"system": {"string_value": "food11"}})
    after = changed(before, Change(instances=4))
    assert before["instance_group"][0]["count"] == 2
    assert after["instance_group"][0]["count"] == 4
    assert after["parameters"]["system"] == before["parameters"]["system"]
    assert "dynamic_batching" not in after
    batching = config(dynamic_batching={"max_queue_delay_microseconds": 5})
    assert "dynamic_batching" not in changed(batching, Change(dynamic_batching=False))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            Change(instances=1, delay_us=100),
            "1 instance on the CPU; batches of up to 16 rows; dynamic batching, waiting up to 100 µs",
        ),
        (Change(threads=1), "2 instances on the CPU, 1 thread each; batches of up to 16 rows; no dynamic"),
        (Change(threads=2), "2 instances on the CPU, 2 threads each; batches of up to 16 rows; no dynamic"),
        (Change(gpus=(0, 1)), "2 instances on GPU 0, 1; batches of up to 16 rows; no dynamic batching"),
        (
            Change(max_batch=8, preferred_batches=(4, 8)),
            "dynamic batching without waiting, preferably 4 or 8",
        ),
        (VARIANTS["four-instances"], "4 instances on the CPU; batches of up to 16 rows; no dynamic batching"),
    ],
)
def test_the_summary_names_the_change(change: Change, says: str) -> None:
    assert says in summary(changed(config(), change))


def test_the_summary_omits_batches_for_a_model_without_batching() -> None:
    """It said “at most 0 rows a batch”."""
    assert summary({**config(), "max_batch_size": 0}).endswith("on the CPU; no batches")


def test_a_queue_policy_is_left_alone_but_goes_with_the_second_instance() -> None:
    policy = {"dynamic_batching": {"default_queue_policy": {"max_queue_size": 7}}}
    for change in (Change(delay_us=1), Change(instances=2)):
        assert changed(config(**policy), change)["dynamic_batching"]["default_queue_policy"]
    assert changed(config(**policy), VARIANTS["dynamic-batching"])["dynamic_batching"].keys() == {
        "max_queue_delay_microseconds"
    }


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Change(cpu=True, gpus=(0,)), "--cpu or --gpus"),
        (lambda: Change(dynamic_batching=False, delay_us=5), "omit --no-dynamic"),
        (
            lambda: changed(config(), Change(preferred_batches=(4, 32))),
            "preferred batch 32 is above max_batch_size 16",
        ),
        (lambda: changed(config(max_batch_size=0), Change(delay_us=1)), "soup has max_batch_size 0"),
    ],
)
def test_a_contradiction_is_named(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_a_field_of_a_newer_server_is_named_where_it_is_left_out() -> None:
    assert as_pbtxt(config(of_tomorrow={"x": 1}, empty={})).startswith("# Left out, as this tritonclient")
    assert "Left out" not in as_pbtxt(config(empty={}))


def test_names_and_texts_of_files_are_quoted() -> None:
    hostile = 'a" } max_batch_size: 99 # \\\n'
    tensors = (tensor(hostile, "FP32", [1]), tensor("y", "FP32", [1]))
    described = model_config("soup", "b", 0, *tensors, instances=1, parameters={"labels": hostile})
    parsed = parse(as_pbtxt(described))
    assert (parsed.input[0].name, parsed.max_batch_size) == (hostile, 0)
    assert parsed.parameters["labels"].string_value == hostile


def test_a_file_with_comments_is_not_replaced(tmp_path: Path) -> None:
    mine = tmp_path / "config.pbtxt"
    mine.write_text("# mine\n")
    done = CliRunner().invoke(main, ["config", "soup", "--url", "127.0.0.1:9", "--write", str(mine)])
    assert (done.exit_code, mine.read_text()) == (2, "# mine\n")
    assert "would replace a file with comments" in done.output
