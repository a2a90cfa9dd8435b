"""MLflow's registry, in a SQLite file or as a client that only says what it was asked."""

from __future__ import annotations

import pytest
from mlflow.exceptions import MlflowException

from monitoring.mlflow_store import told
from monitoring.tracking import TrackingError

pytestmark = [
    pytest.mark.timeout(300),  # MLflow, on a busy machine
    pytest.mark.filterwarnings("ignore"),  # SQLAlchemy's, of MLflow's own tables
]


def test_what_mlflow_says_of_an_address_has_no_password() -> None:
    words = f"{'x' * 170} http://me:s3cret-{'y' * 50}@here/api failed"  # cut before its @, it would show
    with pytest.raises(TrackingError) as found, told("http://me:s3cret@here/?key=s3cret"):
        raise MlflowException(words, error_code=1000)
    assert "xxx" in str(found.value)
    assert "s3cret" not in str(found.value)
