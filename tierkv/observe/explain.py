"""Explanations: why a block is held or not, why a request hit or missed. Functions over what `tierkv.observe.recall` brings together.

They read and change nothing. What they can tell ends where the trail ends (`tierkv.index.trail`); then they say so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from tierkv.answers import ExplainedEvent, Explanation
from tierkv.errors import InvalidRequestError
from tierkv.index.trail import TrailEvent, What, events_of_key
from tierkv.model.hints import check_request_id
from tierkv.model.keys import KEY_BYTES, BlockKey
from tierkv.model.namespace import Namespace
from tierkv.model.outcomes import MissReason, TierName
from tierkv.observe.lookalikes import FirstBlock, describe, first_blocks, nearest
from tierkv.observe.recall import Recall, Whereabouts

PREFIX_BYTES = 4
"""Shortest abbreviation of a key."""
EVENTS_SHOWN = 256
"""Events of one explanation at most, the latest: a block that all requests share has very many."""
_CANDIDATES_SHOWN = 5
_ARRIVALS = frozenset({What.SAVED, What.RECOVERED, What.PROMOTED, What.STAGED, What.DEMOTED, What.DEMOTION_CANCELLED})
_ON_DEVICE = frozenset({What.SAVED, What.PROMOTED})
"""Those of the arrivals that bring a block to a device, where that is their tier."""
_DEPARTURES = {
    What.EVICTED: MissReason.EVICTED,
    What.DELETED: MissReason.EVICTED,
    What.PASSED_BY: MissReason.CAPACITY,
    What.REFUSED: MissReason.CAPACITY,
    What.LOST: MissReason.CHECKSUM,
}
_SPEED = {tier: rank for rank, tier in enumerate(TierName)}


def explain_key(recall: Recall, prefix: bytes, token_ids: Sequence[int] = ()) -> Explanation:
    """Where a block is and since when, or why it is not held.

    prefix — the key or its leading 4 bytes or more; token_ids — of the block, where it is the first of its sequence: then blocks with
    these tokens under other namespaces are known too. Raises InvalidRequestError for an abbreviation that several known keys share.
    """
    if not PREFIX_BYTES <= len(prefix) <= KEY_BYTES:
        raise InvalidRequestError("a key has 32 bytes, an abbreviation of one at least 4", length=len(prefix), key=prefix)
    events = recall.events()
    firsts = first_blocks(recall.namespaces(), token_ids)
    key = _whole_key(recall, events, prefix, firsts)
    if key is None:
        return Explanation(prefix, "", False, None, MissReason.NEVER_SEEN, _nothing_of("key", events))
    own_events = events_of_key(events, key)
    where = recall.whereabouts(key)
    if where.tier is not None:
        return Explanation(key, "", True, where.tier, None, _presence(where, own_events), _told(own_events))
    if where.is_reserved:
        sentence = "a session is writing it; it becomes visible with its commit"
        return Explanation(key, "", False, None, MissReason.NEVER_SEEN, sentence, _told(own_events))
    own = next((first.namespace for first in firsts if first.key == key), None)
    elsewhere = _elsewhere(recall, own, firsts) if token_ids else None
    miss, sentence = elsewhere or _absence(own_events, where.miss, events)
    return Explanation(key, "", False, None, miss, sentence, _told(own_events))


def explain_request(recall: Recall, request_id: str, token_ids: Sequence[int] = ()) -> Explanation:
    """How many blocks a request found, and why the first one that it missed was not held at that moment.

    token_ids — as for `explain_key`, of the request's first block. Raises InvalidRequestError for an id that cannot be one.
    """
    check_request_id(request_id)
    events = recall.events()
    own_events, num_sessions = _of_latest_session([event for event in events if event.request == request_id])
    if not own_events:
        return Explanation(None, request_id, False, None, MissReason.NEVER_SEEN, _nothing_of("request", events))
    missed = next((event for event in own_events if event.what is What.MISSED), None)
    hits = _hits_before(own_events, missed)
    tier = max(hits, key=_SPEED.__getitem__, default=None)
    if missed is None:
        sentence = f"found all of its {_counted(hits)}" if hits else f"asked for no block; {_deeds(own_events)}"
        sentence += _of_several(num_sessions)
        return Explanation(None, request_id, bool(hits), tier, None, sentence, _told(own_events))
    position = next(idx for idx, event in enumerate(events) if event is missed)
    key = missed.keys[0]
    key_events = events_of_key(events[:position], key)
    miss, why = _why_missed(recall, events, position, key_events, is_first=not hits, token_ids=token_ids)
    all_missed = {missed_key for event in own_events if event.what is What.MISSED for missed_key in event.keys}
    total = sum(hits.values()) + len(all_missed)
    sentence = f"found {_counted(hits)} of {total}; the first that missed, {_name(key)}, was not held: {why}"
    sentence += _of_several(num_sessions)
    of_block = {id(event) for event in key_events}
    of_request = {id(event) for event in own_events}
    both = [event for event in events if id(event) in of_request or id(event) in of_block]
    names = ["" if id(event) in of_request else _name(key) for event in both]
    return Explanation(None, request_id, False, tier, miss, sentence, _told(both, names))


def _of_latest_session(events: list[TrailEvent]) -> tuple[list[TrailEvent], int]:
    """Those of the session that used a request's id last, and how many sessions have used it: each means a request of its own."""
    sessions = dict.fromkeys(event.session for event in events if event.session is not None)
    if len(sessions) < 2:
        return events, len(sessions)
    latest = next(event.session for event in reversed(events) if event.session is not None)
    return [event for event in events if event.session == latest], len(sessions)


