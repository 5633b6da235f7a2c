"""A TorchScript file as a function of named arrays. Only this module imports torch.

The inputs and outputs of a config are matched with those of the network by the rules of NVIDIA's backend.
`config` is the dictionary that Triton passes to a model.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from gourmet.errors import GourmetError
from gourmet.served import batches, malloc
from gourmet.served.batches import Array, Feeds
from gourmet.served.instances import THREADS_PARAMETER, Device, integer_parameter, open_or_fall_back, switch
from gourmet.served.reading import error_summary

Config = Mapping[str, Any]

# The types that both numpy and torch have.
TYPES: Final = {
    "TYPE_BOOL": "bool",
    "TYPE_UINT8": "uint8",
    "TYPE_INT8": "int8",
    "TYPE_INT16": "int16",
    "TYPE_INT32": "int32",
    "TYPE_INT64": "int64",
    "TYPE_FP16": "float16",
    "TYPE_FP32": "float32",
    "TYPE_FP64": "float64",
}
_INDEXED: Final = re.compile(r".*__(\d+)")
# TorchScript profiles in the first run and compiles in the second. The number of rows does not matter.
_WARM_UP_ROWS: Final = (1, 2)


def check_config(config: Config) -> None:
    """Raise GourmetError with everything in the config that this backend does not support."""
    if problems := list(_problems(config)):
        raise GourmetError("; ".join(problems))


def _problems(config: Config) -> Iterator[str]:
    for role in ("input", "output"):
        if not config[role]:
            yield f"the config has no {role}s: add them, since a TorchScript file does not describe them"
        for declared in config[role]:
            if declared["data_type"] not in TYPES:
                yield (
                    f"{role} {declared['name']!r} is {declared['data_type']}; this backend supports "
                    f"{', '.join(TYPES)}"
                )
    if config.get("platform") not in (None, "", "pytorch_libtorch"):
        yield f"platform {config['platform']!r} is not supported: TorchScript is pytorch_libtorch"
    yield from batches.unsupported(config)
    if config.get("sequence_batching"):
        yield "sequence_batching is not supported"


def in_order(names: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Return the config's inputs in the order of the network's `arguments`.

    Their names are those of the arguments or end in numbers, as in INPUT__0; otherwise the config's order
    counts.
    """
    if set(names) == set(arguments):
        return list(arguments)
    return by_number(names)


def by_number(names: Sequence[str]) -> list[str]:
    """Return the names in the order of the numbers at their ends; unchanged if a name has none."""
    matches = [_INDEXED.fullmatch(name) for name in names]
    numbered = {int(match[1]): match[0] for match in matches if match}
    if len(numbered) < len(names):
        return list(names)
    if sorted(numbered) != list(range(len(names))):
        raise GourmetError(
            f"{', '.join(names)} end in the numbers {', '.join(map(str, sorted(numbered)))}; "
            f"they must be 0 to {len(names) - 1}, each once"
        )
    return [numbered[number] for number in range(len(names))]


def _torch_device(device: Device) -> torch.device:
    if device.kind != "cpu" and not torch.cuda.is_available():
        raise GourmetError(
            f"KIND_GPU needs a GPU, but torch {torch.__version__} finds none: install a torch built for "
            "CUDA, or set the instance group's kind to KIND_CPU"
        )
    return torch.device(str(device))


