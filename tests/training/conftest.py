from tests.few_devices import few_devices  # noqa: F401
