"""Attack what was trained, and say what the attack proves: scores, ROC, and a lower bound on epsilon."""
