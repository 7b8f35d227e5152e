"""Group fairness of a binary decision, by fairlearn's definitions.

* demographic parity: groups are selected at the same rate;
* equal opportunity: so are their positives (true positive rate);
* equalised odds: and their negatives (the larger of the differences in true and in false positive rate).

Each difference is that of the highest and the lowest group; 0 is fair.
"""

from sordina.fairness.measure import Fairness, Group, measure

__all__ = ["Fairness", "Group", "measure"]
