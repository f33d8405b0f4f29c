"""The digits need no file."""


def write(config, folder):
    return {}
