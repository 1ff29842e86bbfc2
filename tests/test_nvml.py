"""What the driver says: every way in which it can fail is a blank with its reason."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from levelfield.bench import nvml
from levelfield.bench.meter import HELD, CudaMeter
from levelfield.bench.nvml import Device, Energy, Reading, Sampler, names_of

UUID = "8f0c2f6e-1111-2222-3333-444455556666"
GPU, MIG = f"GPU-{UUID}", f"MIG-{UUID}"
DEVICE = torch.device("cuda", 0)
STRANGER = 2**22 + 7
"""A PID beyond what Linux gives out."""


class NotSupported(Exception):
    """As pynvml raises it: with the driver's code."""

    value = 3


def process(pid: int | None = None, used: int | None = 7_000_000) -> SimpleNamespace:
    return SimpleNamespace(pid=os.getpid() if pid is None else pid, usedGpuMemory=used)


class FakeNvml:
    """A driver with one device. `raises` names the functions that fail."""

    def __init__(
        self,
        uuids: Sequence[str] = (GPU,),
        processes: Sequence[SimpleNamespace] | None = None,
        energy_mj: Sequence[Any] = (1000, 6000),
        mig: bool | Exception = False,
        raises: Sequence[str] = (),
    ) -> None:
        self.uuids, self.raises, self.mig = uuids, set(raises), mig
        self.processes = [process()] if processes is None else list(processes)
        self.energy = iter(energy_mj)
        self.calls: list[str] = []
        self.open = 0

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.raises:
            raise RuntimeError(f"{name} is broken\nsecond line")

    def nvmlInit(self) -> None:
        self._called("nvmlInit")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self._called("nvmlShutdown")
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self._called("nvmlDeviceGetHandleByUUID")
        if uuid not in self.uuids:
            raise LookupError("Not Found")
        return uuid

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:
        self._called("nvmlDeviceGetComputeRunningProcesses")
        return list(self.processes)

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        self._called("nvmlDeviceGetMigMode")
        if isinstance(self.mig, Exception):
            raise self.mig
        return [int(self.mig), 0]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> Any:
        self._called("nvmlDeviceGetTotalEnergyConsumption")
        value = next(self.energy)
        if isinstance(value, Exception):
            raise value
        return value

    def nvmlDeviceGetCount(self) -> int:
        self._called("nvmlDeviceGetCount")
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        self._called("nvmlDeviceGetHandleByIndex")
        return self.uuids[index]

    def nvmlDeviceGetName(self, handle: str) -> str:
        self._called("nvmlDeviceGetName")
        return "a fake one"

    def nvmlSystemGetDriverVersion(self) -> str:
        self._called("nvmlSystemGetDriverVersion")
        return "600.1"


class FakeCuda:
    """What `CudaMeter` uses of `torch.cuda`."""

    def __init__(self, uuid: Any = UUID, raises: Sequence[str] = ()) -> None:
        self.raises = set(raises)
        self.properties = SimpleNamespace(uuid=uuid) if uuid is not None else SimpleNamespace()
        self.stats = {key: 10 * (i + 1) for i, key in enumerate(HELD.values())}
        self.waited = 0

    def _called(self, name: str) -> None:
        if name in self.raises:
            raise RuntimeError(f"{name} is broken")

    def get_device_properties(self, device: torch.device) -> SimpleNamespace:
        self._called("get_device_properties")
        return self.properties

    def synchronize(self, device: torch.device) -> None:
        self._called("synchronize")
        self.waited += 1

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        self._called("reset_peak_memory_stats")

    def memory_stats(self, device: torch.device) -> dict[str, int]:
        self._called("memory_stats")
        return dict(self.stats)

    def max_memory_allocated(self, device: torch.device) -> int:
        self._called("max_memory_allocated")
        return 5_000_000

    def max_memory_reserved(self, device: torch.device) -> int:
        self._called("max_memory_reserved")
        return 6_000_000


def device(fake: FakeNvml, names: Sequence[str] = (GPU,), **more: Any) -> Device:
    return Device(names, fake, **more)


def meter(fake: Any = None, cuda: FakeCuda | None = None, visible: str | None = None) -> CudaMeter:
    return CudaMeter(
        DEVICE, visible, cuda=cuda or FakeCuda(), library=fake or FakeNvml(), interval_s=0.001
    )


