"""Arrays of blocks and of codes with scales, and what both share."""
