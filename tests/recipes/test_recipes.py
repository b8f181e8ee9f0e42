from dataclasses import FrozenInstanceError, asdict
from typing import Any

import pytest

from rheobase import recipes
from rheobase.models import MODELS
from rheobase.recipes import RECIPES, Recipe


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_carries_its_name_and_a_known_network(name: str) -> None:
    recipe = recipes.get(name)
    assert recipe.name == name
    assert recipe.network in MODELS
    assert RECIPES[name].__doc__
    assert Recipe(**asdict(recipe)) == recipe


@pytest.mark.parametrize(
    ("name", "network", "timesteps", "batch_size", "step_epochs"),
    [
        ("cifar10_resnet19_t2_paper", "resnet19", 2, 36, 35),
        ("imagenet_resnet34", "resnet34", 6, 192, 35),
        ("imagenet_resnet34_large", "resnet34_large", 6, 80, 35),
        ("imagenet_resnet50", "resnet50", 6, 80, 45),
        ("dvsgesture_resnet17", "resnet17", 40, 40, 1000),
        ("dvscifar10_resnet19", "resnet19", 10, 36, 35),
    ],
)
def test_settings_of_the_paper(name: str, network: str, timesteps: int, batch_size: int, step_epochs: int) -> None:
    recipe = recipes.get(name)
    assert (recipe.network, recipe.timesteps, recipe.batch_size) == (network, timesteps, batch_size)
    assert (recipe.schedule, recipe.step_epochs, recipe.lr, recipe.momentum) == ("step", step_epochs, 0.1, 0.9)
    assert (recipe.nesterov, recipe.loss, recipe.decay) == (False, "mean", 0.25)


def test_a_recipe_of_another_version_names_its_file() -> None:
    settings = asdict(recipes.get("demo"))
    assert Recipe.of(settings, "r.json") == recipes.get("demo")
    for wrong in (settings | {"colour": "red"}, {"name": "demo"}, settings | {"lr": -1.0}):
        with pytest.raises(ValueError, match=r"^r\.json: not a recipe of this version"):
            Recipe.of(wrong, "r.json")


@pytest.mark.parametrize("timesteps", [2, 4, 6])
def test_cifar10_differs_in_the_last_epochs_alone(timesteps: int) -> None:
    recipe, two = recipes.get(f"cifar10_resnet19_t{timesteps}"), recipes.get("cifar10_resnet19_t2")
    assert [recipe.timesteps_at(epoch) for epoch in (0, 87, 88, 109)] == [2, 2, timesteps, timesteps]
    same = {"name": two.name, "timesteps": 2, "short_timesteps": 0, "short_epochs": 0}
    assert asdict(recipe) | same == asdict(two)
    assert (recipe.decay, recipe.loss, recipe.lr, recipe.schedule) == (0.5, "mean", 0.2, "cosine")


@pytest.mark.parametrize(
    ("name", "neuron"),
    [("cifar10_relu19", {"neuron": "relu"}), ("cifar10_qcfs19", {"neuron": "qcfs", "levels": 4})],
)
def test_twins_without_spikes_have_the_same_schedule(name: str, neuron: dict[str, Any]) -> None:
    spiking = asdict(recipes.get("cifar10_resnet19_t2"))
    assert asdict(recipes.get(name)) == spiking | {"name": name, "timesteps": 1, **neuron}


@pytest.mark.parametrize("end", ["t4", "best"])
def test_cifar100_is_trained_like_cifar10(end: str) -> None:
    recipe, other = (asdict(recipes.get(f"{data}_resnet19_{end}")) for data in ("cifar100", "cifar10"))
    assert recipe == other | {"name": f"cifar100_resnet19_{end}", "data": "cifar100", "loss": "steps"}


def test_photographs_have_a_twin_without_spikes() -> None:
    twin = recipes.get("images_resnet34").changed(["neuron=relu", "timesteps=1"])
    assert {twin.timesteps_at(epoch) for epoch in range(twin.epochs)} == {1}
    assert (twin.data, twin.image_size, twin.network) == ("pictures", 224, "resnet34")


