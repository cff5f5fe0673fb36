"""The platform class and its attention: every decode step of a batch is one padded attention call.

Shape suffixes: B requests of the batch, T cache slots of the longest request, H heads, E width of a head.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.interface import PlatformCapabilities, PlatformEnum, SRTPlatform


class PlainCpuPlatform(CpuDeviceMixin, SRTPlatform):  # type: ignore[misc]
    """A CPU that claims nothing: no graphs, no Triton, no pinned memory."""

    _enum = PlatformEnum.OOT
    capabilities = PlatformCapabilities()

    def get_default_attention_backend(self) -> str:
        return "torch_native"

    def get_dispatch_key_name(self) -> str:
        return "native"

    def is_pin_memory_available(self, device: Any = None) -> bool:
        return False

    def init_backend(self) -> None:
        """Put our batched decode in the place of ``torch_native``: with ``--device cpu`` the server insists on that name."""
        from sglang.srt.layers.attention.attention_registry import register_attention_backend

        register_attention_backend("torch_native")(_make_attention)


def _make_attention(runner: Any) -> Any:
    import torch
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
    from torch.nn.functional import scaled_dot_product_attention

    class BatchedDecode(TorchNativeAttnBackend):  # type: ignore[misc]
        """The stock backend loops over requests in Python; one padded call per layer is several times faster."""

        def _run_sdpa_forward_decode(
            self,
            query: Any,
            output: Any,
            k_cache: Any,
            v_cache: Any,
            req_to_token: Any,
            req_pool_indices: Any,
            seq_lens: Any,
            encoder_lens: Any = None,
            scaling: float | None = None,
            enable_gqa: bool = False,
            causal: bool = False,
            is_cross_attn: bool = False,
            sliding_window_size: int | None = None,
        ) -> Any:
            has_window = sliding_window_size is not None and sliding_window_size > -1
            if encoder_lens is not None or is_cross_attn or has_window:
                return super()._run_sdpa_forward_decode(
                    query,
                    output,
                    k_cache,
                    v_cache,
                    req_to_token,
                    req_pool_indices,
                    seq_lens,
                    encoder_lens,
                    scaling=scaling,
                    enable_gqa=enable_gqa,
                    causal=causal,
                    is_cross_attn=is_cross_attn,
                    sliding_window_size=sliding_window_size,
                )
            longest = int(seq_lens.max())
            filled_BT = torch.arange(longest, device=seq_lens.device) < seq_lens[:, None]
            # Slots beyond a request's length hold stale indices; slot 0 always exists and the mask hides it.
            slots_BT = req_to_token[req_pool_indices, :longest].masked_fill(~filled_BT, 0)
            keys_BHTE = k_cache[slots_BT].to(query.dtype).transpose(1, 2)
            values_BHTE = v_cache[slots_BT].to(query.dtype).transpose(1, 2)
            mixed_BH1E = scaled_dot_product_attention(
                query[:, :, None], keys_BHTE, values_BHTE, attn_mask=filled_BT[:, None, None], scale=scaling, enable_gqa=enable_gqa
            )
            output.copy_(mixed_BH1E.view_as(output))
            return output

    return BatchedDecode(runner)