def lap(found: CudaMeter) -> None:
    """A timed stretch."""
    found.resume()
    found.pause()


def consistent(found: CudaMeter) -> dict[str, str]:
    """The reasons, having checked that exactly the blanks have one."""
    peaks, joules = found.peaks(), found.joules()
    reasons = found.reasons()
    blank = {f"peak_bytes.{name}" for name, value in peaks.items() if value is None}
    assert set(reasons) == blank | ({"joules"} if joules is None else set())
    assert all(reasons.values())
    return reasons


# --- which device -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uuid", "index", "visible", "names"),
    [
        (UUID, 0, None, (GPU, MIG)),
        (UUID, 1, "3,1", (GPU, MIG)),
        (UUID, 0, "", (GPU, MIG)),
        (GPU, 0, None, (GPU,)),
        (MIG, 0, None, (MIG,)),
        (UUID, 0, "GPU-other", (GPU, MIG)),
        (UUID, 1, f"GPU-other, {MIG}", (MIG,)),
        (UUID, 0, "MIG-GPU-other/3/0", ("MIG-GPU-other/3/0",)),
        (None, 0, GPU, (GPU,)),
        (None, 0, "0", ()),
        (None, 0, "", ()),
        (None, 0, None, ()),
        (None, 5, GPU, ()),
    ],
)
def test_names_come_from_uuids_and_never_from_numbers(
    uuid: str | None, index: int, visible: str | None, names: tuple[str, ...]
) -> None:
    assert names_of(uuid, index, visible) == names


def test_the_first_name_that_the_driver_knows_is_taken() -> None:
    fake = FakeNvml(uuids=(MIG,))
    assert device(fake, (GPU, MIG)).process_bytes() == Reading(7_000_000)
    found = device(FakeNvml(uuids=()), (GPU, MIG))
    assert found.process_bytes() == found.energy_mj() == Reading(None, found.reason)
    assert found.reason == "NVML does not know the device: LookupError: Not Found"


def test_a_device_without_a_name_is_a_blank() -> None:
    fake = FakeNvml()
    found = device(fake, ())
    assert found.process_bytes().reason == "the UUID of the device is not known"
    assert fake.open == 0


# --- no driver --------------------------------------------------------------------------------


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise ImportError("No module named 'pynvml'")

    monkeypatch.setattr(nvml, "_load", missing)
    found = Device((GPU,))
    reason = "NVML is not there: ImportError: No module named 'pynvml'"
    assert found.process_bytes() == found.energy_mj() == Reading(None, reason)
    assert nvml.driver()["driver"] is None


def test_a_driver_that_does_not_start() -> None:
    found = device(FakeNvml(raises=["nvmlInit"]))
    reason = "NVML does not start: RuntimeError: nvmlInit is broken"
    assert found.process_bytes() == found.energy_mj() == Reading(None, reason)


def test_closing_gives_nvml_back_once_and_readings_are_blank() -> None:
    fake = FakeNvml()
    found = device(fake)
    assert fake.open == 1
    found.close()
    found.close()
    assert fake.open == 0
    assert found.process_bytes() == Reading(None, "NVML was closed")
    broken = device(FakeNvml(raises=["nvmlShutdown"]))
    broken.close()


USED = {
    "nvmlInit": {"peak_bytes.nvml", "joules"},
    "nvmlShutdown": set(),
    "nvmlDeviceGetHandleByUUID": {"peak_bytes.nvml", "joules"},
    "nvmlDeviceGetComputeRunningProcesses": {"peak_bytes.nvml"},
    "nvmlDeviceGetMigMode": {"joules"},
    "nvmlDeviceGetTotalEnergyConsumption": {"joules"},
}
"""Function of NVML that a meter uses -> what is blank if it raises."""


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("name", USED)
def test_one_call_that_raises_costs_its_own_number_only(name: str, sampled: bool) -> None:
    found = meter(FakeNvml(raises=[name]))
    if sampled:
        found.watch()
    lap(found)
    found.stop()
    reasons = consistent(found)
    assert set(reasons) == USED[name] | {"peak_bytes.rss"}
    assert all(f"{name} is broken" in reasons[key] for key in USED[name])
    assert all("second line" not in reason for reason in reasons.values())


