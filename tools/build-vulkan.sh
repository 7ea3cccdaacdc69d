#!/usr/bin/env bash
# Build ggml with Vulkan for tests/llama/test_vulkan.py, from llama-cpp-python's sources, into a folder.
#
#     tools/build-vulkan.sh FOLDER [RELEASE]
#
# For Debian 12 with cmake, g++ and pip. Packages are unpacked in the folder, nothing is installed: Mesa's
# lavapipe, which runs Vulkan on a CPU, glslc, and the headers of Debian 13, as ggml wants newer ones. Then
# `. FOLDER/environment` sets the variables that the tests need. One core takes some seven minutes; set
# MAKEFLAGS=-j4 for four.
set -euo pipefail
out=$(realpath -m "${1:?a folder to build in}")
release=${2:-0.3.36}
mkdir -p "$out"/{debs,newer,lists,archives}/partial "$out"/{root,headers}
cd "$out"

apt-get update -qq
apt-get install -qq --no-install-recommends --download-only -o Dir::Cache::archives="$out/debs" \
    glslc libvulkan1 mesa-vulkan-drivers
for deb in debs/*.deb; do dpkg -x "$deb" root; done

keyring=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keyring] http://deb.debian.org/debian trixie main" > newer.list
newer=(-o Dir::Etc::sourcelist="$out/newer.list" -o Dir::Etc::sourceparts=/dev/null
    -o Dir::State::lists="$out/lists" -o Dir::Cache="$out" -o APT::Sandbox::User=root)
apt-get "${newer[@]}" update -qq
(cd newer && apt-get "${newer[@]}" download -qq libvulkan-dev spirv-headers)
for deb in newer/*.deb; do dpkg -x "$deb" headers; done

python3 -m pip download -q --no-deps --no-binary llama-cpp-python "llama-cpp-python==$release"
tar xzf llama_cpp_python-*.tar.gz
ggml=$(echo llama_cpp_python-*/vendor/llama.cpp/ggml)
touch "$ggml/ggml.pc.in"  # the sources lack it, and CMake wants it

libs=$out/root/usr/lib/x86_64-linux-gnu
export LD_LIBRARY_PATH=$libs
cmake -S "$ggml" -B build -DCMAKE_BUILD_TYPE=Release -DGGML_VULKAN=ON -DGGML_BUILD_TESTS=OFF \
    -DGGML_BUILD_EXAMPLES=OFF -DVulkan_INCLUDE_DIR="$out/headers/usr/include" \
    -DVulkan_LIBRARY="$libs/libvulkan.so.1" -DVulkan_GLSLC_EXECUTABLE="$out/root/usr/bin/glslc" \
    -DSPIRV-Headers_DIR="$out/headers/usr/share/cmake/SPIRV-Headers"
cmake --build build --target ggml
sed "s#/usr/lib/x86_64-linux-gnu#$libs#" root/usr/share/vulkan/icd.d/lvp_icd.x86_64.json > lavapipe.json
cat > environment <<EOF
export LD_LIBRARY_PATH=$libs VK_ICD_FILENAMES=$out/lavapipe.json GGML_VK_VISIBLE_DEVICES=0
export GGMLQ_VULKAN=$out/build
EOF
echo "built; for the tests: . $out/environment"
