"""From a finished training to a registered model, to an end point, to what the end point bears."""
