"""Requests that are well formed and wrong: made from the schema (`protocol/headers.py`), field by
field at, below and above its bounds, missing, or of another kind; bodies likewise.
"""
