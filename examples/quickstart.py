"""From ratings to recommendations in a minute, on synthetic data: `.venv/bin/python examples/quickstart.py`."""

import verfedgnn as vf

parties = vf.split_items(vf.read_ratings("synthetic"), by="category")
run = vf.train(parties, vf.Config.preset("best", model="gcn", epochs=400))
print(f"test RMSE {run.metrics['test']['rmse']:.3f} after {run.metrics['rounds']} rounds")
print(f"{run.metrics['bytes']['per_party_per_round']:,} bytes a party and round")
for item in run.recommend("u0042", k=5):
    print(f"  {item.score:.2f}  {item.title} ({item.party})")
