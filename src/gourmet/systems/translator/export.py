"""A translator as the files that its served models open, each compared with the loop of transformers.

Encoder         ids [B, S], mask [B, S]                       -> hidden [B, S, W], memory [B, L, 2, H, S, D]
TranslatorStep  see gourmet.export.text_graphs
Whole           source [B, 50], target [B, 50]                -> output [B, 50, V]

What is served is the network in eight bits (gourmet.export.text_int8), unless it is asked for fp32.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from gourmet.contracts import SYSTEM_PARAMETER, THRESHOLD_PARAMETER
from gourmet.evaluation.system_parts import BadData, EmptyPart, Reference, TextData
from gourmet.evaluation.text_certainty import certainty, judged
from gourmet.evaluation.text_comparison import HeldOut, chrf, held_out_part, whole_answers
from gourmet.export.text_export import GenerationExport, TrainedGenerator
from gourmet.export.text_graphs import NEVER, Attention, Graph, Memory, StepNetwork, step_graph
from gourmet.generation import package
from gourmet.generation.answers import Parts
from gourmet.generation.loop import Row
from gourmet.progress import ReportProgress
from gourmet.repository.gate import Calibrated, Deployment, Export, Target
from gourmet.repository.models import read_config, repository_of
from gourmet.repository.versions import version_numbers
from gourmet.served.instances import available_cpus
from gourmet.systems.translator.contract import SYSTEM, Translator, text_of
from gourmet.systems.translator.data import DATA
from gourmet.systems.translator.evaluate import MAX_TOKENS, answered
from gourmet.systems.translator.network import MARIAN, load
from gourmet.systems.translator.serving import DECODER, ENCODER, SERVING, TranslatorNetwork
from gourmet.triton_client.model_config import as_json

_VALIDATION: Final = "validation"
_VERIFIED: Final = 500
_CALIBRATED: Final = 5000
_COMPARED: Final = 500  # measured: 200 answers of the shipped network in 0.6 s on two busy cores
_ROWS: Final = 16
_WHOLE: Final = 50  # places of a source and a target in `onnx-model`
_CODE: Final = "model.py"


def _attention(of: Any) -> Attention:
    return Attention(of.q_proj, of.k_proj, of.v_proj, of.num_heads, of.head_dim)


def _across(network: Any) -> list[Attention]:
    return [_attention(layer.encoder_attn) for layer in network.model.decoder.layers]


def _fed_forward(layer: Any, states: torch.Tensor) -> torch.Tensor:
    out = layer.fc2(layer.activation_fn(layer.fc1(states)))
    return layer.final_layer_norm(states + out)  # type: ignore[no-any-return]


class _Embedding(nn.Module):
    def __init__(self, of: Any) -> None:
        super().__init__()
        self.words, self.places = of.embed_tokens, of.embed_positions
        self.scale = math.sqrt(self.words.embedding_dim) if of.config.scale_embedding else 1.0

    def forward(self, ids: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return self.words(ids) * self.scale + self.places.weight[places]  # type: ignore[no-any-return]


class Encoder(nn.Module):
    def __init__(self, network: Any) -> None:
        super().__init__()
        encoder = network.model.encoder
        self.embedding = _Embedding(encoder)
        self.layers: Any = encoder.layers
        self.attention: Any = nn.ModuleList(_attention(layer.self_attn) for layer in self.layers)
        self.memory = Memory(_across(network))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        states = self.embedding(ids, torch.arange(ids.shape[1], device=ids.device))
        for layer, attention in zip(self.layers, self.attention, strict=True):
            attended = attention(states, attention.key(states), attention.value(states), mask)
            states = layer.self_attn_layer_norm(states + layer.self_attn.out_proj(attended))
            states = _fed_forward(layer, states)
        return states, self.memory(states)


class TranslatorStep(StepNetwork):
    def __init__(self, network: Any) -> None:
        decoder = network.model.decoder
        attention = [_attention(layer.self_attn) for layer in decoder.layers]
        super().__init__(decoder.layers, attention, _across(network))
        self.embedding, self.words = _Embedding(decoder), network.lm_head
        bias = network.final_logits_bias.clone()
        bias[:, network.config.pad_token_id] = NEVER  # a pad is never an answer
        self.register_buffer("bias", bias)

    def embedded(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        return self.embedding(token, position)  # type: ignore[no-any-return]

    def attended(self, layer: Any, states: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        return layer.self_attn_layer_norm(states + layer.self_attn.out_proj(context))  # type: ignore[no-any-return]

    def attended_across(self, layer: Any, states: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        out = layer.encoder_attn.out_proj(context)
        return layer.encoder_attn_layer_norm(states + out)  # type: ignore[no-any-return]

    def fed_forward(self, layer: Any, states: torch.Tensor) -> torch.Tensor:
        return _fed_forward(layer, states)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        return self.words(states) + self.bias  # type: ignore[no-any-return]


class Whole(nn.Module):
    """A decoder of all positions at once, without a cache: for loops in the client."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network
        self.pad = network.config.pad_token_id

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        ids, decoder_ids = (torch.where(ids == 1, self.pad, ids).long() for ids in (source, target))
        logits: torch.Tensor = self.network(
            input_ids=ids, attention_mask=(source != 1).long(), decoder_input_ids=decoder_ids, use_cache=False
        ).logits
        return logits


