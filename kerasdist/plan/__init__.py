"""The plan: what a run is going to do, printed before it starts."""

from kerasdist.plan.plan import Plan as Plan
from kerasdist.plan.plan import plan_deployment as plan_deployment
from kerasdist.plan.plan import plan_training as plan_training
