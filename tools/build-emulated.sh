#!/usr/bin/env bash
# Build ggml for arm64, and a Python of that machine, for `ggmlq check --emulate`, into a folder.
#
#     tools/build-emulated.sh FOLDER [FLAGS OF CMAKE ...]
#
# For Debian 12 as root: installs qemu-user-static and a cross compiler. Python and NumPy of the other machine
# are unpacked in FOLDER/root. The sources are llama-cpp-python's, of which only ggml's CPU backend is built, two
# minutes of one core. With GGMLQ_EMULATED=FOLDER tests/llama/test_emulated.py judges it.
# Flags choose instructions: -DGGML_CPU_ARM_ARCH=armv8.2-a+dotprod+fp16 for NEON without SVE.
set -euo pipefail
out=$(realpath -m "${1:?a folder to build in}")
shift
machine=aarch64 arch=arm64 release=0.3.36
mkdir -p "$out"/{debs,lists,archives}/partial "$out/root"
cd "$out"

apt-get update -qq
apt-get install -y -qq --no-install-recommends qemu-user-static g++-$machine-linux-gnu cmake ninja-build
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main" \
    > list
apt=(-o Dir::Etc::sourcelist="$out/list" -o Dir::Etc::sourceparts=/dev/null -o Dir::State::lists="$out/lists"
    -o Dir::Cache="$out" -o Dir::State::status=/dev/null -o APT::Architecture=$arch -o APT::Architectures=$arch
    -o APT::Sandbox::User=root)
apt-get "${apt[@]}" update -qq
(cd debs && apt-get "${apt[@]}" download -qq python3.11-minimal libpython3.11-minimal libpython3.11-stdlib \
    libc6 libstdc++6 libgcc-s1 libgomp1 zlib1g libexpat1 libffi8 libbz2-1.0 liblzma5 libcrypt1 libssl3 libuuid1)
for deb in debs/*.deb; do dpkg -x "$deb" root; done
python3 -m pip download -q --no-deps --only-binary :all: --python-version 311 \
    --platform manylinux2014_$machine --platform manylinux_2_27_$machine --platform manylinux_2_28_$machine numpy
python3 -m zipfile -e numpy-*.whl root/usr/lib/python3/dist-packages

python3 -m pip download -q --no-deps --no-binary llama-cpp-python "llama-cpp-python==$release"
tar xzf llama_cpp_python-*.tar.gz
ggml=$(echo llama_cpp_python-*/vendor/llama.cpp/ggml)
touch "$ggml/ggml.pc.in"  # the sources lack it, and CMake wants it
cmake -G Ninja -S "$ggml" -B build -DCMAKE_BUILD_TYPE=Release -DCMAKE_SYSTEM_NAME=Linux \
    -DCMAKE_SYSTEM_PROCESSOR=$machine -DCMAKE_C_COMPILER=$machine-linux-gnu-gcc \
    -DCMAKE_CXX_COMPILER=$machine-linux-gnu-g++ -DGGML_NATIVE=OFF -DGGML_OPENMP=OFF \
    -DGGML_CPU_ARM_ARCH=armv8.2-a+dotprod+fp16+sve -DGGML_BUILD_TESTS=OFF -DGGML_BUILD_EXAMPLES=OFF "$@"
cmake --build build --target ggml
echo "built: ggmlq check --lib $out/build --emulate qemu-$machine-static:$out/root"
