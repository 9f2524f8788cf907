"""Python runs this when it starts: imports and traces make objects by the million, few garbage."""

import gc

gc.set_threshold(50_000, 20, 50)
