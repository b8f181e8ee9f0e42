"""The benchmarks' own machinery, at a toy size: what is compared, what is reported, what is skipped."""

import json
from contextlib import nullcontext
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from benchmarks import checkpoint, group, inference, loop, memory, soma, step
from benchmarks.contenders import CONTENDERS, FLOOR, VARIANTS, Contender, Setting, difference_from_law, synapses
from benchmarks.measure import _captured_if_possible, play_round, prepare
from benchmarks.peers import ReluSoma, Unavailable
from rheobase import models, recipes
from rheobase.train.capture import CapturedStep
from rheobase.train.scale import Cluster

pytestmark = pytest.mark.slow

SMALL = Setting(timesteps=3, batch=5, device="cpu", network="resnet8", image_size=8)


def altered(setting: Setting, **neuron: Any) -> Any:
    net = setting.build(**neuron)
    return net, partial(net, timesteps=setting.timesteps)


@pytest.mark.parametrize("name", [FLOOR, *CONTENDERS, *VARIANTS])
def test_contender_trains_and_is_what_it_claims(name):
    if "compiled" in name:
        pytest.skip("needs a compiler and minutes")
    try:
        trial = prepare(name, SMALL)
    except Unavailable as reason:
        pytest.skip(str(reason))
    trial.repeats = 1
    assert play_round(trial, "cpu")["seconds"] > 0
    assert name == FLOOR or trial.facts["peak_bytes"] > 0


def test_check_against_the_law_sees_other_neurons():
    leakier = Contender("", partial(altered, decay=0.3), same="spikes")
    assert difference_from_law(leakier, SMALL) > 1e-2


def test_check_against_the_law_sees_other_gradients():
    narrow = partial(altered, width=0.6)
    assert difference_from_law(Contender("", narrow, same="spikes"), SMALL) < 1e-9
    assert difference_from_law(Contender("", narrow, same="gradients"), SMALL) > 1e-2


def test_check_against_the_law_is_that_of_the_own_neuron():
    soft = partial(altered, reset="soft", learn_decay="layer")
    assert difference_from_law(Contender("", soft, same="gradients"), SMALL) > 1e-2
    own = {"reset": "soft", "learn_decay": "layer"}
    assert difference_from_law(Contender("", soft, same="gradients", neuron=own), SMALL) < 1e-9


def test_a_network_of_other_size_is_refused(monkeypatch):
    wider = Contender("", lambda setting: altered(setting, num_classes=11))
    monkeypatch.setitem(CONTENDERS, "wider", wider)
    with pytest.raises(AssertionError, match="78139 parameters instead of 78074"):
        prepare("wider", SMALL)


def test_floor_holds_every_synapse_at_its_shape():
    found = [(type(layer).__name__, list(x), list(y)) for layer, x, y in synapses(SMALL)]
    assert found[0] == ("Conv2d", [5, 3, 8, 8], [5, 16, 8, 8])  # a static image: once, not T times
    assert found[3] == ("Conv2d", [15, 16, 8, 8], [15, 32, 4, 4])
    assert found[-1] == ("Linear", [15, 64], [15, 10])
    assert len(found) == 1 + 2 + 3 + 3 + 1


def test_comparison_reports_and_names_who_is_skipped():
    quiet = Console(quiet=True)
    *_, run = step.compare([FLOOR, "loop", "relu-graph"], SMALL, 1, quiet)
    run = json.loads(json.dumps(run))
    assert run["skipped"] == {"relu-graph": "needs a GPU"}
    loop = run["results"]["loop"]
    assert loop["us_lowest"] <= loop["us_per_image_timestep"] <= loop["us_highest"]
    assert loop["parameters"] == 78074
    floor = run["results"][FLOOR]["us_per_image_timestep"]
    assert loop["ratio_to_floor"] == pytest.approx(loop["us_per_image_timestep"] / floor)
    assert loop["images_per_second"] == pytest.approx(1e6 / (3 * loop["us_per_image_timestep"]))
    page = StringIO()
    console = Console(file=page, width=160)
    console.print(step.step_table(run))
    assert "plain PyTorch, loop over time" in page.getvalue()
    console.print(step.sweep_table([run], [FLOOR, "loop", "relu-graph"]))
    assert "skipped" in page.getvalue()


def test_a_sweep_says_how_many_settings_are_to_come(monkeypatch, tmp_path, to_come):
    said = to_come(step)
    monkeypatch.setattr(step, "swept", lambda setting, sweep: [SMALL, SMALL])
    out = tmp_path / "step.json"
    monkeypatch.setattr("sys.argv", ["step", "--sweep", "batch", "--only", FLOOR, "--rounds", "1", "--out", str(out)])
    step.main()
    assert said == sorted(said, reverse=True)
    assert list(dict.fromkeys(said)) == [2, 1, 0]
    assert len(json.loads(out.read_text())["runs"]) == 2


