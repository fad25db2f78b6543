"""Libraries of which one thing is changed, or two: a file each."""
