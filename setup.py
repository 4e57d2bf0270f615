"""Build the optional Cython kernels; everything else is in pyproject.toml.

Without a C compiler the build goes on and the package runs on its Python references. Set
SATURNMQ_KERNELS=require to make a failing kernel fail the build (CI does),
SATURNMQ_KERNELS=off to skip them.
"""

import os

from setuptools import Extension, setup

mode = os.environ.get("SATURNMQ_KERNELS", "optional")
kernels = {
    "saturnmq.protocol.frame_kernel": ["protocol/frame_kernel.pyx", "protocol/crc32.c"],
    "saturnmq.store.store_kernel": ["store/store_kernel.pyx"],
    "saturnmq.client.client_kernel": ["client/client_kernel.pyx"],
}
extensions = [
    Extension(
        name,
        sources,
        include_dirs=["protocol"],
        extra_compile_args=["-O3", "-Wno-unused-function"],
        optional=mode != "require",
    )
    for name, sources in kernels.items()
    if os.path.exists(sources[0])
]
setup(ext_modules=[] if mode == "off" else extensions)
