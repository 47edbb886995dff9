"""The page of forms is that of the forms that are tested."""

from __future__ import annotations

import pytest
from tests.docs.forms import PAGE, make_page


@pytest.mark.filterwarnings("ignore:.torch.jit.script")
def test_the_page_says_what_the_tests_read() -> None:
    made = make_page()
    assert made == PAGE.read_text("utf-8"), "write it again: python tests/docs/forms.py"
    assert made.count("\n| ") > 200
