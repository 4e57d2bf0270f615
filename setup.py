"""Build the optional Cython kernels and the descriptors of the gRPC API (tools/protos.py);
everything else is in pyproject.toml.

Without a C compiler the build goes on and the package runs on its Python references. Set
SATURNMQ_KERNELS=require to make a failing kernel fail the build (CI does),
SATURNMQ_KERNELS=off to skip them.
"""

import os
import subprocess
import sys

from setuptools import Extension, setup

mode = os.environ.get("SATURNMQ_KERNELS", "optional")
# Cython looks for a .pxd under its module's full name, which the folders bear only once installed.
types = os.path.join("build", "types")
os.makedirs(os.path.join(types, "saturnmq"), exist_ok=True)
for package in ("protocol",):
    if not os.path.lexists(os.path.join(types, "saturnmq", package)):
        os.symlink(os.path.abspath(package), os.path.join(types, "saturnmq", package))

FRAMES = "protocol/frame_kernel/"
CRC = FRAMES + "crc32.c"  # linked into each module that uses crc.pxd
kernels = {
    "saturnmq.protocol.frame_kernel.sending": [FRAMES + "sending.pyx", CRC],
    "saturnmq.protocol.frame_kernel.writing": [FRAMES + "writing.pyx", CRC],
    "saturnmq.protocol.frame_kernel.scanning": [FRAMES + "scanning.pyx", CRC],
    "saturnmq.protocol.frame_kernel.received": [FRAMES + "received.pyx"],
    "saturnmq.protocol.command_kernel": ["protocol/command_kernel.pyx"],
    "saturnmq.protocol.number_kernel": ["protocol/number_kernel.pyx"],
    "saturnmq.protocol.sql92_kernel": ["protocol/sql92_kernel.pyx"],
    "saturnmq.store.store_kernel": ["store/store_kernel.pyx"],
    "saturnmq.client.client_kernel": ["client/client_kernel.pyx"],
    "saturnmq.client.consumer.poll_kernel": ["client/consumer/poll_kernel.pyx"],
    "saturnmq.pipeline.arrow_kernel": ["pipeline/arrow_kernel.pyx"],
    "saturnmq.pipeline.encode_kernel": ["pipeline/encode_kernel.pyx"],
    "saturnmq.pipeline.jobs.digest_kernel": ["pipeline/jobs/digest_kernel.pyx"],
}
extensions = [
    Extension(
        name,
        sources,
        include_dirs=[FRAMES],
        extra_compile_args=["-O3", "-Wno-unused-function"],
        optional=mode != "require",
    )
    for name, sources in kernels.items()
    if os.path.exists(sources[0])
]
for extension in extensions:
    extension.cython_include_dirs = [types]
subprocess.run([sys.executable, "tools/protos.py"], check=True)
setup(ext_modules=[] if mode == "off" else extensions)
