"""The runtime: workers that execute schedules over links, and the doors to them."""