def test_every_function_of_nvml_that_is_used_is_tried() -> None:
    fake = FakeNvml()
    found = meter(fake)
    found.watch()
    lap(found)
    found.stop()
    found._driver.close()
    assert set(fake.calls) == set(USED)


@pytest.mark.parametrize(
    "name",
    [
        *("nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetName"),
        "nvmlSystemGetDriverVersion",
    ],
)
def test_the_driver_in_words_or_why_not(name: str) -> None:
    whole = {"driver": "600.1", "devices": ["a fake one"], "reason": None}
    assert nvml.driver(FakeNvml()) == whole
    broken = nvml.driver(FakeNvml(raises=[name]))
    assert broken["driver"] is None
    assert broken["devices"] == []
    assert f"{name} is broken" in broken["reason"]


# --- process memory ---------------------------------------------------------------------------


def alive(pid: int) -> bool:
    assert pid > 0  # 0 and below would ask about whole groups of processes
    return pid != STRANGER


@pytest.mark.parametrize(
    ("processes", "reason"),
    [
        ([], "does not list this process"),
        ([process(1)], "does not list this process"),
        ([process(1), process(2)], "does not list this process"),
        ([process(used=None)], "hides memory by process"),
        ([process(used=2**64 - 1)], "hides memory by process"),
        ([process(), process(STRANGER)], "another PID namespace"),
        ([process(), process()], "more than once"),
        ([process(used="much")], "NVML does not tell: ValueError"),  # type: ignore[arg-type]
        ([SimpleNamespace()], "NVML does not tell: AttributeError"),
    ],
)
def test_a_process_that_cannot_be_told_is_a_blank(
    processes: list[SimpleNamespace], reason: str
) -> None:
    reading = device(FakeNvml(processes=processes), alive=alive).process_bytes()
    assert reading.value is None
    assert reason in str(reading.reason)


@pytest.mark.parametrize("others", [[], [process(1, 10**12)], [process(0, 10**12)]])
def test_only_its_own_bytes_are_counted(others: list[SimpleNamespace]) -> None:
    """PID 1 lives; 0 stands for a process of another namespace where the driver translates."""
    fake = FakeNvml(processes=[*others, process()])
    assert device(fake, alive=alive).process_bytes() == Reading(7_000_000)


def test_a_process_is_alive_here_whoever_owns_it() -> None:
    assert nvml._alive(os.getpid())
    assert nvml._alive(1)
    assert not nvml._alive(STRANGER)


# --- energy -----------------------------------------------------------------------------------


def test_energy_of_a_slice_is_not_that_of_the_gpu() -> None:
    for found in (device(FakeNvml(uuids=(MIG,)), (MIG,)), device(FakeNvml(mig=True))):
        reading = found.energy_mj()
        assert reading.value is None
        assert str(reading.reason).startswith("MIG: energy is counted for a whole GPU")
        assert found.process_bytes() == Reading(7_000_000)


def test_a_gpu_that_knows_no_mig_counts_its_energy() -> None:
    old = NotSupported()
    old.value = 13
    for error in (NotSupported(), old):
        fake = FakeNvml(mig=error)
        found = device(fake)
        assert [found.energy_mj().value, found.energy_mj().value] == [1000, 6000]
        assert fake.calls.count("nvmlDeviceGetMigMode") == 1


def counted(*values: int | None) -> Callable[[], Reading]:
    readings = iter([Reading(v, None if v is not None else "asleep") for v in values])
    return lambda: next(readings)


def test_joules_are_those_of_the_stretches() -> None:
    energy = Energy(counted(1000, 3500, 9000, 9250))
    assert (energy.joules, energy.reason) == (None, "no step was timed")
    energy.resume()
    assert energy.joules is None
    energy.pause()
    energy.pause()
    assert (energy.joules, energy.reason) == (2.5, None)
    energy.resume()
    energy.pause()
    assert energy.joules == 2.75


