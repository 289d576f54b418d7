"""What the syphon does while all is well: everything comes home, in order, as it was."""

from spark_sb_sink.amqp import decode_message
from tests.syphon.field import Field


def test_a_backlog_comes_home_in_order_and_nothing_stays(field: Field) -> None:
    orders, invoices = field.entities(2)
    drain = field.drain()
    wanted = [field.backlog_for(orders, 3000), field.backlog_for(invoices, 500)]
    report = field.until_empty(drain)
    for entity, ids in zip((orders, invoices), wanted, strict=True):
        assert [decode_message(message).message_id for message in field.arrived(entity)] == ids
    assert {receipt.entity: receipt.moved for receipt in report.receipts} == {orders: 3000, invoices: 500}
    assert all(receipt.bytes > 0 and receipt.oldest_ms for receipt in report.receipts)
    assert report.total("lost_locks") == report.total("unconfirmed") == report.total("deferred") == 0