class TorchNetwork:
    """One instance: a file, run with the settings of its config. Raise GourmetError if it cannot be run."""

    def __init__(self, path: Path, config: Config, device: Device, warn: Callable[[str], None]) -> None:
        self._config, self._warn = config, warn
        self._device = open_or_fall_back(device, _torch_device, warn, config["name"])
        # One thread unless the config says more: see OMP_WAIT_POLICY in model.py.
        threads = (integer_parameter(config, name) for name in ("INTRA_OP_THREAD_COUNT", THREADS_PARAMETER))
        self._threads = next(filter(None, threads), 1)
        self._inference = switch(config, "INFERENCE_MODE", default=True)
        self._optimized = not switch(config, "DISABLE_OPTIMIZED_EXECUTION", default=False)
        self._prepare_process()
        module = self._load(path)
        self._inputs = self._ordered(module.forward.schema.arguments[1:])
        outputs = config["output"]
        self._outputs = by_number([output["name"] for output in outputs])
        self._types = {output["name"]: TYPES[output["data_type"]] for output in outputs}
        self._module = self._optimize(module) if self._optimized else module
        self._warm_up()

    def __str__(self) -> str:
        return f"{self._device} with {self._threads} CPU threads"

    def run(self, feeds: Feeds, requested: Sequence[str]) -> list[Array]:
        """Return the requested outputs of one batch."""
        tensors = [torch.from_numpy(feeds[name]).to(self._device) for name in self._inputs]
        with ExitStack() as during:
            during.enter_context(torch.inference_mode() if self._inference else torch.no_grad())
            if not self._optimized:
                during.enter_context(torch.jit.optimized_execution(False))  # type: ignore[attr-defined]
            by_name = self._named(self._module(*tensors))
            return [self._with_declared_type(name, by_name[name].cpu().numpy()) for name in requested]

    def _prepare_process(self) -> None:
        if self._device.type == "cpu":
            malloc.use(malloc.SERVING)
        torch.set_num_threads(self._threads)
        if inter_op := integer_parameter(self._config, "INTER_OP_THREAD_COUNT"):
            torch.set_num_interop_threads(inter_op)

    def _load(self, path: Path) -> Any:
        try:
            with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
                module = torch.jit.load(path, map_location=self._device)  # type: ignore[no-untyped-call]
        except Exception as exc:  # torch raises many types
            raise GourmetError(f"{path} cannot be opened as TorchScript: {error_summary(exc)}") from exc
        return module.eval()

    def _ordered(self, arguments: Sequence[Any]) -> list[str]:
        """Return the config's inputs in the order of the network's arguments."""
        inputs = [declared["name"] for declared in self._config["input"]]
        required = sum(not argument.has_default_value() for argument in arguments)
        used = arguments[: len(inputs)]
        are_tensors = all(str(argument.type) == "Tensor" for argument in used)
        if not are_tensors or not required <= len(inputs) <= len(arguments):
            signature = ", ".join(f"{argument.name}: {argument.type}" for argument in arguments)
            raise GourmetError(
                f"the network takes {signature}, the config names the inputs {', '.join(inputs)}: the config "
                "must name one input per tensor, and each argument must be a tensor"
            )
        return in_order(inputs, [argument.name for argument in used])

    def _optimize(self, module: Any) -> Any:
        """Freeze and fuse the network for this machine. That form cannot be saved, so it is made here."""
        try:
            with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
                frozen = torch.jit.freeze(module)
                return torch.jit.optimize_for_inference(frozen)
        except Exception as exc:  # a network that cannot be frozen may still run
            self._warn(f"{self._config['name']} is not frozen: {exc}")
            return module

    def _named(self, answer: Any) -> Mapping[str, torch.Tensor]:
        """Name the outputs as the config does. A network returns a tensor, several, or a dictionary."""
        if isinstance(answer, Mapping) and set(answer) >= set(self._outputs):
            return answer
        tensors = [answer] if isinstance(answer, torch.Tensor) else list(answer)
        if len(tensors) < len(self._outputs) or not all(isinstance(value, torch.Tensor) for value in tensors):
            kinds = ", ".join(
                str(list(value.shape)) if isinstance(value, torch.Tensor) else type(value).__name__
                for value in tensors
            )
            raise GourmetError(
                f"the network returns {len(tensors)} values ({kinds}), the config names the outputs "
                f"{', '.join(self._outputs)}: declare one output for each tensor"
            )
        return dict(zip(self._outputs, tensors, strict=False))

    def _with_declared_type(self, name: str, array: Array) -> Array:
        if array.dtype != self._types[name]:
            raise GourmetError(
                f"output {name!r} has type {array.dtype}, the config declares {self._types[name]}"
            )
        return array

    def _warm_up(self) -> None:
        """Run the network on zeros if the config gives all sizes, and check that the outputs exist."""
        batched = self._config["max_batch_size"] > 0
        feeds: Feeds = {}
        for declared in self._config["input"]:
            shape = declared.get("reshape", declared)["shape" if "reshape" in declared else "dims"]
            sizes = [int(size) for size in shape]
            if -1 in sizes:
                return
            feeds[declared["name"]] = np.zeros(sizes, TYPES[declared["data_type"]])
        for rows in _WARM_UP_ROWS if batched else (0, 0):
            if rows <= max(1, self._config["max_batch_size"]):
                stacked = {name: np.stack([row] * rows) if rows else row for name, row in feeds.items()}
                try:
                    self.run(stacked, self._outputs)
                except GourmetError:
                    raise
                except Exception as exc:  # some networks cannot compute zeros
                    self._warn(
                        f"{self._config['name']} is not warmed up, since it cannot compute zeros: {exc}"
                    )
                    return
