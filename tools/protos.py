"""Compile gateway/proto/*.proto to the descriptor set that `gateway/descriptors.py` loads.

A build runs it (setup.py). In a checkout that is run in place, run it by hand. The result depends
on the .proto files only, and works with every version of the protobuf package; generated classes
would need a protobuf that is as new as the compiler.

    python tools/protos.py
"""

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

SOURCES = Path(__file__).parents[1] / "gateway" / "proto"
NAME = "saturnmq/gateway/proto"  # as the files import each other
RESULT = SOURCES / "api.binpb"


def main() -> int:
    included = files("grpc_tools") / "_proto"  # google/protobuf/timestamp.proto and its like
    return int(
        protoc.main(
            [
                "protoc",
                f"-I{NAME}={SOURCES}",
                f"-I{included}",
                "--include_imports",
                f"--descriptor_set_out={RESULT}",
                *(f"{NAME}/{path.name}" for path in sorted(SOURCES.glob("*.proto"))),
            ]
        )
    )


if __name__ == "__main__":
    sys.exit(main())
