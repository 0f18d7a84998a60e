"""Devices by name, checked before a model is read for one that is not there."""

from __future__ import annotations

import torch

from tierkv.errors import InvalidRequestError


def check_device(device: str) -> None:
    """Raises InvalidRequestError for what is no device, and for one that this machine or this torch has not."""
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise InvalidRequestError("a device looks like cpu or cuda:0", device=device) from error
    num_devices = {"cpu": 1, "cuda": torch.cuda.device_count()}.get(wanted.type, 0)
    if (wanted.index or 0) >= num_devices:
        raise InvalidRequestError("this machine has no such device, or torch was built without it", device=device)
