"""Training of drafters: a corpus of the target's own answers, and what is learned from it."""
