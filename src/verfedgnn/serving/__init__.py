"""Recommendations from a run: scored in batches, folded in for newcomers, and served over HTTP, as a table or on a web page.

The modules of this package need only the run. The modules of `http` also need the extra `serve`.
"""