def _of_several(num_sessions: int) -> str:
    return f" ({num_sessions} sessions have used this id: this is the latest)" if num_sessions > 1 else ""


# What follows is in the order of the questions: which key, where is it, why is it not there, what of the request.


def _whole_key(recall: Recall, events: Sequence[TrailEvent], prefix: bytes, firsts: Sequence[FirstBlock]) -> BlockKey | None:
    """The one known key that begins with `prefix`; None where none is known."""
    if len(prefix) == KEY_BYTES:
        return BlockKey(prefix)
    known = {key for key in recall.known_keys() if key.startswith(prefix)}
    known.update(key for event in events for key in event.keys if key.startswith(prefix))
    known.update(first.key for first in firsts if first.key.startswith(prefix))
    if len(known) > 1:
        named = ", ".join(key.hex()[: 2 * len(prefix) + 8] for key in sorted(known)[:_CANDIDATES_SHOWN])
        raise InvalidRequestError(
            "several keys begin like this; give more digits", key=prefix.hex(), keys=len(known), such_as=named
        )
    return known.pop() if known else None


def _presence(where: Whereabouts, events: Sequence[TrailEvent]) -> str:
    # A block that left the arena and is on disk has been there alone since then.
    is_on_device = where.tier is TierName.DEVICE
    arrivals = (event for event in reversed(events) if event.what in _ARRIVALS or _has_left_host(event))
    arrival = next((event for event in arrivals if _is_arrival_on_device(event) == is_on_device), None)
    since = "since before the trail begins" if arrival is None else f"since {_deed(arrival, with_why=_has_left_host(arrival))}"
    others = {
        "on a device": where.is_on_device and not is_on_device,
        "on disk": where.is_on_disk and where.tier is not TierName.DISK,
    }
    copies = "".join(f", also {place}" for place, is_there in others.items() if is_there)
    pins = f"; {where.pins} leases hold it" if where.pins else ""
    pages = f"; sessions hold its page {where.page_holds} times" if where.page_holds else ""
    return f"held in the {where.tier} tier {since}{copies}{pins}{pages}"


def _absence(events: Sequence[TrailEvent], miss: MissReason, trail: Sequence[TrailEvent]) -> tuple[MissReason, str]:
    """Why a block is not held, from its own events. miss — what the index remembers."""
    last = next((idx for idx in range(len(events) - 1, -1, -1) if events[idx].what in _ARRIVALS or _end(events[idx])), None)
    ended = None if last is None else _end(events[last])
    if last is not None and ended is not None:
        # What was passed by is refused in the same call where there is no disk; the rule stands in the first of the two.
        is_passed_by = events[last].what is What.REFUSED and last > 0 and events[last - 1].what is What.PASSED_BY
        event = events[last - 1] if is_passed_by else events[last]
        tier = f" from the {event.tier} tier" if event.tier is not None and event.what is not What.PASSED_BY else ""
        return ended, f"{_words(event.what)}{tier} at {_time(event.at_ns)}" + (f": {event.why}" if event.why else "")
    if miss is MissReason.CHECKSUM:
        return miss, "its bytes did not match their checksum, so the copy was set aside"
    if miss is MissReason.EVICTED and last is not None:
        return miss, f"it was here at {_deed(events[last], with_why=True)}, but reached no other tier, or what it follows has left"
    if miss is MissReason.EVICTED:
        return miss, "evicted; the trail does not reach back to when and why"
    misses = [event for event in events if event.what is What.MISSED]
    if misses:
        calls = "1 call" if len(misses) == 1 else f"{len(misses)} calls, first"
        asked = f"asked for in {calls} at {_time(misses[0].at_ns)}"
        return miss, f"{asked}, and not saved since the trail begins ({_time(trail[0].at_ns)})"
    return miss, _nothing_of("key", trail)


def _end(event: TrailEvent) -> MissReason | None:
    """Why a block is not held after an event that took it away, or kept it out; None for other events."""
    if event.what is What.EXPIRED:  # a reservation's expiry has a reason, a lease's takes nothing away
        return event.miss
    return _DEPARTURES.get(event.what)


def _is_arrival_on_device(event: TrailEvent) -> bool:
    return event.tier is TierName.DEVICE and event.what in _ON_DEVICE


def _has_left_host(event: TrailEvent) -> bool:
    return event.what is What.EVICTED and event.tier is TierName.HOST


def _deed(event: TrailEvent, *, with_why: bool) -> str:
    why = f": {event.why}" if with_why and event.why else ""
    tier = f" from the {event.tier} tier" if event.what is What.EVICTED and event.tier is not None else ""
    return f"{_time(event.at_ns)} ({_words(event.what)}{tier}{why})"


