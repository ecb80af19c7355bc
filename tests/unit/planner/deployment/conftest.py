"""What tests of deployed servers read a thousand times is read fast: YAML by libyaml, a schema of Kubernetes once."""

import functools
from collections.abc import Iterator

import pytest
import yaml


@pytest.fixture(scope="package", autouse=True)
def read_fast() -> Iterator[None]:
    """The same documents from the same constructor, events from libyaml where it is there."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(yaml, "safe_load", functools.partial(yaml.load, Loader=loader))
        patched.setattr(yaml, "safe_load_all", functools.partial(yaml.load_all, Loader=loader))
        try:
            from kubernetes_validate import utils
        except ImportError:
            pass
        else:
            patched.setattr(utils, "schema_contents", functools.cache(utils.schema_contents))
        yield
