"""A TorchScript file as a function of arrays by name. All that needs torch is here."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch_names

from gourmet.errors import GourmetError
from gourmet.runtime import malloc
from gourmet.runtime.batches import Array, Feeds, UnusableTensors
from gourmet.runtime.instances import Device, cpu_threads, integer_parameter, switch

# TorchScript profiles in the first run and compiles in the second, for any number of rows.
_WARM_UP_ROWS: Final = (1, 2)
# Switches of NVIDIA's that are torch's own, for the whole process, which an instance is.
_JIT: Final[Mapping[str, Callable[[bool], Any]]] = {
    "ENABLE_JIT_EXECUTOR": torch._C._jit_set_profiling_executor,
    "ENABLE_JIT_PROFILING": torch._C._jit_set_profiling_mode,
    "ENABLE_TENSOR_FUSER": torch._C._jit_set_texpr_fuser_enabled,
}


class TorchNetwork:
    """One instance: the file as its config wants it run; raises GourmetError where it cannot be."""

    def __init__(
        self, path: Path, config: Mapping[str, Any], device: Device | None, warn: Callable[[str], None]
    ) -> None:
        """Without a `device` the network stays on the devices that it was saved on (KIND_MODEL)."""
        self._config, self._warn = config, warn
        self._device = self._found(device)
        self._threads = integer_parameter(config, "INTRA_OP_THREAD_COUNT") or cpu_threads(config)
        self._inference = switch(config, "INFERENCE_MODE", default=True)
        self._optimized = not switch(config, "DISABLE_OPTIMIZED_EXECUTION", default=False)
        self._clean = switch(config, "ENABLE_CACHE_CLEANING", default=False)
        self._prepare_process()
        module = self._load(path, "cpu" if device is None else str(self._device), keep=device is None)
        self._inputs = self._ordered(module.forward.schema.arguments[1:])
        self._outputs = torch_names.by_number([each["name"] for each in config["output"]])
        self._types = {each["name"]: torch_names.TYPES[each["data_type"]] for each in config["output"]}
        self._module = self._optimize(module) if self._optimized else module
        self._warm_up()

    def __str__(self) -> str:
        return f"{self._device} with {self._threads} CPU threads"

    def run(self, feeds: Feeds, requested: Sequence[str]) -> list[Array]:
        """The wanted outputs of one batch."""
        tensors = [torch.from_numpy(feeds[name]).to(self._device) for name in self._inputs]
        with ExitStack() as during:
            during.enter_context(torch.inference_mode() if self._inference else torch.no_grad())
            if not self._optimized:
                during.enter_context(torch.jit.optimized_execution(False))  # type: ignore[attr-defined]
            answered = self._named(self._module(*tensors))
            outputs = [self._as_promised(name, answered[name].cpu().numpy()) for name in requested]
        if self._clean and self._device.type == "cuda":
            torch.cuda.empty_cache()
        return outputs

    def _found(self, device: Device | None) -> torch.device:
        if device is None or device.kind == "cpu":
            return torch.device("cpu")
        if torch.cuda.is_available():
            return torch.device(str(device))
        if device.required:
            raise GourmetError(
                f"KIND_GPU needs a torch that sees a GPU, and this one ({torch.__version__}) sees none: "
                "install one built for CUDA, or set the instance group's kind to KIND_CPU"
            )
        self._warn(f"{self._config['name']} runs on the CPU instead of {device}: torch sees no GPU")
        return torch.device("cpu")

    def _prepare_process(self) -> None:
        if self._device.type == "cpu":
            malloc.use(malloc.SERVING)
        torch.set_num_threads(self._threads)
        if between := integer_parameter(self._config, "INTER_OP_THREAD_COUNT"):
            torch.set_num_interop_threads(between)
        for name, turn in _JIT.items():
            turn(switch(self._config, name, default=True))
        torch.backends.cudnn.enabled = not switch(self._config, "DISABLE_CUDNN", default=False)
        if switch(self._config, "ENABLE_WEIGHT_SHARING", default=False):
            self._warn("ENABLE_WEIGHT_SHARING has no effect here: each instance is a process of its own")

    def _load(self, path: Path, device: str, *, keep: bool) -> Any:
        try:
            with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
                module = torch.jit.load(path, map_location=None if keep else device)  # type: ignore[no-untyped-call]
        except Exception as exc:  # torch's own, of many kinds
            said = next(iter(str(exc).splitlines()), type(exc).__name__)
            raise GourmetError(f"{path} cannot be opened as TorchScript: {said}") from exc
        return module.eval()

    def _ordered(self, arguments: Sequence[Any]) -> list[str]:
        """The config's inputs as the network takes them."""
        named = [each["name"] for each in self._config["input"]]
        needed = sum(not each.has_default_value() for each in arguments)
        others = [
            f"{each.name}: {each.type}" for each in arguments[: len(named)] if str(each.type) != "Tensor"
        ]
        if others or not needed <= len(named) <= len(arguments):
            takes = ", ".join(f"{each.name}: {each.type}" for each in arguments)
            raise GourmetError(
                f"the network takes {takes}, and the config names the inputs {', '.join(named)}: each has "
                "to be a tensor, and each tensor an input"
            )
        return torch_names.in_order(named, [each.name for each in arguments[: len(named)]])

    def _optimize(self, module: Any) -> Any:
        """Frozen, and on the CPU fused for it; that form cannot be saved, so it is made here."""
        try:
            with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
                frozen = torch.jit.freeze(module)
                return torch.jit.optimize_for_inference(frozen)
        except Exception as exc:  # what cannot be frozen can be run
            self._warn(f"{self._config['name']} is not frozen: {exc}")
            return module

    def _named(self, answer: Any) -> Mapping[str, torch.Tensor]:
        """The outputs by the config's names: of one tensor, a tuple or list of them, or a dictionary."""
        if isinstance(answer, Mapping) and set(answer) >= set(self._outputs):
            return answer
        tensors = [answer] if isinstance(answer, torch.Tensor) else list(answer)
        if len(tensors) < len(self._outputs) or not all(isinstance(each, torch.Tensor) for each in tensors):
            kinds = ", ".join(
                str(list(each.shape)) if isinstance(each, torch.Tensor) else type(each).__name__
                for each in tensors
            )
            raise GourmetError(
                f"the network answers with {len(tensors)} values ({kinds}), and the config names the outputs "
                f"{', '.join(self._outputs)}"
            )
        return dict(zip(self._outputs, tensors, strict=False))

    def _as_promised(self, name: str, array: Array) -> Array:
        if array.dtype != self._types[name]:
            raise GourmetError(
                f"output {name!r} came back as {array.dtype}, and the config says {self._types[name]}"
            )
        return array

    def _warm_up(self) -> None:
        """Run what the config describes, where it says all sizes, and see that the outputs are there."""
        batched = self._config["max_batch_size"] > 0
        feeds: Feeds = {}
        for declared in self._config["input"]:
            shape = declared.get("reshape", declared)["shape" if "reshape" in declared else "dims"]
            sizes = [int(size) for size in shape]
            if -1 in sizes:
                return
            feeds[declared["name"]] = np.zeros(sizes, torch_names.TYPES[declared["data_type"]])
        for rows in _WARM_UP_ROWS if batched else (0, 0):
            if rows <= max(1, self._config["max_batch_size"]):
                stacked = {name: np.stack([row] * rows) if rows else row for name, row in feeds.items()}
                try:
                    self.run(stacked, self._outputs)
                except (GourmetError, UnusableTensors):
                    raise
                except Exception as exc:  # zeros may be nothing that it can compute with
                    self._warn(f"{self._config['name']} does not take zeros, and is not warmed up: {exc}")
                    return
