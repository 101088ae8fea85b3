"""Train drafters on what their target writes: prompts, the target's answers, the drafter, its weights and card."""