def test_a_stretch_that_never_ends_is_not_counted() -> None:
    energy = Energy(counted(0, 10, 1000, 2000, 2010))
    energy.resume()
    energy.pause()
    energy.resume()  # the trial ended inside
    assert energy.joules == 0.01
    energy.resume()
    energy.pause()
    assert energy.joules == 0.02


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ((5000, 4999), "the energy counter went backwards"),
        ((2**64 - 5, 20), "the energy counter went backwards"),
        ((0, 100, 200, 150, 300, 400), "the energy counter went backwards"),
        ((None,), "asleep"),
        ((1, None), "asleep"),
        ((0, 100, None, 5, 6), "asleep"),
    ],
)
def test_a_counter_that_fails_once_tells_nothing(
    values: tuple[int | None, ...], reason: str
) -> None:
    energy = Energy(counted(*values))
    for _ in range(3):
        energy.resume()
        energy.pause()
        if energy.reason == reason:
            break
    assert energy.joules is None
    assert energy.reason == reason
    energy.resume()  # the counter is not asked again: its readings are used up
    energy.pause()
    assert energy.reason == reason


def test_a_counter_that_does_not_move_is_no_zero() -> None:
    energy = Energy(counted(5000, 5000, 5000, 5002))
    energy.resume()
    energy.pause()
    assert energy.joules is None
    assert energy.reason == "the energy counter did not move in the timed steps"
    energy.resume()
    energy.pause()
    assert (energy.joules, energy.reason) == (0.002, None)


def test_energy_that_the_device_does_not_count() -> None:
    found = meter(FakeNvml(energy_mj=[NotSupported("Not Supported")]))
    lap(found)
    lap(found)
    assert consistent(found)["joules"] == "NVML does not tell: NotSupported: Not Supported"


# --- the thread -------------------------------------------------------------------------------


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)
    assert condition()


class Script:
    """Readings one after the other, the last one again and again."""

    def __init__(self, *items: int | BaseException | None) -> None:
        self.items, self.read = items, 0

    def __call__(self) -> Reading:
        item = self.items[min(self.read, len(self.items) - 1)]
        self.read += 1
        if isinstance(item, BaseException):
            raise item
        return Reading(item, None if item is not None else "not listed yet")


def sampled(*items: int | BaseException | None) -> Reading:
    script = Script(*items)
    sampler = Sampler(script, interval_s=0.001)
    wait_until(lambda: script.read >= len(items))
    sampler.stop()
    return sampler.result()


def test_the_peak_is_kept() -> None:
    assert sampled(3, 9, 4) == Reading(9)
    assert sampled(None, 9, None, 4, None) == Reading(9)
    assert sampled(None, None) == Reading(None, "not listed yet")
    assert sampled(0) == Reading(0)


@pytest.mark.parametrize("error", [RuntimeError("gone"), SystemExit(3), KeyboardInterrupt("gone")])
def test_a_thread_that_dies_on_the_way_leaves_a_blank(error: BaseException) -> None:
    """What came before was not the peak of the whole."""
    before = threading.excepthook
    reading = sampled(9, error)
    assert reading.value is None
    assert str(reading.reason).startswith(f"sampling ended early: {type(error).__name__}")
    assert threading.excepthook is before


