"""Looking at a daemon without being its client: no attach, no session, no map of the arena. For `tierkv status`, `verify`, `explain`
and `record`.

What is asked here holds nothing, so it needs no session (docs/protocol.md, "Sessions"), is not counted as one, and works when the
table of sessions is full.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import grpc

from tierkv.answers import Explanation, RecordedRequest
from tierkv.client.address import LocalAddress, parse_address
from tierkv.client.link import remote_channel
from tierkv.errors import TierKVError, UnavailableError
from tierkv.model.outcomes import StoreStats
from tierkv.wire import explanations, messages
from tierkv.wire._generated import tierkv_pb2 as pb
from tierkv.wire._generated import tierkv_pb2_grpc
from tierkv.wire.addresses import find_run_folder
from tierkv.wire.limits import RECORDING_METADATA, client_options
from tierkv.wire.status import error_of_rpc

DEFAULT_TIMEOUT_S = 5.0
Progress = Callable[[int, int, int], None]


class Observer:
    """A context manager; the constructor opens no connection.

    address — as for `connect`: None for the user's run folder, a run folder, or host:port (token from TIERKV_TOKEN). Raises
    UnavailableError where there is no run folder, InvalidRequestError for one that cannot be trusted.
    """

    def __init__(self, address: str | os.PathLike[str] | None = None) -> None:
        parsed = parse_address(address)
        if isinstance(parsed, LocalAddress):
            self._place: object = find_run_folder(parsed.run_folder).grpc_socket
            self._metadata = None
            self._channel = grpc.insecure_channel(f"unix:{self._place}", options=client_options())
        else:
            self._place = parsed.target
            self._metadata = parsed.metadata() or None
            self._channel = remote_channel(parsed)
        self._stub: Any = tierkv_pb2_grpc.TierKVStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._channel.close()

    def stats(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> StoreStats:
        """A snapshot. Raises UnavailableError that names the place when no daemon answers there."""
        try:
            return messages.stats_of(self._stub.Stats(pb.StatsRequest(), metadata=self._metadata, timeout=timeout_s))
        except grpc.RpcError as error:
            raise self._translated(error) from error

    def verify(self, progress: Progress) -> pb.VerifyDone:
        """The daemon reads and checks every frame; blocks until it is through. progress(frames, frames_total, bytes).

        Raises ConflictError while another scrub runs. Leaving early (Ctrl-C) ends the daemon's work too.
        """
        events = self._stub.Verify(pb.VerifyRequest(), metadata=self._metadata)
        try:
            for event in events:
                if event.HasField("done"):
                    done: pb.VerifyDone = event.done
                    return done
                progress(event.progress.frames, event.progress.frames_total, event.progress.bytes)
        except grpc.RpcError as error:
            raise self._translated(error) from error
        raise UnavailableError("the daemon ended the scrub before its report", daemon=self._place)

    def explain(self, subject: bytes | str, token_ids: Sequence[int] = (), *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Explanation:
        """Why a block (a key, or its leading 4 bytes or more) or a request (its id) hit or missed.

        token_ids — of the subject's first block: then what is held under other namespaces is known for certain. Raises
        InvalidRequestError for what cannot be, and for an abbreviated key that is not unique.
        """
        request = explanations.explain_message(subject, token_ids)
        try:
            return explanations.explanation_of(self._stub.Explain(request, metadata=self._metadata, timeout=timeout_s))
        except grpc.RpcError as error:
            raise self._translated(error) from error

    def record(self) -> Recording:
        """The requests that come from now on: when this returns, the recording has begun. Raises CapacityError where too many record."""
        call = self._stub.Record(pb.RecordRequest(), metadata=self._metadata)
        if RECORDING_METADATA not in dict(call.initial_metadata() or ()):
            call.code()  # waits for the end of a call that failed; it is its own error
            raise self._translated(call)
        return Recording(call, self._translated)

    def _translated(self, error: grpc.RpcError) -> TierKVError:
        translated = error_of_rpc(error)
        if isinstance(translated, UnavailableError):
            details = translated.context.get("details")
            cause = translated if details is None else _last_cause(str(details))
            return UnavailableError("no daemon answers here; start `tierkv serve`", daemon=self._place, error=cause)
        return translated


def _last_cause(details: str) -> str:
    """Of gRPC's chain of addresses and causes what the system said at its end."""
    return details.rpartition("last error: ")[2].rpartition(" error: ")[2]


class Recording:
    """An iterator of recorded requests that ends with `stop`, from any thread, or with the daemon (`is_stopped` tells which)."""

    def __init__(self, call: Any, translated: Callable[[grpc.RpcError], TierKVError]) -> None:
        self._call = call
        self._translated = translated
        self.is_stopped = False
        """Whether `stop` has been called."""

    def __iter__(self) -> Iterator[RecordedRequest]:
        try:
            for event in self._call:
                yield explanations.recorded_of(event)
        except grpc.RpcError as error:
            if self._call.cancelled():
                return
            raise self._translated(error) from error

    def stop(self) -> None:
        """Ends the recording. May be called twice."""
        self.is_stopped = True
        self._call.cancel()