def graphs(network: Any) -> dict[str, Graph]:
    """Return the encoder and the step, by the names of their files."""
    words = {0: "rows", 1: "words"}
    ids, mask = torch.zeros(2, 5, dtype=torch.int64), torch.ones(2, 5, dtype=torch.int32)
    encoder = Graph(
        Encoder(network),
        {"ids": ids, "mask": mask},
        ("hidden", "memory"),
        {"ids": words, "mask": words, "hidden": words, "memory": {0: "rows", 4: "words"}},
    )
    return {ENCODER: encoder, DECODER: step_graph(TranslatorStep(network), apart=True)}


def whole(network: nn.Module) -> Graph:
    ids = torch.ones(2, _WHOLE, dtype=torch.int32)
    rows = {0: "rows"}
    axes = {"source": rows, "target": rows, "output": {0: "rows", 1: "words"}}
    return Graph(Whole(network), {"source": ids, "target": ids}, ("output",), axes)


@dataclass(frozen=True)
class TrainedTranslator(TrainedGenerator):
    """A checkpoint, held-out sentences, and its network's answers to them in 32 bits."""

    system: Translator
    sources: Sequence[Sequence[int]]
    answers: Sequence[Sequence[int]]
    serving = SERVING
    architecture = "Marian"
    examples = "sentences"
    # The last place of an answer without an end is not compared: some checkpoints force an end there.
    compared_tokens = MAX_TOKENS - 1

    @property
    def rows(self) -> Sequence[Row]:
        return [Row(source, MAX_TOKENS) for source in self.sources]

    @property
    def right(self) -> Sequence[Sequence[int]]:
        return self.answers

    def eager(self, network: Any) -> Sequence[Sequence[int]]:
        return answered(network, self.checkpoint.tokenizer, self.sources)

    @cached_property
    def files(self) -> dict[str, bytes]:
        return self.checkpoint.files | {name: graph.file() for name, graph in self.graphs.items()}

    @property
    def graphs(self) -> dict[str, Graph]:
        return graphs(self.network)