def test_a_thread_that_cannot_start_is_a_blank(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", full)
    sampler = Sampler(Script(1))
    sampler.stop()
    reason = "sampling did not start: RuntimeError: can't start new thread"
    assert sampler.result() == Reading(None, reason)


def test_a_driver_that_hangs_does_not_hold_up_the_trial() -> None:
    release = threading.Event()

    def hang() -> Reading:
        release.wait(30)
        return Reading(1)

    sampler = Sampler(hang)
    thread = sampler._thread
    assert thread is not None
    assert thread.daemon
    start = time.monotonic()
    sampler.stop(timeout_s=0.05)
    assert time.monotonic() - start < 5
    assert sampler.result() == Reading(None, "the driver did not answer within 0.05 s")
    release.set()
    thread.join(10)
    assert not thread.is_alive()
    sampler.stop()


def test_stopping_is_quick_and_nothing_is_left_running() -> None:
    sampler = Sampler(Script(5), interval_s=60.0)
    thread = sampler._thread
    assert thread is not None
    start = time.monotonic()
    sampler.stop(timeout_s=10.0)
    assert time.monotonic() - start < 5
    assert not thread.is_alive()


# --- a meter of a device ----------------------------------------------------------------------


def test_a_meter_tells_all_that_works() -> None:
    fake, cuda = FakeNvml(energy_mj=[1000, 3000, 50_000, 51_000]), FakeCuda()
    found = meter(fake, cuda)
    fake.processes = [process(used=8)]
    found.watch()
    wait_until(lambda: fake.calls.count("nvmlDeviceGetComputeRunningProcesses") > 1)
    fake.processes = [process(used=3)]
    for _ in range(2):
        lap(found)
    found.stop()
    assert found.peaks() == {"allocated": 5_000_000, "reserved": 6_000_000, "nvml": 8, "rss": None}
    assert found.joules() == 3.0
    assert set(consistent(found)) == {"peak_bytes.rss"}
    first = found.now_s()
    assert found.now_s() >= first
    assert cuda.waited == 2


def test_a_meter_that_does_not_watch_reads_once_at_the_end() -> None:
    fake = FakeNvml()
    found = meter(fake)
    assert "nvmlDeviceGetComputeRunningProcesses" not in fake.calls
    assert found.peaks()["nvml"] == 7_000_000


def test_no_thread_without_a_driver() -> None:
    before = threading.active_count()
    found = meter(FakeNvml(raises=["nvmlInit"]))
    found.watch()
    assert threading.active_count() == before
    found.stop()
    assert "does not start" in consistent(found)["peak_bytes.nvml"]


def test_what_the_allocator_holds_and_what_befell_it_since() -> None:
    cuda = FakeCuda()
    cuda.stats |= {"num_alloc_retries": 4, "num_ooms": 1}
    found = meter(cuda=cuda)
    plain = {"allocated_bytes": 10, "reserved_bytes": 20, "alloc_retries": 0, "ooms": 0}
    assert found.held() == plain
    cuda.stats |= {"num_alloc_retries": 6, "num_ooms": 2, "allocated_bytes.all.current": 70}
    assert found.held() == {**plain, "allocated_bytes": 70, "alloc_retries": 2, "ooms": 1}
    del cuda.stats["num_ooms"]  # another allocator
    assert "ooms" not in found.held()
    cuda.raises.add("memory_stats")
    assert found.held() == {}


ALLOCATOR = {
    "get_device_properties": {"peak_bytes.nvml", "joules"},
    "reset_peak_memory_stats": {"peak_bytes.allocated", "peak_bytes.reserved"},
    "memory_stats": set(),
    "max_memory_allocated": {"peak_bytes.allocated"},
    "max_memory_reserved": {"peak_bytes.reserved"},
}
"""Function of `torch.cuda` -> what is blank if it raises."""


@pytest.mark.parametrize("name", ALLOCATOR)
def test_one_function_of_torch_that_raises_costs_its_own_number_only(name: str) -> None:
    found = meter(cuda=FakeCuda(raises=[name]))
    found.watch()
    lap(found)
    found.stop()
    assert set(consistent(found)) == ALLOCATOR[name] | {"peak_bytes.rss"}


def test_an_error_of_the_device_is_the_trials() -> None:
    with pytest.raises(RuntimeError, match="synchronize is broken"):
        meter(cuda=FakeCuda(raises=["synchronize"])).now_s()


@pytest.mark.parametrize(
    ("visible", "torchs", "drivers"),
    [
        (None, UUID, GPU),
        ("2", UUID, GPU),
        (GPU, UUID, GPU),
        (MIG, UUID, MIG),
        (MIG, "0000", MIG),
        (None, UUID, MIG),
        ("", GPU, GPU),
        (GPU, None, GPU),
    ],
)
def test_the_device_is_found_whatever_is_visible(
    visible: str | None, torchs: str | None, drivers: str
) -> None:
    found = meter(FakeNvml(uuids=(drivers,)), FakeCuda(uuid=torchs), visible)
    assert found.peaks()["nvml"] == 7_000_000
    lap(found)
    assert found.joules() == (5.0 if drivers == GPU else None)


@pytest.mark.parametrize("visible", ["", "0", None])
def test_no_uuid_at_all_is_a_blank_and_no_device_is_guessed(visible: str | None) -> None:
    fake = FakeNvml()
    found = meter(fake, FakeCuda(uuid=None), visible)
    assert consistent(found)["peak_bytes.nvml"] == "the UUID of the device is not known"
    assert "nvmlDeviceGetHandleByUUID" not in fake.calls
