"""The methods that VerFedGNN is compared with, one module each, on the same data, split and evaluation."""

from __future__ import annotations

from verfedgnn import plugins
from verfedgnn.core.errors import ConfigError
from verfedgnn_research.baselines.alone_baseline import Alone
from verfedgnn_research.baselines.central_gnn import CentralGNN
from verfedgnn_research.baselines.descent_methods import (
    AutoRec,
    BiasedMF,
    LightGCN,
    SVDPlusPlus,
)
from verfedgnn_research.baselines.fedpergnn import FedPerGNN
from verfedgnn_research.baselines.fedsage import FedSage, FedSagePlus
from verfedgnn_research.baselines.matrix_factorization import MF
from verfedgnn_research.baselines.method import Declaration, Method, MethodResult, Where
from verfedgnn_research.baselines.simple_methods import (
    EASE,
    EMCDR,
    IALS,
    Bias,
    ItemKNN,
    Pipeline,
    Popularity,
    at_home,
)
from verfedgnn_research.baselines.verfedgnn_method import (
    VerFedGNN,
    VerFedGNNBest,
    VerFedGNNGated,
    VerFedGNNPrivate,
)

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Popularity(),
        at_home(Popularity),
        Bias(),
        at_home(Bias),
        ItemKNN(),
        at_home(ItemKNN),
        EASE(),
        at_home(EASE),
        IALS(),
        at_home(IALS),
        LightGCN(),
        EMCDR(),
        SVDPlusPlus(),
        at_home(SVDPlusPlus),
        AutoRec(),
        at_home(AutoRec),
        Pipeline(),
        at_home(Pipeline),
        MF(),
        BiasedMF(),
        at_home(BiasedMF),
        CentralGNN(),
        Alone(),
        FedPerGNN(),
        FedSage(),
        FedSagePlus(),
        VerFedGNN(),
        VerFedGNNBest(),
        VerFedGNNGated(),
        VerFedGNNPrivate(),
    )
}
"""Built-in methods by their name on the command line, in the order of tables."""


def methods() -> dict[str, Method]:
    """Return the built-in methods, followed by plug-ins."""
    return METHODS | plugins.load_methods()


def method(name: str) -> Method:
    """Return the method with that name."""
    found = METHODS if name in METHODS else methods()
    if name not in found:
        raise ConfigError(f"there is no method '{name}'; choose from: {', '.join(found)}; {plugins.REMEDY}")
    return found[name]


def in_all(names: str) -> list[str]:
    """Parse `a,b,c` as names of methods and check them; `all` stands for every method."""
    if names.strip() == "all":
        return list(methods())
    return [method(name.strip()).name for name in dict.fromkeys(names.split(","))]


__all__ = ["METHODS", "Declaration", "Method", "MethodResult", "Where", "in_all", "method", "methods"]
