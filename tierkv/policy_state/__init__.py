"""Warm policies: what they learnt survives a restart and a kill. `keeper.py` is the way in, `docs/format.md` ("Policy state") the bytes."""

from tierkv.policy_state.keeper import PolicyKeeper
from tierkv.policy_state.recording import RecordingPolicy

__all__ = ["PolicyKeeper", "RecordingPolicy"]
