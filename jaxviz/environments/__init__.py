"""One program in two environments: facts about it in each, and what differs."""
