#!/bin/sh
# Packs what `python -m benchmarks gpu` needs on a machine without a network: the tree without the trained drafters, and
# the wheels that an image with CUDA and torch may lack. In the repository's folder, with a pip of any platform:
#   sh benchmarks/gpu/travel.sh travel.tar
# There, with Python 3.12 (or PYTHON=3.13 above) on x86_64:
#   mkdir travel && tar -xf travel.tar -C travel && cd travel
#   python3 -m pip install --quiet --no-index --no-deps --no-compile --target site wheels/*.whl
#   PYTHONPATH=site python3 -m benchmarks gpu --seconds 540 --out results
set -e
version=${PYTHON:-3.12}
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
git ls-files -z -- . ':!assets/drafters' | xargs -0 cp --parents -t "$folder"
# requirements.lock names the versions.
for name in transformers llguidance pydantic pydantic-core annotated-types typing-inspection platformdirs gguf plotly; do
    grep -o "^$name==[^ ]*" requirements.lock
done > "$folder/wheels.txt"
python3 -m pip download --quiet --no-deps --only-binary=:all: --implementation cp --python-version "$version" \
    --abi "cp$(echo "$version" | tr -d .)" --abi abi3 --abi none \
    --platform manylinux_2_31_x86_64 --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
    --platform manylinux2014_x86_64 \
    --dest "$folder/wheels" --requirement "$folder/wheels.txt"
tar -cf "$1" -C "$folder" .
echo "$(($(wc -c < "$1") / 1048576)) MiB"
