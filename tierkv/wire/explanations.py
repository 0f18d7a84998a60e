"""Explanations and recorded requests ⇄ protobuf messages, for both sides. Pure; see `tierkv.wire.messages`."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tierkv.answers import ExplainedEvent, Explanation, RecordedRequest
from tierkv.errors import InvalidRequestError
from tierkv.model.hints import check_request_id
from tierkv.wire._generated import tierkv_pb2 as pb
from tierkv.wire.messages import miss_number, miss_of, tier_number, tier_of

_TOKEN_BYTES = 4


def explain_message(subject: bytes | str, token_ids: Sequence[int]) -> pb.ExplainRequest:
    """subject — a key or its leading bytes, or a request id. Raises InvalidRequestError for an id or token ids that cannot be."""
    packed = pack_token_ids(token_ids)
    if isinstance(subject, str):
        check_request_id(subject)
        return pb.ExplainRequest(request_id=subject, token_ids=packed)
    return pb.ExplainRequest(key=subject, token_ids=packed)


def explain_subject_of(message: pb.ExplainRequest) -> tuple[bytes | str, list[int]]:
    """Subject and token ids. Raises InvalidRequestError where there is no subject, or half a token id."""
    if message.WhichOneof("subject") is None:
        raise InvalidRequestError("an explanation is of a key or of a request id; give one")
    if len(message.token_ids) % _TOKEN_BYTES:
        raise InvalidRequestError("a list of token ids has 4 bytes an id", length=len(message.token_ids))
    tokens = list(struct.unpack(f"<{len(message.token_ids) // _TOKEN_BYTES}I", message.token_ids))
    return (message.key if message.WhichOneof("subject") == "key" else message.request_id), tokens


def pack_token_ids(token_ids: Sequence[int]) -> bytes:
    """4·n bytes. Raises InvalidRequestError for what is no integer in [0, 2^32)."""
    try:
        return struct.pack(f"<{len(token_ids)}I", *token_ids)
    except struct.error as error:
        raise InvalidRequestError("token ids are integers in [0, 2^32)", error=error) from error


def explanation_message(explanation: Explanation) -> pb.ExplainReply:
    return pb.ExplainReply(
        key=explanation.key or b"",
        request_id=explanation.request_id,
        found=explanation.found,
        tier=tier_number(explanation.tier),  # type: ignore[arg-type]  # a number of the enum
        miss=miss_number(explanation.miss),  # type: ignore[arg-type]
        reason=explanation.reason,
        events=[pb.TrailEvent(at=event.at_s, what=event.what, why=event.why) for event in explanation.events],
    )


def explanation_of(message: pb.ExplainReply) -> Explanation:
    """Raises DataError for a tier that this version does not know."""
    return Explanation(
        key=message.key or None,
        request_id=message.request_id,
        found=message.found,
        tier=tier_of(message.tier),
        miss=miss_of(message.miss),
        reason=message.reason,
        events=tuple(ExplainedEvent(event.at, event.what, event.why) for event in message.events),
    )


def recorded_message(request: RecordedRequest) -> pb.RecordEvent:
    return pb.RecordEvent(
        timestamp_ms=request.timestamp_ms,
        input_length=request.input_length,
        hash_ids=request.hash_ids,
        block_tokens=request.block_tokens,
        session=request.session,
        dropped=request.dropped,
        is_save=request.is_save,
    )


def recorded_of(message: pb.RecordEvent) -> RecordedRequest:
    return RecordedRequest(
        timestamp_ms=message.timestamp_ms,
        input_length=message.input_length,
        hash_ids=tuple(message.hash_ids),
        block_tokens=message.block_tokens,
        session=message.session,
        dropped=message.dropped,
        is_save=message.is_save,
    )
