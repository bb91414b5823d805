"""Contract tests that a plug-in inherits, and that the built-in GNNs and methods pass as well (docs/python.md).

    class TestMine(verfedgnn.testing.GNNContract):
        gnn = MyOperator

Run by pytest, or by calling the methods; nothing here needs pytest.
"""

from verfedgnn.testing.gnn_contract import GNNContract
from verfedgnn.testing.method_contract import MethodContract

__all__ = ["GNNContract", "MethodContract"]
