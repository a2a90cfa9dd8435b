"""An Azure Blob container as a store of backups. Called by `pg infra backup|restore`; logs in without keys."""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

from azure.core import MatchConditions
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    ResourceModifiedError,
    ResourceNotFoundError,
)
from azure.identity import DefaultAzureCredential
from azure.storage.blob import ContainerClient, ContentSettings

from proving_ground.infra.backup import Found
from proving_ground.infra.reading import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CONNECTION = "AZURE_STORAGE_CONNECTION_STRING"


CONTENT = ContentSettings(content_type="application/octet-stream")


class NotThereError(ConfigError):
    """There is no such object."""


class ChangedError(ConfigError):
    """The object is no longer what it was."""


class Blobs:
    """Implements `infra.backup.Store`; every method raises ConfigError as `plain` says."""

    def __init__(self, client: ContainerClient) -> None:
        self._client = client

    def names(self, prefix: str) -> Iterable[str]:
        """The objects whose names begin with `prefix`."""
        with plain("its list"):
            return [str(name) for name in self._client.list_blob_names(name_starts_with=prefix)]

    def found(self, prefix: str) -> Iterable[Found]:
        """The objects whose names begin with `prefix`, and how old they are."""
        with plain("its list"):
            blobs = list(self._client.list_blobs(name_starts_with=prefix))
        return [Found(str(blob.name), str(blob.etag), blob.last_modified) for blob in blobs]

    def put(self, name: str, data: BinaryIO) -> None:
        """Store an object whole, in place of an older one."""
        with plain(name):
            self._client.upload_blob(name, data, overwrite=True)

    def get(self, name: str, out: BinaryIO) -> None:
        """Write an object's bytes to `out`."""
        with plain(name):
            self._client.download_blob(name).readinto(out)

    def renew(self, name: str) -> bool:
        """Give an object a new tag and time; False when it is not there. Unlike metadata, headers make no version."""
        try:
            with plain(name):
                self._client.get_blob_client(name).set_http_headers(CONTENT)
        except NotThereError:
            return False
        return True

    def delete(self, name: str, tag: str | None = None) -> bool:
        """Remove an object, with a `tag` only if it still has it; whether it was removed."""
        only: dict[str, Any] = {"etag": tag, "match_condition": MatchConditions.IfNotModified} if tag else {}
        try:
            with plain(name):
                self._client.delete_blob(name, **only)
        except (NotThereError, ChangedError):
            return False
        return True


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
        raise NotThereError(f"backup: {what} is not in the container") from None
    except ResourceModifiedError:
        raise ChangedError(f"backup: {what} has changed meanwhile") from None
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
