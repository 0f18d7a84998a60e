"""Two twins of ArcPolicy that are slow on purpose and keep plain lists, the most recent key last.

`TextbookArc` is the figure of the paper, line by line. `TextbookByRequests` is what the head of `tierkv/policies/arc.py` says of
whole requests, each sentence as it reads; every question is answered by searching.
"""

from collections.abc import Sequence


class TextbookArc:
    """Figure 4 of Megiddo & Modha, on unit weights."""

    def __init__(self, c: int) -> None:
        self.c = c
        self.p = 0.0
        self.t1: list[int] = []
        self.t2: list[int] = []
        self.b1: list[int] = []
        self.b2: list[int] = []

    def request(self, x: int) -> bool:
        """One access; True for a hit."""
        if x in self.t1 or x in self.t2:  # case I
            (self.t1 if x in self.t1 else self.t2).remove(x)
            self.t2.append(x)
            return True
        if x in self.b1:  # case II
            self.p = min(float(self.c), self.p + max(len(self.b2) / len(self.b1), 1.0))
            self.replace(x)
            self.b1.remove(x)
            self.t2.append(x)
            return False
        if x in self.b2:  # case III
            self.p = max(0.0, self.p - max(len(self.b1) / len(self.b2), 1.0))
            self.replace(x)
            self.b2.remove(x)
            self.t2.append(x)
            return False
        if len(self.t1) + len(self.b1) == self.c:  # case IV A
            if len(self.t1) < self.c:
                self.b1.pop(0)
                self.replace(x)
            else:
                self.t1.pop(0)
        elif len(self.t1) + len(self.t2) + len(self.b1) + len(self.b2) >= self.c:  # case IV B
            if len(self.t1) + len(self.t2) + len(self.b1) + len(self.b2) == 2 * self.c:
                self.b2.pop(0)
            self.replace(x)
        self.t1.append(x)
        return False

    def replace(self, x: int) -> None:
        if self.t1 and ((x in self.b2 and len(self.t1) == self.p) or len(self.t1) > self.p):
            self.b1.append(self.t1.pop(0))
        else:
            self.b2.append(self.t2.pop(0))


