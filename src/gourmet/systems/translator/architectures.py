"""The networks that are served, as data: where each has its parts, and what a layer does with them.

All of them are transformers' classes, and one encoder and one step are made of any (graphs.py). A norm is the
part's own, LayerNorm or T5's RMSNorm, before what it belongs to or behind the sum; an activation too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from gourmet.errors import GourmetError

# What of T5 and others was exported and compared; of each, with a gate before its name or without.
_ACTIVATIONS: Final = ("relu", "gelu", "gelu_new", "silu", "swish")


@dataclass(frozen=True)
class StackNames:
    """An encoder or a decoder, by the names of its parts."""

    at: str
    layers: str = "layers"
    # Of a layer: each part with the norm that belongs to it.
    attention: tuple[str, str] = ("self_attn", "self_attn_layer_norm")
    across: tuple[str, str] = ("encoder_attn", "encoder_attn_layer_norm")
    fed: Sequence[str] = ("fc1", "activation_fn", "fc2")  # one after another
    fed_norm: str = "final_layer_norm"
    norm_first: bool = False
    last_norm: str = ""  # behind all layers
    # Of an attention.
    products: tuple[str, str, str, str] = ("q_proj", "k_proj", "v_proj", "out_proj")
    heads: tuple[str, str] = ("num_heads", "head_dim")  # how many, and of which size
    scale: float | None = None  # of what a query makes of a key; 1 / √size
    # Of the first layer's attention, and added in all: a number for each head and distance of two words.
    bias: bool = False
    # Added to the words: a table; one that begins behind the number of the pad; or nothing.
    places: Literal["table", "behind the pad", ""] = "table"


@dataclass(frozen=True)
class Architecture:
    title: str
    classes: tuple[str, str, str]  # transformers' module, configuration and network
    encoder: StackNames
    decoder: StackNames
    # In its config.json: sizes that its weights have, how many layers, and how far places are told apart.
    sizes: Sequence[str] = ("d_model", "vocab_size", "encoder_ffn_dim", "decoder_ffn_dim")
    counts: Sequence[str] = ("encoder_layers", "decoder_layers")
    places: Sequence[str] = ("max_position_embeddings",)
    activation: str = "activation_function"
    # What older files have, and the network computes or never uses.
    unused: tuple[str, ...] = ()

    def check(self, config: Mapping[str, Any]) -> None:
        """Raise GourmetError for a config.json with something that is not served."""
        name = config.get(self.activation, _ACTIVATIONS[0])
        if str(name).removeprefix("gated-") not in _ACTIVATIONS:
            raise GourmetError(
                f"its {self.activation} is {str(name)[:40]!r}, and there are {', '.join(_ACTIVATIONS)}"
            )


_MARIAN: Final = Architecture(
    "Marian",
    ("marian", "MarianConfig", "MarianMTModel"),
    StackNames("model.encoder"),
    StackNames("model.decoder"),
)
_BEFORE: Final = StackNames("model.encoder", norm_first=True, last_norm="layer_norm", places="behind the pad")
_M2M100: Final = replace(
    _MARIAN,
    title="M2M100",
    classes=("m2m_100", "M2M100Config", "M2M100ForConditionalGeneration"),
    encoder=_BEFORE,
    decoder=replace(_BEFORE, at="model.decoder"),
    unused=("embed_positions.weights",),
)
_T5_ENCODER: Final = StackNames(
    "encoder",
    layers="block",
    attention=("layer.0.SelfAttention", "layer.0.layer_norm"),
    across=("layer.1.EncDecAttention", "layer.1.layer_norm"),
    fed=("layer.1.DenseReluDense",),
    fed_norm="layer.1.layer_norm",
    norm_first=True,
    last_norm="final_layer_norm",
    products=("q", "k", "v", "o"),
    heads=("n_heads", "key_value_proj_dim"),
    scale=1.0,
    bias=True,
    places="",
)
_T5: Final = Architecture(
    "T5",
    ("t5", "T5Config", "T5ForConditionalGeneration"),
    encoder=_T5_ENCODER,
    decoder=replace(
        _T5_ENCODER, at="decoder", fed=("layer.2.DenseReluDense",), fed_norm="layer.2.layer_norm"
    ),
    sizes=("d_model", "vocab_size", "d_ff", "d_kv", "num_heads"),
    counts=("num_layers", "num_decoder_layers"),
    places=("relative_attention_num_buckets", "relative_attention_max_distance"),
    activation="feed_forward_proj",
    unused=("EncDecAttention.relative_attention_bias.weight",),
)
# By the `model_type` of a config.json. mT5 is T5 with other words.
ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "marian": _MARIAN,
    "m2m_100": _M2M100,
    "t5": _T5,
    "mt5": replace(_T5, title="mT5"),
}


def architecture_of(config: Mapping[str, Any]) -> Architecture:
    """KeyError where it is none of them."""
    return ARCHITECTURES[str(config.get("model_type", "marian"))]
