"""The cases of `support/exchange_cases.py` under TRITON_INTERPRET=1, which `test_triton.py` sets."""

from support.exchange_cases import *  # noqa: F403 (the tests)
