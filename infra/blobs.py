"""An Azure Blob container as a store of backups. Called by `python -m infra backup|restore`; logs in without keys."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO

from azure.core.exceptions import AzureError, ResourceNotFoundError
from azure.identity import DefaultAzureCredential
from azure.storage.blob import ContainerClient

from infra.reading import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

CONNECTION = "AZURE_STORAGE_CONNECTION_STRING"


class Blobs:
    """Implements `infra.backup.Store`."""

    def __init__(self, client: ContainerClient) -> None:
        self._client = client

    def names(self, prefix: str) -> Iterable[str]:
        """The objects whose names begin with `prefix`."""
        return [str(name) for name in self._client.list_blob_names(name_starts_with=prefix)]

    def put(self, name: str, data: BinaryIO) -> None:
        """Store an object whole, in place of an older one."""
        self._client.upload_blob(name, data, overwrite=True)

    def get(self, name: str, out: BinaryIO) -> None:
        """Write an object's bytes to `out`.

        Raises:
            ConfigError: it is not there, or storage does not answer.
        """
        try:
            self._client.download_blob(name).readinto(out)
        except ResourceNotFoundError:
            raise ConfigError(f"backup: {name} is not in the container") from None
        except AzureError as error:
            raise ConfigError(f"backup: {name} cannot be read: {error.message}") from None

    def delete(self, name: str) -> None:
        """Remove an object."""
        self._client.delete_blob(name)


def container(where: str) -> Blobs:
    """The container at a URL (`https://ACCOUNT.blob.core.windows.net/backups`), as the caller's identity.

    A bare name is a container of the account in AZURE_STORAGE_CONNECTION_STRING (an emulator, for instance).

    Raises:
        ConfigError: neither.
    """
    if where.startswith("https://"):
        return Blobs(ContainerClient.from_container_url(where, DefaultAzureCredential()))
    connection = os.environ.get(CONNECTION)
    if not connection:
        raise ConfigError(f"{where}: not a URL, and {CONNECTION} is not set; allowed: https://ACCOUNT…/CONTAINER")
    return Blobs(ContainerClient.from_connection_string(connection, where))
