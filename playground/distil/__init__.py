"""Trains drafters on their target's answers: prompts, answers, training, the drafter's weights and model card."""