class TextbookByRequests:
    """ARC for whole requests, by age or by size. One list of ghosts, in the order in which they left, and where from."""

    def __init__(self, c: int, weights: dict[int, int], *, by_age: bool) -> None:
        self.c = c
        self.weights = weights
        self.by_age = by_age
        self.children: dict[int, list[int]] = {key: [] for key in weights}
        self.t1: list[int] = []
        self.t2: list[int] = []
        self.ghosts: list[tuple[int, str]] = []
        self.waiting: dict[int, tuple[float, int, str]] = {}
        self.num_expected = 0
        self.used_at: dict[int, int] = {}
        self.now = 0
        self.p = 0.0
        self.w = 1.0

    def ghosts_of(self, name: str) -> list[int]:
        return [key for key, left in self.ghosts if left == name]

    def weight(self, keys: Sequence[int]) -> int:
        return sum(self.weights[key] for key in keys)

    def access(self, keys: Sequence[int]) -> None:
        """The whole request moves to T2, its tail first."""
        self.now += 1
        for key in reversed(keys):
            self.take_out(key)
            self.t2.append(key)
            self.use(key)
        self.let_in_overdue()

    def use(self, key: int) -> None:
        self.used_at[key] = self.now

    @property
    def resident(self) -> list[int]:
        return [*self.t1, *self.t2, *self.waiting]

    def take_out(self, key: int) -> str:
        """Out of wherever it is; the list where it belongs."""
        if key in self.waiting:
            return self.waiting.pop(key)[2]
        name, entries = ("T1", self.t1) if key in self.t1 else ("T2", self.t2)
        entries.remove(key)
        return name

    def furthest(self) -> list[int]:
        """Who waits, those that are wanted last first."""
        return sorted(self.waiting, key=lambda key: self.waiting[key][:2], reverse=True)

    def let_in_overdue(self) -> None:
        for key in reversed(self.furthest()):
            if self.waiting[key][0] < self.now:
                (self.t1 if self.take_out(key) == "T1" else self.t2).insert(0, key)

    def admit(
        self, keys: Sequence[int], pinned: set[int], *, cause: str, head: Sequence[int], spent: int
    ) -> tuple[int, list[int], str | None]:
        """The number admitted, the victims in order, and why not all."""
        allowed = self.allowed(keys, spent) if cause == "save" else list(keys)
        if cause != "prefetch":
            self.now += 1
        self.let_in_overdue()
        free = self.c - self.weight(self.resident)
        movable = self.weight([key for key in self.resident if pinned.isdisjoint(self.group(key))])
        entering = self.leading(allowed, free + movable)
        is_b2_hit = self.learn(entering, is_access=cause != "prefetch")
        victims = self.select(self.weight(entering) - free, pinned, is_b2_hit=is_b2_hit)
        self.evict(victims)
        self.enter(entering, head, is_access=cause != "prefetch")
        if len(entering) < len(allowed):
            self.trim()
            return len(entering), victims, "pinned"
        for key in reversed(keys[len(entering) :]):
            if self.weights[key] <= self.c:
                left = "B2" if (key, "B2") in self.ghosts else "B1"
                self.ghosts = [ghost for ghost in self.ghosts if ghost[0] != key] + [(key, left)]
        self.trim()
        return len(entering), victims, "cap" if len(entering) < len(keys) else None

    def leading(self, keys: Sequence[int], room: int) -> list[int]:
        """The longest leading run that fits."""
        return max((list(keys[:num]) for num in range(len(keys) + 1) if num == 0 or self.weight(keys[:num]) <= room), key=len)

    def allowed(self, keys: Sequence[int], spent: int) -> list[int]:
        """An eighth of the cache, or what is free where that is more, and one entry in any case that could be."""
        share = max(1, self.c // 8) - spent
        found = self.leading(keys, max(share, self.c - self.weight(self.resident)))
        return list(keys[:1]) if not found and spent == 0 and self.weight(keys[:1]) <= self.c else found

    def learn(self, keys: Sequence[int], *, is_access: bool) -> bool:
        """Steps for each ghost; whether the first of them came from B2."""
        b1, b2 = self.ghosts_of("B1"), self.ghosts_of("B2")
        for key in keys if is_access else ():
            if key in b1:
                step = max(1.0, self.weight(b2) / self.weight(b1)) * self.weights[key]
                self.p, self.w = min(float(self.c), self.p + step), max(-4.0, self.w - 0.8 * step / self.c)
            if key in b2:
                step = max(1.0, self.weight(b1) / self.weight(b2)) * self.weights[key]
                self.p, self.w = max(0.0, self.p - step), min(4.0, self.w + 0.8 * step / self.c)
        return next((left for key in keys for ghost, left in self.ghosts if ghost == key), None) == "B2"

    def group(self, key: int) -> list[int]:
        """A resident key and all that follow it, generation by generation."""
        found, generation = [key], [key]
        while generation:
            generation = [child for parent in generation for child in self.children[parent] if child in self.used_at]
            found += generation
        return found

    def select(self, needed: int, pinned: set[int], *, is_b2_hit: bool) -> list[int]:
        """Looks at the older of the two that were not looked at yet, or at who is wanted last, until enough may go."""
        gone: list[int] = []
        t1, t2, waiting = list(self.t1), list(self.t2), self.furthest()
        while self.weight(gone) < needed and (t1 or t2 or waiting):
            left_in_t1 = self.weight([key for key in self.t1 if key not in gone])
            source = t1 if not t2 or (t1 and self.is_t1_first(t1[0], t2[0], left_in_t1, is_b2_hit=is_b2_hit)) else t2
            if waiting and (not source or self.waiting[waiting[0]][0] - self.now > self.idle_for(source[0])):
                source = waiting
            group = self.group(source.pop(0))
            if pinned.isdisjoint(group):
                gone += [key for key in reversed(group) if key not in gone]
        return gone

    def is_t1_first(self, one: int, two: int, left_in_t1: int, *, is_b2_hit: bool) -> bool:
        if self.by_age:
            return self.idle_for(one) >= self.idle_for(two)
        return left_in_t1 > self.p or (is_b2_hit and left_in_t1 == self.p)

    def idle_for(self, key: int) -> float:
        return (self.now - self.used_at[key]) * (2.0**self.w if self.by_age and key in self.t1 else 1.0)

    def evict(self, victims: Sequence[int]) -> None:
        for victim in victims:
            self.ghosts.append((victim, "B1" if self.take_out(victim) == "T1" else "B2"))
            del self.used_at[victim]

    def enter(self, keys: Sequence[int], head: Sequence[int], *, is_access: bool) -> None:
        """Ghosts into T2 (without an access: back where they were), others into T1; their head after them, where there are any."""
        grown = []
        for key in reversed(keys):
            came_from = dict(self.ghosts).get(key)
            is_for_t2 = came_from == "B2" or (is_access and came_from == "B1")
            self.ghosts = [ghost for ghost in self.ghosts if ghost[0] != key]
            target = self.t2 if is_for_t2 else self.t1
            target.append(key)
            grown.append(target)
            self.use(key)
        for key in reversed(head):
            entries = self.t1 if key in self.t1 else self.t2
            if key not in self.waiting and keys and (not is_access or any(entries is target for target in grown)):
                entries.remove(key)
                entries.append(key)
            if keys and not is_access:
                self.use(key)

    def trim(self) -> None:
        while self.weight([key for key, _ in self.ghosts]) > 2 * self.c:
            self.ghosts.pop(0)

    def remove(self, key: int) -> None:
        self.take_out(key)
        del self.used_at[key]

    def make_room(self, weight: int, pinned: set[int]) -> list[int]:
        victims = self.select(weight, pinned, is_b2_hit=False)
        if self.weight(victims) < weight:
            return []
        self.evict(victims)
        self.trim()
        return victims

    def expect(self, keys: Sequence[int], in_events: int | None) -> None:
        for key in keys:
            name = self.take_out(key)
            self.num_expected += 1
            self.waiting[key] = (float("inf") if in_events is None else self.now + in_events, self.num_expected, name)
