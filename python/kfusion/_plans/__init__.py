"""Plans and all that shows them: read plan.py first, then records.py."""
