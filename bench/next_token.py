"""The loss of next-token prediction over batches of token ids."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from levelfield.bench.sources import IGNORED, Tokens
from levelfield.bench.spec import Precision

EVAL_BATCH = 64
"""Sequences a forward pass of an evaluation; fixed, so that losses do not depend on memory."""


class NextToken:
    """Next-token prediction. The loss comes from the logits, never from the model's own.

    A batch [b, t + 1] is int64; int32 where rows are padded, with negative ids that are neither
    read nor predicted.
    """

    def __init__(self, precision: Precision, device_type: str) -> None:
        self._autocast = precision == "fp32+bf16"
        self._device_type = device_type

    def _context(self) -> AbstractContextManager[object]:
        if self._autocast:
            return torch.autocast(self._device_type, dtype=torch.bfloat16)
        return nullcontext()

    def _logits(self, model: nn.Module, batch: Tensor) -> Tensor:
        """In float32, [b * t, vocabulary]."""
        ids = batch[:, :-1]
        if _padded(batch):  # padding comes last: no other position sees what stands in its place
            ids = ids.clamp(min=0).long()
        with self._context():
            logits: Tensor = model(input_ids=ids).logits
        return logits.float().reshape(-1, logits.shape[-1])

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Mean loss of a batch in nats a token, 0-dim."""
        logits = self._logits(model, batch)
        return nn.functional.cross_entropy(logits, _targets(batch), ignore_index=IGNORED)

    def sampled_loss(self, model: nn.Module, batch: Tensor, generator: torch.Generator) -> Tensor:
        """The same against labels drawn from the model's own distribution, not the batch's."""
        logits = self._logits(model, batch)
        # The largest of logit + Gumbel noise is a draw from the softmax; `multinomial` would wait
        # for the device to check its input.
        noise = torch.empty_like(logits.detach()).exponential_(generator=generator).log_()
        labels = (logits.detach() - noise).argmax(dim=-1)
        if _padded(batch):
            labels = labels.where(_targets(batch) >= 0, IGNORED)
        return nn.functional.cross_entropy(logits, labels, ignore_index=IGNORED)

    def mean_loss(self, model: nn.Module, sequences: Tokens, device: torch.device) -> float:
        """Mean loss over sequences [n, t + 1], in nats a token. Reads the device once."""
        model.eval()
        total = torch.zeros((), dtype=torch.float64, device=device)
        weights = 0
        with torch.no_grad():
            for start in range(0, len(sequences), EVAL_BATCH):
                rows = sequences[start : start + EVAL_BATCH]
                # By targets where rows differ in them: the mean is over tokens.
                weight = len(rows) if rows.dtype.kind == "u" else int((rows[:, 1:] >= 0).sum())
                total += self.loss(model, to_device(rows, device)).double() * weight
                weights += weight
        model.train()
        return float(total) / weights


def to_device(tokens: Tokens, device: torch.device) -> Tensor:
    """Token ids on the device: int64, and int32 where rows are padded (signed ids)."""
    kind = "int64" if tokens.dtype.kind == "u" else "int32"
    return torch.from_numpy(tokens.astype(kind)).to(device, non_blocking=True)


def _padded(batch: Tensor) -> bool:
    return batch.dtype == torch.int32


def _targets(batch: Tensor) -> Tensor:
    return batch[:, 1:].reshape(-1).long()
