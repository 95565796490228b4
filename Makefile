# The short names; CMake and Ninja do the work in build/. CONTRIBUTING.md says what to run when.
BUILD := build
MODEL := $(BUILD)/models/spark-66m
PREFIX ?= /usr/local
SECONDS_EACH := $(or $(SECONDS),20)

.PHONY: all build run test e2e check san fuzz nightly bench eval compare-tokenizer install clean
all: build

# Build everything and unpack the bundled model.
build:
	@script/setup.sh build
	@cmake -G Ninja -B $(BUILD) -DCMAKE_INSTALL_PREFIX=$(PREFIX) >/dev/null
	@cmake --build $(BUILD)

# Ask the bundled model about the bundled document.
run: build
	@script/demo.sh $(BUILD)

# All tests; the last line is the sum.
test: build
	@script/test.sh $(BUILD)

# OpenAI's client, the AI SDK, LangChain, curl and a browser against a real server; needs Node.js 20 or later.
e2e: build
	@script/setup.sh e2e
	@script/e2e.sh $(BUILD)

# Layers, sizes, names, format, clang-tidy, bytes tracked.
check: build
	@script/setup.sh check
	@script/check.sh $(BUILD)

# Unit tests, op checks and fuzz corpora under ASan + UBSan; pool and queues under TSan.
san:
	@script/setup.sh build san
	@script/san.sh

# Every fuzz target for SECONDS (20) each.
fuzz:
	@script/setup.sh build san
	@script/fuzz.sh $(SECONDS_EACH)

# What takes too long for every change.
nightly:
	@script/setup.sh build check san
	@script/nightly.sh

# Speed beside llama.cpp in one run, dated results in bench/results; needs npm and 25 quiet minutes.
bench: build
	@bench/speed.sh $(BUILD)

# What policies and KV formats cost in quality, dated results in bench/results: SIZE=short (default) takes 20 quiet
# minutes, long some hours; a stopped run goes on.
eval: build
	@script/eval_quality.sh $(BUILD) $(SIZE)

# The tokenizer against Hugging Face's library, token by token; needs node and npm.
compare-tokenizer: build
	@script/compare_tokenizer.sh $(BUILD)

install: build
	@DESTDIR=$(DESTDIR) cmake --install $(BUILD) --prefix $(PREFIX)

clean:
	rm -rf build build-*
