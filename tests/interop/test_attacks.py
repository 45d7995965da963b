"""Each attack of `attacks.py`: the honest are not stopped by it, and the memory comes back."""

from __future__ import annotations

import pytest

from tests import security
from tests.interop.attacks import ATTACKS, suffer

pytestmark = pytest.mark.interop

# The machine of the tests may be busy; a turn that is not bounded takes seconds.
PATIENCE = 1.5
MEMORY = 1_000
KEPT = 250


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", list(ATTACKS))
async def test_an_attack_in_full(name: str) -> None:
    row = await suffer(name)
    print(row)
    assert max(row.ping, row.publish) < PATIENCE
    assert row.most < MEMORY and row.after < KEPT
    security.record("attacks", name, row._asdict())
