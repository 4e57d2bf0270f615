"""Operating: topics, groups, members of a broker group, promotions and hand-overs."""
