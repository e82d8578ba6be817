"""Log-probs of a language model at the tokens that the policy produced, and at no others."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from agentgym_tlm.batch import TurnBatch
from agentgym_tlm.errors import ConfigError, TrainingError

LOGITS_PER_CHUNK = 2**26  # at most 256 MiB of fp32 logits at a time


class TokenLogprobs(nn.Module):
    """log π(token) [N] of a causal language model at the tokens of the loss, without the logits of any other token.

    The transformer body runs on whole rows; the language-model head only where the policy acted, ``chunk_size`` tokens
    at a time (default: about 256 MiB of logits), each chunk recomputed in the backward pass. Log-softmax is float32.
    This module, not the model, is what a trainer wraps for distribution and mixed precision. Works on PEFT adapters and
    tied embeddings, and applies the logit scaling and soft-capping of the model's own forward. The log-probs are those
    of sampling at ``temperature``. Raises ConfigError for a model whose logits this does not reproduce, TrainingError
    for one whose logits are not finite.
    """

    def __init__(self, model: nn.Module, chunk_size: int | None = None, *, temperature: float = 1.0) -> None:
        super().__init__()
        self.model = model
        self._temperature = temperature
        causal_lm = model if isinstance(model, PreTrainedModel) else model.get_base_model()  # type: ignore[operator]
        config = causal_lm.config.get_text_config()
        self._scale = float(getattr(config, "logit_scale", 1.0) or 1.0) / float(getattr(config, "logits_scaling", 1.0))
        self._softcap: float | None = getattr(config, "final_logit_softcapping", None)
        self._max_length: int | None = getattr(config, "max_position_embeddings", None)
        self._chunk_size = chunk_size or max(1, LOGITS_PER_CHUNK // config.vocab_size)
        # kept out of the module tree: they are parts of self.model
        self._parts: tuple[nn.Module, nn.Module] = (causal_lm.base_model, causal_lm.get_output_embeddings())
        self._no_split_modules = getattr(causal_lm, "_no_split_modules", None)  # what FSDP shares out one by one
        self._check_logits(causal_lm)

    def forward(
        self,
        input_ids: Tensor,
        loss_mask: Tensor,
        groups: tuple[tuple[int, int, int], ...],
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """[N] log-probs for ``input_ids`` and ``loss_mask`` [B, L], of which ``groups`` are the padded blocks.

        Where ``position_ids`` [B, L] begin anew, another sequence begins in the row.
        """
        blocks = self.at_tokens(input_ids, loss_mask, groups, position_ids)
        return torch.cat([self.of_tokens(hidden, targets) for hidden, targets in blocks])

    def at_tokens(
        self,
        input_ids: Tensor,
        loss_mask: Tensor,
        groups: tuple[tuple[int, int, int], ...],
        position_ids: Tensor | None = None,
        *,
        body: nn.Module | None = None,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Of each padded block, the states [n, width] before its tokens of the loss, and those tokens [n].

        States are those of the model's body, or of another ``body`` in its place.
        """
        for start, stop, length in groups:
            ids, mask = input_ids[start:stop, :length], loss_mask[start:stop, 1:length]
            extra = (0, self._padding(ids, 1, 64, self._max_length))
            positions = None if position_ids is None else pad(position_ids[start:stop, :length], extra)
            hidden = self._hidden(pad(ids, extra), positions, body)
            yield hidden[:, : length - 1][mask], ids[:, 1:][mask]

    def of_tokens(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """[n] log-probs of ``targets`` [n], given the body's states [n, width] before them."""
        found = len(targets)
        missing = self._padding(targets, 0, min(256, self._chunk_size))
        hidden, targets = pad(hidden, (0, 0, 0, missing)), pad(targets, (0, missing))
        chunks = list(zip(hidden.split(self._chunk_size), targets.split(self._chunk_size), strict=True))
        parts = []
        for chunk in chunks:
            if len(chunks) > 1 and torch.is_grad_enabled():
                parts.append(checkpoint(self._head, *chunk, use_reentrant=False, preserve_rng_state=False))
            else:
                parts.append(self._head(*chunk))
        return torch.cat(parts)[:found]

    @staticmethod
    def _padding(values: Tensor, dim: int, multiple: int, limit: int | None = None) -> int:
        """How much to append to ``values`` for its length to be a multiple, up to ``limit``; only on a CPU.

        There every new shape compiles new kernels, which cost a small model more than the padding and stay in memory.
        """
        length = values.shape[dim]
        padding = -length % multiple if values.device.type == "cpu" else 0
        return padding if limit is None else max(0, min(padding, limit - length))

    def _hidden(self, input_ids: Tensor, position_ids: Tensor | None = None, body: nn.Module | None = None) -> Tensor:
        # Under a causal mask padding on the right reaches no real token; without a padding mask attention is faster.
        # Transformers keeps sequences of a row apart by their position ids.
        body = body or self._parts[0]
        hidden: Tensor = body(input_ids=input_ids, position_ids=position_ids, use_cache=False).last_hidden_state
        return hidden

    def _logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self._parts[1](hidden).float() * self._scale
        if self._softcap is not None:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        return logits

    def _head(self, hidden: Tensor, targets: Tensor) -> Tensor:
        logits = self._logits(hidden)
        if self._temperature != 1:
            logits = logits / self._temperature
        return logits.gather(-1, targets[:, None]).squeeze(-1) - logits.logsumexp(-1)

    @torch.no_grad()
    def _check_logits(self, causal_lm: nn.Module) -> None:
        training = causal_lm.training
        causal_lm.eval()
        ids = torch.arange(4, device=next(causal_lm.parameters()).device)[None]
        expected = causal_lm(input_ids=ids, use_cache=False).logits.float()
        found = self._logits(self._hidden(ids))
        causal_lm.train(training)
        if not expected.isfinite().all():
            raise TrainingError(f"the weights of {type(causal_lm).__name__} are broken: its logits are not finite")
        if found.shape != expected.shape or not torch.allclose(
            found, expected, rtol=0, atol=1e-2 * expected.abs().max()
        ):
            raise ConfigError(
                f"{type(causal_lm).__name__} does more between its body and its logits than a head, a logit scale and "
                "soft-capping, so that log-probs at single tokens would be wrong; use another architecture"
            )


def token_logprobs(model: nn.Module, batch: TurnBatch, chunk_size: int | None = None) -> Tensor:
    """[N] log-probs of the tokens of the loss under ``model``; see :class:`TokenLogprobs`."""
    logprobs: Tensor = TokenLogprobs(model, chunk_size)(
        batch.input_ids, batch.loss_mask, batch.groups, batch.position_ids
    )
    return logprobs