def test_groups_of_one_say_how_many_cases_are_to_come(monkeypatch, tmp_path, to_come):
    said = to_come(group)
    words = ["--cases", "demo:6", "demo:5", "--rounds", "1", "--out", str(tmp_path / "group.json")]
    monkeypatch.setattr("sys.argv", ["group", *words])
    group.main()
    assert said == [1, 0]


@pytest.mark.filterwarnings("default")  # as outside of tests
@pytest.mark.parametrize("reason", ["operation not permitted when stream is capturing", "CUDA out of memory."])
def test_a_step_that_cannot_be_captured_is_no_graph(monkeypatch, reason):
    """One that lacks memory may find it when others have ended, so it does not go on eagerly."""

    def step():
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError(reason)
        return ()

    calls, facts = [], {}
    monkeypatch.setattr(CapturedStep, "_run_aside", lambda self, inputs: self.step(*inputs))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph", lambda _: nullcontext())
    for name in ("empty_cache", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    if "memory" in reason:
        with pytest.raises(UserWarning, match="out of memory"):
            _captured_if_possible(step, facts)
        return
    assert _captured_if_possible(step, facts) is step
    assert facts["graph"] is False
    assert reason in facts["graph_error"]


def test_a_process_that_dies_is_an_answer_too():
    worker = step.Worker("loop", SMALL)
    worker.process.kill()
    assert worker.ask("prepare") == {"error": "the process ended with code -9"}
    worker.stop()


def test_disturbed_rounds_do_not_count():
    worker = step.Worker.__new__(step.Worker)
    worker.setting, worker.facts = SMALL, {}
    worker.rounds = [{"seconds": s, "disturbed": s > 2} for s in (1.5, 9.0, 1.8, 1.2)]
    result = worker.result(floor=1.0)
    assert result["us_per_image_timestep"] == pytest.approx(1.5e6 / 15)
    assert (result["rounds"], result["disturbed_rounds"], result["ratio_to_floor"]) == (3, 1, 1.5)
    assert not result["only_disturbed"]


def test_sweep_over_timesteps_keeps_the_work():
    settings = step.swept(Setting(4, 256, "cuda"), "timesteps")
    assert [(s.timesteps, s.batch) for s in settings] == [
        (1, 1024), (2, 512), (4, 256), (6, 171), (8, 128), (16, 64), (40, 26)
    ]  # fmt: skip
    assert [s.batch for s in step.swept(Setting(4, 256, "cuda"), "batch")] == [32, 64, 128, 256, 512]


def test_a_step_of_all_somas_is_added_up():
    rows = [
        {"step": "forward", "somas": 3, "bytes": 100, "seconds": 2e-6},
        {"step": "forward", "somas": 1, "bytes": 500, "seconds": 4e-6},
        {"step": "statistics", "somas": 3, "bytes": 40, "seconds": 1e-6},
    ]
    found = soma.totals(rows, Setting(timesteps=2, batch=5, device="cpu"))
    assert [*found] == ["forward", "statistics"]
    assert found["forward"]["us_per_image_timestep"] == pytest.approx((3 * 2 + 4) / 10)
    assert found["forward"]["bytes_per_second"] == pytest.approx((3 * 100 + 500) / 10e-6)


def test_soma_counts_the_fewest_bytes():
    found = soma.shapes(SMALL)
    assert sum(found.values()) == 1 + 2 * 3
    static = soma.Shape((3, 5, 16, 8, 8), branches=1, static=True)
    double = soma.Shape((3, 5, 32, 4, 4), branches=2, static=False)
    assert found[static] == found[double] == 1
    one_step, whole = 4 * 5 * 16 * 8 * 8, 4 * 3 * 5 * 32 * 4 * 4
    sizes = {name: size for name, (size, _) in soma.steps(static, SMALL, "cpu").items()}
    assert sizes["statistics"] == one_step
    assert sizes["backward_inputs"] == one_step * (1 + 3 + 1)
    calls = soma.steps(double, SMALL, "cpu")
    assert {name: size // whole for name, (size, _) in calls.items()} == {
        "statistics": 2, "forward": 3, "backward_sums": 3, "backward_inputs": 5
    }  # fmt: skip
    spikes, _ = calls["forward"][1]()
    assert spikes.shape == torch.Size([3, 5, 32, 4, 4])


def test_the_loop_beside_its_bare_step():
    recipe = recipes.get("demo").changed(["epochs=3", "batch_size=512", "timesteps=1"])
    found = json.loads(json.dumps(loop.measure(recipe, None, torch.device("cpu"), steps=1)))
    bare, (_, *epochs) = found["bare_step_seconds"], found["epoch_seconds"]
    share = sum(epochs) / 2 / (1438 / 512 * (bare["before"] + bare["after"]) / 2)
    assert found["overhead_percent"] == pytest.approx(100 * (share - 1))
    assert found["evaluation_seconds"] > 0
    assert found["checkpoint_seconds"] > 0


def test_checkpoints_beside_the_training(monkeypatch):
    monkeypatch.setattr(checkpoint, "NETWORKS", {"resnet8": (8, 10, {"cpu": 6})})
    found = checkpoint.measure("resnet8", torch.device("cpu"), between=2, checkpoints=3)
    assert all(len(found[f"{what}_seconds"]) == 3 for what in ("stall", "drag", "written"))
    assert all(w > s for w, s in zip(found["written_seconds"], found["stall_seconds"], strict=True))
    parameters = sum(p.numel() for p in models.resnet8(in_channels=3).parameters())
    assert found["checkpoint_bytes"] > 3 * 4 * parameters  # weights, their average, momentum


def test_a_group_of_one_says_what_several_would():
    recipe = group.case("demo:6")
    with group.group_of_one(torch.device("cpu")) as members:
        run = group.measure(recipe, torch.device("cpu"), members, 2, Cluster(8))
    run = json.loads(json.dumps(run))
    alone, joined, local = (run["results"][name] for name in group.CONTENDERS)
    assert (alone["collectives"], joined["collectives"], local["collectives"]) == (0, 2 * 7 + 1, 1)
    assert alone["ratio"] == alone["ratio_on_node"] == 1
    assert joined["ratio"] == pytest.approx(joined["seconds"] / alone["seconds"])
    added = joined["seconds_of_collectives_on_node"]
    assert joined["ratio_on_node"] == pytest.approx((joined["seconds"] + added) / alone["seconds"])
    assert local["bytes"] < joined["bytes"] < 1.1 * local["bytes"]
    assert (alone["captured"], alone["host_synchronisations"]) == (False, None)
    page = StringIO()
    Console(file=page, width=160).print(group.table([run], Cluster(8)))
    assert "joined (eager)" in page.getvalue()


def test_inference_measures_everybody_who_is_there() -> None:
    networks = inference.contenders("resnet8", 2, torch.device("cpu"), size=8)
    assert list(networks)[:3] == ["folded", "as trained", "ReLU network"]
    found = {"5": inference.measure(5, networks, 1, size=8)}
    assert all(of["images_per_second"] > 0 for of in found["5"].values())
    with torch.no_grad():  # two of them are the same network
        x = torch.randn(3, 3, 8, 8)
        assert networks["folded"](x).shape == networks["as trained"](x).shape == (2, 3, 10)
    page = StringIO()
    Console(file=page, width=120).print(inference.table("resnet8", 2, found))
    assert "batch 5, images/s" in page.getvalue()
    assert "as trained" in page.getvalue()


def test_inference_goes_on_without_a_peer_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails(ReluSoma):
        def __init__(self, channels: int, branches: int = 1, *, surrogate: str) -> None:
            super().__init__(channels, branches)

        def forward(self, *xs: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("not on this machine")

    monkeypatch.setattr(inference.peers, "SpikingJellySoma", Fails)
    found = inference.contenders("resnet8", 2, torch.device("cpu"), size=8)
    assert list(found) == ["folded", "as trained", "ReLU network"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_inference_on_a_gpu_is_eager_and_captured() -> None:
    networks = inference.contenders("resnet8", 2, torch.device("cuda"), size=8)
    found = inference.measure_on_gpu(5, networks, 1, 8)
    assert {"folded", "folded, CUDA graph", "as trained, CUDA graph", "ReLU network, T x N images"} <= found.keys()
    assert all(of["milliseconds"] > 0 for of in found.values())


def test_large_networks_have_sizes_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[Setting] = []

    def compare(names: list[str], setting: Setting, *others: Any) -> Any:
        seen.append(setting)
        yield {"setting": {}, "results": {}, "skipped": {}}

    monkeypatch.setattr(step, "compare", compare)
    monkeypatch.setattr(step, "step_table", lambda run: "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(step, "write_result", lambda *content, **how: None)
    for words in ([], ["--network", "resnet34"], ["--network", "resnet50"], ["--network", "resnet50", "--batch", "8"]):
        monkeypatch.setattr("sys.argv", ["step", *words, "--out", str(tmp_path / "out.json")])
        step.main()
    assert [(s.network, s.image_size, s.batch, s.timesteps) for s in seen] == [
        ("resnet19", 32, 256, 4), ("resnet34", 224, 48, 4), ("resnet50", 224, 32, 4), ("resnet50", 224, 8, 4)
    ]  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_the_benchmark_of_memory_says_that_it_needs_a_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["memory"])
    with pytest.raises(SystemExit):
        memory.main()
    assert capsys.readouterr().err.endswith("error: needs a GPU\n")
