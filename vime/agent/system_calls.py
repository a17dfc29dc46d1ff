"""A seccomp filter (classic BPF) against system calls that agents' programs do not need and that would evade their limits.

It denies new namespaces and mounts, tracing of other processes, memory that no limit counts (memfd, System V shared memory),
sockets, key rings and kernel modules. The numbers are those of Linux's system-call tables. Workspaces have a variant in which
programs may open sockets of ordinary kinds, in a network of their own.
"""

import platform
import struct

_DENIED = {  # name: (x86_64, aarch64)
    "socket": (41, 198),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "kexec_load": (246, 104),
    "personality": (135, 92),
    "syslog": (103, 116),
}
_CLONE, _CLONE3 = (56, 220), 435
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column in the table, and the architecture's constant in a filter (AUDIT_ARCH_*), by machine."""
_NEW_NAMESPACES = 0x7E020080
"""CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET} and CLONE_NEWTIME."""
_X32 = 0x40000000
_SOCKET, _MEMORY_FILE = "socket", "memfd_create"
_ORDINARY_SOCKETS = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK (to list network interfaces); raw sockets need rights that no program here has."""
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_LOAD, _EQUAL, _GREATER_OR_EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _MACHINE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16


def machine_is_known() -> bool:
    """True if the table has numbers for this machine."""
    return platform.machine() in _MACHINES


def filter_program() -> bytes:
    """The filter in bubblewrap's format: 8 bytes per instruction (code, jump if true, jump if false, operand)."""
    return _packed([*_beginning(), *_denials(_DENIED), *_end()])


def workspace_filter(*, memory_files: bool) -> bytes:
    """The filter of a workspace, in which sockets of ordinary kinds are allowed.

    `memory_files` allows memfd_create: only where a control group counts that memory.
    """
    column, _ = _MACHINES[platform.machine()]
    denied = {
        name: numbers for name, numbers in _DENIED.items() if name != _SOCKET and not (memory_files and name == _MEMORY_FILE)
    }
    kinds = [(_EQUAL, len(_ORDINARY_SOCKETS) - place, 0, kind) for place, kind in enumerate(_ORDINARY_SOCKETS)]
    sockets = [
        (_EQUAL, 0, len(kinds) + 3, _DENIED[_SOCKET][column]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        *kinds,
        (_RETURN, 0, 0, _ERROR | _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return _packed([*_beginning(), *sockets, *_denials(denied), *_end()])


_Line = tuple[int, int, int, int]


def _beginning() -> list[_Line]:
    _, machine = _MACHINES[platform.machine()]
    return [
        (_LOAD, 0, 0, _MACHINE_AT),
        (_EQUAL, 1, 0, machine),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_GREATER_OR_EQUAL, 0, 1, _X32),
        (_RETURN, 0, 0, _ERROR | _EPERM),
        (_EQUAL, 0, 1, _CLONE3),  # its flags are behind a pointer; libraries fall back to clone
        (_RETURN, 0, 0, _ERROR | _ENOSYS),
    ]


def _denials(denied: dict[str, tuple[int, int]]) -> list[_Line]:
    column, _ = _MACHINES[platform.machine()]
    return [line for numbers in denied.values() for line in ((_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _ERROR | _EPERM))]


def _end() -> list[_Line]:
    column, _ = _MACHINES[platform.machine()]
    return [
        (_EQUAL, 0, 3, _CLONE[column]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        (_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        (_RETURN, 0, 0, _ERROR | _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _packed(lines: list[_Line]) -> bytes:
    return b"".join(struct.pack("<HBBI", *line) for line in lines)
