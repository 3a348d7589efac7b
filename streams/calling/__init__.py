"""From a granted claim to a durable answer: leases, calls, settlement, and what follows a failure. ``dispatcher`` drives it."""
