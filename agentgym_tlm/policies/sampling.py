"""Drawing tokens: greedy, temperature and top-p, one uniform number per token."""

from __future__ import annotations

import torch


def sample_tokens(
    logits: torch.Tensor, uniforms: torch.Tensor, *, temperature: float, top_p: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Next token ids [batch] and their log-probabilities [batch], from ``logits`` [batch, vocabulary].

    The log-probability is that under softmax(logits / temperature), in float32, before top-p cuts the distribution off;
    greedy decoding (``temperature`` 0) reports it at temperature 1. A token is drawn by inverting the cumulative
    distribution at the row's number in ``uniforms`` [batch], in [0, 1), so that a row's draw depends on nothing but the
    row. Top-p keeps the most probable tokens up to and including the one that reaches ``top_p``. A row with NaN among
    its logits gets some token, and NaN as its log-probability.
    """
    logprobs = torch.log_softmax(logits.float() / (temperature or 1.0), dim=-1)
    if temperature == 0:
        ids = logprobs.argmax(dim=-1)
    else:
        probabilities = logprobs.double().exp()
        if top_p < 1:
            ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
            beyond = ordered.cumsum(dim=-1) - ordered >= top_p
            probabilities = probabilities.scatter(-1, order, ordered.masked_fill(beyond, 0.0))
        cumulative = probabilities.cumsum(dim=-1)
        total = cumulative[:, -1:]
        targets = torch.minimum(uniforms[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
        ids = torch.searchsorted(cumulative, targets, right=True).squeeze(-1)
        ids = ids.clamp(max=logits.shape[-1] - 1)  # NaN sorts behind everything
    return ids, logprobs.gather(-1, ids[:, None]).squeeze(-1)
