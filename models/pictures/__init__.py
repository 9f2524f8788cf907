"""Pictures that a run writes: samples, the learning curve, the confusion matrix and mistakes."""
