"""Limits of time in tests, for machines that are slow and busy.

HANGS_S   what takes longer never ends.
SLACK_S   how much later than it should, or than "at once", something may come.
"""

HANGS_S = 600.0
SLACK_S = 60.0
