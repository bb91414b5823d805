"""The shipped record of what attacks reached."""

from __future__ import annotations

from verfedgnn.privacy.audit_record import audit_records


def test_every_record_says_what_others_learn_and_where_it_was_measured() -> None:
    records = audit_records()
    assert set(records) == {"best", "private"}
    for record in records.values():
        assert record.learnt.endswith(".")
        assert all(0.4 < value <= 1 for value in record.figures.values())
        assert record.data
        assert len(record.commit) >= 7
