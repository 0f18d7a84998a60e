"""The daemon's pool is lost under running sequences, and found again."""

import logging

import pytest

from tests.unit.engine.engine_rig import BLOCK_TOKENS, IDENTITY, FakeModel, Rig, text_alone
from tests.unit.engine.fake_daemon import FakeDaemon
from tierkv.engine.grounds import Grounds
from tierkv.engine.runner import Runner
from tierkv.engine.scheduler import Scheduler
from tierkv.engine.sequence import FinishReason
from tierkv.engine.settings import EngineSettings
from tierkv.errors import ConflictError, InvalidRequestError, UnavailableError
from tierkv.model.layout import dense_layout
from tierkv.testing.clock import ManualClock

LAYOUT = dense_layout(num_layers=1, num_kv_heads=1, block_tokens=BLOCK_TOKENS, head_dim=1, dtype="float32")
RETRY_S = 1.0


class Tokens:
    """The pages of a memory as the fake model wants them: rows of token ids."""

    def __init__(self, memory):
        self.pages = memory.pages.view(memory.pool.num_pages, -1).numpy()[:, :BLOCK_TOKENS]


class Model(FakeModel):
    def bind(self, memory):
        self.memory = Tokens(memory)


class InlineGrounds(Grounds):
    """Calls the daemon where it stands, so that a test sees each step."""

    def _begin(self, ground):
        ground.supply._refill()

    def _try(self, now_s):
        if now_s >= self._next_try_s:
            self._next_try_s = now_s + RETRY_S
            self._ask()


class GroundRig(Rig):
    """Steps as `Rig` does, over whatever pool the grounds are on."""

    def __init__(self, *, connect, private_pages=16):
        self.clock = ManualClock()
        self.model = Model()
        settings = EngineSettings(
            block_tokens=BLOCK_TOKENS,
            max_batch_tokens=16,
            max_sequences=4,
            private_memory_bytes=private_pages * LAYOUT.block_bytes,
            reserve_pages=2,
            retry_s=RETRY_S,
        )
        self.grounds = InlineGrounds(
            connect=connect,
            settings=settings,
            identity=IDENTITY,
            layout=LAYOUT,
            bind=self.model.bind,
        )
        ground = self.grounds.open(0.0)
        self.scheduler = Scheduler(ground.supply, ground.memory, settings)
        self.runner = Runner(self.model, self.scheduler)
        self.tokens, self.requests, self.is_slow = {}, [], False
        self._take_over()

    def _take_over(self):
        self.supply = self.grounds.current.supply
        self.store = self.supply.store

    def carry(self):
        pass

    def step(self):
        self.grounds.look(self.scheduler, self.clock.monotonic_s())
        self._take_over()
        return super().step()

    def check(self):
        self.scheduler.check_integrity()


@pytest.fixture
def daemon():
    return FakeDaemon(16 * LAYOUT.block_bytes)


@pytest.fixture
def rig(daemon):
    rig = GroundRig(connect=lambda: daemon)
    yield rig
    rig.grounds.close()


def test_running_sequences_go_on_when_the_daemon_goes(rig, daemon, caplog):
    requests = [rig.add(range(10), 12), rig.add(range(50, 56), 12, n=2)]
    for _ in range(4):
        rig.step()
    assert not rig.grounds.current.is_private
    daemon.go()
    rig.run()
    assert rig.grounds.current.is_private and rig.grounds.num_moves == 1
    assert rig.text(requests[0]) == text_alone(range(10), 12)
    assert [rig.text(requests[1], choice) for choice in range(2)] == [text_alone(range(50, 56), 12)] * 2
    assert rig.model.computed == 10 + 11 + 6 + 2 * 11
    assert [record.levelno for record in caplog.records].count(logging.WARNING) == 1


def test_the_memory_of_a_pool_that_was_left_is_given_back(rig, daemon):
    rig.add(range(10), 12)
    rig.step()
    lost = daemon.pool
    daemon.go()
    rig.run()
    assert daemon.calls[-1] == "close_pool"
    with pytest.raises(ValueError, match="released"):
        len(lost.buffer)
    daemon.restart()
    rig.clock.advance(RETRY_S)
    rig.step()
    rig.grounds.close()
    assert daemon.calls.count("close_pool") == 2, "the engine ends, and the store need not"


def test_what_moved_is_found_by_a_later_request(rig, daemon):
    rig.add(range(10), 12)
    for _ in range(4):
        rig.step()
    daemon.go()
    rig.run()
    again = rig.add(range(10), 2)
    rig.run()
    assert again.cached_tokens == 8
    rig.store.check_integrity()


def test_the_engine_returns_to_a_daemon_that_is_back(rig, daemon, caplog):
    daemon.go()
    request = rig.add(range(10), 20)
    for _ in range(5):
        rig.step()
    assert rig.grounds.current.is_private
    daemon.restart()
    rig.clock.advance(RETRY_S)
    rig.run()
    assert not rig.grounds.current.is_private and rig.grounds.num_moves == 2
    assert rig.text(request) == text_alone(range(10), 20)
    assert rig.model.computed == 10 + 19
    again = rig.add(range(10), 2)
    rig.run()
    assert again.cached_tokens == 8, "what ran while the daemon was away is named there"


def test_who_finds_no_page_in_the_other_pool_waits_and_goes_on(daemon):
    rig = GroundRig(connect=lambda: daemon, private_pages=6)
    requests = [rig.add(range(start, start + 10), 12) for start in (0, 30, 60)]
    for _ in range(4):
        rig.step()
    daemon.go()
    rig.run()
    assert [rig.text(request) for request in requests] == [text_alone(request.prompt, 12) for request in requests]
    assert rig.scheduler.num_preemptions >= 2
    rig.grounds.close()


def test_who_was_loading_starts_again(rig, daemon):
    rig.add(range(10), 2)
    rig.run()
    daemon.is_pending = True
    request = rig.add(range(10), 3)
    rig.step()
    assert rig.scheduler.loading
    daemon.pool_is_alive = False
    daemon.go()
    rig.run()
    assert rig.text(request) == text_alone(range(10), 3)


def test_a_daemon_that_is_away_at_the_start_is_asked_again(daemon, caplog):
    daemon.go()
    rig = GroundRig(connect=lambda: daemon)
    assert rig.grounds.current.is_private and len(caplog.records) == 1
    daemon.calls.clear()
    for _ in range(5):
        rig.step()
    assert daemon.calls == []
    daemon.restart()
    rig.clock.advance(RETRY_S)
    rig.step()
    assert not rig.grounds.current.is_private
    rig.grounds.close()


@pytest.mark.parametrize("error", [UnavailableError("away"), ConflictError("pages of another size")])
def test_bad_luck_at_the_start_is_survived(error):
    def connect():
        raise error

    rig = GroundRig(connect=connect)
    request = rig.add(range(5), 3)
    rig.run()
    assert rig.text(request) == text_alone(range(5), 3)
    rig.grounds.close()


def test_a_daemon_without_pages_on_this_device_is_refused():
    def connect():
        raise InvalidRequestError("there are no pages on this device")

    with pytest.raises(InvalidRequestError, match="no pages on this device"):
        GroundRig(connect=connect)


def test_a_cancelled_request_is_no_trouble_for_a_move(rig, daemon):
    request = rig.add(range(10), 12)
    rig.step()
    daemon.go()
    rig.runner.end(request, FinishReason.CANCELLED)
    rig.step()
    rig.step()
    assert rig.supply.num_owned == 0