def test_settings_are_parsed_by_the_type_of_their_field() -> None:
    changed = recipes.get("demo").changed(["lr=1e-2", "epochs=7", "nesterov=False", "flip=true", "loss=steps"])
    assert (changed.lr, changed.epochs, changed.nesterov, changed.flip, changed.loss) == (0.01, 7, False, True, "steps")
    assert changed.network == recipes.get("demo").network


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("lr", "expected key=value, got 'lr'"),
        ("rate=1", "a recipe has no setting 'rate'; choose one of data, network, timesteps"),
        ("epoch=1", r"a recipe has no setting 'epoch' \(did you mean 'epochs'\?\); choose one of data"),
        ("name=x", "a recipe has no setting 'name'"),
        ("epochs=2.5", "epochs: expected a whole number, got '2.5'"),
        ("lr=fast", "lr: expected a number, got 'fast'"),
        ("lr=nan", "lr: expected above 0, got nan"),
        ("lr=0", "lr: expected above 0, got 0.0"),
        ("flip=1", "flip: expected true or false, got '1'"),
        ("schedule=linear", "schedule: expected one of step, cosine, got 'linear'"),
        ("loss=", "loss: expected a name, got ''"),
        ("timesteps=0", "timesteps: expected at least 1, got 0"),
        ("decay=1.5", "decay: expected between 0 and 1, got 1.5"),
        ("padding=-1", "padding: expected 0 or more, got -1"),
        ("width=0", "width: expected between 1e-09 and 1000000000, got 0.0"),
        ("width=1e300", r"width: expected between 1e-09 and 1000000000, got 1e\+300"),
        ("v_th=inf", "v_th: expected between 1e-09 and 1000000000, got inf"),
        ("v_th=1e-320", "v_th: expected between 1e-09 and 1000000000, got 1e-320"),
        ("warmup_epochs=inf", "warmup_epochs: expected a finite number, got inf"),
        ("warmup_epochs=-inf", "warmup_epochs: expected 0 or more, got -inf"),
        ("lr=inf", "lr: expected a finite number, got inf"),
        ("padding=99999999999999999999", "padding: expected at most 1000000000, got 99999999999999999999"),
        ("timesteps=1000000001", "timesteps: expected at most 1000000000, got 1000000001"),
        ("seed=9223372036854775808", "seed: expected at most 9223372036854775807, got 9223372036854775808"),
        (f"window={10**400}", "window: expected at most 1000000000, got 1000000000"),
        (f"window={-(10**400)}", "window: expected 0 or more, got -1000000000"),
        ("average=1.5", "average: expected between 0 and 1, got 1.5"),
        ("label_smoothing=-0.1", "label_smoothing: expected between 0 and 1, got -0.1"),
        ("holdout=-1", "holdout: expected 0 or more, got -1"),
        ("short_timesteps=-1", "short_timesteps: expected 0 or more, got -1"),
        ("time_jitter=-1", "time_jitter: expected 0 or more, got -1"),
        ("cutout=-1", "cutout: expected 0 or more, got -1"),
        ("reset=mild", "reset: expected one of hard, soft, got 'mild'"),
        ("learn_decay=yes", "learn_decay: expected one of none, layer, channel, got 'yes'"),
        ("neuron=relu", "neuron=relu has no time dimension: expected timesteps=1, got 4"),
        ("neuron=qcfs", "neuron=qcfs has no time dimension: expected timesteps=1, got 4"),
        ("normalisation=layer", "normalisation: expected one of tdbn, none, neunorm, got 'layer'"),
        ("levels=4", "levels is a setting of neuron=qcfs; leave it out with neuron=lif"),
        ("levels=0", "levels: expected at least 1, got 0"),
        ("short_epochs=3", "short_epochs needs short_timesteps"),
        ("alternate_flip=true", "alternate_flip needs flip=true"),
    ],
)
def test_bad_settings_are_one_sentence(setting: str, message: str) -> None:
    with pytest.raises(ValueError, match="^" + message):
        recipes.get("demo").changed([setting])


def test_a_decay_that_is_learnt_starts_inside() -> None:
    with pytest.raises(
        ValueError, match=r"^decay: a learnt decay must start between 0 and 1, both excluded, got 1\.0$"
    ):
        recipes.get("demo").changed(["decay=1", "learn_decay=layer"])


def test_unknown_recipe_names_the_known() -> None:
    with pytest.raises(ValueError, match=r"unknown recipe 'dmo' \(did you mean 'demo'\?\); choose one of demo, im"):
        recipes.get("dmo")


def test_a_recipe_is_frozen() -> None:
    recipe: Any = recipes.get("demo")
    with pytest.raises(FrozenInstanceError):
        recipe.lr = 1.0


def test_short_timesteps_come_first() -> None:
    recipe = recipes.get("demo").changed(["short_timesteps=2", "short_epochs=3"])
    assert [recipe.timesteps_at(epoch) for epoch in range(5)] == [2, 2, 2, 4, 4]


def test_counts_are_whole_numbers() -> None:
    settings = asdict(recipes.get("demo")) | {"epochs": 20.5}
    with pytest.raises(ValueError, match=r"recipe\.json: .*epochs: expected a whole number, got 20\.5"):
        Recipe.of(settings, "recipe.json")


def test_other_normalisations_are_for_spiking_neurons() -> None:
    with pytest.raises(ValueError, match=r"^normalisation=none needs neuron=lif, got neuron=relu$"):
        recipes.get("demo").changed(["normalisation=none", "neuron=relu", "timesteps=1"])