@dataclass(frozen=True)
class TranslatorExport(GenerationExport):
    """Fulfils `gourmet.repository.gate.Quantizing`."""

    architecture = MARIAN
    system: Translator = SYSTEM
    data: TextData = DATA

    @property
    def formats(self) -> tuple[str, ...]:
        """Return the names of the formats. Those other than the default are for study, of our model only."""
        others = ("encoder", "decoder", "bls", "whole") if self.system == SYSTEM else ()
        return ("python", "stream", *others)

    def open(
        self, weights: Path, data: Path | None, tick: ReportProgress, *, architecture: str = ""
    ) -> Deployment:
        checkpoint = load(weights)
        if data is None:
            texts = [text.decode() for text in self.system.examples(32, seed=0)]
        else:
            texts = [pair.text for pair in self.data.references(data, _VALIDATION, _VERIFIED)]
        sources = [checkpoint.tokenizer.encode(text) for text in texts]
        answers = answered(checkpoint.network, checkpoint.tokenizer, sources, tick)
        source = TrainedTranslator(checkpoint, self.fp32, self.system, sources, answers)
        lack = "name sentences and their translations with --data"
        targets = source.compared(_targets(source), weights, self._held_out_sentences(data), lack)
        facts = source.facts(weights, data)
        if data is None:
            return Deployment(targets, facts)
        sure = self._calibrated(source.files, data, tick)
        return Deployment(targets, {**facts, **sure.facts}, sure.calibration)

    def _held_out_sentences(self, data: Path | None) -> HeldOut | None:
        """Return sentences of the data, or the shipped ones; None if none has a translation."""
        references: Sequence[Reference] = ()
        if data:
            references = held_out_part(partial(self.data.references, data, limit=_COMPARED))
        shipped = (Reference("", *pair) for pair in self.system.meanings.items() if all(pair))
        references = references or list(shipped)

        def questions(network: TranslatorNetwork) -> list[Parts]:
            return [network.parts(self.system.written(text_of(pair.text))) for pair in references]

        return chrf(references, questions) if references else None

    def calibrated(self, version: Path, data: Path, tick: ReportProgress) -> Calibrated:
        config = as_json(read_config(version.parent))
        return self._calibrated(package.open_version(version, config), data, tick)

    def _calibrated(self, files: Mapping[str, bytes], data: Path, tick: ReportProgress) -> Calibrated:
        """Calibrate on the validation part; measure there and on the test part, if there is one."""
        network = TranslatorNetwork.open(files, available_cpus())
        parts = {}
        for part in (_VALIDATION, "test"):
            try:
                references = self.data.references(data, part, _CALIBRATED)
            except EmptyPart:
                if part == _VALIDATION:
                    raise
                continue
            try:
                texts = [text_of(pair.text) for pair in references]
            except ValueError as exc:
                raise BadData(f"{data} has a text that no translator is asked about: {exc}") from exc
            questions = [network.parts(self.system.written(text)) for text in texts]
            answers = whole_answers(network, questions, _ROWS, tick)
            warned = [
                self.system.with_warning(reference.text.encode(), answer)
                for reference, answer in zip(references, answers, strict=True)
            ]
            parts[part] = judged(references, warned)
        sure = certainty(_VALIDATION, parts)
        threshold = sure.measures[THRESHOLD_PARAMETER]
        return Calibrated({THRESHOLD_PARAMETER: threshold}, {"certainty": sure.measures}, sure.lines())


def _targets(source: TrainedTranslator) -> dict[str, Target]:
    """Return the targets of the formats, by name."""
    system = source.system
    if system != SYSTEM:
        stream = source.reference(system.streaming_model)
        return {
            "python": _like(SYSTEM.default_model, source.package(), system),
            "stream": _like(SYSTEM.streaming_model, stream, system),
        }
    # As a model of its own it has two inputs instead of eight: each input costs a message.
    decoder = step_graph(TranslatorStep(source.network))
    return {
        "python": source.package(),
        "stream": source.reference(SYSTEM.streaming_model),
        "encoder": source.graph("translator_encoder", source.graphs[ENCODER]),
        "decoder": source.graph("translator_decoder", decoder),
        "bls": source.reference("translator_bls"),
        "whole": source.graph("onnx-model", whole(source.network)),
    }


def _like(ours: str, target: Target, system: Translator) -> Target:
    """Return a target that needs no model in the repository: it takes the config and code of our model."""
    folder = repository_of(ours) / ours
    config = as_json(read_config(folder))
    config["parameters"][SYSTEM_PARAMETER] = {"string_value": system.name}

    (file,) = target.files

    def write(path: Path) -> dict[str, Any]:
        shutil.copyfile(folder / str(version_numbers(folder)[-1]) / _CODE, path.with_name(_CODE))
        return file.write(path)

    return replace(target, files=[replace(file, write=write)], config={**config, "name": target.model})


EXPORT: Final[Export] = TranslatorExport()
