"""Models of torchvision, timm and transformers, with random weights.

Each library is imported only where one of its models is built.
"""

from __future__ import annotations

import importlib
from collections import OrderedDict
from collections.abc import Callable
from difflib import get_close_matches
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

from rankbench.rank.torchvision_ops import import_torchvision


def find(name: str) -> SimpleNamespace:
    """The model LIBRARY/NAME, in place of the file of a model.

    Returns:
        build, whose options go to the library; image_size, which returns the side of
        the images that the model is made for, or None if it takes tokens.

    Raises:
        ValueError: there is no such library.
    """
    library, _, model = name.partition("/")
    if library not in _FINDERS:
        raise ValueError(f"{name!r}: expected one of {', '.join(_FINDERS)} before /")
    build, image_size = _FINDERS[library](model)
    return SimpleNamespace(build=build, image_size=image_size)


_Found = tuple[Callable[..., nn.Module], Callable[[], int] | None]


def _of_torchvision(name: str) -> _Found:
    def build(image_size: int, classes: int, **options: Any) -> nn.Module:
        if name.startswith("vit_"):
            options.setdefault("image_size", image_size)
        if name in ("googlenet", "inception_v3"):
            options |= {"aux_logits": False, "init_weights": True}
        built: nn.Module = import_torchvision().models.get_model(
            name, weights=None, num_classes=classes, **options
        )
        return built

    def image_size() -> int:
        weights = import_torchvision().models.get_model_weights(name).DEFAULT
        return int(weights.transforms().crop_size[0])

    return build, image_size


def _of_timm(name: str) -> _Found:
    def build(
        channels: int, image_size: int, classes: int, **options: Any
    ) -> nn.Module:
        given = {"num_classes": classes, "in_chans": channels, **options}
        timm = _import_timm()
        if image_size == made_for():
            return timm.create_model(name, pretrained=False, **given)  # type: ignore[no-any-return]
        try:
            # Transformers must know the size; others take any and refuse the argument.
            built: nn.Module = timm.create_model(
                name, pretrained=False, img_size=image_size, **given
            )
        except TypeError:
            built = timm.create_model(name, pretrained=False, **given)
        return built

    def made_for() -> int:
        found = _import_timm().get_pretrained_cfg(name)
        return int(found.input_size[-1]) if found else 224

    return build, made_for


def _import_timm() -> Any:
    import_torchvision()  # timm imports it as well, without its remedy
    return importlib.import_module("timm")


def _of_transformers(name: str) -> _Found:
    def build(vocabulary: int, context: int, **options: Any) -> nn.Module:
        import_torchvision()  # transformers may import it, without its remedy
        transformers = importlib.import_module("transformers")
        known = transformers.AutoConfig.for_model(name)
        config = transformers.AutoConfig.for_model(
            name, **{"vocab_size": vocabulary, **options}
        )
        # It keeps whatever it does not know.
        for option in options:
            if hasattr(config, option) and not hasattr(known, option):
                near = get_close_matches(option, known.to_dict(), 1)
                hint = "".join(f"; did you mean {n!r}?" for n in near)
                raise ValueError(f"{name}: unknown option {option!r}{hint}")
        if getattr(config, "max_position_embeddings", context) < context:
            config.max_position_embeddings = context
        return LanguageModel(transformers.AutoModelForCausalLM.from_config(config))

    return build, None


class LanguageModel(nn.Module):
    """A causal language model: ids [N, T] to logits [N, T, vocabulary]."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=ids, use_cache=False).logits
        return logits


_FINDERS = {
    "torchvision": _of_torchvision,
    "timm": _of_timm,
    "transformers": _of_transformers,
}


def resnet(name: str, *, channels: int, classes: int) -> nn.Sequential:
    """torchvision's untrained ResNet `name` as a sequence, in the order of its forward.

    Parameters keep the names that they have in torchvision. It pools globally, so it
    takes images of any size.
    """
    model = getattr(import_torchvision().models, name)(num_classes=classes)
    if channels != model.conv1.in_channels:
        model.conv1 = nn.Conv2d(
            channels, 64, kernel_size=7, stride=2, padding=3, bias=False
        )
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    parts = OrderedDict(model.named_children())
    fc = parts.popitem()
    assert fc[0] == "fc", f"{name} ends with {fc[0]}"
    return nn.Sequential(OrderedDict([*parts.items(), ("flatten", nn.Flatten()), fc]))
