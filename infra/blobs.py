"""An Azure Blob container as a store of backups. Called by `python -m infra backup|restore`; logs in without keys."""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from azure.core.exceptions import AzureError, ClientAuthenticationError, ResourceNotFoundError
from azure.identity import DefaultAzureCredential
from azure.storage.blob import ContainerClient

from infra.reading import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CONNECTION = "AZURE_STORAGE_CONNECTION_STRING"


class Blobs:
    """Implements `infra.backup.Store`; every method raises ConfigError as `plain` says."""

    def __init__(self, client: ContainerClient) -> None:
        self._client = client

    def names(self, prefix: str) -> Iterable[str]:
        """The objects whose names begin with `prefix`."""
        with plain("its list"):
            return [str(name) for name in self._client.list_blob_names(name_starts_with=prefix)]

    def put(self, name: str, data: BinaryIO) -> None:
        """Store an object whole, in place of an older one."""
        with plain(name):
            self._client.upload_blob(name, data, overwrite=True)

    def get(self, name: str, out: BinaryIO) -> None:
        """Write an object's bytes to `out`."""
        with plain(name):
            self._client.download_blob(name).readinto(out)

    def delete(self, name: str) -> None:
        """Remove an object."""
        with plain(name):
            self._client.delete_blob(name)


@contextmanager
def plain(what: str) -> Iterator[None]:
    """Azure's errors as one line each.

    Raises:
        ConfigError: it is not there, the caller is not logged in, or storage does not answer.
    """
    try:
        yield
    except ResourceNotFoundError as error:
        if getattr(error, "error_code", "") == "ContainerNotFound":
            raise ConfigError("backup: the container is not there") from None
        raise ConfigError(f"backup: {what} is not in the container") from None
    except ClientAuthenticationError as error:
        raise ConfigError(f"credentials: {first_line(error)} (az login)") from None
    except AzureError as error:
        raise ConfigError(f"backup: {what} cannot be had: {first_line(error)}") from None


def first_line(error: AzureError) -> str:
    """Of a message that may be a page."""
    return next(iter(str(error.message).splitlines()), type(error).__name__)


def token(scope: str) -> str:
    """A token of the caller's identity for a service of Azure's.

    Raises:
        ConfigError: as `plain` says.
    """
    logging.getLogger("azure").setLevel(logging.CRITICAL)  # what it would say is in the error
    with plain(scope):
        return DefaultAzureCredential().get_token(scope).token


def container(where: str) -> Blobs:
    """The container at a URL (`https://ACCOUNT.blob.core.windows.net/backups`), as the caller's identity.

    A bare name is a container of the account in AZURE_STORAGE_CONNECTION_STRING (an emulator, for instance).

    Raises:
        ConfigError: neither.
    """
    logging.getLogger("azure").setLevel(logging.CRITICAL)  # what it would say is in the error
    if where.startswith("https://"):
        return Blobs(ContainerClient.from_container_url(where, DefaultAzureCredential()))
    connection = os.environ.get(CONNECTION)
    if not connection:
        raise ConfigError(f"{where}: not a URL, and {CONNECTION} is not set; allowed: https://ACCOUNT…/CONTAINER")
    return Blobs(ContainerClient.from_connection_string(connection, where))