def _elsewhere(recall: Recall, own: Namespace | None, firsts: Sequence[FirstBlock]) -> tuple[MissReason, str] | None:
    """Whether the block's tokens are held under another namespace. Certain, as the keys are computed from the tokens."""
    for first in firsts:
        is_other = own is None or first.namespace.namespace_id != own.namespace_id
        if is_other and recall.whereabouts(first.key).tier is not None:
            what = "of what namespace was asked is not known" if own is None else f"what differs: {describe(own, first.namespace)}"
            return MissReason.NAMESPACE, f"these tokens are held under another namespace, as {_name(first.key)}; {what}"
    return None


def _why_missed(
    recall: Recall,
    events: Sequence[TrailEvent],
    position: int,
    key_events: Sequence[TrailEvent],
    *,
    is_first: bool,
    token_ids: Sequence[int],
) -> tuple[MissReason, str]:
    """Why the block that a request missed first was not held then. events[position] — the miss; what came later does not count."""
    missed = events[position]
    miss = missed.miss or MissReason.NEVER_SEEN
    if miss in (MissReason.TIMEOUT, MissReason.CAPACITY, MissReason.UNAVAILABLE):
        return miss, missed.why
    is_unknown = miss is MissReason.NEVER_SEEN and all(event.what is What.MISSED for event in key_events)
    if is_first and is_unknown:
        namespaces = recall.namespaces()
        own = next((known for known in namespaces if known.namespace_id == missed.namespace), None)
        found = None
        if token_ids:
            found = _elsewhere(recall, own, first_blocks(namespaces, token_ids))
        elif own is not None:
            found = _empty_namespace(recall, own, events, position)
        if found is not None:
            return found
    return _absence(key_events, miss, events[: position + 1])


def _empty_namespace(recall: Recall, own: Namespace, events: Sequence[TrailEvent], position: int) -> tuple[MissReason, str] | None:
    """Whether a namespace held nothing at an event, while another one of the same layout holds blocks."""
    saves = [(idx, event) for idx, event in enumerate(events) if event.what is What.SAVED and event.namespace == own.namespace_id]
    if saves and saves[0][0] < position:
        return None
    saved_since = {key for _, event in saves for key in event.keys}
    if any(key not in saved_since for key in recall.held_in(own.namespace_id)):
        return None
    held = recall.held_blocks()
    other = nearest(own, held, recall.namespaces())
    if other is None:
        return None
    blocks = f"{held[other.namespace_id]:,} blocks of another one of the same layout are held"
    sentence = f"nothing was saved under the request's namespace before, while {blocks}; what differs: {describe(own, other)}"
    return MissReason.NAMESPACE, f"{sentence}; the token ids of the first block would tell for certain"


def _hits_before(events: Sequence[TrailEvent], missed: TrailEvent | None) -> Counter[TierName]:
    """Blocks by the tier that served them, up to the first miss; what a miss took back (a failed read) is not counted."""
    hits: dict[BlockKey, TierName] = {}
    for event in events:
        if event is missed:
            break
        if event.what is What.HIT and event.tier is not None:
            for key in event.keys:
                hits.setdefault(key, event.tier)
    for key in missed.keys if missed is not None else ():
        hits.pop(key, None)
    return Counter(hits.values())


def _deeds(events: Iterable[TrailEvent]) -> str:
    deeds: Counter[str] = Counter()
    for event in events:
        deeds[_words(event.what)] += len(event.keys)
    return ", ".join(f"{what} {_blocks(count)}" for what, count in deeds.items())


def _counted(hits: Counter[TierName]) -> str:
    """`12 blocks (10 host, 2 disk)`."""
    by_tier = ", ".join(f"{hits[tier]} {tier}" for tier in TierName if hits[tier])
    return _blocks(sum(hits.values())) + (f" ({by_tier})" if by_tier else "")


def _blocks(count: int) -> str:
    return "1 block" if count == 1 else f"{count:,} blocks"


def _nothing_of(noun: str, events: Sequence[TrailEvent]) -> str:
    reach = f"oldest event at {_time(events[0].at_ns)}" if events else "it is empty"
    return f"nothing is remembered of this {noun}; it was never seen, or longer ago than the trail reaches ({reach})"


def _told(events: Sequence[TrailEvent], names: Sequence[str] | None = None) -> tuple[ExplainedEvent, ...]:
    """The latest of events as they are shown. names — of the block that each is about, where several things are shown together."""
    rows = list(zip(events, names or [""] * len(events), strict=True))[-EVENTS_SHOWN:]
    return tuple(ExplainedEvent(event.at_ns / 1e9, event.what.value, _why(event, name)) for event, name in rows)


def _why(event: TrailEvent, name: str) -> str:
    about = [name or _blocks(len(event.keys)), event.tier or ""]
    return ": ".join(part for part in (", ".join(filter(None, about)), event.why) if part)


def _words(what: What) -> str:
    return what.value.replace("_", " ")


def _name(key: bytes) -> str:
    return f"block {key[:8].hex()}…"


def _time(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
