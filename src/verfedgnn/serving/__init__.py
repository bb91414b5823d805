"""Recommendations from a run: scored in batches, folded in for newcomers, and served over HTTP, as a table or on a web page.

The modules `app`, `request_guard`, `schema` and `server` need the extra `serve`.
"""
