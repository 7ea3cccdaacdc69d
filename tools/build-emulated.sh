#!/usr/bin/env bash
# Build ggml for another machine, and a Python of that machine, for `ggmlq check --emulate`, into a folder.
#
#     tools/build-emulated.sh FOLDER [aarch64|riscv64] [FLAGS OF CMAKE ...]
#
# For Debian 12 or later as root: installs qemu-user-static and a cross compiler; Python and NumPy of the other
# machine are unpacked in FOLDER/root. The sources are llama-cpp-python's, of which only ggml's CPU backend is
# built, two minutes of one core. Then `. FOLDER/environment` sets the variables that tests/llama/test_emulated.py
# needs. Flags choose instructions: -DGGML_CPU_ARM_ARCH=armv8.2-a+dotprod+fp16 for NEON without SVE.
set -euo pipefail
out=$(realpath -m "${1:?a folder to build in}")
machine=${2:-aarch64}
shift $(($# > 1 ? 2 : 1))
release=0.3.36
case $machine in
    aarch64) arch=arm64 suite=bookworm flags=(-DGGML_CPU_ARM_ARCH=armv8.2-a+dotprod+i8mm+fp16+sve) ;;
    riscv64) arch=riscv64 suite=trixie flags=(-DGGML_RVV=ON -DGGML_RV_ZFH=ON -DGGML_RV_ZVFH=ON) ;;
    *) echo "$machine: choose aarch64 or riscv64" >&2; exit 2 ;;
esac
mkdir -p "$out"/{debs,lists,archives}/partial "$out/root"
cd "$out"

apt-get update -qq
apt-get install -y -qq --no-install-recommends qemu-user-static "g++-${machine//_/-}-linux-gnu" cmake ninja-build
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $suite main" > list
apt=(-o Dir::Etc::sourcelist="$out/list" -o Dir::Etc::sourceparts=/dev/null -o Dir::State::lists="$out/lists"
    -o Dir::Cache="$out" -o APT::Architecture="$arch" -o APT::Architectures="$arch" -o APT::Sandbox::User=root
    -o Dir::State::status=/dev/null)
apt-get "${apt[@]}" update -qq
apt-get "${apt[@]}" install -y -qq --no-install-recommends --download-only -o Dir::Cache::archives="$out/debs" \
    python3-numpy libgomp1
for deb in debs/*.deb; do dpkg -x "$deb" root; done
# Debian keeps BLAS behind links that a package's script makes.
find root/usr/lib -path '*blas/libblas.so.3' -o -path '*lapack/liblapack.so.3' | while read -r library; do
    ln -sf "$(realpath --relative-to="$(dirname "$(dirname "$library")")" "$library")" "$(dirname "$(dirname "$library")")"
done

python3 -m pip download -q --no-deps --no-binary llama-cpp-python "llama-cpp-python==$release"
tar xzf llama_cpp_python-*.tar.gz
ggml=$(echo llama_cpp_python-*/vendor/llama.cpp/ggml)
touch "$ggml/ggml.pc.in"  # the sources lack it, and CMake wants it
cmake -G Ninja -S "$ggml" -B build -DCMAKE_BUILD_TYPE=Release -DCMAKE_SYSTEM_NAME=Linux \
    -DCMAKE_SYSTEM_PROCESSOR="$machine" -DCMAKE_C_COMPILER="$machine-linux-gnu-gcc" \
    -DCMAKE_CXX_COMPILER="$machine-linux-gnu-g++" -DGGML_NATIVE=OFF -DGGML_OPENMP=OFF \
    -DGGML_BUILD_TESTS=OFF -DGGML_BUILD_EXAMPLES=OFF "${flags[@]}" "$@"
cmake --build build --target ggml
cat > environment <<EOT
export GGMLQ_EMULATED=$out/build GGMLQ_EMULATOR=qemu-$machine-static:$out/root
EOT
echo "built; . $out/environment; ggmlq check --lib \$GGMLQ_EMULATED --emulate \$GGMLQ_EMULATOR"
