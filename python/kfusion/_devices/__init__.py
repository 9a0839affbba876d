"""What machines can do, from the table or measured: read device.py first, then device_table.py."""
