"""Contract tests for plug-ins, which the built-in GNNs pass as well (docs/python.md).

    class TestMine(verfedgnn.testing.GNNContract):
        gnn = MyOperator

Run them with pytest, or call the methods; nothing here needs pytest.
"""

from verfedgnn.testing.gnn_contract import GNNContract

__all__ = ["GNNContract"]
