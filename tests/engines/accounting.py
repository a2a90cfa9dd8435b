"""A site's accounting: MariaDB and slurmdbd on the controller's machine of a Slurm cluster. Called by `slurm.py`.

Their folders, sockets and logs are the machine's own, in memory, and go with it.
"""

from __future__ import annotations

import shlex
import time

from tests.engines.machines import Machine

PROGRAMS = {
    "mariadbd": "mariadb-server-core", "my_print_defaults": "mariadb-client-core", "slurmdbd": "slurmdbd",
    "sacct": "slurm-client",
}  # fmt: skip
"""Program → the Debian package that has it."""

READY_TIMEOUT_S = 60
DATA, RUN = "/var/lib/slurm/sql", "/run/mysqld"
MARIADB = [
    "mariadbd", "--no-defaults", "--user=root", f"--datadir={DATA}", f"--socket={RUN}/mysqld.sock",
    f"--pid-file={RUN}/mariadbd.pid", "--skip-networking", "--innodb-buffer-pool-size=32M",
    "--innodb-log-file-size=16M", "--innodb-lock-wait-timeout=900", "--innodb-flush-log-at-trx-commit=0",
]  # fmt: skip
INSTALL = [
    "mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={DATA}", "--skip-test-db",
    "--auth-root-authentication-method=normal",
]  # fmt: skip
DATABASE = f"""
mkdir -p {DATA} {RUN}
{shlex.join(INSTALL)} >/var/log/mariadb.log 2>&1
{shlex.join(MARIADB)} </dev/null >>/var/log/mariadb.log 2>&1 &
"""
LISTENS = ["test", "-S", f"{RUN}/mysqld.sock"]
CONF = """AuthType=auth/munge
AuthInfo=socket={socket}
DbdHost={name}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
LogFile=/var/log/slurmdbd.log
PidFile=/run/slurmdbd.pid
"""
KILL = ["sh", "-c", "kill -KILL $(cat /run/slurmdbd.pid)"]


def settings(machine: Machine) -> dict[str, str]:
    """The lines of slurm.conf by which all ask that machine."""
    return {"AccountingStorageType": "accounting_storage/slurmdbd", "AccountingStorageHost": machine.address}


def start(machine: Machine, cluster: str, socket: str) -> None:
    """Start both there, and make the cluster known: that comes before its controller starts. munged runs already.

    Raises:
        TimeoutError: one of them does not answer.
    """
    machine.run(["sh", "-c", DATABASE])
    until(machine, LISTENS, "/var/log/mariadb.log")
    machine.write("/etc/slurm/slurmdbd.conf", CONF.format(socket=socket, name=machine.name))
    machine.run(["slurmdbd"])
    until(machine, ["sacctmgr", "--immediate", "add", "cluster", cluster], "/var/log/slurmdbd.log")


def until(machine: Machine, command: list[str], log: str) -> None:
    """Run a command again and again until it succeeds."""
    end = time.monotonic() + READY_TIMEOUT_S
    while (done := machine.run(command, check=False)).returncode:
        if time.monotonic() > end:
            said = machine.run(["tail", "-n", "20", log], check=False).stdout
            raise TimeoutError(f"{command[0]}: {done.stdout}{done.stderr}; {said}")
        time.sleep(0.2)


def kill(machine: Machine) -> None:
    """Kill slurmdbd: nobody can ask what was counted any more."""
    machine.run(KILL)
