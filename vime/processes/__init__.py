"""Programs that run beside the driver: launched, watched, launched again, and gone when their run is."""
