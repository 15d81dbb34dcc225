"""The proof of docs/reliability.md: parts that break a store on purpose and count what it lost.

`python -m crash` (with `tests` on the path) runs them; `make harness`, `make crash` and `make soak` call it or pytest.
"""
