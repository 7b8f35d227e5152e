"""Where a federation runs."""

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # Flower reads it once, when it is first imported
