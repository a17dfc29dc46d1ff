"""The built-in domain: a shop whose agent looks up orders and cancels, refunds or redirects them within its policy."""

from typing import Any

from agentic.toolorchestra.environment.database import Data, DatabaseTool, ToolError

POLICY = """You help the customers of a shop. Look an order up before you change it.
- A pending order can be cancelled, and its address can be changed.
- A delivered order can be refunded, once.
- A shipped order cannot be changed.
If the policy allows what the customer asks for, do it and say so. If not, change nothing and say that it is not possible.
If the customer asks what is in an order, tell them the item."""

PENDING, SHIPPED, DELIVERED, CANCELLED, REFUNDED = "pending", "shipped", "delivered", "cancelled", "refunded"
STATUSES = (PENDING, SHIPPED, DELIVERED)


def get_order(data: Data, order_id: str) -> dict[str, Any]:
    """Returns an order with its number."""
    return {"order_id": order_id, **_order(data, order_id)}


def list_orders(data: Data, customer: str) -> list[str]:
    """Returns the numbers of a customer's orders."""
    found = sorted(number for number, order in data["orders"].items() if order["customer"] == customer)
    if not found:
        raise ToolError(f"there is no customer {customer}")
    return found


def cancel_order(data: Data, order_id: str) -> str:
    """Cancels a pending order."""
    return _change(data, order_id, before=PENDING, after=CANCELLED)


def refund_order(data: Data, order_id: str) -> str:
    """Refunds a delivered order."""
    return _change(data, order_id, before=DELIVERED, after=REFUNDED)


def change_address(data: Data, order_id: str, city: str) -> str:
    """Changes the city of a pending order."""
    order = _order(data, order_id)
    if order["status"] != PENDING:
        raise ToolError(f"order {order_id} is {order['status']}, not {PENDING}")
    order["city"] = city
    return f"goes to {city}"


def _order(data: Data, order_id: str) -> dict[str, Any]:
    if order_id not in data["orders"]:
        raise ToolError(f"there is no order {order_id}")
    return data["orders"][order_id]


def _change(data: Data, order_id: str, *, before: str, after: str) -> str:
    order = _order(data, order_id)
    if order["status"] != before:
        raise ToolError(f"order {order_id} is {order['status']}, not {before}")
    order["status"] = after
    return after


_NUMBER = {"order_id": "number of the order"}
TOOLS = (
    DatabaseTool(name="get_order", description="Shows an order.", parameters=_NUMBER, writes=False, run=get_order),
    DatabaseTool(
        name="list_orders",
        description="Lists a customer's orders.",
        parameters={"customer": "name of the customer"},
        writes=False,
        run=list_orders,
    ),
    DatabaseTool(name="cancel_order", description="Cancels a pending order.", parameters=_NUMBER, writes=True, run=cancel_order),
    DatabaseTool(
        name="refund_order", description="Refunds a delivered order.", parameters=_NUMBER, writes=True, run=refund_order
    ),
    DatabaseTool(
        name="change_address",
        description="Sends a pending order to another city.",
        parameters={**_NUMBER, "city": "the new city"},
        writes=True,
        run=change_address,
    ),
)
