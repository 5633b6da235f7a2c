"""The digits network and what it is shown while it learns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gourmet.errors import GourmetError
from gourmet.systems.digits.network import DigitsNetwork, load
from gourmet.training.files import save_tensors


@pytest.fixture(scope="module")
def network() -> DigitsNetwork:
    torch.manual_seed(0)
    return DigitsNetwork().eval()


@torch.no_grad()
def test_the_scale_of_the_ink_does_not_change_the_answer(network: DigitsNetwork) -> None:
    ink = torch.rand(3, 1, 28, 28)
    ink[:, :, 0, 0], ink[:, :, 0, 1] = 0.0, 1.0
    expected = network(ink)
    for other in (255 * ink, (ink - 0.1307) / 0.3081):
        torch.testing.assert_close(network(other), expected, atol=1e-4, rtol=1e-4)
    assert network(torch.zeros(2, 1, 28, 28)).isfinite().all(), "of a blank image"


def test_weights_come_back_as_they_were_saved_and_others_are_refused(
    network: DigitsNetwork, tmp_path: Path
) -> None:
    path = tmp_path / "w.safetensors"
    save_tensors(path, network.state_dict(), {**network.about, "epoch": 3})
    again, about = load(path)
    assert about["epoch"] == 3
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
    save_tensors(path, network.state_dict(), {**network.about, "system": "food11"})
    with pytest.raises(GourmetError, match="its system is food11, not digits"):
        load(path)
